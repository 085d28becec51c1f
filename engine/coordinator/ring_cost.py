"""What frames cost on this very ring, learned from the frames that came back.

Three figures: how long the stages compute on a frame that is alone, how long it is under way
besides, both by its number of positions, and by how much stages that share processors slow each
other. From these `engine.coordinator.train_times` says when the replies of frames come that are
sent together. Guarantees: starts from a prior and forgets old frames slowly; never negative, and a
longer frame is never cheaper. Must never know tokens or acceptance. Times in ns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from engine import defaults
from engine.coordinator.records import FrameRecord
from engine.coordinator.train_times import train_times

FORGET = 0.99  # weight of a frame when the next one has come
SHAPE_WEIGHT = 0.05  # of the prior's proportion of level to slope, in frames
MAX_POSITIONS = 130  # longer frames (prefill) compute under another law
MAX_OVERLAP = 4.0
OVERLAP_WEIGHT = 8.0  # of the prior's overlap, in stages that had one other beside them all the way
TYPICAL = 16  # positions of a frame, where its very length does not matter
MEMORY = 3 * defaults.DEPTH_MAX  # frames that may have been on the ring with one whose fate is open


@dataclass(frozen=True, slots=True)
class CostPrior:
    """Before anything was measured: the default model on two cores."""

    compute_frame_ns: float = 50e6
    compute_position_ns: float = 2e6
    transit_frame_ns: float = 50e6
    transit_position_ns: float = 0.02e6
    overlap: float = 0.5
    num_stages: int = defaults.NUM_STAGES


class Line:
    """a + b · T by discounted least squares of relative errors, leaning on a prior's shape.

    The prior's scale is not believed: one observation says how fast this host is, and the shape
    stays the prior's until frames of several lengths tell. Never falls, never negative.
    """

    def __init__(self, intercept: float, slope: float) -> None:
        self._prior = (max(intercept, 1e-9), max(slope, 0.0))
        self._scale_sums = [0.0, 0.0]  # weight, ratio to the prior
        self._sums = [0.0] * 5  # of weight · (1, T, T², y, T · y), weight 1 / y²

    def scale_prior(self, positions_len: int, value: float) -> None:
        """Make the prior's line pass through a frame, as long as none was learned."""
        if self._scale_sums[0]:
            return
        factor = max(1.0, value) / self._prior_at(positions_len)
        self._prior = (self._prior[0] * factor, self._prior[1] * factor)

    def learn(self, positions_len: int, value: float) -> None:
        """One more frame."""
        value = max(1.0, value)
        weight, positions = 1.0 / value**2, float(positions_len)
        new = (1.0, positions, positions**2, value, positions * value)
        self._sums = [
            FORGET * old + weight * term for old, term in zip(self._sums, new, strict=True)
        ]
        ratio = value / self._prior_at(positions)
        self._scale_sums = [
            FORGET * old + term for old, term in zip(self._scale_sums, (1.0, ratio), strict=True)
        ]

    def at(self, positions_len: float) -> float:
        """The line's value."""
        weight, ratio = self._scale_sums
        if not weight:
            return self._prior_at(positions_len)
        level, slope = (part * ratio / weight for part in self._prior)
        intercept, slope = self._solved(level, slope)
        return max(0.0, intercept + slope * positions_len)

    def _solved(self, level: float, slope: float) -> tuple[float, float]:
        """Ridge towards (level, slope), each relative to its own size; coefficients from 0 on."""
        ones, sum_t, sum_tt, sum_y, sum_ty = self._sums
        lean_a = SHAPE_WEIGHT / level**2
        if slope <= 0.0:
            return (sum_y + lean_a * level) / (ones + lean_a), 0.0
        lean_b = SHAPE_WEIGHT / slope**2
        a11, a12, a22 = ones + lean_a, sum_t, sum_tt + lean_b
        b1, b2 = sum_y + lean_a * level, sum_ty + lean_b * slope
        determinant = a11 * a22 - a12 * a12
        intercept = (b1 * a22 - b2 * a12) / determinant
        found = (a11 * b2 - a12 * b1) / determinant
        if intercept < 0.0:
            return 0.0, b2 / a22
        return (intercept, found) if found > 0.0 else (b1 / a11, 0.0)

    def _prior_at(self, positions_len: float) -> float:
        return self._prior[0] + self._prior[1] * positions_len


@dataclass(frozen=True, slots=True)
class TrainCost:
    """See `engine.coordinator.train_times.TrainTimes`; ns."""

    replies_ns: tuple[float, ...]
    leftover_ns: float


