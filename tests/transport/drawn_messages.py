"""Test only: any message of any kind, any tensor, as hypothesis strategies.

Guarantees: built from the structs' own annotations, so a new message type is covered unasked.
"""

from __future__ import annotations

import types
import typing

import msgspec
import torch
from hypothesis import strategies as st

from engine.transport.connection import Connection, Received
from engine.transport.message import KIND_OF, AnyMessage
from engine.transport.tensor import DTYPES, storage_view

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def values(kind: object) -> st.SearchStrategy:
    """Any value of an annotated type."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is int:
        return st.integers(-(2**63), 2**63 - 1)
    if kind is bool:
        return st.booleans()
    if kind is str:
        return st.text(max_size=12)
    if kind is bytes:
        return st.binary(max_size=12)
    if kind is type(None):
        return st.none()
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(values, args))
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values(args[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, args))
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=3)
    assert isinstance(kind, type) and issubclass(kind, msgspec.Struct), kind
    return structs(kind)


def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy:
    """Any instance of a struct."""
    return st.builds(
        kind, **{name: values(hint) for name, hint in typing.get_type_hints(kind).items()}
    )


MESSAGES = st.one_of(*(structs(kind) for kind in KIND_OF))


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any dtype, up to four dimensions, any bits."""
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    tensor = torch.zeros(draw(SHAPES), dtype=dtype)
    size = tensor.numel() * dtype.itemsize
    if size:
        top = 1 if dtype is torch.bool else 255
        bits = draw(st.lists(st.integers(0, top), min_size=size, max_size=size))
        tensor = torch.frombuffer(bytearray(bits), dtype=dtype).reshape(tensor.shape)
    return tensor


TENSOR_SETS = st.dictionaries(st.text(max_size=6), tensors(), max_size=3)


def wire(message: AnyMessage, named: dict[str, torch.Tensor] | None = None) -> bytes:
    """One plain frame's bytes."""
    return bytes(Connection().send(message, named))


def same(received: Received, message: AnyMessage, named: dict[str, torch.Tensor]) -> bool:
    """Equal to the last bit; NaN payloads too."""
    if (received.message, list(received.tensors)) != (message, list(named)):
        return False
    return all(
        other.dtype == tensor.dtype
        and other.shape == tensor.shape
        and bytes(storage_view(other)) == bytes(storage_view(tensor))
        for other, tensor in zip(received.tensors.values(), named.values(), strict=True)
    )
