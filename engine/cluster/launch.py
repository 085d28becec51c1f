"""A ring of local processes: start it, find its addresses, stop it.

Guarantees: no process outlives the launcher (each ends when its standard input closes), whatever
way the launcher ends; a stage that cannot start says why. Must never know jobs.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from engine import defaults
from engine.cluster.plan import even_plan
from engine.cluster.ring_keys import deal_keys
from engine.coordinator.attested import Pinned
from engine.coordinator.ring_links import Address, RingAddresses
from engine.coordinator.session import Session
from engine.draft.head import ShippedHead
from engine.errors import ConfigError, LinkClosedError, unknown_name
from engine.model.layer_plan import check_layer_plan
from engine.model.linear import KERNELS
from engine.model.threads import available_cores, openmp_env
from engine.model.weights import ModelFiles, prepare_model
from engine.stage.config import StageConfig, StageReady, Successor
from engine.trust.identity import Identity, PublicIdentity, longhaul_home

CHECKOUT_DIR = Path(__file__).resolve().parents[2]
STOP_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class StagePlace:
    """Where a stage runs: the command that starts it there, the address it listens on."""

    command: tuple[str, ...] = (sys.executable, "-m", "engine.stage.service")
    host: str = "127.0.0.1"


class LinkEmulator(Protocol):
    """Stands something in front of listening sockets, such as a long link."""

    def places(self, num_stages: int) -> list[StagePlace]:
        """Set up what stages run in, before one is started; return each one's place."""

    def open(self, targets: Sequence[Address]) -> list[Address]:
        """Take the N + 1 listening addresses in ring order; return the ones to dial instead."""

    def close(self) -> None:
        """Take everything down."""


