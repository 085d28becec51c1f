"""Norms, activations, rotation and experts: right, and alike in every company of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from engine.model import moe
from engine.model.elementwise import ACTIVATIONS, rms_norm, rotate
from engine.model.linear import PackedWeight, linear, linear_kernel
from engine.model.moe import PackedExperts, mix_experts, pack_experts
from engine.model.threads import set_threads

NUM_ROWS = 700  # times any width below: enough elements for a kernel to share among threads
WIDTH = 77  # no multiple of a vector's width, so that every row has a rest
PIECES = ((0, 1), (1, 2), (5, 8), (11, 64), (300, 517), (NUM_ROWS - 1, NUM_ROWS))


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_rows_are_alike(function: Callable[[slice], torch.Tensor]) -> None:
    """A span of rows computed alone has the bits it has among all rows."""
    whole = function(slice(0, NUM_ROWS))
    for first, end in PIECES:
        assert torch.equal(function(slice(first, end)), whole[first:end])


@pytest.fixture(params=[1, 2, 3])
def threads(request, two_threads) -> None:
    """Three threads cut a tensor where no row ends."""
    set_threads(request.param)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_alike_everywhere(name, threads) -> None:
    """Catches a vectorised kernel with another rounding in its rest (`functional.silu` has)."""
    gates = (draw(NUM_ROWS, 2 * WIDTH) * 4)[:, :WIDTH]
    assert_rows_are_alike(lambda rows: ACTIVATIONS[name](gates[rows]))
    assert_rows_are_alike(lambda rows: ACTIVATIONS[name](gates[rows].contiguous()))


@pytest.mark.parametrize(
    ("name", "library"),
    [("silu", functional.silu), ("gelu_tanh", lambda x: functional.gelu(x, approximate="tanh"))],
)
def test_activations_are_right(name, library) -> None:
    gates = torch.cat([draw(4096) * 5, torch.tensor([0.0, -0.0, 100.0, -100.0, 1e-30])])
    torch.testing.assert_close(ACTIVATIONS[name](gates), library(gates), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("head_dim", [10, 22, 64])
def test_rotation_is_alike_everywhere(head_dim, threads) -> None:
    heads = draw(NUM_ROWS, 7, head_dim)
    angles = draw(NUM_ROWS, 1, head_dim // 2, seed=1)
    rotations = torch.polar(torch.ones_like(angles), angles)

    def rotated(rows: slice) -> torch.Tensor:
        # queries and keys are a part of what one matrix gives, as in a layer
        part = heads[rows].clone()[:, :5]
        rotate(part, rotations[rows])
        return part

    assert_rows_are_alike(rotated)
    expected = torch.view_as_complex(heads[:, :5].unflatten(2, (-1, 2)).contiguous()) * rotations
    torch.testing.assert_close(rotated(slice(0, NUM_ROWS)), torch.view_as_real(expected).flatten(2))


@pytest.mark.parametrize("width", [16, 77, 640, 4096])
def test_norms_are_alike_everywhere(width, threads) -> None:
    rows, weight = draw(NUM_ROWS, width), draw(width, seed=1)
    assert_rows_are_alike(lambda part: rms_norm(rows[part], weight, 1e-6))
    heads = draw(NUM_ROWS, 5, width)
    assert_rows_are_alike(lambda part: rms_norm(heads[part, :3], None, 1e-6))
    mean_square = rows.pow(2).mean(1, keepdim=True)
    torch.testing.assert_close(
        rms_norm(rows, weight, 1e-6), rows / (mean_square + 1e-6).sqrt() * weight
    )


HIDDEN, INNER, NUM_EXPERTS = 40, 24, 6


def make_experts(
    per_token: int, renormalise: bool, router: torch.Tensor | None = None
) -> tuple[PackedExperts, tuple[torch.Tensor, ...]]:
    matrices = (
        draw(NUM_EXPERTS, HIDDEN, seed=1) if router is None else router,
        draw(NUM_EXPERTS, INNER, HIDDEN, seed=2),
        draw(NUM_EXPERTS, INNER, HIDDEN, seed=3),
        draw(NUM_EXPERTS, HIDDEN, INNER, seed=4),
    )
    return pack_experts(matrices, linear_kernel(), per_token, renormalise), matrices


def mix_alone(row: torch.Tensor, matrices: tuple[torch.Tensor, ...], per_token: int, total: bool):
    """One token's mixture, spelt out."""
    router, gates, ups, downs = matrices
    scores = (router @ row).softmax(0)
    weights, chosen = scores.topk(per_token)
    weights = weights / weights.sum() if total else weights
    return sum(
        weight * (downs[idx] @ (functional.silu(gates[idx] @ row) * (ups[idx] @ row)))
        for weight, idx in zip(weights, chosen, strict=True)
    )


@pytest.mark.parametrize("renormalise", [True, False])
def test_experts_are_right(renormalise) -> None:
    experts, matrices = make_experts(2, renormalise)
    rows = draw(30, HIDDEN)
    mixed = mix_experts(rows, 30, experts, ACTIVATIONS["silu"])
    expected = torch.stack([mix_alone(row, matrices, 2, renormalise) for row in rows])
    torch.testing.assert_close(mixed, expected, atol=1e-4, rtol=1e-4)


@settings(max_examples=30)
@given(order=st.permutations(range(24)), num_new=st.integers(1, 24))
def test_a_token_s_experts_ignore_its_company(order, num_new) -> None:
    """Catches experts that round by how many tokens they got, or add up in the tokens' order."""
    experts, _ = make_experts(3, True)
    rows = draw(24, HIDDEN)
    whole = mix_experts(rows, 24, experts, ACTIVATIONS["silu"])
    chosen = torch.tensor(order)[: max(num_new, experts.row_floor)]
    mixed = mix_experts(rows[chosen], num_new, experts, ACTIVATIONS["silu"])
    assert torch.equal(mixed[:num_new], whole[chosen[:num_new]])
    assert not mixed[num_new:].any()  # padding


def test_no_expert_computes_fewer_rows_than_the_floor(monkeypatch) -> None:
    """One token's expert is padded like any other call: below the floor a row rounds otherwise."""
    experts, _ = make_experts(2, True)
    counts = []

    def spy(rows: torch.Tensor, packed: PackedWeight) -> torch.Tensor:
        counts.append(len(rows))
        return linear(rows, packed)

    monkeypatch.setattr(moe, "linear", spy)
    floor = 8
    mix_experts(draw(floor, HIDDEN), 1, replace(experts, row_floor=floor), ACTIVATIONS["silu"])
    assert len(counts) == 1 + 2 * 2 and min(counts) == floor


def test_of_equal_scores_the_lowest_experts_win() -> None:
    experts, matrices = make_experts(2, True, router=torch.zeros(NUM_EXPERTS, HIDDEN))
    rows = draw(8, HIDDEN)
    _, gates, ups, downs = (matrix[:2] for matrix in matrices)
    first_two = (torch.zeros(2, HIDDEN), gates, ups, downs)
    expected = torch.stack([mix_alone(row, first_two, 2, True) for row in rows])
    mixed = mix_experts(rows, 8, experts, ACTIVATIONS["silu"])
    torch.testing.assert_close(mixed, expected, atol=1e-4, rtol=1e-4)
