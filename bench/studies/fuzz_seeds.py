"""Honest frames of every kind: what mutation starts from.

Guarantees: messages are drawn from the structs' own annotations, so a new kind is covered unasked;
the same every time. Must never know what is done to them.
"""

from __future__ import annotations

import random
import types
import typing

import msgspec
import torch

from engine.transport.connection import Connection
from engine.transport.hidden_wire import pack_states
from engine.transport.message import KIND_OF, AnyMessage, Verify
from engine.transport.tensor import DTYPES

Tensors = dict[str, torch.Tensor]


def honest_messages() -> list[tuple[AnyMessage, Tensors]]:
    """Two messages of every kind, and `Verify` with tensors of every dtype and wire."""
    rng = random.Random(1)
    drawn: list[tuple[AnyMessage, Tensors]] = [
        (_value(kind, rng), {}) for kind in KIND_OF for _ in range(2)
    ]
    verify = _value(Verify, rng)
    states = {"hidden": torch.tensor([[1.0, -2.0, 0.0], [0.5, 448.0, 3e-9]])}
    every_dtype: Tensors = {
        name: torch.tensor([0, 1, 1, 0]).to(dtype).reshape(2, 2) for name, dtype in DTYPES.items()
    }
    shapes: Tensors = {
        "scalar": torch.tensor(7, dtype=torch.int64),
        "none": torch.empty((0, 3), dtype=torch.float16),
        "deep": torch.zeros((1, 2, 1, 2), dtype=torch.uint8),
    }
    wires = [pack_states(states, wire) for wire in ("f32", "fp8")]
    return drawn + [(verify, tensors) for tensors in (*wires, every_dtype, shapes)]


def honest_frames() -> list[bytes]:
    """The same as plain frames."""
    writer = Connection()
    return [bytes(writer.send(message, tensors)) for message, tensors in honest_messages()]


def _value(kind: typing.Any, rng: random.Random) -> typing.Any:
    """Some value of an annotated type."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is int:
        return rng.choice((0, 1, 7, 300, 2**33))
    if kind is bool:
        return rng.random() < 0.5
    if kind is str:
        return rng.choice(("", "a", "stage-0", "ü"))
    if kind is bytes:
        return rng.randbytes(rng.choice((0, 3)))
    if kind is types.NoneType:
        return None
    if origin in (typing.Union, types.UnionType):
        return _value(rng.choice(args), rng)
    if origin is tuple and args[-1] is Ellipsis:
        return tuple(_value(args[0], rng) for _ in range(rng.randrange(3)))
    if origin is tuple:
        return tuple(_value(arg, rng) for arg in args)
    if origin is dict:
        return {_value(args[0], rng): _value(args[1], rng) for _ in range(rng.randrange(3))}
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        raise TypeError(f"no honest value for {kind}: teach this function the type")
    hints = typing.get_type_hints(kind)
    return kind(**{name: _value(hint, rng) for name, hint in hints.items()})
