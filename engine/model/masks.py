"""Additive masks, sized by the keys that the cache returns.

Guarantees: a mask has as many columns as its segment has keys, never more than 4096 of them; none
is built for a segment that every query sees whole; without a window or a trim, a mask is cut from
one table in one operation, because a stage that wakes for a frame runs every operation cold. Never
knows weights, jobs or tokens.
"""

from __future__ import annotations

import torch

from engine.model.span import MASK_LEN_MAX, PASS_LEN_MAX, KeyRule, KeyView, Segment, Span

QUERY_BLOCK_ROWS = 192  # attention takes so many rows at a time: their scores stay in the cache
_SAFE_ROWS = 4
_PADDING_LEN = 16  # positions a padded call may have beyond its last


def num_query_rows(num_rows: int, num_kv_heads: int) -> int:
    """Return how many rows a product of queries must have, so that every row has its own bits.

    Fewer than four rows are rounded differently. Where there are more threads than matrices,
    threads share one matrix by rows, and its rest of one to three rows counts as fewer than four;
    so does the rest behind the last whole block of rows.
    """
    if torch.get_num_threads() > num_kv_heads or num_rows > QUERY_BLOCK_ROWS:
        return num_rows + -num_rows % _SAFE_ROWS
    return max(num_rows, _SAFE_ROWS)


class Masks:
    """Builds the masks that all layers of one kind share in one pass.

    Args:
        num_heads: N.
        num_kv_heads: G; each position has N / G adjacent rows.

    Attributes:
        num_causal: masks cut from the table so far.
        num_windowed: masks built for a window or a trim so far.
    """

    def __init__(self, num_heads: int, num_kv_heads: int) -> None:
        self.num_causal = 0
        self.num_windowed = 0
        self._num_kv_heads = num_kv_heads
        self._rows_per_position = rows_per_position = num_heads // num_kv_heads
        # A query that is d positions behind a segment's first key sees d + 1 of its keys: its mask
        # is `width` zeros and `width` -inf, read from width - 1 - d on.
        width = MASK_LEN_MAX + PASS_LEN_MAX + _PADDING_LEN
        self._step = torch.cat([torch.zeros(width), torch.full((width,), float("-inf"))])
        offsets = torch.arange(width - 1 + PASS_LEN_MAX, -1, -1)
        self._offsets = offsets.repeat_interleave(rows_per_position)
        positions = torch.arange(PASS_LEN_MAX + _PADDING_LEN)
        self._positions = positions.repeat_interleave(rows_per_position)

    def of(self, span: Span, view: KeyView, num_positions: int) -> list[torch.Tensor | None]:
        """Return one mask per segment; None where there is nothing to hide.

        Args:
            span: the positions of this pass.
            view: its keys for one kind of layer.
            num_positions: T, padding included; padded rows see some keys, which ones is open.

        Shapes:
            return: [`num_query_rows` of T * N / G, keys of the segment]; 0 or -inf
        """
        num_rows = num_query_rows(num_positions * self._rows_per_position, self._num_kv_heads)
        return [self._segment_mask(span, view.rule, segment, num_rows) for segment in view.segments]

    def _segment_mask(
        self, span: Span, rule: KeyRule, segment: Segment, num_rows: int
    ) -> torch.Tensor | None:
        last_position = span.start + span.num_new - 1
        if segment.first < rule.first_recent(last_position):
            self.num_windowed += 1
            return self._windowed(span, rule, segment, num_rows)
        if segment.first + segment.num_keys <= span.start + 1:
            return None
        self.num_causal += 1
        first = (span.start - segment.first + PASS_LEN_MAX) * self._rows_per_position
        return self._step.unfold(0, segment.num_keys, 1)[self._offsets[first : first + num_rows]]

    def _windowed(self, span: Span, rule: KeyRule, segment: Segment, num_rows: int) -> torch.Tensor:
        keys = torch.arange(segment.first, segment.first + segment.num_keys)
        queries = torch.arange(span.start, span.start + span.num_new).unsqueeze(1)
        hidden = _hidden(queries, keys, rule)
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
        # padded rows see what the last position sees: softmax over nothing is not a number
        return mask[self._positions[:num_rows].clamp(max=span.num_new - 1)]


def _hidden(queries: torch.Tensor, keys: torch.Tensor, rule: KeyRule) -> torch.Tensor:
    """Say which keys a query does not see.

    Shapes:
        queries: [T, 1] positions, keys: [S] positions -> [T, S] bool
    """
    hidden = keys > queries
    if rule.recent_len is not None:
        old = keys <= queries - rule.recent_len
        hidden |= old & (keys >= rule.pinned_len)
    if rule.window_len is not None:
        hidden |= keys <= queries - rule.window_len
    return hidden
