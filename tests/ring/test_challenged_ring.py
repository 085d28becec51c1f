"""Challenges over real sockets: honest stages pass, and each that computed otherwise is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from oracle_ring import OracleExecutor, OracleRing, repetitive_truth

from engine.coordinator.challenged import terms_of
from engine.coordinator.job import JobRequest, JobResult, make_levers
from engine.coordinator.session import Session
from engine.errors import ConfigError
from engine.model.decoder import Passed
from engine.stage import evidence
from engine.transport.message import EvidenceReport
from engine.trust import frame_digests
from engine.trust.challenge import commitment
from engine.trust.identity import Identity
from engine.trust.verify import AttestationError

TRUTH = repetitive_truth(alphabet=13, period=11)
PROMPT = tuple(TRUTH([0] * (idx + 1)) for idx in range(30))
NUM_STAGES = 3
MIDDLE = 1
LEVERS = make_levers(draft_len=4, depth=4, max_new_tokens=24, prefill_chunk=7, attestation=True)
SEED = bytes(range(32))
NUM_FRAMES = 99  # all there are
Ring = tuple[OracleRing, Session]


@pytest.fixture
def ring(identities: list[Identity]) -> Iterator[Ring]:
    with (
        OracleRing(NUM_STAGES, TRUTH, delay_s=0.002, signers=identities) as ring,
        ring.session() as session,
    ):
        yield ring, session


def replicas() -> list[OracleExecutor]:
    return [OracleExecutor(idx, NUM_STAGES, TRUTH) for idx in range(NUM_STAGES)]


def run(session: Session, levers: object = LEVERS, seed: bytes = SEED) -> JobResult:
    result = session.run(
        JobRequest(prompt_ids=PROMPT, levers=levers, eos_ids=frozenset(), nonce=commitment(seed))
    )
    assert result.failure is None
    return result


def challenged(session: Session, levers: object = LEVERS, seed: bytes = SEED) -> list[int]:
    """Run a job, challenge it; how many frames of each stage were compared."""
    result = run(session, levers, seed)
    found = session.challenge(result, replicas(), seed, terms_of(levers, NUM_FRAMES))
    # sketches travel as float32
    assert all((item.errors < 1e-7).all() for stage in found for item in stage)
    return [len(stage) for stage in found]


@pytest.mark.parametrize("numeric_config", ["f32", "fp8"])
def test_an_honest_ring_passes_and_runs_on(ring: Ring, numeric_config: str) -> None:
    """Catches evidence that does not hash to the roots, on whatever wire; also in the next job."""
    _, session = ring
    levers = make_levers(
        draft_len=4, max_new_tokens=24, attestation=True, numeric_config=numeric_config
    )
    for number in range(3):
        compared = challenged(session, levers, bytes([number]) * 32)
        assert len(set(compared)) == 1 and compared[0] > 3


def test_a_drawn_few_are_enough(ring: Ring) -> None:
    _, session = ring
    result = run(session)
    found = session.challenge(result, replicas(), SEED, terms_of(LEVERS, 2))
    assert [len(stage) for stage in found] == [2] * NUM_STAGES


def alters(executor: OracleExecutor) -> None:
    """The ids stay what they are: nothing but a recompute can tell."""
    run = executor.run

    def other(*words: Any) -> Passed:
        passed = run(*words)
        sent = passed.hidden.clone()
        sent[-1, 17] += 0.2
        return replace(passed, hidden=sent)

    executor.run = other  # type: ignore[method-assign]


@pytest.mark.parametrize("stage_idx", [0, MIDDLE])
def test_a_stage_that_computes_something_else_is_named(ring: Ring, stage_idx: int) -> None:
    oracle, session = ring
    alters(oracle.executors[stage_idx])
    with pytest.raises(AttestationError, match="recompute") as caught:
        challenged(session)
    assert caught.value.stage_idx == stage_idx
    assert session.run(
        JobRequest(prompt_ids=PROMPT, levers=LEVERS, eos_ids=frozenset(), nonce="0b")
    ).failure is None  # fmt: skip


@pytest.mark.parametrize("numeric_config", ["f32", "fp8"])
def test_a_last_stage_that_makes_up_ids_is_named(ring: Ring, numeric_config: str) -> None:
    """Catches ids that were signed and sent alike, and never computed; on a coarse wire too."""
    oracle, session = ring
    last = oracle.executors[-1]
    logits = last.logits
    last.logits = lambda hidden: logits(hidden).roll(1, dims=1)  # type: ignore[method-assign]
    levers = make_levers(max_new_tokens=8, attestation=True, numeric_config=numeric_config)
    with pytest.raises(AttestationError, match="recompute") as caught:
        challenged(session, levers)
    assert caught.value.stage_idx == NUM_STAGES - 1


def test_a_sketch_made_for_the_occasion_is_named(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a stage that cheats in the job and answers the challenge as if it had not."""
    oracle, session = ring
    alters(oracle.executors[MIDDLE])
    sketch = evidence.sketch_payload

    def forged(payload: bytes, wire: str, seed: bytes, sender_idx: int) -> object:
        made = sketch(payload, wire, seed, sender_idx)
        if sender_idx != MIDDLE:
            return made
        # an honest middle stage passes on what it got, signs are its own
        honest = oracle.services[MIDDLE]._job._account.attested
        key = next(
            key
            for key, sent in zip(
                honest.keys, honest.frames.payloads("sent", honest.keys), strict=True
            )
            if sent == payload
        )
        (received,) = honest.frames.payloads("received", [key])
        return sketch(received, wire, seed, sender_idx)

    monkeypatch.setattr(evidence, "sketch_payload", forged)
    with pytest.raises(AttestationError, match="forged") as caught:
        challenged(session)
    assert caught.value.stage_idx == MIDDLE


