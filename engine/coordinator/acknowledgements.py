"""Are all stages on the job that was asked for? Asked before anything is committed.

Must never know links.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import JobError
from engine.source import engine_source_digest
from engine.transport.message import Levers, ResetAck


def check_acks(acks: Mapping[int, ResetAck], levers: Levers) -> None:
    """Requested must equal observed everywhere, and the stages must be of one build and model.

    Args:
        acks: of every stage, by index.

    Raises:
        JobError: the first stage that differs, and in what.
    """
    first = acks[0]
    for stage_idx, ack in sorted(acks.items()):
        if ack.levers != levers:
            raise JobError("lever_mismatch", f"applied {ack.levers}", stage_idx)
        if ack.source_digest != engine_source_digest():
            raise JobError("build_mismatch", f"runs source {ack.source_digest}", stage_idx)
        if ack.model_digest != first.model_digest or ack.kernel != first.kernel:
            detail = f"model {ack.model_digest} kernel {ack.kernel} differ from stage 0's"
            raise JobError("model_mismatch", detail, stage_idx)
        if ack.max_kv_size != first.max_kv_size:
            detail = f"max_kv_size {ack.max_kv_size} differs from stage 0's"
            raise JobError("cache_mismatch", detail, stage_idx)
