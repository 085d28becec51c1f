"""The drafter as a job drives it: fed with a reply's taps, told in order, timed, never fatal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count

import msgspec
import pytest
import torch

from engine.coordinator.drafting import Drafting
from engine.coordinator.job import DraftMeans, JobRequest, make_levers
from engine.coordinator.policy import FixedK
from engine.coordinator.records import Arrival, CancelDraft, FeedTaps, Finish, RequestDraft
from engine.coordinator.rounds import RoundMachine
from engine.draft.drafter import Draft, Drafter
from engine.errors import LocalProtocolError, RemoteProtocolError
from engine.transport.hidden_wire import pack_states
from tests.coordinator.reference_rounds import make_limits

LAYERS = (3, 7)
HIDDEN_LEN = 4


class Listening(Drafter):
    """Keeps what it is told."""

    name = "listening"

    def __init__(self, draft: Draft) -> None:
        self.heard: list[tuple[str, object]] = []
        self._draft = draft

    def extend(self, ids: Sequence[int]) -> None:
        self.heard.append(("extend", tuple(ids)))

    def feed(self, start: int, taps: Mapping[int, torch.Tensor]) -> None:
        rows = {layer: states[:, 0].tolist() for layer, states in taps.items()}
        self.heard.append(("feed", (start, rows)))

    def draft(self, speculative: Sequence[int], max_len: int, is_idle: bool) -> Draft:
        self.heard.append(("draft", is_idle))
        return self._draft

    def cancel(self) -> None:
        self.heard.append(("cancel", None))


def drafting_of(drafter: Drafter, wire: str = "f32") -> Drafting:
    levers = msgspec.structs.replace(make_levers(tap_wire=wire), tap_layers=LAYERS)
    request = JobRequest((1, 3), levers, frozenset(), "00", make_drafter=lambda *_: drafter)
    ticks = count()
    return Drafting(request, DraftMeans(), lambda: next(ticks))


def taps_of(num_rows: int, wire: str = "f32") -> dict[str, torch.Tensor]:
    """Row r of layer l says 100 l + r + 1."""
    rows = torch.arange(1.0, num_rows + 1).reshape(-1, 1).expand(-1, HIDDEN_LEN)
    return pack_states({f"tap.{layer}": rows + 100 * layer for layer in LAYERS}, wire)


def machine() -> RoundMachine:
    return RoundMachine((1, 3), make_limits(9, 2), FixedK(2))


@pytest.mark.parametrize("wire", ["f32", "fp8"])
def test_rows_reach_the_drafter_by_layer(wire: str) -> None:
    """Catches rows of another node, another layer's, or a wire that is not undone; other tensors
    of the reply are none of its business."""
    drafter = Listening(Draft((), "none", 0))
    drafting = drafting_of(drafter, wire)
    assert drafting.wants_taps
    tensors = {**taps_of(5, wire), "logits": torch.zeros(1)}
    assert drafting.carry_out(FeedTaps(11, (0, 1, 4), 5), tensors, machine()) == []
    ((what, (start, rows)),) = drafter.heard
    assert (what, start, list(rows)) == ("feed", 11, list(LAYERS))
    for layer in LAYERS:
        expected = [100 * layer + row + 1 for row in (0, 1, 4)]
        assert rows[layer] == pytest.approx(expected, rel=1 / 16 if wire == "fp8" else 0)


def odd_taps() -> dict[str, dict[str, torch.Tensor]]:
    good = taps_of(5)
    return {
        "none": {},
        "one layer": {"tap.3": good["tap.3"]},
        "another layer": {"tap.3": good["tap.3"], "tap.8": good["tap.7"]},
        "one layer more": {**good, "tap.8": good["tap.7"]},
        "no number": {"tap.3": good["tap.3"], "tap.": good["tap.7"]},
        "a row less": taps_of(4),
        "a row more": taps_of(6),
        "layers of two lengths": {"tap.3": good["tap.3"], "tap.7": good["tap.7"][:4]},
        "layers of two widths": {"tap.3": good["tap.3"], "tap.7": good["tap.7"][:, :3]},
        "integers": {name: states.to(torch.int64) for name, states in good.items()},
        "another wire": taps_of(5, "fp8"),
        "flat": {name: states[:, 0] for name, states in good.items()},
    }


@pytest.mark.parametrize("name", odd_taps())
def test_odd_taps_are_a_broken_protocol(name: str) -> None:
    """Catches a peer's reply that fails in the drafter, or is believed."""
    drafter = Listening(Draft((), "none", 0))
    drafting = drafting_of(drafter)
    with pytest.raises(RemoteProtocolError):
        drafting.carry_out(FeedTaps(11, (0, 1, 4), 5), odd_taps()[name], machine())
    assert drafter.heard == [] and drafting.degraded is None


def test_requests_are_answered_and_cancels_passed_on() -> None:
    """Catches a request that does not say whether the ring is idle, and a cancel that drafts."""
    drafter = Listening(Draft((201,), "tree", 0, (), (-1,)))
    drafting = drafting_of(drafter)
    job = machine()
    job.start(0)
    request = next(
        action
        for action in job.on_reply(0, 0, [200], Arrival(0))
        if isinstance(action, RequestDraft)
    )
    (sent,) = drafting.carry_out(request, {}, job)
    assert sent.parents == (-1,)
    assert drafting.carry_out(CancelDraft(9), {}, job) == []
    assert drafting.carry_out(Finish("eos"), {}, job) == []
    assert drafter.heard == [("draft", True), ("cancel", None)]
    spent_ns = drafting.draft_ns
    assert spent_ns > 0
    assert (drafting.take_frame_ns(), drafting.take_frame_ns()) == (spent_ns, 0)


def test_what_the_machine_refuses_is_no_drafters_failure() -> None:
    """Catches a guard so wide that our own misuse of the machine passes for a bad drafter."""
    drafting = drafting_of(Listening(Draft((1, 2, 3), "ngram", 1)))
    job = machine()
    job.start(0)
    request = job.on_reply(0, 0, [200], Arrival(0))[-1]
    with pytest.raises(LocalProtocolError, match="asked for 2"):
        drafting.carry_out(request, {}, job)
    assert drafting.degraded is None


def test_what_was_drafted_for_nothing_is_no_part_of_the_next_frame() -> None:
    """Catches times that pile up over events."""
    drafting = drafting_of(Listening(Draft((), "none", 0)))
    drafting.carry_out(FeedTaps(0, (0,), 1), taps_of(1), machine())
    assert drafting.draft_ns > 0
    drafting.begin_event()
    assert drafting.take_frame_ns() == 0
    before = drafting.draft_ns
    drafting.prepare(())
    assert drafting.prepare_ns > 0 and drafting.draft_ns == before
