"""Rings with one stage that cheats: is the job failed, by what, and who is named?

Real stage processes of the packaged model, real keys, real sockets; one of three runs
`bench.studies.cheating_stage`. Two attested jobs each, since a statement must exist before it can
be replayed; every job that passes is challenged. Guarantees: each attack has a ring of its own; a
ring that does nothing wrong is among them and must pass both jobs and challenges. Must never know
how a cheat is done.

    python -m bench.studies.attacks [--attacks "skips a layer" …] [--record DIR]

Fails if an attack passes, or is found by another guard or blamed on another stage than expected.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.cells import load_cell
from bench.studies.cheating_stage import CHEATS
from bench.study_record import make_study, write_study
from engine.cluster.launch import DirectLinks, LocalRing, RingSpec, StagePlace
from engine.cluster.replicas import load_replicas
from engine.coordinator.challenged import terms_of
from engine.coordinator.job import JobRequest, make_levers
from engine.coordinator.session import Session
from engine.errors import LonghaulError, unknown_name
from engine.model.tokenizer import Tokenizer
from engine.stage.executor import DecoderExecutor
from engine.trust.challenge import commitment
from engine.trust.sketch import SEED_LEN
from engine.trust.verify import AttestationError

STUDY = "attacks"
CELL, NUM_STAGES, MAX_NEW_TOKENS, NUM_JOBS = "verbatim", 3, 24, 2
NUM_DRAWN = 99  # frames a stage: all of them
MIDDLE, LAST, NOBODY = 1, 2, -1
STATEMENT, CHALLENGE, NOTHING = "statement", "challenge", "nothing"
LEVERS = make_levers(max_new_tokens=MAX_NEW_TOKENS, attestation=True)
Row = dict[str, str | int]


@dataclass(frozen=True, slots=True)
class Expected:
    """Who cheats, and what becomes of it.

    Attributes:
        found_by: the statements of the stages, or a challenge after they held.
        code: of the fault.
        named: the stage that is blamed.
        job: in which job, from 0.
    """

    cheater: int
    found_by: str
    code: str
    named: int
    job: int = 0


def _computing(code: str = "recompute", cheater: int = MIDDLE) -> Expected:
    return Expected(cheater, CHALLENGE, code, cheater)


def _stating(code: str, cheater: int = MIDDLE, named: int | None = None, job: int = 0) -> Expected:
    return Expected(cheater, STATEMENT, code, cheater if named is None else named, job)


EXPECTED: Mapping[str, Expected] = {
    "nothing": Expected(MIDDLE, NOTHING, "", NOBODY, NUM_JOBS),
    "skips a layer": _computing(),
    "swaps two layers": _computing(),
    "holds 4-bit weights": _computing(),
    "sends bfloat16 states": _computing(),
    "alters one coordinate": _computing(),
    "forges its sketch": _computing("forged"),
    "replays its first statement": _stating("replay", job=1),
    "claims its neighbour's layers": _stating("layers"),
    "signs with a stranger's key": _stating("unknown_signer"),
    "leaves a frame out": _stating("work"),
    "states that it received others": _stating("chain"),
    # Its successor received something else: one of the two lies, and the later one is named.
    "states that it sent others": _stating("chain", named=MIDDLE + 1),
    "states no work": _stating("no_work"),
    "states other ids than it answers": _stating("answers", LAST),
    "answers made-up ids": _computing(cheater=LAST),
}


class CheatingPlaces(DirectLinks):
    """Starts one stage as the one that cheats."""

    def __init__(self, cheater: int, cheat: str) -> None:
        self._cheater, self._cheat = cheater, cheat

    def places(self, num_stages: int) -> list[StagePlace]:
        """Every stage a plain process, one of them with the cheat planted."""
        places = super().places(num_stages)
        command = (sys.executable, "-m", "bench.studies.cheating_stage", self._cheat)
        places[self._cheater] = StagePlace(command)
        return places


class Attacker:
    """Runs attacks one after another; the replicas are loaded once."""

    def __init__(self) -> None:
        self._replicas: list[DecoderExecutor] = []

    def attack(self, name: str) -> Row:
        """One ring, at most two jobs; one row."""
        cheater = EXPECTED[name].cheater
        spec = RingSpec(num_stages=NUM_STAGES, signs=True)
        with LocalRing(spec, CheatingPlaces(cheater, name)) as ring, ring.session() as session:
            if not self._replicas:
                self._replicas = load_replicas(ring)
            prompt = tuple(load_cell(CELL).prompt_ids(Tokenizer.load(ring.files)))
            for job_idx in range(NUM_JOBS):
                found = self._job(session, prompt, frozenset(ring.files.config.eos_ids))
                if found[0] != NOTHING:
                    return _row(name, cheater, *found, job_idx)
        return _row(name, cheater, NOTHING, "", NOBODY, NUM_JOBS)

    def _job(
        self, session: Session, prompt: tuple[int, ...], eos_ids: frozenset[int]
    ) -> tuple[str, str, int]:
        """By what a job was failed, the fault's code, the stage that was named."""
        seed = secrets.token_bytes(SEED_LEN)
        result = session.run(JobRequest(prompt, LEVERS, eos_ids, commitment(seed)))
        if result.failure is not None:
            failure = result.failure
            if failure.code != "attestation":
                raise failure
            named = NOBODY if failure.stage_idx is None else failure.stage_idx
            return STATEMENT, failure.detail.partition(":")[0], named
        try:
            session.challenge(result, self._replicas, seed, terms_of(LEVERS, NUM_DRAWN))
        except AttestationError as error:
            return CHALLENGE, error.code, NOBODY if error.stage_idx is None else error.stage_idx
        return NOTHING, "", NOBODY


def _row(name: str, cheater: int, found_by: str, code: str, named: int, job_idx: int) -> Row:
    return {
        "attack": name,
        "cheater": cheater,
        "found_by": found_by,
        "code": code,
        "named": named,
        "job": job_idx,
    }


def unexpected(rows: Sequence[Row]) -> list[str]:
    """Attacks that ended in another way than expected."""
    return [
        str(row["attack"])
        for row in rows
        if Expected(
            int(row["cheater"]),
            str(row["found_by"]),
            str(row["code"]),
            int(row["named"]),
            int(row["job"]),
        )
        != EXPECTED[str(row["attack"])]
    ]


def show(rows: Sequence[Row], console: Console) -> None:
    """One line an attack."""
    table = Table(title=f"A ring of {NUM_STAGES} with one stage that cheats")
    for column in ("the stage …", "it is", "found by", "fault", "named", "in job"):
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.studies.attacks")
    parser.add_argument("--attacks", nargs="+", default=list(EXPECTED), metavar="NAME")
    parser.add_argument("--record", type=Path, metavar="DIR", help="write a signed record there")
    asked = parser.parse_args()
    try:
        for name in asked.attacks:
            if name not in EXPECTED:
                raise unknown_name("attack", name, CHEATS)
        attacker = Attacker()
        rows = [
            attacker.attack(name)
            for name in track(asked.attacks, "attacks", console=Console(stderr=True))
        ]
        show(rows, Console())
        if asked.record:
            settings: dict[str, str | int] = {
                "cell": CELL,
                "stages": NUM_STAGES,
                "max_new_tokens": MAX_NEW_TOKENS,
                "jobs": NUM_JOBS,
                "drawn": NUM_DRAWN,
            }
            print(write_study(make_study(STUDY, settings, rows), asked.record))
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name in unexpected(rows):
        print(f"not as expected: {name}", file=sys.stderr)
    return 1 if unexpected(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
