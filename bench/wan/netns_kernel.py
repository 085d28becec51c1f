"""The few system calls that Python 3.11 does not have, and what their refusals mean.

Guarantees: a refusal becomes a `ConfigError` that says what is missing and what to do; nothing made
here outlives the process that made it: namespaces go with their last process or descriptor, TUN
devices with theirs.
Must never know: rings, stages, delays.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from engine.errors import ConfigError

CLONE_NEWNET = 0x40000000  # linux/sched.h
CLONE_NEWUSER = 0x10000000
TUNSETIFF = 0x400454CA  # linux/if_tun.h, the same on x86-64 and arm64
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
IFNAMSIZ = 16
IFREQ_BYTES = 40
PR_SET_TIMERSLACK = 29
TUN_PATH = "/dev/net/tun"
OWN_NETWORK = "/proc/thread-self/ns/net"
COMMAND_TIMEOUT_S = 20.0

ENTER = "python -m bench wan enter -- COMMAND …"
_libc = ctypes.CDLL(None, use_errno=True)


def unshare_network() -> None:
    """Put the calling thread into a new network namespace.

    Raises:
        ConfigError: the process may not.
    """
    if _libc.unshare(CLONE_NEWNET):
        _refuse_namespace(ctypes.get_errno())


def set_network(namespace_fd: int) -> None:
    """Put the calling thread into a network namespace that is there already.

    Raises:
        ConfigError: the process may not.
    """
    if _libc.setns(namespace_fd, CLONE_NEWNET):
        _refuse_namespace(ctypes.get_errno())


@contextlib.contextmanager
def in_network(path: str) -> Iterator[None]:
    """Let the calling thread open sockets in another namespace; they stay there.

    Args:
        path: such as `/proc/<pid>/fd/<number>`.

    Raises:
        ConfigError: no such namespace, or the process may not enter it.
    """
    home_fd = os.open(OWN_NETWORK, os.O_RDONLY)
    try:
        enter_network(path)
        try:
            yield
        finally:
            set_network(home_fd)
    finally:
        os.close(home_fd)


def enter_network(path: str) -> None:
    """Put the calling thread into the namespace at a path, for good.

    Raises:
        ConfigError: no such namespace, or the process may not enter it.
    """
    try:
        namespace_fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(
            f"no network namespace at {path}: {error.strerror}; the carrier that held it is gone"
        ) from error
    try:
        set_network(namespace_fd)
    finally:
        os.close(namespace_fd)


def open_tun(name: str) -> int:
    """Make a TUN device in the calling thread's namespace; it lives as long as the descriptor.

    Returns:
        A non-blocking descriptor: one read or write is one IP packet.

    Raises:
        FileExistsError: there is a device of that name.
        ConfigError: the machine has no TUN, or the process may not use it.
    """
    try:
        device_fd = os.open(TUN_PATH, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        _refuse_tun(error)
    request = struct.pack(f"{IFNAMSIZ}sH", name.encode(), IFF_TUN | IFF_NO_PI)
    try:
        fcntl.ioctl(device_fd, TUNSETIFF, request.ljust(IFREQ_BYTES, b"\0"))
    except OSError as error:
        os.close(device_fd)
        if error.errno in (errno.EBUSY, errno.EEXIST, errno.EINVAL):  # by whom the name is held
            raise FileExistsError(f"there is a device {name} already") from error
        _refuse_tun(error)
    return device_fd


def sharpen_timers() -> None:
    """Let the calling thread sleep to the microsecond; by default Linux adds up to 50."""
    _libc.prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(1), 0, 0, 0)


def run_first() -> bool:
    """Run before every ordinary process, as a network card would; False if this user may not."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        return False
    return True


def run_batch(program: str, lines: Sequence[str]) -> None:
    """Run `ip -batch` or `tc -batch` in the calling thread's namespace.

    Raises:
        FileExistsError: an address or device is there already.
        ConfigError: the program is missing or refuses; the message quotes it.
    """
    if not lines:
        return
    try:
        ended = subprocess.run(
            [program, "-batch", "-"],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
    except FileNotFoundError as error:
        raise ConfigError(
            f"network namespaces are set up with `{program}`, which is not on the path; install "
            "iproute2"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"`{program} -batch` did not end within {COMMAND_TIMEOUT_S} s") from error
    if ended.returncode:
        complaint = " ".join(ended.stderr.split())
        if "File exists" in complaint:
            raise FileExistsError(complaint)
        raise ConfigError(f"`{program} -batch` refused: {complaint}")


def become_user_root() -> None:
    """Move this process into a new user and network namespace in which it is root.

    Raises:
        ConfigError: the kernel does not let this user.
    """
    user_id, group_id = os.getuid(), os.getgid()
    if _libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
        raise ConfigError(
            f"user namespaces are refused ({os.strerror(ctypes.get_errno())}): run as root, or let "
            "an administrator allow them: sysctl user.max_user_namespaces > 0; on Debian "
            "kernel.unprivileged_userns_clone=1; on Ubuntu "
            "kernel.apparmor_restrict_unprivileged_userns=0"
        )
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {user_id} 1"),
        ("gid_map", f"0 {group_id} 1"),
    ):
        Path("/proc/self", name).write_text(line)
    run_batch("ip", ["link set dev lo up"])


def _refuse_namespace(error_number: int) -> NoReturn:
    reason = os.strerror(error_number)
    if error_number == errno.EPERM:
        reason = "this process may not: it lacks CAP_SYS_ADMIN"
    if error_number == errno.ENOSPC:
        reason = "sysctl user.max_net_namespaces is used up"
    raise ConfigError(
        f"network namespaces are refused ({reason}); run as root, or as a user through {ENTER}"
    )


def _refuse_tun(error: OSError) -> NoReturn:
    advice = {
        errno.ENOENT: "as root: modprobe tun; in a container: start it with --device /dev/net/tun",
        errno.ENXIO: "the kernel was built without CONFIG_TUN",
        errno.ENODEV: "the kernel was built without CONFIG_TUN",
        errno.EACCES: f"run as root, or let an administrator: chmod 0666 {TUN_PATH}",
        errno.EPERM: f"it lacks CAP_NET_ADMIN; run as root, or as a user through {ENTER}",
    }.get(error.errno or 0, "see the kernel's log")
    raise ConfigError(f"{TUN_PATH} cannot be used: {error.strerror}; {advice}") from error
