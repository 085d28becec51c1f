"""The ring over real sockets, against an oracle: exact ids, drained ends, named failures."""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import replace

import msgspec
import pytest
from oracle_ring import CONTEXT_LEN, OracleRing, continuation, repetitive_truth

from engine.coordinator.job import JobRequest, JobResult, make_levers
from engine.errors import ConfigError, LinkClosedError
from engine.stage.job import Forward, Report, StageIdentity
from engine.transport.link import Link
from engine.transport.message import (
    AnyMessage,
    JobErrorReport,
    Levers,
    Noop,
    ProbeOrder,
    ProbeReport,
    Reply,
    ResetAck,
)

TRUTH = repetitive_truth(alphabet=13, period=11)
PROMPT = tuple(TRUTH([0] * (idx + 1)) for idx in range(30))
AR = make_levers(drafter="none", draft_len=0, depth=1, max_new_tokens=20)


def request(
    levers: Levers, prompt: tuple[int, ...] = PROMPT, eos: tuple[int, ...] = ()
) -> JobRequest:
    return JobRequest(prompt_ids=prompt, levers=levers, eos_ids=frozenset(eos), nonce="00")


def assert_drained(result: JobResult) -> None:
    """Nothing pending anywhere after a job: the issue's question, asked of every stage."""
    assert result.ring_usable
    assert [statement.pending_frames for statement in result.statements] == [0] * len(
        result.statements
    )
    replies = sum(frame.received_ns is not None for frame in result.frames)
    assert replies == result.statements[-1].frames_sent


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4, 6])
def test_every_policy_and_depth_gives_the_oracles_ids(num_stages: int) -> None:
    """Catches any frame that is computed at a wrong position, in a wrong epoch or not at all."""
    expected = continuation(TRUTH, PROMPT, 40, ())
    with OracleRing(num_stages, TRUTH, delay_s=0.002) as ring, ring.session() as session:
        for policy in ("fixed-k", "two-state"):
            for depth in (1, 2, 4, 8):
                for draft_len in (1, 3, 8):
                    levers = make_levers(
                        policy=policy,
                        draft_len=draft_len,
                        depth=depth,
                        prefill_chunk=7,
                        max_new_tokens=40,
                    )
                    result = session.run(request(levers))
                    assert result.failure is None
                    assert result.output_ids == expected, (policy, depth, draft_len)
                    assert_drained(result)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_a_traversal_is_n_plus_one_frames(num_stages: int) -> None:
    """Catches an extra hop: N verify frames and one reply a traversal, counted by senders."""
    with OracleRing(num_stages, TRUTH) as ring, ring.session() as session:
        result = session.run(request(AR))
    assert len(result.frames) == 1 + 19  # the prefill, then one traversal a token
    assert [item.frames_sent for item in result.statements] == [20] * num_stages


def test_a_compute_bound_ring_drops_stale_frames_uncomputed() -> None:
    """Catches a stage that computes what a newer epoch has already made useless."""
    truth = repetitive_truth(alphabet=13, period=5)
    levers = make_levers(draft_len=2, depth=8, max_new_tokens=120, min_match_len=1)
    with OracleRing(2, truth, delay_s=0.004) as ring, ring.session() as session:
        result = session.run(request(levers))
    assert result.output_ids == continuation(truth, PROMPT, 120, ())
    dropped = sum(item.stale_dropped for item in result.statements)
    assert dropped > 0, "no stale frame was dropped"
    assert_drained(result)


