"""The wires of hidden states: exact sizes, independence of the chunk, bounds of error."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from engine.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from engine.transport.hidden_wire import (
    E4M3_MAX,
    MAX_SCALE,
    MIN_SCALE,
    WIRES,
    pack_states,
    unpack_states,
)
from engine.transport.tensor import storage_view

FLOAT = torch.finfo(torch.float32)
INF, NAN = float("inf"), float("nan")


def through(states: torch.Tensor, wire: str = "fp8") -> torch.Tensor:
    return unpack_states(pack_states({"hidden": states}, wire), wire)["hidden"]


def rows_of_any_bits(draw_row: st.SearchStrategy[list[float]]) -> st.SearchStrategy[torch.Tensor]:
    rows = st.lists(draw_row, min_size=1, max_size=7)
    return rows.map(lambda rows: torch.tensor(rows, dtype=torch.float32))


ANY_ROWS = rows_of_any_bits(
    st.lists(st.floats(width=32, allow_subnormal=True), min_size=5, max_size=5)
)
FINITE_ROWS = rows_of_any_bits(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=5, max_size=5)
)


@settings(max_examples=200)
@given(states=ANY_ROWS, cuts=st.lists(st.integers(0, 7), max_size=4))
@pytest.mark.parametrize("wire", sorted(WIRES))
def test_bytes_do_not_depend_on_the_chunk(wire: str, states: torch.Tensor, cuts: list[int]) -> None:
    """Catches a scale or an order of sums shared by rows: any chunking gives the same bytes."""
    ends = sorted({0, len(states), *(min(cut, len(states)) for cut in cuts)})
    whole = pack_states({"hidden": states}, wire)
    parts = [pack_states({"hidden": states[a:b]}, wire) for a, b in itertools.pairwise(ends)]
    for name, tensor in whole.items():
        assert bytes(storage_view(tensor)) == b"".join(
            bytes(storage_view(part[name])) for part in parts
        )


def test_bytes_do_not_depend_on_the_chunk_at_full_width() -> None:
    """Catches kernels that change with the number of rows, at a model's width."""
    states = torch.randn(67, 576, generator=torch.Generator().manual_seed(1)) * 30
    whole = pack_states({"hidden": states}, "fp8")
    for size in (1, 2, 5, 8, 16, 33):
        parts = [pack_states({"hidden": part}, "fp8") for part in states.split(size)]
        for name, tensor in whole.items():
            joined = torch.cat([part[name].view(torch.uint8) for part in parts])
            assert torch.equal(joined, tensor.view(torch.uint8)), (size, name)


@settings(max_examples=400)
@given(states=FINITE_ROWS)
def test_error_of_each_element_is_bounded(states: torch.Tensor) -> None:
    """Catches rounding done twice, a scale that wastes range and a quotient past the largest."""
    packed = pack_states({"hidden": states}, "fp8")
    back = unpack_states(packed, "fp8")["hidden"].double()
    scale = packed["hidden.scale"].double().unsqueeze(1)
    exact = states.double()
    assert torch.isfinite(back).all()
    assert ((back - exact).abs() <= torch.maximum(exact.abs() / 16, scale / 1024) * 1.00001).all()
    assert (back.sign() * exact.sign() >= 0).all()


def test_scale_brings_the_largest_value_to_448() -> None:
    """Catches half the range left unused, and a scale of the whole tensor."""
    states = torch.tensor([[1.0, -3.5, 0.25], [1e-3, 7e-3, 0.0], [448.0, 1.0, -448.0]])
    packed = pack_states({"hidden": states}, "fp8")
    assert packed["hidden.scale"].tolist() == (states.abs().amax(1) / 448).tolist()
    assert packed["hidden"].float().abs().amax(1).tolist() == [448.0] * 3
    assert through(states)[2].tolist() == [448.0, 1.0, -448.0]


@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (3, 576), (176, 64)])
def test_sizes_are_exact(shape: tuple[int, int]) -> None:
    """Catches a byte more than a value's one and a position's four."""
    num_positions, width = shape
    for wire, num_bytes in (
        ("fp8", num_positions * width + 4 * num_positions),
        ("f32", 4 * num_positions * width),
    ):
        packed = pack_states({"hidden": torch.ones(shape)}, wire)
        assert sum(len(storage_view(tensor)) for tensor in packed.values()) == num_bytes
        assert unpack_states(packed, wire)["hidden"].shape == shape


def test_f32_is_as_it_is() -> None:
    """Catches a copy or a conversion on the wire that changes nothing."""
    states = torch.tensor([[0.1, -0.0, INF, NAN]])
    packed = pack_states({"hidden": states, "tap": states}, "f32")
    assert list(packed) == ["hidden", "tap"]
    assert packed["hidden"] is states
    assert unpack_states(packed, "f32")["tap"] is states


