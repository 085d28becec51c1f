"""Tensors on the wire: dtype names, shapes and exact byte counts.

Guarantees: a tensor is described by (dtype, shape) and its bytes number exactly
shape × item size, checked before the bytes are viewed; dimensions are bounded. The only dtype
table. Sans-IO; torch appears as storage, never as a model.
"""

from __future__ import annotations

import math

import msgspec
import torch

from engine.errors import LocalProtocolError, RemoteProtocolError

DTYPES: dict[str, torch.dtype] = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "u8": torch.uint8,
    "bool": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
MAX_DIMS = 4
MAX_SIZE = 2**28  # of one dimension; a frame holds no more elements of any dtype


class TensorMeta(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Name, dtype and shape of one tensor; its bytes follow the message's header, in order."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def num_bytes(self) -> int:
        """Exact byte count.

        Raises:
            RemoteProtocolError: unknown dtype, too many dimensions or a negative one.
        """
        if self.dtype not in DTYPES:
            raise RemoteProtocolError(
                f"tensor {self.name!r} has unknown dtype {self.dtype!r}; valid: {', '.join(DTYPES)}"
            )
        # Each size is bounded by itself: a zero beside it would hide it from the product.
        if len(self.shape) > MAX_DIMS or not all(0 <= size <= MAX_SIZE for size in self.shape):
            raise RemoteProtocolError(f"tensor {self.name!r} has an impossible shape {self.shape}")
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


def describe(name: str, tensor: torch.Tensor) -> TensorMeta:
    """Describe a tensor.

    Raises:
        LocalProtocolError: its dtype has no wire name.
    """
    if tensor.dtype not in _NAMES:
        raise LocalProtocolError(f"tensor {name!r}: dtype {tensor.dtype} has no wire name")
    return TensorMeta(name, _NAMES[tensor.dtype], tuple(tensor.shape))


def storage_view(tensor: torch.Tensor) -> memoryview:
    """Bytes of a contiguous CPU tensor, without a copy (copied first if not contiguous)."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def view_bytes(meta: TensorMeta, blob: memoryview) -> torch.Tensor:
    """View received bytes as a tensor that shares them.

    Raises:
        RemoteProtocolError: the byte count does not match the declared shape.
    """
    if len(blob) != meta.num_bytes():
        raise RemoteProtocolError(
            f"tensor {meta.name!r} {meta.dtype}{list(meta.shape)} needs {meta.num_bytes()} bytes, "
            f"the frame holds {len(blob)}"
        )
    if not len(blob):
        return torch.empty(meta.shape, dtype=DTYPES[meta.dtype])
    return torch.frombuffer(blob, dtype=DTYPES[meta.dtype]).reshape(meta.shape)
