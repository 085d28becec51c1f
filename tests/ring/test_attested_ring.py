"""Attested jobs on real sockets: honest rings pass, and each cheat fails its job and is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest
from oracle_ring import OracleRing, continuation, repetitive_truth

from engine.coordinator.attested import applied_frames
from engine.coordinator.job import JobRequest, JobResult, make_levers
from engine.stage.account import JobAccount, StageFacts
from engine.transport.message import Verify
from engine.trust import attestation
from engine.trust.attestation import StageStatement, open_envelope, parse_statement
from engine.trust.identity import Identity

TRUTH = repetitive_truth(alphabet=13, period=11)
PROMPT = tuple(TRUTH([0] * (idx + 1)) for idx in range(30))
NUM_STAGES = 3
LEVERS = make_levers(draft_len=4, depth=4, max_new_tokens=24, prefill_chunk=7, attestation=True)


def request(nonce: str = "0a", levers: object = LEVERS) -> JobRequest:
    return JobRequest(prompt_ids=PROMPT, levers=levers, eos_ids=frozenset(), nonce=nonce)


@pytest.fixture
def ring(identities: list[Identity]) -> Iterator[OracleRing]:
    with OracleRing(NUM_STAGES, TRUTH, delay_s=0.002, signers=identities) as ring:
        yield ring


def statements(result: JobResult) -> list[StageStatement]:
    return [parse_statement(open_envelope(item.signed)[1]) for item in result.statements]


def account_of(ring: OracleRing, stage_idx: int) -> JobAccount:
    return ring.services[stage_idx]._job._account


def test_an_honest_ring_attests_every_applied_frame(ring: OracleRing) -> None:
    """Catches frames that were dropped in a root, and roots that do not chain."""
    with ring.session() as session:
        for nonce in ("0a", "0b"):
            result = session.run(request(nonce))
            assert result.failure is None and result.ring_usable
            assert result.output_ids == continuation(TRUTH, PROMPT, 24, ())
            made = statements(result)
            applied = applied_frames(result.frames)
            assert any(frame.outcome == "stale" for frame in result.frames), "else it proves little"
            assert [item.frames for item in made] == [len(applied)] * NUM_STAGES
            assert all(item.job_nonce == nonce and item.compute_ns > 0 for item in made)
            assert [item.answers is not None for item in made] == [False, False, True]
            assert made[0].in_root == result.account.roots.out_root
            assert made[-1].out_root == result.account.roots.in_root


def test_without_attestation_nothing_is_kept_or_signed(ring: OracleRing) -> None:
    """Catches a job that pays for what it did not ask for."""
    plain = make_levers(draft_len=4, max_new_tokens=12)
    with ring.session() as session:
        result = session.run(request(levers=plain))
        assert result.failure is None and result.account is None
        assert [item.signed for item in result.statements] == [""] * NUM_STAGES
        for idx in range(NUM_STAGES):
            digests = ring.services[idx]._links._digests.frames
            assert digests._digests == {} and digests._thread is None


def test_a_job_with_and_one_without_take_turns(ring: OracleRing) -> None:
    """Catches digests of one job in another's roots."""
    plain = make_levers(draft_len=4, max_new_tokens=12)
    with ring.session() as session:
        for nonce, levers in (("01", LEVERS), ("02", plain), ("03", LEVERS), ("04", LEVERS)):
            assert session.run(request(nonce, levers)).failure is None


def test_a_nonce_is_taken_once(ring: OracleRing) -> None:
    """Catches an old statement that is as good as a new one."""
    with ring.session() as session:
        assert session.run(request("0c")).failure is None
        again = session.run(request("0c"))
        assert again.failure is not None and "used by an earlier job" in again.failure.detail
        assert session.run(request("0d")).failure is None


def test_a_ring_without_keys_refuses_attested_jobs() -> None:
    """Catches an attested job that nobody signed."""
    with OracleRing(1, TRUTH) as ring, ring.session() as session:
        result = session.run(request())
        assert result.failure is not None and "pinned" in result.failure.detail
        assert session.run(request(levers=make_levers(max_new_tokens=4))).failure is None


def test_a_stage_without_a_key_says_so(identities: list[Identity]) -> None:
    with OracleRing(NUM_STAGES, TRUTH, signers=identities) as ring, ring.session() as session:
        account_of(ring, 1)._identity = None
        failure = session.run(request()).failure
        assert failure is not None and failure.code == "attestation" and failure.stage_idx == 1


Cheat = Callable[[OracleRing, list[Identity], pytest.MonkeyPatch], None]


def lies(liar: int, **changes: object) -> Cheat:
    """A stage that signs something else than what it did."""

    def plant(ring: OracleRing, _: list[Identity], patch: pytest.MonkeyPatch) -> None:
        sign = attestation.sign_statement

        def forge(statement: StageStatement, identity: Identity) -> str:
            if statement.stage_idx == liar:
                statement = msgspec.structs.replace(statement, **changes)
            return sign(statement, identity)

        patch.setattr("engine.stage.account.sign_statement", forge)

    return plant


def alters_what_it_attests(stage_idx: int) -> Cheat:
    """Its statement is over other bytes than those it sent on."""

    def plant(ring: OracleRing, _: list[Identity], patch: pytest.MonkeyPatch) -> None:
        digests = ring.services[stage_idx]._links._digests
        tap = digests.tap

        def other(is_sent: bool, message: object, kind: int, payload: memoryview) -> None:
            altered = bytearray(payload)
            if is_sent:
                altered[-1] ^= 1
            tap(is_sent, message, kind, memoryview(altered))

        for role in ("onward", "return"):
            link = ring.services[stage_idx]._links._links.get(role)
            if link is not None:
                link.watch(other)

    return plant