def test_several_states_have_their_own_scales() -> None:
    """Catches taps that share the scale of the hidden states."""
    named = {"hidden": torch.full((2, 3), 4.0), "tap": torch.full((1, 3), 100.0)}
    packed = pack_states(named, "fp8")
    assert sorted(packed) == ["hidden", "hidden.scale", "tap", "tap.scale"]
    back = unpack_states(dict(reversed(packed.items())), "fp8")
    assert {name: tensor.tolist() for name, tensor in back.items()} == {
        name: tensor.tolist() for name, tensor in named.items()
    }


# -- the ends of the range -----------------------------------------------------------------------


def test_zeros_stay_zeros() -> None:
    """Catches 0 / 0."""
    states = torch.tensor([[0.0, -0.0], [1.0, 0.0]])
    packed = pack_states({"hidden": states}, "fp8")
    assert packed["hidden.scale"][0] == MIN_SCALE
    assert through(states).tolist() == [[0.0, 0.0], [1.0, 0.0]]


def test_denormals_vanish_by_rule() -> None:
    """Catches a scale that underflows, in whose place everything becomes infinite or NaN."""
    tiny = torch.tensor([[1e-45, -1e-39, 2.0**-137, 2.0**-130, 3.0 * 2.0**-127]])
    packed = pack_states({"hidden": tiny}, "fp8")
    assert packed["hidden.scale"].tolist() == [MIN_SCALE]
    back = through(tiny)
    assert back[0, :3].abs().tolist() == [0.0, pytest.approx(1e-39, rel=1 / 16), 0.0]
    assert back[0, 3:].tolist() == [2.0**-130, 3.0 * 2.0**-127]


def test_largest_values() -> None:
    """Catches a product past the largest float32."""
    states = torch.tensor([[FLOAT.max, -FLOAT.max, FLOAT.max / 2, 0.0]])
    back = through(states)
    assert torch.isfinite(back).all()
    assert back[0].tolist() == [pytest.approx(value, rel=1e-6) for value in states[0].tolist()]


def test_infinities_become_the_largest_and_stay_in_their_row() -> None:
    """Catches an infinite scale, which makes NaN of a whole row, and a row that spoils others."""
    states = torch.tensor([[INF, 5.0, -INF, 0.0], [1.0, 2.0, 3.0, 4.0]])
    packed = pack_states({"hidden": states}, "fp8")
    assert packed["hidden.scale"][0] == pytest.approx(MAX_SCALE, rel=1e-6)
    largest = pytest.approx(FLOAT.max, rel=1e-6)
    back = through(states).tolist()
    assert back[0] == [largest, 0.0, -back[0][0], 0.0]
    assert back[1] == through(states[1:]).tolist()[0]


def test_nan_stays_nan_and_leaves_its_row_alone() -> None:
    """Catches a NaN scale, and a NaN that is sent as an honest number."""
    states = torch.tensor([[NAN, 8.0, -1.0, 0.5], [NAN, NAN, NAN, NAN]])
    packed = pack_states({"hidden": states}, "fp8")
    assert packed["hidden.scale"].tolist() == [pytest.approx(8.0 / 448, rel=1e-6), MIN_SCALE]
    back = through(states)
    assert back.isnan().tolist() == states.isnan().tolist()
    assert back[0, 1:].tolist() == through(states[:1, 1:])[0].tolist()


