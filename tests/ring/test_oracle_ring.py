"""The ring over real sockets, against an oracle: exact ids, drained ends, named failures."""

from __future__ import annotations

import itertools
import random
import socket
import struct
import threading
import time
from dataclasses import replace

import msgspec
import pytest
from oracle_ring import CLUSTER_ID, CONTEXT_LEN, OracleRing, continuation, repetitive_truth

from engine.coordinator.job import JobRequest, JobResult, make_levers
from engine.errors import LinkClosedError
from engine.stage.job import Forward, Report, StageIdentity
from engine.transport.frame import MAX_PAYLOAD_LEN, Kind
from engine.transport.link import (
    HANDSHAKE_TIMEOUT_S,
    HELLO_MAX_LEN,
    Link,
    Listener,
    dial,
    read_in_background,
)
from engine.transport.message import (
    PROTOCOL_VERSION,
    Hello,
    JobErrorReport,
    Levers,
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
    on_wire = len(result.frames) + sum(item.frames_sent for item in result.statements)
    assert on_wire == (num_stages + 1) * len(result.frames)
    assert len(result.frames) == 1 + 19  # the prefill, then one traversal a token


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
        result = session.run(request(AR), committed.extend)
        assert result.failure is not None
        assert (result.failure.code, result.failure.stage_idx) == ("lever_mismatch", 1)
        assert committed == [] and result.output_ids == []


def test_an_unknown_numeric_configuration_is_refused_by_the_stages() -> None:
    levers = make_levers(numeric_config="f8", max_new_tokens=4)
    with OracleRing(2, TRUTH) as ring, ring.session() as session:
        result = session.run(request(levers))
        assert result.failure is not None and result.failure.code == "numeric_config"
        assert "f32" in result.failure.detail


def test_a_lost_stage_fails_the_job_and_the_session_refuses_more() -> None:
    """Catches a coordinator that hangs, or goes on with a ring of which it knows nothing."""
    with OracleRing(3, TRUTH, delay_s=0.01) as ring, ring.session() as session:
        seen: list[int] = []

        def stop_the_middle(ids: list[int]) -> None:
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


def test_strangers_and_garbage_do_not_disturb_a_stage() -> None:
    """Catches a listener that dies or blocks on what a stranger sends."""
    with OracleRing(2, TRUTH) as ring, ring.session() as session:
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", struct.pack(">BQ", 1, MAX_PAYLOAD_LEN + 1), b""):
            with socket.create_connection(ring.addresses[0]) as stranger:
                stranger.sendall(garbage)
        assert session.run(request(AR)).failure is None
    # The thread that accepts must have survived them as well.
    with OracleRing(2, TRUTH) as ring:
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", struct.pack(">BQ", 99, 0)):
            with socket.create_connection(ring.addresses[0]) as stranger:
                stranger.sendall(garbage)
        with ring.session() as session:
            assert session.run(request(AR)).failure is None


def test_round_trips_of_every_link_are_measured() -> None:
    with OracleRing(3, TRUTH) as ring, ring.session() as session:
        rtts = session.measure_rtt(4)
        assert [len(rtt_ns) for rtt_ns in rtts] == [4] * 4
        assert all(rtt_ns > 0 for link in rtts for rtt_ns in link)
        assert session.run(request(AR)).failure is None


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

        monkeypatch.setattr(ring.executors[1], "forward", broken)
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


def test_a_silent_stranger_holds_nobody_up_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a handshake whose clock a trickle of bytes starts again."""
    monkeypatch.setattr("engine.transport.link.HANDSHAKE_TIMEOUT_S", 0.3)
    with OracleRing(2, TRUTH) as ring, socket.create_connection(ring.addresses[0]) as stranger:
        # One byte each 0.1 s: a clock that starts again with every byte would not run out for 20 s.
        trickle = threading.Thread(
            target=drip, args=(stranger, struct.pack(">BQ", Kind.HELLO, 4000) + bytes(200))
        )
        trickle.start()
        began_s = time.monotonic()
        with ring.session() as session:
            assert session.run(request(AR)).failure is None
        assert time.monotonic() - began_s < 10
    trickle.join(timeout=30)
    assert not trickle.is_alive()


def drip(stranger: socket.socket, body: bytes) -> None:
    for value in body:
        try:
            stranger.send(bytes([value]))
        except OSError:
            return  # given up on, as it should be
        time.sleep(0.1)


def test_a_stranger_cannot_make_a_stage_allocate() -> None:
    """Catches the full frame limit granted before anybody has said who they are."""
    listener = Listener()
    received: list[object] = []

    def accept() -> None:
        try:
            received.append(listener.accept("stage-0", CLUSTER_ID))
        except LinkClosedError as error:
            received.append(error)

    thread = threading.Thread(target=accept)
    thread.start()
    with socket.create_connection(listener.address) as stranger:
        # Well before the handshake's own deadline would close it.
        stranger.settimeout(HANDSHAKE_TIMEOUT_S / 4)
        stranger.sendall(struct.pack(">BQ", Kind.HELLO, HELLO_MAX_LEN + 1))
        assert stranger.recv(1) == b"", "the header alone must end it"
    listener.close()
    thread.join(timeout=10)
    assert isinstance(received[0], LinkClosedError)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"protocol_version": PROTOCOL_VERSION + 1}, "protocol version"),
        ({"cluster_id": "another"}, "another cluster"),
        ({"role": "onward"}, "unknown role"),
    ],
)
def test_a_peer_that_does_not_belong_is_told_why(change: dict[str, object], why: str) -> None:
    hello = Hello(
        protocol_version=PROTOCOL_VERSION, cluster_id=CLUSTER_ID, node_id="x", role="control"
    )
    with OracleRing(1, TRUTH) as ring, pytest.raises(LinkClosedError, match=why):
        dial(ring.addresses[0], msgspec.structs.replace(hello, **change), "stage-0", 5)


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


def test_a_peer_that_stalls_in_a_frame_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a reader that waits for ever for the rest of a frame; an idle link may wait."""
    monkeypatch.setattr("engine.transport.link.MID_FRAME_STALL_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        link = Link(server.accept()[0], "a slow peer")
    ended: list[Exception] = []
    thread = read_in_background(link, lambda received, read_ns: None, ended.append)
    time.sleep(0.7)
    assert not ended, "an idle link was given up"
    theirs.send(struct.pack(">BQ", Kind.NOOP, 10))
    thread.join(timeout=10)
    assert ended and "stalled in the middle of a frame" in str(ended[0])
    link.close()
    theirs.close()


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
