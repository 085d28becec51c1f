"""Names runs so that whatever a dead one left can be found, and takes it away.

Guarantees: a token names the process that owns a run and when that process started, and stands on
the command line of every process and in the alias of every device of the run; so nothing has to be
written to disk, and what belongs to a live owner, or to nobody we know, is never touched. Network
namespaces have no names of their own here: they go with the last process in them.
Must never know: rings, delays.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import time
from pathlib import Path

import msgspec

from engine.errors import ConfigError

TOKEN = re.compile(r"lhaul-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]{8}")
PROC = Path("/proc")
START_TICKS_IDX = 19  # field 22 of /proc/<pid>/stat, counted behind the command's name
END_TIMEOUT_S = 5.0


class AliasedDevice(msgspec.Struct, frozen=True):
    """What `ip -json link` says of a device, as far as we ask."""

    ifname: str
    ifalias: str = ""


def new_token() -> str:
    """Name a run of this process."""
    pid = os.getpid()
    return f"lhaul-{pid}-{_start_ticks(pid)}-{secrets.token_hex(4)}"


def is_owner_alive(token: str) -> bool:
    """Whether the process that a token names still runs; a later one of that id does not count."""
    named = TOKEN.fullmatch(token)
    return named is not None and _start_ticks(int(named["pid"])) == int(named["start"])


def clean_dead_runs() -> list[str]:
    """End the processes and remove the devices of runs whose owner is gone.

    Devices are looked for in the caller's namespace alone: those elsewhere go with their namespace.

    Returns:
        What was removed, a line each.

    Raises:
        ConfigError: a device of a dead run may not be removed by this user.
    """
    removed = [
        f"process {pid} of run {token}"
        for pid, token in processes_of_runs()
        if not is_owner_alive(token) and _end(pid, token)
    ]
    for device, token in _devices_of_runs():
        if not is_owner_alive(token) and _delete(device):
            removed.append(f"device {device} of run {token}")
    return removed


def processes_of_runs() -> list[tuple[int, str]]:
    """Process ids and tokens of everything that runs for any run, dead or alive."""
    found = []
    for folder in PROC.iterdir():
        if folder.name.isdigit() and (token := _token_of(int(folder.name))):
            found.append((int(folder.name), token))
    return sorted(found)


def _token_of(pid: int) -> str:
    """The token on a process's command line, or ""."""
    try:
        arguments = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""  # it ended meanwhile
    words = (argument.decode(errors="replace") for argument in arguments)
    # Only our own modules: an editor or a grep with a token on its command line is not ours.
    if not any(argument.startswith(b"bench.wan.netns_") for argument in arguments):
        return ""
    return next((word for word in words if TOKEN.fullmatch(word)), "")


def _start_ticks(pid: int) -> int | None:
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[START_TICKS_IDX])


def _end(pid: int, token: str) -> bool:
    """Kill a process and wait until it is gone; False if it was gone already."""
    try:
        process_fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if _token_of(pid) != token:  # the id went to another process since we looked
            return False
        signal.pidfd_send_signal(process_fd, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False  # it ended by itself, or it is another user's to clean
    finally:
        os.close(process_fd)
    deadline_s = time.monotonic() + END_TIMEOUT_S
    while _start_ticks(pid) is not None and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return True


def _devices_of_runs() -> list[tuple[str, str]]:
    try:
        listed = subprocess.run(["ip", "-json", "link"], capture_output=True, timeout=10)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return []  # without `ip` nothing of ours was set up
    devices = msgspec.json.decode(listed.stdout or b"[]", type=list[AliasedDevice])
    return [(each.ifname, each.ifalias) for each in devices if TOKEN.fullmatch(each.ifalias)]


def _delete(device: str) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        command = ["ip", "link", "delete", "dev", device]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=10)
        if "not permitted" in ended.stderr:
            raise ConfigError(f"device {device} may not be removed: {ended.stderr.strip()}")
        return ended.returncode == 0
    return False
