"""Every guard of `verify_job`: what it catches, and that nothing else would."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.trust import verify
from engine.trust.attestation import Answer
from engine.trust.identity import Identity, PublicIdentity
from engine.trust.verify import GUARDS, AttestationError, verify_job
from tests.trust.honest_job import HonestJob, body_of, make_job, sign_body

OTHER = "1" * 64
Fault = Callable[[HonestJob], HonestJob]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> HonestJob:
    return make_job(tmp_path_factory.mktemp("keys"))


def check(job: HonestJob, signed: list[str] | None = None) -> None:
    verify_job(job.signed() if signed is None else signed, job.expected)


def other_chain(job: HonestJob, stage_idx: int) -> HonestJob:
    """Two neighbours agree on what was never sent, so that nobody downstream notices."""
    return job.lying(stage_idx, in_root=OTHER)


# guard -> a fault that it alone sees, its code and the stage that is named
ONLY: dict[str, tuple[Fault, str, int]] = {
    "nonce": (lambda job: job.lying(1, job_nonce="0a"), "replay", 1),
    "segment": (lambda job: job.lying(0, segment=1), "segment", 0),
    "place": (lambda job: job.lying(1, stage_idx=2), "place", 1),
    "ring": (lambda job: job.lying(2, num_stages=4), "place", 2),
    "model": (lambda job: job.lying(1, model_digest=OTHER), "model", 1),
    "frames": (lambda job: job.lying(0, frames=3), "work", 0),
    "positions": (lambda job: job.lying(1, positions=10), "work", 1),
    "work": (lambda job: job.lying(2, compute_ns=0), "no_work", 2),
    "tiling": (lambda job: job.lying(1, layer_start=3), "layers", 1),
    "depth": (lambda job: job.knowing(num_layers=13), "layers", 2),
    "chain": (lambda job: other_chain(job, 1), "chain", 1),
    "last root": (lambda job: job.knowing(last_root=OTHER), "chain", 2),
    "who answers": (lambda job: job.lying(0, answers=()), "answers", 0),
    "answered frames": (
        lambda job: job.lying(
            2,
            answers=tuple(
                Answer(9, answer.start, answer.answer_from, answer.ids)
                for answer in job.statements[2].answers
            ),
        ),
        "answers",
        2,
    ),
    "output": (lambda job: job.knowing(output_ids=(40, 41, 42, 43, 45)), "answers", 2),
}


def test_an_honest_job_passes(job: HonestJob) -> None:
    assert verify_job(job.signed(), job.expected) == list(job.statements)


def test_every_guard_has_a_fault_of_its_own() -> None:
    """Catches a guard that is added without a proof that it is needed."""
    assert list(ONLY) == list(GUARDS)


@pytest.mark.parametrize("guard", ONLY)
def test_a_fault_is_seen_and_named(job: HonestJob, guard: str) -> None:
    fault, code, stage_idx = ONLY[guard]
    with pytest.raises(AttestationError) as caught:
        check(fault(job))
    assert (caught.value.code, caught.value.stage_idx) == (code, stage_idx)
    assert str(caught.value).startswith(f"stage {stage_idx}: {code}: ")


@pytest.mark.parametrize("guard", ONLY)
def test_without_the_guard_the_fault_passes(
    job: HonestJob, guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation: each guard is what catches its fault; a duplicate would hide a broken one."""
    others = {name: check for name, check in GUARDS.items() if name != guard}
    monkeypatch.setattr(verify, "GUARDS", others)
    check(ONLY[guard][0](job))


def altered_payload(job: HonestJob) -> list[str]:
    first, *rest = job.signed()
    envelope = msgspec.json.decode(first)
    envelope["payload"] = msgspec.json.decode(job.lying(0, frames=3).signed()[0])["payload"]
    return [msgspec.json.encode(envelope).decode(), *rest]


def signed_by(job: HonestJob, stage_idx: int, identity: Identity) -> list[str]:
    signed = job.signed()
    signed[stage_idx] = sign_body(body_of(job.statements[stage_idx]), identity)
    return signed


def swapped(job: HonestJob) -> list[str]:
    first, second, last = job.signed()
    return [second, first, last]


