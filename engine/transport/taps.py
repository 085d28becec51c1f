"""How taps ride in verify frames and replies: states of chosen layers, beside the frame's own.

Guarantees: a frame has the taps that are due and no others, one row a position; a stage passes on
the ones that it received byte for byte, so that each is packed once. Sans-IO. Must never know what
taps are for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from engine.errors import RemoteProtocolError, shown
from engine.transport.hidden_wire import MAX_NAMES_LEN, pack_states, unpack_states

PREFIX = "tap."
Tensors = Mapping[str, torch.Tensor]


def tap_name(layer_idx: int) -> str:
    """Under which the output of a layer rides."""
    return f"{PREFIX}{layer_idx}"


def pack_taps(taps: Mapping[int, torch.Tensor], wire: str) -> dict[str, torch.Tensor]:
    """Turn a stage's own taps into tensors of its frame; layers in order.

    Shapes:
        taps: f32 [T, H] each

    Raises:
        ConfigError: no such wire.
        LocalProtocolError: as `pack_states`.
    """
    return pack_states({tap_name(layer): taps[layer] for layer in sorted(taps)}, wire)


def split_taps(tensors: Tensors) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Part a frame's tensors: its own, and those of taps, as they came."""
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(PREFIX)}
    return own, {name: tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}


def unpack_taps(
    tap_tensors: Tensors, layers: Sequence[int], wire: str, num_rows: int
) -> dict[int, torch.Tensor]:
    """Turn the tensors of taps into states, by layer.

    Args:
        tap_tensors: as `split_taps` parted them.
        layers: that are due.
        wire: that taps travel in.
        num_rows: of the frame.

    Returns:
        f32 [T, H] each.

    Raises:
        ConfigError: no such wire.
        RemoteProtocolError: a layer is missing or not due, or a tap has another form.
    """
    states = unpack_states(tap_tensors, wire)
    due = [tap_name(layer) for layer in layers]
    if set(states) != set(due):
        raise RemoteProtocolError(
            f"taps {shown(', '.join(map(repr, sorted(states))), MAX_NAMES_LEN)} came; due are "
            f"{', '.join(map(repr, due)) or 'none'}"
        )
    taps = {layer: states[tap_name(layer)] for layer in layers}
    for layer, tap in taps.items():
        if tap.shape != (num_rows, next(iter(taps.values())).shape[1]):
            raise RemoteProtocolError(
                f"tap of layer {layer} is {list(tap.shape)}; the frame has {num_rows} rows, and "
                "all taps one width"
            )
    return taps
