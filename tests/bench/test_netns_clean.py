"""Nothing is left behind: normal ends, killed owners, hung carriers, `bench wan clean`."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.wan import netns_cli, netns_runs
from bench.wan.netns_process import CHECKOUT_DIR, CarrierProcess, why_unavailable
from bench.wan.netns_runs import clean_dead_runs, is_owner_alive, new_token, processes_of_runs
from bench.wan.profile import load_profile

TIMEOUT_S = 30.0
OWNER = """
import json, os, time
from bench.wan.netns_process import CarrierProcess
from bench.wan.profile import load_profile

carrier = CarrierProcess()
ready = carrier.start(load_profile("lan").links(2), seed=1)
inodes = [os.stat(path).st_ino for path in ready.namespaces[1:]]
print(json.dumps({"token": carrier.token, "carrier": carrier.pid, "inodes": inodes}), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module", autouse=True)
def _available() -> None:
    if reason := why_unavailable():
        pytest.skip(reason)


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    """A process that owns a ring's hosts and does nothing with them."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, cwd=CHECKOUT_DIR
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def live_namespaces() -> set[int]:
    """Inodes of the network namespaces that some process is in or holds a descriptor of.

    Other people's rings may come and go meanwhile: tests look for their own inodes in here.
    """
    inodes = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            links = [folder / "ns" / "net", *(folder / "fd").iterdir()]
        except OSError:
            continue  # it ended meanwhile
        for link in links:
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target.startswith("net:["):
                inodes.add(int(target[5:-1]))
    return inodes


def devices() -> set[str]:
    return {name for name in os.listdir("/sys/class/net") if name.startswith("lhaul")}


def wait_until_gone(pid: int) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline_s, f"process {pid} still runs"
        time.sleep(0.02)


def heard(owner: subprocess.Popen[str]) -> dict[str, object]:
    assert owner.stdout is not None
    said: dict[str, object] = json.loads(owner.stdout.readline())
    return said


def test_a_normal_end_removes_namespaces_devices_and_processes() -> None:
    before = live_namespaces()
    with CarrierProcess() as carrier:
        ready = carrier.start(load_profile("lan").links(3), seed=1)
        made = {os.stat(path).st_ino for path in ready.namespaces[1:]}
        assert len(made) == 3 and made <= live_namespaces() and not made & before
        pid = carrier.pid
        assert pid is not None
        own_devices = {
            name
            for name in devices()
            if Path("/sys/class/net", name, "ifalias").read_text().strip() == carrier.token
        }
        assert len(own_devices) == 2
    assert not made & live_namespaces()
    assert not psutil.pid_exists(pid)
    assert carrier.token not in {token for _, token in processes_of_runs()}
    assert all(
        Path("/sys/class/net", name, "ifalias").read_text().strip() != carrier.token
        for name in devices() & own_devices
    )


def test_a_killed_owner_leaves_nothing(owner: subprocess.Popen[str]) -> None:
    said = heard(owner)
    assert set(said["inodes"]) <= live_namespaces()  # type: ignore[call-overload]
    owner.kill()
    owner.wait()
    wait_until_gone(int(str(said["carrier"])))
    assert not set(said["inodes"]) & live_namespaces()  # type: ignore[call-overload]
    clean_dead_runs()
    assert said["token"] not in {token for _, token in processes_of_runs()}


def test_clean_ends_a_hung_carrier_whose_owner_was_killed_and_no_other(
    owner: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = heard(owner)
    carrier_pid = int(str(said["carrier"]))
    os.kill(carrier_pid, signal.SIGSTOP)  # it cannot see that its owner is gone
    owner.kill()
    owner.wait()
    assert set(said["inodes"]) <= live_namespaces()  # type: ignore[call-overload]
    with CarrierProcess() as living:
        living.start(load_profile("lan").links(1), seed=1)
        assert netns_cli.clean() == 0
        living.check()
    assert f"process {carrier_pid} of run {said['token']}" in capsys.readouterr().out
    wait_until_gone(carrier_pid)
    assert not set(said["inodes"]) & live_namespaces()  # type: ignore[call-overload]


def test_clean_removes_devices_of_dead_runs_alone() -> None:
    """A kernel cable can outlive its carrier while somebody else holds the far namespace."""
    pid, start = os.getpid(), netns_runs.TOKEN.fullmatch(new_token())
    assert start is not None
    dead = f"lhaul-{pid}-1-{secrets.token_hex(4)}"  # this process id, but an earlier process
    aliases = {"lhT0": dead, "lhT1": new_token(), "lhT2": "not of ours"}
    assert not is_owner_alive(dead) and is_owner_alive(aliases["lhT1"])
    try:
        for name, alias in aliases.items():
            subprocess.run(
                ["ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}p"], check=True
            )
            subprocess.run(["ip", "link", "set", "dev", name, "alias", alias], check=True)
        assert f"device lhT0 of run {dead}" in clean_dead_runs()
        assert set(os.listdir("/sys/class/net")) & set(aliases) == {"lhT1", "lhT2"}
    finally:
        for name in aliases:
            subprocess.run(["ip", "link", "delete", "dev", name], capture_output=True)


def test_a_token_on_a_foreign_command_line_protects_that_process() -> None:
    """Somebody who greps for a token of a dead run is not part of it."""
    dead = f"lhaul-{os.getpid()}-1-{secrets.token_hex(4)}"
    with subprocess.Popen(["sleep", "60", "--", dead], stderr=subprocess.DEVNULL) as process:
        assert not any(token == dead for _, token in processes_of_runs())
        process.kill()
