"""What an experiment was, from its signed plan and the places of its receipts.

Guarantees: facts are of a plan whose signature by a key of the repository holds; of one that does
not, nothing is said but what is wrong. Must never know a result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.folders import DEFAULT_EXPERIMENT, RECEIPTS_FOLDER
from analysis.index.receipt_files import Host, JobPlace, ReceiptFile, signing_key
from bench.receipt import load_signed
from bench.schema import Build, Plan
from engine.errors import ReceiptError
from engine.trust.identity import load_public_keys

HYPOTHESIS = re.compile(r"H[1-9]\d*:")  # H0 states a null; other lines, the metric
NUM_NAMED = 12  # more cells than this are counted, not listed
BYTES_PER_GB = 1_000_000_000
COMMIT_LEN = 12
Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ExperimentFacts:
    """One experiment, in words."""

    name: str
    hypotheses: tuple[str, ...]
    short: tuple[str, ...]  # for the list of contents
    facts: Facts
    plan: Path | None  # None: it is missing
    num_receipts: int
    gaps: tuple[str, ...]

    @property
    def asked(self) -> tuple[str, ...]:
        """The hypotheses that a rule decides, or all that was written if there is none."""
        return tuple(filter(HYPOTHESIS.match, self.hypotheses)) or self.hypotheses


def experiment_names(top: Path) -> list[str]:
    """Folders with a plan or receipts, the default one first."""
    found = [*top.glob("*/plan.json"), *top.glob(f"*/{RECEIPTS_FOLDER}")]
    names = {path.parent.name for path in found}
    return sorted(names, key=lambda name: (name != DEFAULT_EXPERIMENT, name))


def experiment_facts(top: Path, name: str, receipts: Sequence[ReceiptFile]) -> ExperimentFacts:
    """One experiment of `receipts/`.

    Args:
        receipts: its own.
    """
    path = top / name / "plan.json"
    keys = load_public_keys(top / "keys")
    try:
        plan, body = load_signed(path, Plan, keys)
        key_id = signing_key(path, body, keys)
    except ReceiptError as error:
        gap = str(error).replace(f"{top.parent}/", "")  # no path of this machine on the page
        present = path if path.is_file() else None
        return ExperimentFacts(name, (), (), (), present, len(receipts), (gap,))
    gaps = []
    if len(receipts) < len(plan.jobs):
        gaps.append(
            f"receipts/{name}: of {len(plan.jobs)} planned jobs, {len(receipts)} have receipts here"
        )
    key_ids = sorted({key_id, *(receipt.key_id for receipt in receipts if receipt.key_id)})
    return ExperimentFacts(
        name=name,
        hypotheses=tuple(plan.hypotheses),
        short=_short(plan, receipts, key_ids),
        facts=_facts(plan, receipts, key_ids),
        plan=path,
        num_receipts=len(receipts),
        gaps=tuple(gaps),
    )


def _short(plan: Plan, receipts: Sequence[ReceiptFile], key_ids: list[str]) -> tuple[str, ...]:
    sizes = ((plan.jobs, "job"), (plan.arms, "arm"), (plan.cells, "cell"))
    machines = dict.fromkeys(machine_words(host) for host in _hosts(receipts))
    return (
        *(counted(len(each), noun) for each, noun in sizes),
        plan.ring.profile,
        plan.created[:10],
        *machines,
        f"commit {commit_words(plan.build)}",
        *(f"key {key_id}" for key_id in key_ids),
    )


def _facts(plan: Plan, receipts: Sequence[ReceiptFile], key_ids: list[str]) -> Facts:
    starts = sorted(_places(receipts), key=lambda place: place.timing.wall_start)
    cells = [cell.name for cell in plan.cells]
    ring = plan.ring
    own = [arm for arm in plan.arms if plan.ring_of(arm) != ring]
    ends = (starts[0], starts[-1]) if starts else ()
    measured = " to ".join(minute(place.timing.wall_start) for place in ends) or "–"
    return (
        ("jobs", f"{len(plan.jobs)} planned, {len(receipts)} receipts"),
        ("arms", ", ".join(plan.arms)),
        ("base arm", plan.base_arm or "none: nothing is timed"),
        ("cells", _named(cells)),
        ("repetitions", str(plan.reps)),
        ("profile", ring.profile),
        ("ring", _ring_words(plan) + (f"; on rings of their own: {', '.join(own)}" if own else "")),
        ("model", f"{plan.model.name}, digest {plan.model.model_digest[:16]}"),
        ("plan signed", minute(plan.created)),
        ("jobs started", measured),
        ("machine", "; ".join(host_words(host) for host in _hosts(receipts)) or "–"),
        ("commit", commit_words(plan.build)),
        ("source digest", plan.build.source_digest[:16]),
        ("keys", ", ".join(key_ids)),
    )


def counted(count: int, noun: str) -> str:
    """`1 arm`, `6 arms`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def commit_words(build: Build) -> str:
    """The commit that ran, and whether it was all that ran."""
    words = (build.commit or "unknown")[:COMMIT_LEN]
    return f"{words}, with uncommitted changes" if build.dirty else words


def minute(moment: str) -> str:
    """An RFC 3339 time in UTC as people write it."""
    return f"{moment[:16].replace('T', ' ')} UTC"


def machine_words(host: Host) -> str:
    """A machine in a few words."""
    return f"{host.get('cpu_model') or 'unknown processor'}, {host.get('num_cores')} cores"


def host_words(host: Host) -> str:
    """A machine and what ran on it."""
    memory = host.get("memory_bytes")
    words = [machine_words(host)]
    words += [f"{memory / BYTES_PER_GB:.0f} GB"] if isinstance(memory, int) else []
    words += [str(host[key]) for key in ("kernel", "python") if host.get(key)]
    words += [f"torch {host['torch']}"] if host.get("torch") else []
    return ", ".join(words)


def _ring_words(plan: Plan) -> str:
    ring = plan.ring
    threads = counted(ring.threads_per_stage, "thread")
    return f"{counted(ring.num_stages, 'stage')}, {threads} each, suite {ring.suite}"


def _named(names: list[str]) -> str:
    if len(names) <= NUM_NAMED:
        return ", ".join(names)
    return f"{len(names)}, from {names[0]} to {names[-1]}"


def _places(receipts: Sequence[ReceiptFile]) -> list[JobPlace]:
    return [each.place for each in receipts if isinstance(each.place, JobPlace)]


def _hosts(receipts: Sequence[ReceiptFile]) -> list[Host]:
    """Each machine once, in the order of jobs."""
    return list({host_words(place.host): place.host for place in _places(receipts)}.values())
