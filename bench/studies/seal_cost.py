"""What sealing adds to an exchange between two processes, against sealing and opening alone.

Guarantees: suites take turns within every repetition, on links kept open side by side; an exchange
is one frame of the payload there and a small answer back, over loopback; sealing and opening alone
run on the same kind of frame between the exchanges. Must never know what is in a frame.

    python -m bench.studies.seal_cost [--payload-bytes 405000] [--reps 400] [--record DIR]
    python -m bench.studies.seal_cost --from receipts/studies/seal-cost/7ab63b94e5aac01c.json

The last line is JSON: medians. `--record DIR` also writes every time into a signed study record;
`--from FILE` prints the medians of such a record, as the run that wrote it did.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import torch

from bench.studies.echo_peer import PeerConfig
from bench.study_record import load_study, make_study, write_study
from engine.cluster.launch import CHECKOUT_DIR
from engine.cluster.ring_keys import deal_keys
from engine.errors import ConfigError, LonghaulError, ReceiptError
from engine.transport.codec import encode_message_frame
from engine.transport.connection import finish_frame
from engine.transport.frame import HEADER_LEN
from engine.transport.introduce import call
from engine.transport.link import Link
from engine.transport.message import Probe, ProbeAck
from engine.transport.seal import SUITES, suite_named

STUDY = "seal-cost"
NUM_WARM_UP = 20
ANSWER_TIMEOUT_S = DIAL_TIMEOUT_S = 10.0
COLUMNS = ("suite", "exchange_ns", "seal_and_open_ns")  # of a row, besides its repetition
Row = dict[str, str | int]


class Exchange:
    """One open link and the clock around one exchange on it."""

    def __init__(self, link: Link, payload: torch.Tensor) -> None:
        self._link = link
        self._payload = payload
        self._seq = 0

    def time_ns(self) -> int:
        """One frame there, one answer back."""
        self._seq += 1
        began_ns = time.perf_counter_ns()
        self._link.send(Probe(seq=self._seq), {"payload": self._payload})
        answer = self._link.receive(time.monotonic() + ANSWER_TIMEOUT_S).message
        ended_ns = time.perf_counter_ns()
        if answer != ProbeAck(seq=self._seq):
            raise ConfigError(f"the peer answered {answer}; no time is reported")
        return ended_ns - began_ns


class Alone:
    """Sealing and opening of the same frame in this process, without a wire."""

    def __init__(self, suite_name: str, payload: torch.Tensor) -> None:
        suite = suite_named(suite_name)
        self._sealer = suite.sealer(bytes(32))
        self._opener = suite.opener(bytes(32))
        self._payload = payload

    def time_ns(self) -> int:
        """Seal once, open once; encoding is not counted."""
        kind, buffer, payload_len = encode_message_frame(Probe(seq=1), {"payload": self._payload})
        began_ns = time.perf_counter_ns()
        frame = finish_frame(kind, buffer, payload_len, self._sealer)
        self._opener.open(frame[:HEADER_LEN], frame[HEADER_LEN:])
        return time.perf_counter_ns() - began_ns


def measure(payload_bytes: int, num_reps: int) -> list[Row]:
    """Take turns; returns one row a repetition and suite.

    Raises:
        ConfigError: a number below 1, or the peer process failed.
    """
    if payload_bytes < 1 or num_reps < 1:
        raise ConfigError(f"{payload_bytes} bytes, {num_reps} repetitions; allowed: 1 or more each")
    payload = torch.randint(0, 256, (payload_bytes,), dtype=torch.uint8)
    alone = {suite: Alone(suite, payload) for suite in SUITES}
    rows: list[Row] = []
    with ExitStack() as stack:
        exchanges = {
            suite: Exchange(link, payload) for suite, link in _links_by_suite(stack).items()
        }
        for rep_idx in range(-NUM_WARM_UP, num_reps):
            for suite in SUITES:
                row: Row = {
                    "rep": rep_idx,
                    "suite": suite,
                    "exchange_ns": exchanges[suite].time_ns(),
                    "seal_and_open_ns": alone[suite].time_ns(),
                }
                if rep_idx >= 0:
                    rows.append(row)
    return rows


def _links_by_suite(stack: ExitStack) -> dict[str, Link]:
    """Start the peer process and open one link a suite; the stack takes everything down.

    Raises:
        ConfigError: the peer could not start; its messages are on standard error.
    """
    keys = {suite: deal_keys(1, suite, None) for suite in SUITES}
    configs = [
        PeerConfig(cluster_id=dealt.cluster_id, suite=suite, keys=dealt.nodes["stage-0"])
        for suite, dealt in keys.items()
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.studies.echo_peer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=CHECKOUT_DIR,
    )
    stack.callback(_end, process)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(msgspec.json.encode(configs) + b"\n")
    process.stdin.flush()
    ports = json.loads(process.stdout.readline() or "[]")
    if len(ports) != len(configs):
        raise ConfigError("the peer process ended; its messages are above")
    links = {}
    for (suite, dealt), port in zip(keys.items(), ports, strict=True):
        address = ("127.0.0.1", port)
        links[suite] = call(address, dealt.coordinator(), "input", "stage-0", DIAL_TIMEOUT_S)
        stack.callback(links[suite].close)
    return links


def summary(rows: Sequence[Mapping[str, str | int]]) -> dict[str, dict[str, float]]:
    """Medians by suite, and what a suite adds to an exchange over what it takes alone.

    Args:
        rows: of a run or of a record, `plain` among their suites.
    """

    def median_us(suite: str, column: str) -> float:
        values = [int(row[column]) for row in rows if row["suite"] == suite]
        return statistics.median(values) / 1000

    plain_us = median_us("plain", "exchange_ns")
    result = {}
    for suite in dict.fromkeys(str(row["suite"]) for row in rows):
        exchange_us = median_us(suite, "exchange_ns")
        alone_us = median_us(suite, "seal_and_open_ns")
        result[suite] = {"exchange_us": exchange_us, "seal_and_open_us": alone_us}
        if suite != "plain":
            result[suite]["added_us"] = exchange_us - plain_us
            result[suite]["added_over_alone"] = (exchange_us - plain_us) / alone_us
    return {
        suite: {name: round(value, 3) for name, value in figures.items()}
        for suite, figures in result.items()
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    process.wait()
    process.stdout.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.studies.seal_cost")
    parser.add_argument("--payload-bytes", type=int, default=405_000)
    parser.add_argument("--reps", type=int, default=400)
    parser.add_argument("--record", type=Path, metavar="DIR", help="write a signed record there")
    parser.add_argument(
        "--from", type=Path, dest="source", metavar="FILE", help="print a record; measure nothing"
    )
    return parser


def _recorded_rows(path: Path) -> list[Row]:
    """The rows of a record.

    Raises:
        ReceiptError: it is no record of this study, or lacks the suite that others add to.
    """
    rows = load_study(path, STUDY, COLUMNS).rows
    if all(row["suite"] != "plain" for row in rows):
        raise ReceiptError(f"{path}: lacks the suite 'plain', which the others add to")
    return rows


def main(words: Sequence[str] | None = None) -> int:
    """Parse; measure, or read what was measured."""
    parser = _parser()
    asked = parser.parse_args(words)
    if asked.source is not None and asked != parser.parse_args(["--from", str(asked.source)]):
        parser.error("--from prints what was measured: it goes with no other option")
    try:
        if asked.source is not None:
            rows = _recorded_rows(asked.source)
        else:
            rows = measure(asked.payload_bytes, asked.reps)
        if asked.record is not None:
            settings = {"payload_bytes": asked.payload_bytes, "reps": asked.reps}
            print(write_study(make_study(STUDY, settings, rows), asked.record))
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(summary(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