class DirectLinks:
    """No emulation: the loopback interface itself."""

    def places(self, num_stages: int) -> list[StagePlace]:
        return [StagePlace()] * num_stages

    def open(self, targets: Sequence[Address]) -> list[Address]:
        return list(targets)

    def close(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class RingSpec:
    """Ring levers, fixed at bring-up."""

    num_stages: int = defaults.NUM_STAGES
    threads_per_stage: int = 0  # 0: all cores this process may use
    model: Path | str | None = None  # path or name; None: the default model
    nice: int = 0  # background priority, so that emulated links keep time on a busy machine
    suite: str = defaults.SUITE
    cluster_secret_path: Path | None = None  # None: a fresh secret for this ring alone
    layer_plan: Sequence[tuple[int, int]] | None = None  # by stage; None: even
    max_kv_size: int = 0  # keys a query may see, on every stage; 0: all
    signs: bool = False  # stages get signing keys, `stage_key_path`, and may be asked to attest
    weights: str = "f32"  # of every stage; jobs of numeric configurations with others are refused

    def num_threads(self) -> int:
        """Threads of each stage, resolved."""
        return self.threads_per_stage or len(available_cores())


def stage_key_path(stage_idx: int) -> Path:
    """Where the key of this user's stage lies; the stage makes it at its first start."""
    return longhaul_home() / "keys" / f"stage-{stage_idx}.key"


def stage_key_ids(num_stages: int) -> list[str]:
    """Fingerprints of this user's stages' keys, in ring order; keys are made where missing.

    Raises:
        ConfigError: a key file that others can read, or that is none.
    """
    return [Identity.load_or_create(stage_key_path(idx)).key_id for idx in range(num_stages)]


class LocalRing:
    """N stage processes on this machine; a context manager.

    Args:
        emulator: stands behind every link of the ring; control links dial the stages themselves.

    Raises:
        ConfigError: a plan that cannot be, or a stage that says why it cannot start.
        ModelError: the model is missing or damaged.
        LinkClosedError: a stage process ended or said nothing.
    """

    def __init__(self, spec: RingSpec, emulator: LinkEmulator | None = None) -> None:
        if spec.threads_per_stage < 0:
            raise ConfigError(f"threads is {spec.threads_per_stage}; allowed: 0 (all) or more")
        if spec.weights not in KERNELS:
            raise unknown_name("kind of weights", spec.weights, KERNELS)
        self.spec = spec
        self.files: ModelFiles = prepare_model(spec.model)
        num_layers = self.files.config.num_layers
        self.layer_plan = list(spec.layer_plan or even_plan(num_layers, spec.num_stages))
        check_layer_plan(self.layer_plan, num_layers)
        if len(self.layer_plan) != spec.num_stages:
            raise ConfigError(
                f"the layer plan has {len(self.layer_plan)} stages, "
                f"{spec.num_stages} were asked for"
            )
        self._emulator = emulator or DirectLinks()
        self._head = ShippedHead(self.files)
        self._keys = deal_keys(spec.num_stages, spec.suite, spec.cluster_secret_path)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._addresses: RingAddresses | None = None

    def __enter__(self) -> LocalRing:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def session(self) -> Session:
        """Open a coordinator's session."""
        assert self._addresses is not None, "enter the ring first"
        config = self.files.config
        pinned = None
        if self.spec.signs:
            pinned = Pinned(tuple(self.signers()), config.num_layers, self.files.model_digest)
        return Session(
            self._addresses, self._keys.coordinator(), config.context_len, pinned, self._head
        )

    def signers(self) -> list[PublicIdentity]:
        """The stages' public keys, in ring order.

        Raises:
            ReceiptError: a key file is not one.
        """
        paths = [stage_key_path(idx).with_suffix(".pub") for idx in range(self.spec.num_stages)]
        return [PublicIdentity.from_text(path.read_text(), str(path)) for path in paths]

    @property
    def pids(self) -> list[int]:
        """Process ids of the stages."""
        return [process.pid for process in self._processes]

    def stop(self) -> None:
        """End every process and reap it."""
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # it ended by itself
                process.stdin.close()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self._processes.clear()
        self._emulator.close()

    def _start(self) -> None:
        places = self._emulator.places(self.spec.num_stages)
        for stage_idx, place in enumerate(places):
            self._processes.append(self._spawn(stage_idx, place))
        deadline = time.monotonic() + defaults.START_TIMEOUT_S
        ready = [self._read_ready(idx, deadline) for idx in range(self.spec.num_stages)]
        inputs: list[Address] = [
            (place.host, stage.port) for place, stage in zip(places, ready, strict=True)
        ]
        # The return link is dialled by the coordinator, so it too stands in front of a stage.
        dialled = self._emulator.open([*inputs, inputs[-1]])
        for stage_idx, process in enumerate(self._processes):
            last = stage_idx == self.spec.num_stages - 1
            successor = Successor(
                node_id="coordinator" if last else f"stage-{stage_idx + 1}",
                address=None if last else dialled[stage_idx + 1],
            )
            _write_line(process, successor)
        self._addresses = RingAddresses(dialled[0], dialled[-1], tuple(inputs))

    def _spawn(self, stage_idx: int, place: StagePlace) -> subprocess.Popen[bytes]:
        layer_start, layer_end = self.layer_plan[stage_idx]
        num_threads = self.spec.num_threads()
        process = subprocess.Popen(
            place.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=CHECKOUT_DIR,
            env={**os.environ, **openmp_env(num_threads, stage_idx)},
            start_new_session=True,  # Ctrl-C is for the launcher alone; it ends the stages
        )
        config = StageConfig(
            stage_idx=stage_idx,
            num_stages=self.spec.num_stages,
            layer_start=layer_start,
            layer_end=layer_end,
            num_threads=num_threads,
            nice=self.spec.nice,
            cluster_id=self._keys.cluster_id,
            suite=self._keys.suite,
            keys=self._keys.nodes[f"stage-{stage_idx}"],
            model=None if self.spec.model is None else str(self.spec.model),
            max_kv_size=self.spec.max_kv_size,
            weights=self.spec.weights,
            listen_host=place.host,
            signing_key=str(stage_key_path(stage_idx)) if self.spec.signs else "",
        )
        _write_line(process, config)
        return process

    def _read_ready(self, stage_idx: int, deadline: float) -> StageReady:
        process = self._processes[stage_idx]
        assert process.stdout is not None
        readable, _, _ = select.select(
            [process.stdout], [], [], max(0.0, deadline - time.monotonic())
        )
        line = process.stdout.readline() if readable else b""
        if not line:
            status = process.poll()
            why = "said nothing" if status is None else f"ended with status {status}"
            raise LinkClosedError(f"stage {stage_idx} {why}; its messages are on standard error")
        ready = msgspec.json.decode(line, type=StageReady)
        if ready.error:
            raise ConfigError(f"stage {stage_idx} cannot start: {ready.error}")
        return ready


def _write_line(process: subprocess.Popen[bytes], struct: msgspec.Struct) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(msgspec.json.encode(struct) + b"\n")
        process.stdin.flush()
    except OSError as error:
        raise LinkClosedError(f"a stage process ended while starting: {error}") from error
