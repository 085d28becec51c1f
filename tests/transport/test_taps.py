"""Taps on the wire: what comes back, how far off, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError, RemoteProtocolError
from engine.transport.hidden_wire import WIRES
from engine.transport.taps import pack_taps, split_taps, tap_name, unpack_taps

ROWS, WIDTH = 5, 12
LAYERS = (2, 15, 27)


def drawn(seed: int, num_rows: int = ROWS) -> dict[int, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        layer: 10.0 ** (layer % 4) * torch.randn(num_rows, WIDTH, generator=generator)
        for layer in LAYERS
    }


@given(seed=st.integers(0, 2**32), num_rows=st.integers(0, 9))
@pytest.mark.parametrize("wire", sorted(WIRES))
def test_taps_come_back_by_layer(wire: str, seed: int, num_rows: int) -> None:
    """Catches layers that are swapped, and an error beyond that of the format."""
    taps = drawn(seed, num_rows)
    states = {"hidden": torch.zeros(num_rows, WIDTH)}
    own, packed = split_taps({**states, **pack_taps(taps, wire)})
    assert own.keys() == states.keys()
    back = unpack_taps(packed, LAYERS, wire, num_rows)
    assert list(back) == list(LAYERS)
    for layer, tap in taps.items():
        if wire == "f32":
            assert torch.equal(back[layer], tap)
        else:  # a sixteenth of a value, or of a row's largest over 448 its smallest step
            floor = tap.abs().amax(dim=1, keepdim=True) / 448 / 1024
            assert ((back[layer] - tap).abs() <= torch.maximum(tap.abs() / 16, floor)).all()


@pytest.mark.parametrize("layers", [(2, 15), (2, 15, 27, 28), (2, 15, 28), ()])
def test_exactly_the_due_layers_pass(layers: tuple[int, ...]) -> None:
    with pytest.raises(RemoteProtocolError, match="due are"):
        unpack_taps(pack_taps(drawn(1), "fp8"), layers, "fp8", ROWS)


@pytest.mark.parametrize("num_rows", [ROWS - 1, ROWS + 1, 0])
def test_a_row_a_position(num_rows: int) -> None:
    with pytest.raises(RemoteProtocolError, match="rows"):
        unpack_taps(pack_taps(drawn(1), "f32"), LAYERS, "f32", num_rows)


def test_taps_have_one_width() -> None:
    taps = {**drawn(1), 27: torch.zeros(ROWS, WIDTH + 1)}
    with pytest.raises(RemoteProtocolError, match="one width"):
        unpack_taps(pack_taps(taps, "f32"), LAYERS, "f32", ROWS)


def test_wires_are_not_mixed_and_must_exist() -> None:
    with pytest.raises(RemoteProtocolError):
        unpack_taps(pack_taps(drawn(1), "fp8"), LAYERS, "f32", ROWS)
    with pytest.raises(ConfigError):
        unpack_taps({}, (), "f8", ROWS)


def test_names_are_the_pages() -> None:
    packed = pack_taps({15: torch.ones(1, 2), 2: torch.ones(1, 2)}, "fp8")
    assert list(packed) == ["tap.2", "tap.2.scale", "tap.15", "tap.15.scale"]
    assert tap_name(0) == "tap.0"
