"""Replays recorded texts against any policy: the real round machine and drafter on a modelled ring.

The target's continuation is known from receipts, so a reply's ids are looked up instead of
computed; when it comes is said by `bench.ring_model`. A job takes milliseconds instead of seconds,
so that ideas are tried in seconds. Guarantees: the ids of every replayed job are the recorded ones,
or it raises; deterministic. Must never know processes or sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from bench.ring_model import RingModel, RingShape, Traveller
from bench.traces import Trace
from engine import defaults
from engine.coordinator.policy import DraftPolicy
from engine.coordinator.records import (
    Action,
    Arrival,
    FrameRecord,
    RequestDraft,
    RoundLimits,
    SendFrame,
    Span,
    measures_nothing,
)
from engine.coordinator.ring_cost import RingCost
from engine.coordinator.rounds import RoundMachine
from engine.draft.drafter import Drafter
from engine.errors import LonghaulError


@dataclass(frozen=True, slots=True)
class Replayed:
    """One replayed job."""

    decode_ns: float  # last commit − first commit
    num_output: int
    records: tuple[FrameRecord, ...]
    num_dropped: int  # stale frames that stages threw out of their line
    num_stale_computed: int

    @property
    def tok_per_s(self) -> float:
        """Decoding speed as receipts define it; NaN for a single token, which is not decoded."""
        if self.num_output < 2:
            return float("nan")
        return (self.num_output - 1) / self.decode_ns * 1e9


class _Job:
    def __init__(
        self, trace: Trace, shape: RingShape, machine: RoundMachine, drafter: Drafter
    ) -> None:
        self._text = trace.prompt_ids + trace.output_ids
        self._machine = machine
        self._drafter = drafter
        self._ring = RingModel(shape)
        self._head_ns = shape.head_ns
        self._sent: dict[tuple[int, int], SendFrame] = {}
        self._commits_ns: list[float] = []

    def run(self, prompt_ids: Sequence[int]) -> list[float]:
        """Returns the times of commits, ns."""
        self._drafter.begin(prompt_ids)
        self._perform(self._machine.start(0), 0.0)
        while not self._machine.finished:
            reply = self._ring.next_reply()
            if reply is None:
                raise LonghaulError("the replayed job awaits nothing and is not finished")
            self._on_reply(*reply)
        return self._commits_ns

    def _on_reply(self, when_ns: float, frame: Traveller) -> None:
        ids = self._answers(self._sent[frame.epoch, frame.start])
        spans = tuple(Span(at.queue_ns, at.compute_ns, at.span_ns) for at in frame.spans)
        before = self._machine.frontier
        arrival = Arrival(round(when_ns), 0, spans)
        actions = self._machine.on_reply(frame.epoch, frame.start, ids, arrival)
        committed = self._text[before : self._machine.frontier]
        if committed:
            self._commits_ns.append(when_ns)
            self._drafter.extend(committed)
        self._perform(actions, when_ns + self._head_ns)

    def _answers(self, sent: SendFrame) -> list[int]:
        """The target's tokens: of a tree, behind the root and each node, right or wrong.

        Behind a wrong node stands what nobody looks at, as behind the end.
        """
        trunk_len = len(sent.ids) - len(sent.parents)
        root = sent.start + trunk_len - 1
        ids = [self._target(position) for position in range(sent.answer_from + 1, root + 2)]
        positions: list[int] = []
        for token, parent in zip(sent.ids[trunk_len:], sent.parents, strict=True):
            position = (root if parent < 0 else positions[parent]) + 1
            is_right = position < len(self._text) and token == self._text[position]
            positions.append(position if is_right else len(self._text))
            ids.append(self._target(positions[-1] + 1))
        return ids

    def _target(self, position: int) -> int:
        # Behind the end of output nothing is committed any more: any id will do.
        return self._text[position] if position < len(self._text) else self._text[-1]

    def _perform(self, actions: Sequence[Action], now_ns: float) -> None:
        pending = deque(actions)
        while pending:
            action = pending.popleft()
            if isinstance(action, SendFrame):
                self._sent[action.epoch, action.start] = action
                self._ring.send(now_ns, action.epoch, action.start, len(action.ids))
                self._machine.flight.note_sent(action.epoch, action.start, round(now_ns), 0)
            elif isinstance(action, RequestDraft):
                draft = self._drafter.draft(action.speculative, action.max_len, action.is_idle)
                pending.extend(self._machine.on_draft(action.request_id, draft, round(now_ns)))

    def counts(self) -> tuple[int, int]:
        """Stale frames dropped and computed by the stages."""
        return self._ring.num_dropped, self._ring.num_stale_computed


def replay(
    trace: Trace,
    shape: RingShape,
    policy: DraftPolicy,
    drafter: Drafter,
    depth: int,
    prefill_chunk: int = defaults.PREFILL_CHUNK,
    cost: RingCost | None = None,
) -> Replayed:
    """Decode one recorded text again.

    Args:
        drafter: one that drafts from tokens alone: taps were not recorded.
        cost: learns from it, if given.

    Raises:
        LonghaulError: the replayed ids are not the recorded ones.
    """
    limits = RoundLimits(
        max_new_tokens=trace.max_new_tokens,
        eos_ids=trace.eos_ids,
        depth=depth,
        prefill_chunk=prefill_chunk,
        prefill_depth=defaults.DEPTH_MAX,
        reply_timeout_ns=2**62,
        prefill_timeout_ns=2**62,
    )
    measure = measures_nothing if cost is None else cost.measure
    machine = RoundMachine(
        trace.prompt_ids, limits, policy, measure=measure, tell_fate=drafter.observe
    )
    job = _Job(trace, shape, machine, drafter)
    commits_ns = job.run(trace.prompt_ids)
    machine.abandon()
    if tuple(machine.output_ids) != trace.output_ids:
        raise LonghaulError(f"{trace.receipt_id}: the replay gave other ids than the receipt")
    return Replayed(
        commits_ns[-1] - commits_ns[0],
        len(trace.output_ids),
        tuple(machine.records()),
        *job.counts(),
    )