def lies_about_ids(ring: OracleRing, _: list[Identity], patch: pytest.MonkeyPatch) -> None:
    """The last stage answers one id and states another."""
    note = JobAccount.note

    def other(self: JobAccount, verify: Verify, ids: list[int], compute_ns: int) -> None:
        note(self, verify, [token + 1 for token in ids], compute_ns)

    patch.setattr(JobAccount, "note", other)


def forgets_a_frame(ring: OracleRing, _: list[Identity], patch: pytest.MonkeyPatch) -> None:
    account = account_of(ring, 1)
    signed = account.signed

    def fewer(keys: list[tuple[int, int]], facts: StageFacts) -> str:
        return signed(keys[:-1], facts)

    patch.setattr(account, "signed", fewer)


def says_nothing(ring: OracleRing, _: list[Identity], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(account_of(ring, 1), "signed", lambda keys, facts: "")


def replays_yesterdays(ring: OracleRing, _: list[Identity], patch: pytest.MonkeyPatch) -> None:
    account = account_of(ring, 1)
    signed = account.signed
    kept: list[str] = []

    def old(keys: list[tuple[int, int]], facts: StageFacts) -> str:
        kept.append(signed(keys, facts))
        return kept[0]

    patch.setattr(account, "signed", old)


def borrows_its_neighbours_key(
    ring: OracleRing, identities: list[Identity], patch: pytest.MonkeyPatch
) -> None:
    patch.setattr(account_of(ring, 1), "_identity", identities[0])


CHEATS: dict[str, tuple[Cheat, int, str]] = {
    "claims its neighbour's layers": (lies(1, layer_start=0, layer_end=1), 1, "layers"),
    "claims fewer layers": (lies(2, layer_end=2), 2, "layers"),
    "claims a deeper model": (lies(2, layer_end=9), 2, "layers"),
    "another model": (lies(0, model_digest="1" * 64), 0, "model"),
    "another place": (lies(1, stage_idx=2), 1, "place"),
    "another ring": (lies(1, num_stages=4), 1, "place"),
    "another job": (lies(1, job_nonce="ff"), 1, "replay"),
    "another segment": (lies(1, segment=1), 1, "segment"),
    "more frames": (lies(0, frames=99), 0, "work"),
    "fewer positions": (lies(0, positions=1), 0, "work"),
    "no time at all": (lies(1, compute_ns=0), 1, "no_work"),
    "other input": (lies(1, in_root="1" * 64), 1, "chain"),
    "other output": (lies(1, out_root="1" * 64), 2, "chain"),  # the next one received another
    "other replies": (lies(2, out_root="1" * 64), 2, "chain"),
    "answers from the middle": (lies(1, answers=()), 1, "answers"),
    "no answers": (lies(2, answers=None), 2, "answers"),
    "answers to other frames": (lies(2, answers=()), 2, "answers"),
    "sends other bytes than it attests": (alters_what_it_attests(1), 2, "chain"),
    "replies other bytes than it attests": (alters_what_it_attests(2), 2, "chain"),
    "lies about ids": (lies_about_ids, 2, "answers"),
    "forgets a frame": (forgets_a_frame, 1, "work"),
    "says nothing": (says_nothing, 1, "signature"),
    "borrows its neighbour's key": (borrows_its_neighbours_key, 1, "unknown_signer"),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_cheating_stage_fails_the_job_and_is_named(
    cheat: str,
    ring: OracleRing,
    identities: list[Identity],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches any guard that is not there."""
    plant, stage_idx, code = CHEATS[cheat]
    with ring.session() as session:
        plain = make_levers(max_new_tokens=2)
        session.run(request("aa", plain))  # links are up
        plant(ring, identities, monkeypatch)
        result = session.run(request("0a"))
        assert result.failure is not None, "it passed"
        assert result.failure.code == "attestation"
        assert (result.failure.stage_idx, result.failure.detail.split(":")[0]) == (stage_idx, code)


def test_yesterdays_statement_is_refused(
    ring: OracleRing, identities: list[Identity], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a statement of another job that is signed all right."""
    with ring.session() as session:
        replays_yesterdays(ring, identities, monkeypatch)
        assert session.run(request("0a")).failure is None
        failure = session.run(request("0b")).failure
        assert failure is not None and failure.stage_idx == 1
        assert failure.detail.startswith("replay: ")


def test_a_frame_that_was_never_computed_cannot_be_attested(
    ring: OracleRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a stage that attests whatever it is asked for."""
    with ring.session() as session:
        monkeypatch.setattr(
            "engine.coordinator.job_run.frames_to_attest",
            lambda request, result, machine: ((0, 0), (5, 999)),
        )
        failure = session.run(request()).failure
        assert failure is not None and failure.code == "attestation"
        assert "(epoch 5, start 999) was not computed here" in failure.detail


def test_a_failed_job_still_closes_and_the_next_one_attests(ring: OracleRing) -> None:
    """Catches a job that fails in the middle and is asked for roots all the same."""
    with ring.session() as session:
        ring.executors[1].fail_at = 35
        failed = session.run(request("01"))
        assert failed.failure is not None and failed.failure.code == "planted"
        ring.executors[1].fail_at = None
        assert session.run(request("02")).failure is None