Change = Callable[[EvidenceReport], EvidenceReport]
MALFORMED: dict[str, Change] = {
    "another length": lambda it: msgspec.structs.replace(
        it, received_lens=(it.received_lens[0] + 1, *it.received_lens[1:])
    ),
    "a negative length": lambda it: msgspec.structs.replace(
        it, received_lens=(-1, it.received_lens[0] + 1, *it.received_lens[1:])
    ),
    "no lengths": lambda it: msgspec.structs.replace(it, received_lens=()),
    "more rows": lambda it: msgspec.structs.replace(it, sketched=(*it.sketched, (0, 0, 5))),
}


@pytest.mark.parametrize("change", MALFORMED)
def test_evidence_without_its_form_is_its_stages_fault(
    ring: Ring, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    _, session = ring
    answer = evidence._report

    def other(challenge: object, facts: object, **fields: object) -> EvidenceReport:
        report = answer(challenge, facts, **fields)
        return MALFORMED[change](report) if report.stage_idx == MIDDLE else report

    monkeypatch.setattr(evidence, "_report", other)
    with pytest.raises(AttestationError, match="evidence") as caught:
        challenged(session)
    assert caught.value.stage_idx == MIDDLE


def test_a_stage_answers_only_for_its_last_job_and_its_own_seed(ring: Ring) -> None:
    """Catches sketches under a seed that the nonce does not commit to, and of no signed job."""
    _, session = ring
    result = run(session)
    with pytest.raises(AttestationError, match="does not commit"):
        session.challenge(result, replicas(), bytes(32), terms_of(LEVERS, 1))
    with pytest.raises(AttestationError, match="draws no frame"):
        session.challenge(result, replicas(), SEED, replace(terms_of(LEVERS, 1), num_frames=0))
    run(session, make_levers(max_new_tokens=4))
    with pytest.raises(AttestationError, match="was not signed for"):
        session.challenge(result, replicas(), SEED, terms_of(LEVERS, 1))
    challenged(session, seed=bytes([7]) * 32)


def test_a_job_that_nobody_signed_for_cannot_be_challenged(ring: Ring) -> None:
    """Catches a challenge that rests on statements that were never held."""
    _, session = ring
    levers = make_levers(max_new_tokens=4)
    with pytest.raises(ConfigError, match="attested"):
        session.challenge(run(session, levers), replicas(), SEED, terms_of(levers, 1))
    failed = replace(run(session), account=None)
    with pytest.raises(ConfigError, match="attested"):
        session.challenge(failed, replicas(), SEED, terms_of(LEVERS, 1))


def test_frames_are_kept_until_the_next_job_and_no_longer(ring: Ring) -> None:
    """Catches a large job's frames that stay in memory through all plain jobs behind it."""
    oracle, session = ring
    run(session)
    books = [service._links._digests.frames for service in oracle.services]
    books.append(session._links.digests.frames)
    assert all(frames._payloads for frames in books)
    run(session, make_levers(max_new_tokens=4))
    assert not any(frames._payloads or frames._digests for frames in books)


def test_a_job_too_large_to_keep_says_so(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches memory without bound, and half of a job handed over as the whole."""
    monkeypatch.setattr(frame_digests, "MAX_KEPT_BYTES", 1000)
    _, session = ring
    result = run(session)
    with pytest.raises(AttestationError, match="was not received here"):
        session.challenge(result, replicas(), SEED, terms_of(LEVERS, 1))


def test_an_uncalibrated_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match="valid: f32, fp8"):
        terms_of(make_levers(numeric_config="int4"), 1)


def test_the_wires_float32_is_enough_for_a_sketch() -> None:
    """Catches a tolerance that the rounding of a report's own tensors exceeds."""
    from engine.trust.challenge import SAME_BYTES_ERROR

    assert np.finfo(np.float32).eps < SAME_BYTES_ERROR