UNAUTHENTIC: dict[str, tuple[Callable[[HonestJob], list[str]], str, int | None]] = {
    "none": (lambda job: [], "missing", None),
    "one missing": (lambda job: job.signed()[:-1], "missing", 2),
    "one twice": (lambda job: [job.signed()[0], *job.signed()[:-1]], "duplicate", None),
    "one too many": (
        lambda job: [*job.signed(), job.lying(0, hash_ns=6).signed()[0]], "unknown_signer", 3,
    ),
    "in another order": (swapped, "unknown_signer", 0),
    "of a neighbour": (lambda job: signed_by(job, 1, job.identities[0]), "unknown_signer", 1),
    "altered": (altered_payload, "signature", 0),
    "garbage": (lambda job: ["{}", *job.signed()[1:]], "signature", 0),
    "of another kind": (
        lambda job: [
            sign_body(body_of(job.statements[0]), job.identities[0], "longhaul-receipt/1"),
            *job.signed()[1:],
        ],
        "signature",
        0,
    ),
    "with one more field": (
        lambda job: [
            sign_body(body_of(job.statements[0], [("more", 1)]), job.identities[0]),
            *job.signed()[1:],
        ],
        "signature",
        0,
    ),
    "not canonical": (
        lambda job: [
            sign_body(b" " + body_of(job.statements[0]), job.identities[0]),
            *job.signed()[1:],
        ],
        "signature",
        0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNAUTHENTIC)
def test_statements_that_are_not_the_pinned_signers_are_refused(job: HonestJob, kind: str) -> None:
    made, code, stage_idx = UNAUTHENTIC[kind]
    with pytest.raises(AttestationError) as caught:
        check(job, made(job))
    assert (caught.value.code, caught.value.stage_idx) == (code, stage_idx)


def test_a_strangers_key_under_a_known_name_is_refused(job: HonestJob, tmp_path: Path) -> None:
    """Catches a key that is believed because its fingerprint is claimed."""
    stranger = Identity.load_or_create(tmp_path / "stranger.key")
    signed = job.signed()
    claimed = sign_body(body_of(job.statements[1]), stranger)
    signed[1] = claimed.replace(stranger.key_id, job.identities[1].key_id)
    with pytest.raises(AttestationError, match="signature"):
        check(job, signed)


def test_without_its_check_a_forged_signature_would_pass(
    job: HonestJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutation of the signature's own guard."""
    monkeypatch.setattr(PublicIdentity, "verify", lambda *_: None)
    signed = job.signed()
    envelope = msgspec.json.decode(signed[0])
    envelope["signature"] = msgspec.json.decode(signed[1])["signature"]
    check(job, [msgspec.json.encode(envelope).decode(), *signed[1:]])


def test_a_used_nonce_is_a_replay(job: HonestJob) -> None:
    with pytest.raises(AttestationError, match="replay"):
        check(job.knowing(used_nonces=frozenset({"00ff"})))
    check(job.knowing(used_nonces=frozenset({"0aff"})))


@pytest.mark.parametrize("nothing", [{"frames": ()}, {"output_ids": ()}])
def test_a_job_without_work_is_refused(job: HonestJob, nothing: dict[str, object]) -> None:
    """Catches an attestation of nothing, which always chains."""
    with pytest.raises(AttestationError, match="no_work"):
        check(job.knowing(**nothing))


def test_a_position_answered_twice_counts_as_answered_last(job: HonestJob) -> None:
    """Catches the answer that was refuted, taken for the output."""
    check(job)
    with pytest.raises(AttestationError, match="position 9"):
        check(job.knowing(output_ids=(40, 41, 42, 99, 44)))


@settings(max_examples=150)
@given(draw=st.data())
def test_every_byte_of_every_statement_counts(job: HonestJob, draw: st.DataObject) -> None:
    """Catches a second spelling of a statement: JSON and base64 have several."""
    signed = job.signed()
    which = draw.draw(st.integers(0, len(signed) - 1))
    text = signed[which]
    at = draw.draw(st.integers(0, len(text) - 1))
    put = draw.draw(st.characters(min_codepoint=32, max_codepoint=126))
    if put == text[at]:
        return
    signed[which] = text[:at] + put + text[at + 1 :]
    with pytest.raises(AttestationError):
        check(job, signed)


def test_errors_say_what_was_claimed_and_what_was_so(job: HonestJob) -> None:
    with pytest.raises(AttestationError, match=re.escape("says number of frames 3; it was 4")):
        check(job.lying(0, frames=3))