class RingCost:
    """Learns from records, answers for frames not yet sent.

    One object lives as long as a ring is warm: what a job learned, the next one starts with.
    """

    def __init__(self, prior: CostPrior | None = None) -> None:
        prior = prior or CostPrior()
        self._alone = Line(prior.compute_frame_ns, prior.compute_position_ns)
        self._transit = Line(prior.transit_frame_ns, prior.transit_position_ns)
        self._shares: list[float] = []  # of the stages in computing a frame that was alone
        self._prior_overlap = prior.overlap
        self._products = self._squares = 0.0  # decaying sums, see `_learn_overlap`
        self._undecided: deque[FrameRecord] = deque(maxlen=MEMORY)
        self._num_stages = prior.num_stages
        self._trains: dict[tuple[float, int], TrainCost] = {}  # until the next frame is measured
        self._latest: deque[FrameRecord] = deque(maxlen=MEMORY)

    def measure(self, record: FrameRecord, company: int) -> None:
        """One answered frame, stale ones too, and how many others were on the ring meanwhile."""
        if record.received_ns is None or not record.spans:
            return
        self._trains.clear()
        self._num_stages = len(record.spans)
        compute_ns = sum(span.compute_ns for span in record.spans)
        self._transit.learn(record.positions_len, _transit_ns(record))
        if record.positions_len > MAX_POSITIONS:
            self._alone.scale_prior(record.positions_len, compute_ns)
            return
        if company == 0:
            self._alone.learn(record.positions_len, compute_ns)
            self._shares = [span.compute_ns / max(1, compute_ns) for span in record.spans]
        self._latest.append(record)
        while self._undecided and (self._undecided[0].received_ns or 0) <= record.sent_ns:
            self._learn_overlap(self._undecided.popleft())
        if company:
            self._undecided.append(record)

    @property
    def overlap(self) -> float:
        """How much one more computing stage slows each: n run at 1 / (1 + overlap · (n − 1))."""
        lean = OVERLAP_WEIGHT * (self._alone.at(TYPICAL) / self._num_stages) ** 2
        found = (self._products + lean * self._prior_overlap) / (self._squares + lean)
        return min(MAX_OVERLAP, max(0.0, found))

    def loop_ns(self, positions_len: float) -> float:
        """From sending one frame into an empty ring to its reply."""
        return self._transit.at(positions_len) + self._alone.at(positions_len)

    def gap_ratio(self, positions_len: float, of_len: float) -> float:
        """Computing of one frame / computing of another."""
        return self._alone.at(positions_len) / max(1.0, self._alone.at(of_len))

    def train(self, positions_len: float, num_frames: int) -> TrainCost:
        """Of equal frames that are sent together into an empty ring."""
        known = self._trains.get((positions_len, num_frames))
        if known is None:
            known = self._trains[positions_len, num_frames] = self._train(positions_len, num_frames)
        return known

    def _train(self, positions_len: float, num_frames: int) -> TrainCost:
        stage_ns = max(1.0, self._alone.at(positions_len) / self._num_stages)
        delay = self._transit.at(positions_len) / (self._num_stages + 1) / stage_ns
        times = train_times(self._num_stages, delay, self.overlap, num_frames)
        single = train_times(self._num_stages, delay, self.overlap, 1)
        # The grid of delays is coarse: what it is off by is the same for all frames.
        off_ns = self.loop_ns(positions_len) - stage_ns * single.replies[0]
        return TrainCost(
            tuple(time * stage_ns + off_ns for time in times.replies), times.leftover * stage_ns
        )

    def _learn_overlap(self, record: FrameRecord) -> None:
        """From how much longer a frame computed than alone, and how many did so beside it.

        Only when all that were on the ring with it have been answered: those behind it count too.
        """
        others = [
            interval
            for other in self._latest
            if other is not record and (other.received_ns or 0) > record.sent_ns
            for interval in _computing(other)
        ]
        alone_ns = self._alone.at(record.positions_len)
        shares = self._shares if len(self._shares) == len(record.spans) else None
        for stage_idx, (begin_ns, end_ns) in enumerate(_computing(record)):
            beside_ns = sum(
                max(0.0, min(end_ns, end) - max(begin_ns, begin)) for begin, end in others
            )
            took_ns = max(1.0, end_ns - begin_ns)
            stage_ns = alone_ns * (shares[stage_idx] if shares else 1.0 / len(record.spans))
            shared_ns = stage_ns * beside_ns / took_ns
            # Least squares of excess = overlap · shared: what had nobody beside it weighs nothing.
            self._products = FORGET * self._products + (took_ns - stage_ns) * shared_ns
            self._squares = FORGET * self._squares + shared_ns**2


def _transit_ns(record: FrameRecord) -> int:
    assert record.received_ns is not None, "the caller has looked"
    inside_ns = sum(span.span_ns for span in record.spans)
    return max(0, record.received_ns - record.sent_ns - inside_ns)


def _computing(record: FrameRecord) -> Iterator[tuple[float, float]]:
    """When each stage computed it, were all links alike; (begin, end), coordinator clock."""
    delay_ns = _transit_ns(record) / (len(record.spans) + 1)
    at_ns = float(record.sent_ns)
    for span in record.spans:
        at_ns += delay_ns
        begin_ns = at_ns + span.queue_ns
        yield begin_ns, begin_ns + span.compute_ns
        at_ns += span.span_ns
