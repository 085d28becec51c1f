"""What a pause costs one link, and what noops save: `python -m bench.studies.keepwarm`.

Two hosts in network namespaces, the engine's own links between them, the kernel's own TCP. After a
pause one frame of some size crosses and a small answer comes back; noops in the pause are those of
`engine.transport.keep_warm`. Guarantees: with and without noops take turns in an order drawn from
a seed; before each pause the window is opened by frames of the same size; sizes and congestion
controls have connections of their own. Must never know stages or models.

    python -m bench.studies.keepwarm [--controls cubic,bbr] [--repeats 5] [--record DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from bench.arms import WARM_MS
from bench.study_record import make_study, write_study
from bench.wan.netns import NamespacedLinks
from bench.wan.netns_exchange import STAGE_HOST, two_hosts
from bench.wan.profile import BYTES_PER_S_PER_MBIT, NS_PER_MS, LinkProfile
from engine.errors import ConfigError, LinkClosedError, LonghaulError
from engine.transport.keep_warm import OFF, KeepWarm
from engine.transport.link import Link, Listener, connect
from engine.transport.message import Probe, ProbeAck
from engine.transport.roles import ROLES

STUDY = "keepwarm"
CONTROLS = ("cubic", "bbr")
SIZES = (8_000, 30_000, 120_000, 400_000)  # bytes of a frame's payload
IDLES_MS = (50, 150, 300, 600, 1500)
NUM_OPENING = 2  # frames before each pause
TIMEOUT_S = 30.0
Row = dict[str, str | int]


def measure(
    control: str, one_way_ms: float, rate_mbit: float, num_repeats: int, seed: int
) -> list[Row]:
    """All sizes and pauses under one congestion control; a row an exchange.

    Raises:
        ConfigError: namespaces cannot be used here, or the kernel lacks the control.
    """
    rows: list[Row] = []
    with two_hosts(_profile(control, one_way_ms, rate_mbit), seed) as links:
        for size in SIZES:
            with _joined(links) as (near, far):
                threading.Thread(target=_answer, args=(far,), daemon=True).start()
                for row in _exchanges(near, size, num_repeats, random.Random(f"{seed} {size}")):
                    rows.append({"control": control, **row})
    return rows


def _profile(control: str, one_way_ms: float, rate_mbit: float) -> LinkProfile:
    return LinkProfile(
        name="keepwarm",
        description="two hosts",
        provenance="",
        tolerance_ns=0,
        loop_ns=round(2 * one_way_ms * NS_PER_MS),
        jitter_ns=0,
        jitter_distribution="none",
        rate_bytes_per_s=round(rate_mbit * BYTES_PER_S_PER_MBIT),
        listed=(),
        congestion_control=control,
    )


@contextlib.contextmanager
def _joined(links: NamespacedLinks) -> Iterator[tuple[Link, Link]]:
    """The two ends of one connection, as forward links are used."""
    with links.on_host(STAGE_HOST):
        listener = Listener(links.address(STAGE_HOST))
    with links.on_host(0):
        near = connect(listener.address, "stage-0", TIMEOUT_S)
    far = listener.accept()
    near.welcome(ROLES["input"].listener_sends)
    far.welcome(ROLES["input"].caller_sends)
    try:
        yield near, far
    finally:
        for end in (near, far):
            end.abort()
        listener.close()


def _answer(far: Link) -> None:
    with contextlib.suppress(LinkClosedError):
        while True:
            message = far.receive().message
            if isinstance(message, Probe):  # a noop has no answer
                far.send(ProbeAck(seq=message.seq))


def _exchanges(near: Link, size: int, num_repeats: int, order: random.Random) -> Iterator[Row]:
    payload = torch.zeros(size, dtype=torch.uint8)
    warmth = KeepWarm(near)
    sequence = itertools.count(1)
    try:
        for rep in range(num_repeats):
            kinds = list(itertools.product(IDLES_MS, (OFF, WARM_MS)))
            order.shuffle(kinds)
            for idle_ms, keepwarm_ms in kinds:
                for _ in range(NUM_OPENING):
                    _exchange(near, next(sequence), payload)
                warmth.take_num_sent()
                warmth.every(keepwarm_ms)
                time.sleep(idle_ms / 1e3)
                warmth.every(OFF)
                yield {
                    "size": size,
                    "idle_ms": idle_ms,
                    "keepwarm_ms": keepwarm_ms,
                    "rep": rep,
                    "noops": warmth.take_num_sent(),
                    "took_ns": _exchange(near, next(sequence), payload),
                }
    finally:
        warmth.end()


def _exchange(near: Link, seq: int, payload: torch.Tensor) -> int:
    began_ns = time.monotonic_ns()
    near.send(Probe(seq=seq), {"payload": payload})
    answer = near.receive(time.monotonic() + TIMEOUT_S).message
    took_ns = time.monotonic_ns() - began_ns
    if answer != ProbeAck(seq=seq):
        raise LinkClosedError(f"the other host answered {answer}; no time is reported")
    return took_ns


def show(rows: Sequence[Row], console: Console) -> None:
    """Medians by control, size and pause: without noops, with them."""
    table = Table(title="ms from sending a frame to its answer, after a pause: cold / kept warm")
    table.add_column("control")
    table.add_column("bytes", justify="right")
    for idle_ms in IDLES_MS:
        table.add_column(f"{idle_ms} ms", justify="right")
    for control in dict.fromkeys(str(row["control"]) for row in rows):
        for size in SIZES:
            cells = [
                " / ".join(
                    f"{_median_ms(rows, control, size, idle_ms, keepwarm_ms):.1f}"
                    for keepwarm_ms in (OFF, WARM_MS)
                )
                for idle_ms in IDLES_MS
            ]
            table.add_row(control, str(size), *cells)
    console.print(table)


def _median_ms(
    rows: Sequence[Row], control: str, size: int, idle_ms: int, keepwarm_ms: int
) -> float:
    kind = (control, size, idle_ms, keepwarm_ms)
    names = ("control", "size", "idle_ms", "keepwarm_ms")
    times = [int(row["took_ns"]) for row in rows if tuple(row[name] for name in names) == kind]
    return statistics.median(times) / 1e6


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.studies.keepwarm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--controls", default=",".join(CONTROLS), help="comma-separated")
    parser.add_argument("--one-way-ms", type=float, default=27.5, help="half a link of wan-275")
    parser.add_argument("--rate-mbit", type=float, default=200.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, help="sign the rows into this folder")
    asked = parser.parse_args(arguments)
    console = Console(stderr=True)
    try:
        controls = [name.strip() for name in asked.controls.split(",") if name.strip()]
        unknown = [name for name in controls if name not in CONTROLS]
        if unknown or not controls or asked.repeats < 1:
            raise ConfigError(
                f"--controls {asked.controls!r}, --repeats {asked.repeats}; allowed: some of "
                f"{', '.join(CONTROLS)}, and 1 or more"
            )
        rows = [
            row
            for control in controls
            for row in measure(
                control, asked.one_way_ms, asked.rate_mbit, asked.repeats, asked.seed
            )
        ]
        show(rows, console)
        if asked.record is not None:
            settings = {
                "one_way_ms": str(asked.one_way_ms),
                "rate_mbit": str(asked.rate_mbit),
                "repeats": asked.repeats,
                "seed": asked.seed,
                "opening_frames": NUM_OPENING,
            }
            print(write_study(make_study(STUDY, settings, rows), asked.record))
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
