"""The relay process: it refuses bad links, and it never outlives whoever started it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.wan.netns_process import CarrierProcess
from bench.wan.profile import LinkShape
from bench.wan.relay import CHECKOUT_DIR, RelayConfig, RelayProcess, link_to
from engine.errors import ConfigError, LinkClosedError

TIMEOUT_S = 20.0


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def wait_until_ended(pid: int) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not has_ended(pid):
        assert time.monotonic() < deadline_s, "the relay still runs"
        time.sleep(0.02)


def test_stop_leaves_no_process_and_frees_the_name() -> None:
    with RelayProcess() as relay:
        for _ in range(2):
            relay.start([link_to(LinkShape(name="link", one_way_ns=0), 9)], seed=1)
            relay.check()
            pid = relay.pid
            assert pid is not None
            with pytest.raises(ConfigError, match="already runs"):
                relay.start([], seed=1)
            relay.stop()
            assert has_ended(pid)
            relay.stop()
            with pytest.raises(LinkClosedError):
                relay.check()


def test_a_relay_that_dies_is_noticed_and_reaped() -> None:
    with RelayProcess() as relay:
        relay.start([link_to(LinkShape(name="link", one_way_ns=0), 9)], seed=1)
        pid = relay.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(LinkClosedError, match="status -9"):
            deadline_s = time.monotonic() + TIMEOUT_S
            while time.monotonic() < deadline_s:
                relay.check()
                time.sleep(0.01)
    assert has_ended(pid)


def test_a_stopped_process_that_ignores_everything_is_killed() -> None:
    with RelayProcess() as relay:
        relay.start([link_to(LinkShape(name="link", one_way_ns=0), 9)], seed=1)
        pid = relay.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # neither end of input nor SIGTERM reaches it now
    assert has_ended(pid)


@pytest.mark.parametrize(
    "heir", ["", "if os.fork() == 0:\n    sys.stdin.read()\n    os._exit(0)\n"]
)
def test_the_relay_ends_with_its_parent_however_that_dies(heir: str) -> None:
    """Also when a forked child still holds the write end of the relay's standard input."""
    code = (
        "import os, sys, time\n"
        "from bench.wan.profile import LinkShape\n"
        "from bench.wan.relay import RelayProcess, link_to\n"
        "relay = RelayProcess()\n"
        "relay.start([link_to(LinkShape(name='link', one_way_ns=0), 9)], 1)\n"
        f"{heir}"
        "print(relay.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=CHECKOUT_DIR,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
        wait_until_ended(pid)


def test_a_relay_that_is_slow_to_start_ends_with_a_parent_that_is_gone_already() -> None:
    """Catches a relay that takes whoever adopted it for its parent, and so lives forever."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    link = link_to(LinkShape(name="link", one_way_ns=0), 9)
    config = RelayConfig(seed=1, parent_pid=gone.pid, links=(link,))
    with subprocess.Popen(
        [sys.executable, "-m", "bench.wan.relay"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=CHECKOUT_DIR,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(config) + b"\n")
        process.stdin.flush()  # and it stays open
        assert process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("start", [RelayProcess().start, CarrierProcess().start])
def test_relay_and_carrier_are_told_who_started_them(
    start: Callable[[list[Any], int], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a starter that leaves it to its child to find out, which may be too late."""
    told, child = tmp_path / "told", tmp_path / "child"
    child.write_text(f'#!/bin/sh\nread -r line\nprintf %s "$line" > {told}\n')
    child.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(child))
    with pytest.raises(LinkClosedError):
        start([], 1)
    assert json.loads(told.read_text())["parent_pid"] == os.getpid()


def test_sigterm_ends_the_relay_with_status_zero() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.wan.relay"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=CHECKOUT_DIR,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b'{"seed":1,"links":[{"name":"a","target_port":9,"one_way_ns":0}]}\n')
        process.stdin.flush()
        assert set(json.loads(process.stdout.readline())["ports"]) == {"a"}
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target_host": "192.0.2.1"}, "not a loopback address"),
        ({"target_host": "localhost"}, "not a loopback address"),
        ({"target_port": 0}, "1 to 65535"),
        ({"one_way_ns": -1}, "start at 0"),
        ({"one_way_ms": 5}, "unknown field"),
        ({"jitter_distribution": "gaussian"}, "gaussian"),
    ],
)
def test_a_bad_link_is_refused_before_anything_listens(
    changes: dict[str, object], reason: str
) -> None:
    link = {"name": "a", "target_port": 9, "one_way_ns": 0, **changes}
    ended = subprocess.run(
        [sys.executable, "-m", "bench.wan.relay"],
        input=json.dumps({"seed": 1, "links": [link]}).encode() + b"\n",
        capture_output=True,
        cwd=CHECKOUT_DIR,
        timeout=TIMEOUT_S,
    )
    assert ended.returncode == 2
    assert reason in json.loads(ended.stdout)["error"]


def test_start_raises_what_the_relay_refused_and_leaves_no_process() -> None:
    link = link_to(LinkShape(name="twice", one_way_ns=0), 9)
    with RelayProcess() as relay:
        with pytest.raises(ConfigError, match="unique: twice, twice"):
            relay.start([link, link], seed=1)
        assert relay.pid is None