@pytest.mark.parametrize("num_stages", [1, 3])
def test_noops_keep_links_warm_in_a_job_and_change_nothing(
    num_stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a noop that is forwarded, answered, counted as a frame or a stray, and links that
    are kept warm after the job, or in one that did not ask for it."""
    posted: list[str] = []
    offer = Link.offer

    def noted(link: Link, message: AnyMessage) -> bool:
        posted.append(link.peer)
        return offer(link, message)

    monkeypatch.setattr(Link, "offer", noted)
    levers = make_levers(draft_len=2, depth=1, max_new_tokens=12)
    warm = msgspec.structs.replace(levers, keepwarm_ms=20)
    with OracleRing(num_stages, TRUTH, delay_s=0.2) as ring, ring.session() as session:
        cold = session.run(request(levers))
        assert not posted
        result = session.run(request(warm))
        assert len(set(posted)) == num_stages + 1, "each of the N + 1 links has its sender"
        told = [result.wire_use, *result.statements]
        assert all(item.noops_sent for item in told), "each sender counts its own"
        assert sum(item.noops_sent for item in told) <= len(posted), "some gave way to a frame"
        assert not any(item.noops_sent for item in [cold.wire_use, *cold.statements])
        time.sleep(0.1)
        del posted[:]
        time.sleep(0.2)
        assert not posted, "the job is over"
    assert result.output_ids == cold.output_ids and result.failure is None
    assert_drained(result)
    assert result.uncorrelated == 0
    assert [item.uncorrelated for item in result.statements] == [0] * num_stages
    # As many frames as without, and what they hold: a noop is no part of a job.
    assert [item.frames_sent for item in result.statements] == [
        item.frames_sent for item in cold.statements
    ]


def test_eos_and_random_prompts_end_exactly() -> None:
    """Catches output that runs past EOS or past max_new_tokens when drafts are in flight."""
    rng = random.Random(5)
    with OracleRing(3, TRUTH) as ring, ring.session() as session:
        for _ in range(40):
            prompt = tuple(rng.randrange(13) for _ in range(rng.randrange(1, 40)))
            eos = (rng.randrange(13),)
            max_new = rng.randrange(1, 40)
            levers = make_levers(max_new_tokens=max_new, min_match_len=1, prefill_chunk=8)
            result = session.run(request(levers, prompt, eos))
            assert result.output_ids == continuation(TRUTH, prompt, max_new, eos)
            assert result.finish_reason == ("eos" if result.output_ids[-1] in eos else "length")
            assert_drained(result)


def test_a_failed_job_is_named_and_the_next_one_runs() -> None:
    """Catches a stage that dies of, or carries over, one job's failure."""
    with OracleRing(3, TRUTH) as ring, ring.session() as session:
        ring.executors[1].fail_at = 35
        failed = session.run(request(AR))
        assert failed.failure is not None
        assert (failed.failure.code, failed.failure.stage_idx) == ("planted", 1)
        assert_drained(failed)
        ring.executors[1].fail_at = None
        assert session.run(request(AR)).output_ids == continuation(TRUTH, PROMPT, 20, ())


def test_a_prompt_beyond_the_context_fails_only_its_job() -> None:
    with OracleRing(2, TRUTH) as ring, ring.session() as session:
        too_long = session.run(request(AR, prompt=(1,) * CONTEXT_LEN))
        assert too_long.failure is not None and too_long.failure.code == "context_overflow"
        assert str(CONTEXT_LEN) in too_long.failure.detail
        empty = session.run(request(AR, prompt=()))
        assert empty.failure is not None and empty.failure.code == "empty_prompt"
        assert session.run(request(AR)).failure is None


def test_a_wrong_lever_state_fails_the_job_before_its_first_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches a ring that measures something other than what was asked for."""
    with OracleRing(3, TRUTH) as ring, ring.session() as session:
        job = ring.services[1]._job
        honest = job.on_reset

        def lying(reset: object) -> list[object]:
            outgoing = honest(reset)  # type: ignore[arg-type]
            return [
                Report(msgspec.structs.replace(item.message, levers=replace_depth(item.message)))
                if isinstance(item, Report) and isinstance(item.message, ResetAck)
                else item
                for item in outgoing
            ]

        def replace_depth(ack: ResetAck) -> Levers:
            return msgspec.structs.replace(ack.levers, depth=ack.levers.depth + 1)

        monkeypatch.setattr(job, "on_reset", lying)
        committed: list[int] = []
        result = session.run(request(AR), lambda ids, _: committed.extend(ids))
        assert result.failure is not None
        assert (result.failure.code, result.failure.stage_idx) == ("lever_mismatch", 1)
        assert committed == [] and result.output_ids == []


def test_an_unknown_numeric_configuration_is_refused_by_the_stages() -> None:
    levers = msgspec.structs.replace(AR, numeric_config="f8")
    with OracleRing(2, TRUTH) as ring, ring.session() as session:
        result = session.run(request(levers))
        assert result.failure is not None and result.failure.code == "numeric_config"
        assert "f32" in result.failure.detail


def test_a_lost_stage_fails_the_job_and_the_session_refuses_more() -> None:
    """Catches a coordinator that hangs, or goes on with a ring of which it knows nothing."""
    with OracleRing(3, TRUTH, delay_s=0.01) as ring, ring.session() as session:
        seen: list[int] = []

        def stop_the_middle(ids: list[int], _: object) -> None:
            seen.extend(ids)
            if len(seen) >= 5:
                ring.services[1].close()

        result = session.run(request(replace_tokens(AR, 200)), stop_the_middle)
        assert result.failure is not None and result.failure.code == "link_lost"
        assert not result.ring_usable
        assert result.output_ids == continuation(TRUTH, PROMPT, len(result.output_ids), ())
        with pytest.raises(LinkClosedError, match="bring up a new one"):
            session.run(request(AR))


def replace_tokens(levers: Levers, max_new_tokens: int) -> Levers:
    return msgspec.structs.replace(levers, max_new_tokens=max_new_tokens)


def test_a_new_coordinator_takes_over_a_warm_ring() -> None:
    """Catches stages that stay loyal to a coordinator that is gone."""
    with OracleRing(3, TRUTH) as ring:
        for _ in range(3):
            with ring.session() as session:
                assert session.run(request(AR)).output_ids == continuation(TRUTH, PROMPT, 20, ())


def test_every_link_is_measured() -> None:
    with OracleRing(3, TRUTH) as ring, ring.session() as session:
        probes = session.measure_links(count=4, payload_bytes=10_000, idle_ms=1)
        assert [len(probe.rtt_ns) for probe in probes] == [4] * 4
        assert [len(probe.payload_rtt_ns) for probe in probes] == [4] * 4
        for probe in probes:
            assert min(*probe.rtt_ns, *probe.payload_rtt_ns, probe.idle_payload_rtt_ns) > 0
        assert session.run(request(AR)).failure is None


@pytest.mark.parametrize(
    "plan",
    [
        {"count": 0},
        {"count": 10_000},
        {"payload_bytes": -1},
        {"payload_bytes": 2**30},
        {"idle_ms": -1},
        {"idle_ms": 10**7},
    ],
)
def test_an_impossible_probe_order_is_refused_here_and_dropped_there(
    plan: dict[str, int],
) -> None:
    """Catches an order that kills a stage's control thread or makes it allocate and sleep."""
    asked = {"count": 1, "payload_bytes": 10, "idle_ms": 0, **plan}
    with OracleRing(2, TRUTH) as ring, ring.session() as session:
        with pytest.raises(ConfigError, match=next(iter(plan))):
            session.measure_links(**asked)
        session._links._controls[1].send(ProbeOrder(**asked))
        assert len(session.measure_links(count=1, payload_bytes=10, idle_ms=0)) == 3
        result = session.run(request(AR))
    assert result.failure is None
    assert [item.uncorrelated for item in result.statements] == [0, 1]


def test_a_report_of_another_stage_is_not_taken_for_the_asked_one() -> None:
    """Catches a measurement that goes down under the wrong link's name."""
    forged = ProbeReport(rtt_ns=(1,), payload_rtt_ns=(1,), idle_payload_rtt_ns=1)
    with OracleRing(3, TRUTH) as ring, ring.session() as session:
        ring.services[2]._links.get("control").send(forged)
        probes = session.measure_links(count=1, payload_bytes=10, idle_ms=0)
        assert all(min(probe.rtt_ns) > 1 for probe in probes)
        assert session.run(request(AR)).uncorrelated == 1


def test_what_a_stage_may_not_send_is_counted_also_between_jobs() -> None:
    """Catches a stray that falls between two jobs and into neither's count."""
    with OracleRing(2, TRUTH) as ring, ring.session() as session:
        assert session.run(request(AR)).uncorrelated == 0
        ring.services[1]._links.get("control").send(Noop())
        # Behind it on the same link, so that it has been read when this has.
        session.measure_links(count=1, payload_bytes=0, idle_ms=0)
        assert session.run(request(AR)).uncorrelated == 1
        assert session.run(request(AR)).uncorrelated == 0


def test_records_of_the_ring_are_the_machines() -> None:
    """Catches bytes, spans or times that the session forgets to note."""
    with OracleRing(3, TRUTH) as ring, ring.session() as session:
        result = session.run(request(make_levers(max_new_tokens=20)))
    for frame in result.frames:
        assert frame.sent_bytes > 0
        if frame.received_ns is not None:
            assert len(frame.spans) == 3 and frame.received_ns >= frame.sent_ns
            assert frame.received_bytes > 0
            assert replace(frame, spans=()).sent_ns >= 0


def test_a_frame_is_stamped_when_it_leaves() -> None:
    """Catches the time of the decision, which is the last reply's arrival, taken for that of the
    send: the coordinator's own time would count as the link's."""
    with OracleRing(2, TRUTH) as ring, ring.session() as session:
        frames = session.run(request(AR)).frames
    for earlier, later in itertools.pairwise(frames):
        assert earlier.received_ns is not None
        assert later.sent_ns > earlier.received_ns


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_a_stage_is_named_not_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a stage that dies in silence, which looks like a lost network."""
    with OracleRing(3, TRUTH) as ring, ring.session() as session:

        def broken(*_: object) -> None:
            raise ZeroDivisionError("planted")

        monkeypatch.setattr(ring.executors[1], "run", broken)
        result = session.run(request(AR))
        assert result.failure is not None
        assert (result.failure.code, result.failure.stage_idx) == ("stage_bug", 1)
        assert "planted" in result.failure.detail and not result.ring_usable


def test_a_stage_lost_between_jobs_is_a_failed_job() -> None:
    """Catches an exception that escapes the harness's loop together with the job it had taken."""
    with OracleRing(2, TRUTH) as ring, ring.session() as session:
        assert session.run(request(AR)).failure is None
        ring.services[0].close()
        deadline = time.monotonic() + 10
        with pytest.raises(LinkClosedError):
            while time.monotonic() < deadline:
                session.check()
                time.sleep(0.01)
    with OracleRing(2, TRUTH) as ring, ring.session() as session:
        ring.services[0].close()
        result = session.run(request(AR))
        assert result.failure is not None and result.failure.code == "link_lost"
        assert result.output_ids == [] and not session.usable


def test_a_reply_that_answers_nothing_is_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Catches a reply that matches no frame and is applied, or that costs the ring."""
    with OracleRing(2, TRUTH) as ring, ring.session() as session:
        job = ring.services[1]._job
        honest = job.on_verify

        def chatty(*arguments: object) -> list[object]:
            outgoing = honest(*arguments)  # type: ignore[arg-type]
            forged = [
                Forward(msgspec.structs.replace(item.message, start=item.message.start + 1), {})
                for item in outgoing
                if isinstance(item, Forward) and isinstance(item.message, Reply)
            ]
            return [*forged, *outgoing]

        monkeypatch.setattr(job, "on_verify", chatty)
        result = session.run(request(AR))
        assert result.failure is None
        assert result.output_ids == continuation(TRUTH, PROMPT, 20, ())
        assert result.uncorrelated == 20


def test_another_build_is_refused_before_the_first_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a ring of two builds, which measures neither."""
    with OracleRing(2, TRUTH) as ring, ring.session() as session:
        job = ring.services[1]._job
        monkeypatch.setattr(job, "_identity", StageIdentity(1, "f" * 64, 1))
        result = session.run(request(AR))
        assert result.failure is not None
        assert (result.failure.code, result.failure.stage_idx) == ("build_mismatch", 1)
        assert result.output_ids == []


def test_another_model_is_refused_before_the_first_commit() -> None:
    with OracleRing(2, TRUTH) as ring, ring.session() as session:
        ring.executors[1].model_digest = "1" * 64
        result = session.run(request(AR))
        assert result.failure is not None and result.failure.code == "model_mismatch"
        assert result.output_ids == []


def test_another_cache_limit_is_refused_before_the_first_commit() -> None:
    """Catches a stage that trims its cache while the others do not."""
    with OracleRing(2, TRUTH) as ring, ring.session() as session:
        ring.executors[1].max_kv_size = 64
        result = session.run(request(AR))
        assert result.failure is not None
        assert (result.failure.code, result.failure.stage_idx) == ("cache_mismatch", 1)
        assert result.output_ids == []


def test_only_the_stage_concerned_may_speak_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches an acknowledgement or an error taken from a peer who is not entitled to it."""
    with OracleRing(2, TRUTH) as ring, ring.session() as session:
        job = ring.services[1]._job
        honest = job.on_reset

        def meddling(reset: object) -> list[object]:
            number = reset.job  # type: ignore[attr-defined]
            forged = JobErrorReport(job=number, stage_idx=0, code="forged", detail="by stage 1")
            return [Report(forged), *honest(reset)]  # type: ignore[arg-type]

        monkeypatch.setattr(job, "on_reset", meddling)
        result = session.run(request(AR))
        assert result.failure is None and result.uncorrelated == 1


def test_a_wall_clock_that_jumps_back_loses_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a coordinator that takes over with lower job numbers, whose frames all look stale,
    and times that are read off a clock somebody can set."""
    now_ns = time.time_ns()
    with OracleRing(2, TRUTH) as ring:
        for hour in (0, -1, -2, 3):
            monkeypatch.setattr(time, "time_ns", lambda hour=hour: now_ns + hour * 3600 * 10**9)
            with ring.session() as session:
                result = session.run(request(AR))
            assert result.failure is None, hour
            assert result.output_ids == continuation(TRUTH, PROMPT, 20, ())
            assert 0 <= result.first_commit_ns <= result.last_commit_ns <= result.end_ns
            assert all(frame.sent_ns <= frame.received_ns for frame in result.frames)
