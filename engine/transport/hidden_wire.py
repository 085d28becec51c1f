"""How hidden states (and taps) travel: their wire dtype.

Guarantees: a position's bytes depend on that position alone, so they are the same whatever chunk it
rode in; what is unpacked has exactly the dtypes, shapes and scales that packing makes. A wire other
than the compute dtype is a numeric configuration of its own. Sans-IO. Must never know which layer
the states come from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from engine.errors import LocalProtocolError, RemoteProtocolError, shown, unknown_name

States = Mapping[str, torch.Tensor]  # name -> states of consecutive positions, f32 [T, H]

E4M3_MAX = 448.0
# Normal numbers only, so that no host's flush-to-zero mode changes a scale, and E4M3_MAX times the
# largest one is finite.
MIN_SCALE = torch.finfo(torch.float32).tiny
MAX_SCALE = torch.finfo(torch.float32).max / E4M3_MAX
MAX_NAMES_LEN = 200  # characters of a peer's names in an error
_SCALE_SUFFIX = ".scale"


@dataclass(frozen=True, slots=True)
class StateWire:
    """One way to travel; `pack` and `unpack` see states that are checked to be f32 [T, H]."""

    pack: Callable[[States], dict[str, torch.Tensor]]
    unpack: Callable[[States], dict[str, torch.Tensor]]


def pack_states(states: States, wire: str) -> dict[str, torch.Tensor]:
    """Turn states into the tensors of a frame.

    Shapes:
        states: f32 [T, H] each, H ≥ 1

    Raises:
        ConfigError: no such wire.
        LocalProtocolError: states of another dtype or shape, or named like a scale.
    """
    chosen = wire_named(wire)
    for name, tensor in states.items():
        if not _are_states(tensor, torch.float32):
            raise LocalProtocolError(
                f"states {shown(name)!r} are {_form(tensor)}; expected float32[T, H]"
            )
        if name.endswith(_SCALE_SUFFIX):
            raise LocalProtocolError(
                f"states {shown(name)!r}: names on *{_SCALE_SUFFIX} are for scales"
            )
    return chosen.pack(states)


def unpack_states(tensors: States, wire: str) -> dict[str, torch.Tensor]:
    """Turn the tensors of a frame into states.

    Returns:
        f32 [T, H] each.

    Raises:
        ConfigError: no such wire.
        RemoteProtocolError: a dtype, shape, name or scale that packing never makes.
    """
    return wire_named(wire).unpack(tensors)


def wire_named(name: str) -> StateWire:
    """Look a wire up.

    Raises:
        ConfigError: no such wire.
    """
    if name not in WIRES:
        raise unknown_name("wire", name, WIRES)
    return WIRES[name]


def _pack_f32(states: States) -> dict[str, torch.Tensor]:
    return dict(states)


def _unpack_f32(tensors: States) -> dict[str, torch.Tensor]:
    for name, tensor in tensors.items():
        if not _are_states(tensor, torch.float32):
            raise RemoteProtocolError(
                f"states {shown(name)!r} are {_form(tensor)}; "
                "on the wire f32 they are float32[T, H]"
            )
    return dict(tensors)


def _pack_fp8(states: States) -> dict[str, torch.Tensor]:
    packed = {}
    for name, tensor in states.items():
        packed[name], packed[name + _SCALE_SUFFIX] = _quantise(tensor)
    return packed


def _unpack_fp8(tensors: States) -> dict[str, torch.Tensor]:
    names = [name for name in tensors if not name.endswith(_SCALE_SUFFIX)]
    if tensors.keys() != {*names, *(name + _SCALE_SUFFIX for name in names)}:
        raise RemoteProtocolError(
            f"on the wire fp8 each states have their scales at *{_SCALE_SUFFIX}; this frame has "
            f"{shown(', '.join(map(repr, tensors)), MAX_NAMES_LEN)}"
        )
    return {name: _dequantise(name, tensors[name], tensors[name + _SCALE_SUFFIX]) for name in names}


def _quantise(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One scale per position, so that its largest value becomes E4M3_MAX.

    A finite x comes back within max(|x| / 16, scale / 1024). Infinities come back as ± the largest
    float32 and cost the rest of their position its precision, so that an overflow stays one to
    see; NaN stays NaN and costs its neighbours nothing. A position of zeros stays zero, and what is
    below 2⁻¹³⁶ becomes zero.

    Shapes:
        states: f32 [T, H] → e4m3 [T, H], f32 [T]
    """
    amax = states.abs().nan_to_num(nan=0.0).amax(dim=1)  # an infinity becomes the largest float32
    scale = (amax / E4M3_MAX).clamp_min(MIN_SCALE)
    # Past 448 there is nothing but NaN; whether a cast saturates is up to the kernel.
    quotient = (states / scale.unsqueeze(1)).clamp(-E4M3_MAX, E4M3_MAX)
    return quotient.to(torch.float8_e4m3fn), scale


def _dequantise(name: str, values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Shapes: e4m3 [T, H], f32 [T] → f32 [T, H]."""
    if (
        not _are_states(values, torch.float8_e4m3fn)
        or scale.dtype != torch.float32
        or scale.shape != values.shape[:1]
    ):
        raise RemoteProtocolError(
            f"states {shown(name)!r} are {_form(values)} with scales {_form(scale)}; "
            "on the wire fp8 they are float8_e4m3fn[T, H] with float32[T]"
        )
    if not bool(((scale >= MIN_SCALE) & (scale <= MAX_SCALE)).all()):
        raise RemoteProtocolError(
            f"states {shown(name)!r} have a scale outside [{MIN_SCALE}, {MAX_SCALE}]"
        )
    return values.to(torch.float32) * scale.unsqueeze(1)


def _are_states(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    return tensor.dtype == dtype and tensor.dim() == 2 and tensor.shape[1] > 0


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


WIRES: Mapping[str, StateWire] = {
    "f32": StateWire(_pack_f32, _unpack_f32),
    "fp8": StateWire(_pack_fp8, _unpack_fp8),
}