class CastSpy(TorchFunctionMode):
    """Notes what is cast to fp8."""

    def __init__(self) -> None:
        super().__init__()
        self.cast: list[torch.Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.to and torch.float8_e4m3fn in args:
            self.cast.append(args[0].clone())
        return func(*args, **(kwargs or {}))


@settings(max_examples=100)
@given(states=ANY_ROWS)
def test_nothing_past_448_is_cast(states: torch.Tensor) -> None:
    """Catches a quotient left to the cast: some kernels saturate there, others make it NaN."""
    with CastSpy() as spy:
        pack_states({"hidden": torch.cat([states, torch.full((1, 5), INF)])}, "fp8")
    (quotient,) = spy.cast
    assert quotient.nan_to_num(nan=0.0).abs().amax() == E4M3_MAX


@settings(max_examples=200)
@given(states=ANY_ROWS)
def test_whatever_is_packed_can_be_unpacked(states: torch.Tensor) -> None:
    """Catches a scale that our own check refuses."""
    back = through(states)
    assert torch.equal(back.isnan(), states.isnan())
    assert not back.isinf().any()


# -- refusals ------------------------------------------------------------------------------------


def scaled(values: torch.Tensor, *scale: float) -> dict[str, torch.Tensor]:
    return {"hidden": values, "hidden.scale": torch.tensor(scale)}


VALUES = torch.ones(2, 3).to(torch.float8_e4m3fn)
F32 = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("tensors", "wire", "match"),
    [
        ({"hidden": VALUES}, "f32", r"float8_e4m3fn\[2, 3\].*float32\[T, H\]"),
        ({"hidden": F32[0]}, "f32", r"float32\[3\]"),
        ({"hidden": F32.double()}, "f32", "float64"),
        ({"hidden": F32[:, :0]}, "f32", r"float32\[2, 0\]"),
        (scaled(VALUES, 1.0, 1.0), "f32", "float8_e4m3fn"),
        ({"hidden": VALUES}, "fp8", r"scales at \*\.scale"),
        ({"hidden": F32}, "fp8", "scales"),
        ({"hidden.scale": torch.ones(2)}, "fp8", "scales"),
        (scaled(VALUES, 1.0, 1.0) | {"tap.scale": torch.ones(2)}, "fp8", "'tap.scale'"),
        (scaled(F32, 1.0, 1.0), "fp8", r"float32\[2, 3\] with scales"),
        (scaled(VALUES.float().to(torch.float8_e5m2), 1.0, 1.0), "fp8", "e5m2"),
        (scaled(VALUES.view(torch.uint8), 1.0, 1.0), "fp8", "uint8"),
        (scaled(VALUES[0], 1.0), "fp8", r"e4m3fn\[3\]"),
        (scaled(VALUES[:, :0], 1.0, 1.0), "fp8", r"\[2, 0\]"),
        (scaled(VALUES, 1.0), "fp8", r"scales float32\[1\]"),
        (scaled(VALUES, 1.0, 1.0, 1.0), "fp8", r"scales float32\[3\]"),
        (scaled(VALUES) | {"hidden.scale": torch.ones(2, 1)}, "fp8", r"float32\[2, 1\]"),
        (scaled(VALUES) | {"hidden.scale": torch.ones(2).half()}, "fp8", "float16"),
        (scaled(VALUES, 1.0, INF), "fp8", "scale outside"),
        (scaled(VALUES, NAN, 1.0), "fp8", "scale outside"),
        (scaled(VALUES, 1.0, 0.0), "fp8", "scale outside"),
        (scaled(VALUES, 1.0, -1.0), "fp8", "scale outside"),
        (scaled(VALUES, 1.0, 1e-39), "fp8", "scale outside"),
        (scaled(VALUES, 1.0, 1e36), "fp8", "scale outside"),
    ],
)
def test_what_packing_never_makes_is_refused(
    tensors: dict[str, torch.Tensor], wire: str, match: str
) -> None:
    """Catches hidden states that a peer sends in a form or with a scale of its own."""
    with pytest.raises(RemoteProtocolError, match=match):
        unpack_states(tensors, wire)


@pytest.mark.parametrize("wire", sorted(WIRES))
@pytest.mark.parametrize(
    "states", [F32.bfloat16(), F32.double(), F32[0], F32[None], F32[:, :0], F32.int()]
)
def test_states_of_another_form_are_our_own_fault(wire: str, states: torch.Tensor) -> None:
    """Catches states converted in silence: their dtype is part of the numeric configuration."""
    with pytest.raises(LocalProtocolError, match="expected float32"):
        pack_states({"hidden": states}, wire)


def test_states_named_like_a_scale_are_refused() -> None:
    """Catches states that the other side would take for scales."""
    with pytest.raises(LocalProtocolError, match="for scales"):
        pack_states({"hidden.scale": F32}, "fp8")


@pytest.mark.parametrize("name", ["fp16", "", "FP8", "e4m3"])
def test_unknown_wire_lists_the_valid_ones(name: str) -> None:
    """Catches a misspelt wire that falls back to another numeric configuration."""
    for use in (pack_states, unpack_states):
        with pytest.raises(ConfigError, match="valid: f32, fp8"):
            use({"hidden": F32}, name)


def test_bounds_of_scales() -> None:
    """Catches a bound past which the largest value overflows, or a scale is no normal number."""
    bound = torch.tensor(MAX_SCALE, dtype=torch.float32)
    assert torch.isfinite(bound * E4M3_MAX)
    assert torch.finfo(torch.float8_e4m3fn).max == E4M3_MAX
    assert MIN_SCALE == 2.0**-126


@pytest.mark.parametrize("wire", ["f32", "fp8"])
def test_errors_quote_a_bounded_name(wire: str) -> None:
    """Catches a peer's tensor name quoted at any length."""
    with pytest.raises(RemoteProtocolError) as caught:
        unpack_states({"x" * 3000: torch.zeros(1, dtype=torch.int64)}, wire)
    assert len(str(caught.value)) < 400
