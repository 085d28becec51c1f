"""A mixture of experts, exact for every token.

Guarantees: a token's output does not depend on which other tokens share the call: its experts are
chosen from its own row (of equal scores the lowest expert), each computes at least the kernel's
floor of rows, and their outputs are added in the order of the experts' numbers. Never knows
positions, caches or files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.model.linear import Kernel, PackedWeight, linear, pack, pack_f32

Activation = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """A layer's router and experts, ready to run.

    Attributes:
        router: [E, H].
        gate_up: of each expert, one matrix.
        down: of each expert.
        experts_per_token: how many compute a token.
        renormalise: whether their weights are scaled to sum to 1.
        row_floor: fewest rows that the kernel computes exactly.
    """

    router: PackedWeight
    gate_up: tuple[PackedWeight, ...]
    down: tuple[PackedWeight, ...]
    experts_per_token: int
    renormalise: bool
    row_floor: int


def pack_experts(
    matrices: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    kernel: Kernel,
    experts_per_token: int,
    renormalise: bool,
) -> PackedExperts:
    """Pack a layer's router, gates, ups and downs.

    The router stays in float32: it is small, and a near tie there changes who computes.

    Shapes:
        matrices: [E, H], [E, M, H], [E, M, H], [E, H, M]
    """
    router, gates, ups, downs = matrices
    return PackedExperts(
        router=pack_f32(router, kernel),
        gate_up=tuple(pack(torch.cat(pair), kernel) for pair in zip(gates, ups, strict=True)),
        down=tuple(pack(down, kernel) for down in downs),
        experts_per_token=experts_per_token,
        renormalise=renormalise,
        row_floor=kernel.row_floor,
    )


def mix_experts(
    rows: torch.Tensor, num_new: int, experts: PackedExperts, activation: Activation
) -> torch.Tensor:
    """Send every row through its experts and add up what they return.

    Args:
        rows: padded to the row floor.
        num_new: rows that count; padding goes through no expert and comes back as zeros.
        experts: the layer's.
        activation: of the gates.

    Shapes:
        rows: [T, H] -> [T, H]
    """
    chosen, weights = (part[:num_new] for part in _route(rows, experts))
    mixed = torch.zeros_like(rows)
    for expert_idx in chosen.unique().tolist():
        row_idx, rank = torch.where(chosen == expert_idx)
        output = _run_expert(rows[row_idx], experts, expert_idx, activation)
        # an expert has a row at most once, so nothing here is added in an order of its own
        mixed[row_idx] += output * weights[row_idx, rank].unsqueeze(1)
    return mixed


def _route(rows: torch.Tensor, experts: PackedExperts) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the experts of every row.

    Shapes:
        rows: [T, H] -> expert numbers and weights, [T, experts_per_token] each
    """
    scores = torch.softmax(linear(rows, experts.router), dim=1)
    # a stable sort, since topk does not promise which of equals it takes
    ordered, order = torch.sort(scores, dim=1, descending=True, stable=True)
    weights = ordered[:, : experts.experts_per_token]
    if experts.renormalise:
        total = weights[:, 0]
        for rank in range(1, experts.experts_per_token):  # sum() may choose another order by shape
            total = total + weights[:, rank]
        weights = weights / total.unsqueeze(1)
    return order[:, : experts.experts_per_token], weights


def _run_expert(
    rows: torch.Tensor, experts: PackedExperts, expert_idx: int, activation: Activation
) -> torch.Tensor:
    missing = max(experts.row_floor - len(rows), 0)
    padded = functional.pad(rows, (0, 0, 0, missing))
    gate, up = linear(padded, experts.gate_up[expert_idx]).chunk(2, dim=1)
    return linear(activation(gate).mul_(up), experts.down[expert_idx])[: len(rows)]
