"""What a frame of T positions costs on this very ring, learned from the frames that came back.

Four figures: how long the stages compute on it when it is alone, how much longer for each other
frame that is on the ring (stages that share a machine slow each other down), how long it is under
way besides, and how far apart the replies of frames are that were sent together. Guarantees: starts
from a prior and forgets old frames slowly; never negative. Must never know tokens or acceptance.
Times in ns.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.coordinator.records import FrameRecord

FORGET = 0.97  # weight of a frame when the next one has come
MAX_POSITIONS = 130  # longer frames (prefill) compute under another law
SLOPE_WEIGHT = 200.0  # what the prior's slope is worth, in squared positions
NEWEST = 0.2  # least weight of the newest gap and of the newest slowing


@dataclass(frozen=True, slots=True)
class CostPrior:
    """Before anything was measured: the default model on two cores."""

    compute_frame_ns: float = 20e6
    compute_position_ns: float = 0.6e6
    transit_frame_ns: float = 50e6
    transit_position_ns: float = 0.02e6
    slowing_ns: float = 0.3e6  # hopeful, as the next one: who does not try does not learn
    gap_frac: float = 0.35  # gap between replies / compute of a frame, all stages together


class Line:
    """a + b · T by discounted least squares; the slope leans on the prior's, the level does not.

    Until the first frame came, the prior's level counts.
    """

    def __init__(self, intercept: float, slope: float) -> None:
        self._prior_intercept, self._prior_slope = intercept, slope
        self._sums = [0.0] * 5  # weight, T, T², y, T·y

    def scale_prior(self, positions_len: int, value: float) -> None:
        """Make the prior's line pass through a frame of another size, in proportion."""
        factor = value / max(1.0, self._prior_intercept + self._prior_slope * positions_len)
        self._prior_intercept *= factor
        self._prior_slope *= factor

    def learn(self, positions_len: int, value: float) -> None:
        """One more frame."""
        positions = float(positions_len)
        new = (1.0, positions, positions**2, value, positions * value)
        self._sums = [FORGET * old + term for old, term in zip(self._sums, new, strict=True)]

    def at(self, positions_len: float) -> float:
        """The line's value, at least 0; its slope is never negative."""
        weight, sum_t, sum_tt, sum_y, sum_ty = self._sums
        if not weight:
            return self._prior_intercept + self._prior_slope * positions_len
        variance = sum_tt - sum_t * sum_t / weight
        covariance = sum_ty - sum_t * sum_y / weight
        slope = (covariance + SLOPE_WEIGHT * self._prior_slope) / (variance + SLOPE_WEIGHT)
        return max(0.0, sum_y / weight + max(0.0, slope) * (positions_len - sum_t / weight))


class Recent:
    """A running mean that forgets; the prior counts as one observation."""

    def __init__(self, prior: float) -> None:
        self.value = prior
        self._num_seen = 1

    def learn(self, value: float) -> None:
        """One more observation."""
        self._num_seen += 1
        self.value += max(NEWEST, 1 / self._num_seen) * (value - self.value)


class RingCost:
    """Learns from records, answers for frames not yet sent.

    One object lives as long as a ring is warm: what a job learned, the next one starts with.
    """

    def __init__(self, prior: CostPrior | None = None) -> None:
        prior = prior or CostPrior()
        self._alone = Line(prior.compute_frame_ns, prior.compute_position_ns)
        self._transit = Line(prior.transit_frame_ns, prior.transit_position_ns)
        self._slowing = Recent(prior.slowing_ns)
        self._gap = Recent(prior.gap_frac)
        self._last: FrameRecord | None = None

    def measure(self, record: FrameRecord, company: int) -> None:
        """One answered frame of the current epoch, and how many others were on the ring."""
        if record.received_ns is None or not record.spans:
            return
        compute_ns = sum(span.compute_ns for span in record.spans)
        inside_ns = sum(span.span_ns for span in record.spans)
        transit_ns = max(0, record.received_ns - record.sent_ns - inside_ns)
        self._transit.learn(record.positions_len, transit_ns)
        if record.positions_len > MAX_POSITIONS:
            if company == 0:  # how fast this host is, before any frame of decoding came
                self._alone.scale_prior(record.positions_len, compute_ns)
            return
        if company == 0:
            self._alone.learn(record.positions_len, compute_ns)
        else:
            slowing_ns = max(0.0, compute_ns - self._alone.at(record.positions_len)) / company
            self._slowing.learn(slowing_ns)
        self._measure_gap(record)
        self._last = record

    @property
    def slowing_ns(self) -> float:
        """How much longer a frame is under way for each other frame on the ring."""
        return self._slowing.value

    def loop_ns(self, positions_len: float) -> float:
        """From sending one frame into an empty ring to its reply."""
        return self._transit.at(positions_len) + self._alone.at(positions_len)

    def gap_ns(self, positions_len: float) -> float:
        """Between the replies of two such frames that were sent one behind the other."""
        return self._gap.value * self._alone.at(positions_len)

    def _measure_gap(self, record: FrameRecord) -> None:
        last = self._last
        if last is None or last.epoch != record.epoch or last.received_ns is None:
            return
        assert record.received_ns is not None, "the caller has looked"
        sent_gap_ns = record.sent_ns - last.sent_ns
        gap_ns = record.received_ns - last.received_ns
        # Only frames that stood in line tell how fast the line moves.
        if record.sent_ns < last.received_ns and 0 <= sent_gap_ns < 0.5 * gap_ns:
            self._gap.learn(min(2.0, gap_ns / max(1.0, self._alone.at(record.positions_len))))
