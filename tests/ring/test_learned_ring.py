"""The shipped head on real rings: other drafts, the same ids, and n-grams where it cannot draft.

Catches taps of the wrong rows, a tree's path that a stage or the coordinator continues wrongly, a
tree that an attestation does not cover, and a missing or foreign head that costs more than speed.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cells import load_cell
from engine.cluster.launch import LocalRing, RingSpec
from engine.cluster.replicas import load_replicas
from engine.coordinator.challenged import terms_of
from engine.coordinator.job import JobRequest, JobResult, make_levers
from engine.coordinator.session import Session
from engine.draft.head import ShippedHead
from engine.draft.head_file import DEFAULT_HEAD, read_facts
from engine.model.tokenizer import Tokenizer
from engine.trust.challenge import commitment
from engine.trust.sketch import SEED_LEN
from tests.draft.tiny_head import write_head

MAX_NEW = 40
LEARNED = {
    "eagle": {"drafter": "eagle", "draft_len": 5},
    "tree": {"drafter": "tree", "draft_len": 6},
    "wide": {"drafter": "tree", "drafter_params": {"nodes": 40, "children": 8, "depth": 3}},
    "taps as they are": {"drafter": "tree", "tap_wire": "f32"},
    "short chunks": {"drafter": "tree", "prefill_chunk": 7},
    "hybrid": {"drafter": "hybrid"},
    "hybrid, planned": {"drafter": "hybrid", "policy": "planner"},
    "sampled": {"drafter": "tree", "temperature": "0.7", "sampling_seed": "00000000000000aa"},
}


@pytest.fixture(scope="module")
def ring() -> Iterator[LocalRing]:
    with LocalRing(RingSpec(num_stages=3, signs=True)) as started:
        yield started


@pytest.fixture
def session(ring: LocalRing) -> Iterator[Session]:
    with ring.session() as opened:
        yield opened


def request(ring: LocalRing, cell: str, nonce: str = "", **levers: object) -> JobRequest:
    prompt = tuple(load_cell(cell).prompt_ids(Tokenizer.load(ring.files)))
    asked = make_levers(max_new_tokens=MAX_NEW, **levers)  # type: ignore[arg-type]
    eos_ids = frozenset(ring.files.config.eos_ids)
    return JobRequest(prompt, asked, eos_ids, nonce or secrets.token_hex(8))


def sources(result: JobResult) -> Counter[str]:
    return Counter(frame.source for frame in result.frames if frame.outcome == "applied")


@pytest.mark.parametrize("name", LEARNED)
def test_ids_are_those_of_plain_decoding(ring: LocalRing, session: Session, name: str) -> None:
    sampling = {key: LEARNED[name][key] for key in ("temperature", "sampling_seed")
                if key in LEARNED[name]}  # fmt: skip
    plain = session.run(request(ring, "chat", drafter="none", draft_len=0, depth=1, **sampling))
    learned = session.run(request(ring, "chat", **LEARNED[name]))
    assert learned.failure is None and learned.degraded is None
    assert learned.output_ids == plain.output_ids
    wanted = "eagle" if name == "eagle" else "tree"
    assert sources(learned)[wanted] > 2
    assert sum(frame.accepted_len for frame in learned.frames if frame.source == wanted) > 5
    assert len(learned.frames) < len(plain.frames)


def test_trees_are_attested_and_recomputed(ring: LocalRing, session: Session) -> None:
    seed = secrets.token_bytes(SEED_LEN)
    asked = request(ring, "chat", commitment(seed), drafter="tree", attestation=True)
    result = session.run(asked)
    assert result.failure is None and result.account is not None
    assert any(frame.parents for frame in result.frames)
    terms = terms_of(asked.levers, 99)
    compared = session.challenge(result, load_replicas(ring), seed, terms)
    drawn = {frame.key for frame in compared[0]}
    trees = {(frame.epoch, frame.start) for frame in result.frames if frame.parents}
    assert trees & drawn, "a tree's frame was recomputed"


@pytest.mark.parametrize("fault", ["missing", "foreign", "damaged"])
def test_without_its_head_a_job_drafts_n_grams(ring: LocalRing, tmp_path: Path, fault: str) -> None:
    path = tmp_path / "head.safetensors"
    if fault == "foreign":
        write_head(path)
    elif fault == "damaged":
        path.write_bytes(DEFAULT_HEAD.read_bytes()[:-1000])
    with ring.session() as session:
        session._means = type(session._means)(session._means.cost, ShippedHead(ring.files, path))
        plain = session.run(request(ring, "verbatim", drafter="none", draft_len=0, depth=1))
        result = session.run(request(ring, "verbatim", drafter="hybrid"))
    assert result.failure is None and result.output_ids == plain.output_ids
    assert result.degraded is not None and result.degraded.startswith("hybrid: begin: ModelError")
    assert set(sources(result)) <= {"ngram", "none"} and sources(result)["ngram"]


def test_a_router_lets_n_grams_copy(ring: LocalRing, session: Session) -> None:
    """Where text is copied the hybrid streams n-grams, in as few rounds as they alone need."""
    chain = session.run(request(ring, "verbatim", drafter="ngram"))
    hybrid = session.run(request(ring, "verbatim", drafter="hybrid"))
    assert hybrid.output_ids == chain.output_ids
    assert sum(sources(hybrid).values()) <= sum(sources(chain).values()) + 2


def test_the_shipped_head_is_for_the_packaged_model(ring: LocalRing) -> None:
    facts = read_facts(DEFAULT_HEAD)
    assert facts.model_digest == ring.files.model_digest
    assert DEFAULT_HEAD.stat().st_size <= 25_000_000
    assert list(facts.confidence) == sorted(facts.confidence)
