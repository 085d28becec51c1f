"""What a verify frame brings to a stage, checked before anything is computed.

Guarantees: a frame that is no chain and no tree, or that brings less, more or other than is due
here, fails the job. Must never know sockets or what becomes of the states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.errors import JobError, RemoteProtocolError
from engine.model.tree import check_root, check_tree
from engine.stage.executor import Executor
from engine.stage.job_levers import AppliedLevers
from engine.transport.hidden_wire import unpack_states
from engine.transport.message import Verify
from engine.transport.taps import split_taps, unpack_taps

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class FrameInput:
    """What there is to compute on, and what only passes through.

    Attributes:
        states: input of the first layer, [T, H] float32.
        taps: tensors of earlier stages' taps, as they came.
    """

    states: torch.Tensor
    taps: Tensors


def take_frame(
    verify: Verify, tensors: Tensors, executor: Executor, applied: AppliedLevers
) -> FrameInput:
    """Check a frame and take it apart.

    Raises:
        JobError: `bad_frame`, `bad_tree`, or of the ids as `Executor.embed`.
    """
    num_rows = verify.positions_len
    if verify.answer_from < verify.start:
        raise JobError("bad_frame", "answer_from lies before the frame's first position")
    check_tree(verify.parents, num_rows)
    check_root(verify.parents, verify.start, num_rows, verify.answer_from)
    own, taps = split_taps(tensors)
    due = [layer for layer in applied.tap_layers if layer < executor.layer_start]
    try:
        tapped = unpack_taps(taps, due, applied.tap_wire, num_rows)
        received = unpack_states(own, applied.wire)
    except RemoteProtocolError as error:
        raise JobError("bad_frame", str(error)) from error
    if executor.is_first:
        return FrameInput(_embedded(verify, received, executor), taps)
    hidden = received.pop("hidden", None)
    if hidden is None or received or hidden.shape[0] != num_rows:
        raise JobError("bad_frame", "a later stage needs hidden states, one row a position")
    if any(tap.shape != hidden.shape for tap in tapped.values()):
        raise JobError("bad_frame", "taps are not as wide as hidden states")
    return FrameInput(hidden, taps)


def _embedded(verify: Verify, received: Tensors, executor: Executor) -> torch.Tensor:
    if received or verify.ids is None or len(verify.ids) != verify.positions_len:
        raise JobError("bad_frame", "the first stage needs one id a position, and no states")
    return executor.embed(verify.ids)
