"""A stage's side of a job, message by message, without sockets."""

from __future__ import annotations

import msgspec
import pytest
import torch
from oracle_ring import HIDDEN_LEN, VOCAB_SIZE, OracleExecutor, repetitive_truth

from engine.coordinator.job import make_levers
from engine.errors import JobError
from engine.numeric import NUMERIC_CONFIGS
from engine.stage.job import Forward, Outside, Report, StageIdentity, StageJob
from engine.transport.connection import WireUse
from engine.transport.message import (
    Attest,
    JobErrorReport,
    Levers,
    Reply,
    Reset,
    Sampling,
    Statement,
    Verify,
)

TRUTH = repetitive_truth(alphabet=13, period=11)
LEVERS = make_levers(max_new_tokens=8)
VERIFY = Verify(job=7, epoch=0, start=0, positions_len=3, answer_from=2, ids=(1, 2, 3))


def stage(stage_idx: int, num_stages: int, levers: Levers = LEVERS) -> StageJob:
    executor = OracleExecutor(stage_idx, num_stages, TRUTH)
    job = StageJob(executor, StageIdentity(stage_idx, "0" * 64, 1))
    job.on_reset(Reset(job=7, nonce="00", levers=levers))
    return job


def failure(outgoing: list[Forward | Report]) -> JobErrorReport:
    (report,) = outgoing
    assert isinstance(report, Report) and isinstance(report.message, JobErrorReport)
    return report.message


def feed(
    job: StageJob, verify: Verify, tensors: dict[str, torch.Tensor] | None = None
) -> list[Forward | Report]:
    return job.on_verify(verify, tensors or {}, 0, lambda _: False)


def statement(job: StageJob) -> Statement:
    *_, report = job.on_attest(
        Attest(job=7, epoch=1), Outside(0, 0, 2, WireUse(codec_ns=5, seal_ns=7, noops_sent=3))
    )
    assert isinstance(report, Report) and isinstance(report.message, Statement)
    return report.message


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ids": None}, "one id a position"),
        ({"ids": (1, 2)}, "one id a position"),
        ({"start": 3, "answer_from": 2}, "answer_from"),
    ],
)
def test_a_frame_that_cannot_be_is_the_jobs_error(changes: dict[str, object], why: str) -> None:
    """Catches a frame that is answered for other positions than it was asked for."""
    job = stage(0, 1)
    if "start" in changes:
        feed(job, VERIFY)
    report = failure(feed(job, msgspec.structs.replace(VERIFY, **changes)))
    assert report.code == "bad_frame" and why in report.detail
    assert feed(job, VERIFY) == [], "a failed job drops its later frames"


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"hidden": torch.zeros(2, HIDDEN_LEN)},
        {"hidden": torch.zeros(3)},
        {"hidden": torch.zeros(3, HIDDEN_LEN, dtype=torch.float16)},
        {"other": torch.zeros(3, HIDDEN_LEN)},
    ],
)
def test_hidden_states_of_another_form_are_the_jobs_error(
    tensors: dict[str, torch.Tensor],
) -> None:
    """Catches a later stage that computes on whatever came."""
    report = failure(feed(stage(1, 2), msgspec.structs.replace(VERIFY, ids=None), tensors))
    assert report.code == "bad_frame"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"numeric_config": "f8"}, "numeric_config"),
        ({"reply": "text"}, "reply"),
        ({"sampling": Sampling(temperature="hot")}, "sampling"),
        ({"keepwarm_ms": 5}, "keepwarm_ms"),
    ],
)
def test_levers_that_a_stage_does_not_know_fail_the_job(
    changes: dict[str, object], code: str
) -> None:
    """Catches a stage that echoes a lever and then does something else."""
    job = StageJob(OracleExecutor(0, 1, TRUTH), StageIdentity(0, "0" * 64, 1))
    levers = msgspec.structs.replace(LEVERS, **changes)
    *_, last = job.on_reset(Reset(job=7, nonce="00", levers=levers))
    assert failure([last]).code == code
    assert feed(job, VERIFY) == []


@pytest.mark.parametrize(("held", "asked"), [("f32", "int4"), ("int4", "f32"), ("int4", "fp8")])
def test_weights_that_a_stage_does_not_hold_fail_the_job(held: str, asked: str) -> None:
    """Catches a job that is answered in other weights than it asked for."""
    executor = OracleExecutor(0, 1, TRUTH)
    executor.weights = held
    job = StageJob(executor, StageIdentity(0, "0" * 64, 1))
    *_, last = job.on_reset(Reset(job=7, nonce="00", levers=make_levers(numeric_config=asked)))
    report = failure([last])
    assert report.code == "numeric_config"
    wanted = NUMERIC_CONFIGS[asked].weights
    assert all(word in report.detail for word in (asked, f"{wanted} weights", f"holds {held}"))
    assert feed(job, VERIFY) == []


def test_frames_of_another_job_are_counted_and_never_answered() -> None:
    """Catches a last stage that answers what it cannot correlate."""
    job = stage(0, 1)
    assert feed(job, msgspec.structs.replace(VERIFY, job=6)) == []
    assert feed(job, msgspec.structs.replace(VERIFY, job=8)) == []
    assert statement(job).uncorrelated == 2 + 2, "two of the queue's, two of the links'"


def test_what_was_sent_is_counted_by_job() -> None:
    job = stage(0, 1)
    (answer,) = feed(job, VERIFY)
    assert isinstance(answer, Forward) and isinstance(answer.message, Reply)
    job.note_sent(answer.message, 100)
    job.note_sent(msgspec.structs.replace(answer.message, job=6), 1000)
    job.note_sent(Attest(job=7, epoch=0), 10)
    told = statement(job)
    assert (told.frames_sent, told.bytes_sent) == (1, 100)
    assert (told.codec_ns, told.seal_ns, told.noops_sent) == (5, 7, 3), "as the links say"


def test_logits_ride_only_when_asked_for() -> None:
    (plain,) = feed(stage(0, 1), VERIFY)
    (full,) = feed(stage(0, 1, make_levers(reply="logits")), VERIFY)
    assert isinstance(plain, Forward) and isinstance(full, Forward)
    assert plain.tensors == {} and plain.message.ids == full.message.ids  # type: ignore[union-attr]
    assert full.tensors["logits"].shape == (1, VOCAB_SIZE)
    assert full.tensors["logits"].dtype == torch.float16


def test_a_stage_that_rounds_otherwise_takes_no_job() -> None:
    """Catches a fault of the executor's reset that ends the stage instead of the job."""
    executor = OracleExecutor(0, 1, repetitive_truth(7, 4))

    def refuse() -> None:
        raise JobError("arithmetic", "planted")

    executor.reset = refuse  # type: ignore[method-assign]
    job = StageJob(executor, StageIdentity(0, "00" * 32, 1))
    outgoing = job.on_reset(Reset(job=5, nonce="5f", levers=make_levers()))
    failed = [sent.message for sent in outgoing if isinstance(sent, Report)]
    assert [getattr(message, "code", "ack") for message in failed] == ["ack", "arithmetic"]
    assert job.number == 5
