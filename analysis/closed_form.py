"""The accept-gated pipelining law in closed form, and its crossover with a tree.

With probability alpha a draft is right, independently until the first that is not. A chunk of K
drafts is followed by the next one only if all of it was right (chance p = alpha^K); else what is
behind it is thrown away and the pipe of D chunks fills again, one loop time T later. Guarantees:
exact at alpha = 1; every rate is in tokens a second if T is in seconds. Sans-IO. Must never know
receipts or axes.

Source: expectation of tokens over expectation of slots of T / D, a renewal argument: a chunk brings
(1 - p) / (1 - alpha) tokens and costs 1 slot with chance p, D slots otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from scipy.optimize import brentq

ALPHA_MIN, ALPHA_MAX = 0.01, 0.9999


def chunk_tokens(alpha: float, draft_len: int) -> float:
    """Tokens that a chunk of drafts brings: its right ones, and the right token for a wrong one."""
    if alpha == 1.0:
        return float(draft_len)
    return float((1.0 - alpha**draft_len) / (1.0 - alpha))


def chain_rate(alpha: float, draft_len: int, depth: int, loop_s: float) -> float:
    """Tokens a second of `depth` chunks of `draft_len` drafts in flight."""
    full = alpha**draft_len
    slots = full + depth * (1.0 - full)
    return depth * chunk_tokens(alpha, draft_len) / (loop_s * slots)


def lockstep_rate(alpha: float, draft_len: int, loop_s: float) -> float:
    """Tokens a second of one chunk a loop, a token on top of a chunk that is all right."""
    return chunk_tokens(alpha, draft_len + 1) / loop_s


def ceiling(alpha: float, loop_s: float) -> float:
    """Tokens a second that no chain exceeds, however long or deep: a loop for every wrong draft."""
    return float("inf") if alpha == 1.0 else 1.0 / ((1.0 - alpha) * loop_s)


def path_tokens(level_rates: Sequence[float]) -> float:
    """Tokens of a tree's round: one, and one more for each level that holds the right token.

    Args:
        level_rates: chance that a level holds it, given that those before did.
    """
    tokens, reached = 1.0, 1.0
    for rate in level_rates:
        reached *= rate
        tokens += reached
    return tokens


def tree_rate(level_rates: Sequence[float], loop_s: float) -> float:
    """Tokens a second of one tree a loop."""
    return path_tokens(level_rates) / loop_s


def crossover(draft_len: int, depth: int, cover: float, level_cap: int) -> float | None:
    """The acceptance above which a chain is faster than a tree on one loop; None: there is none.

    Args:
        cover: how much likelier a level of the tree holds the right token than the first draft is
            right; the product with alpha is cut at 1.
        level_cap: levels of the tree.
    """

    def lead(alpha: float) -> float:
        levels = [min(1.0, cover * alpha)] * level_cap
        return chain_rate(alpha, draft_len, depth, 1.0) - tree_rate(levels, 1.0)

    if lead(ALPHA_MIN) >= 0.0 or lead(ALPHA_MAX) <= 0.0:
        return None
    return float(brentq(lead, ALPHA_MIN, ALPHA_MAX, xtol=1e-9))
