"""Tensors on the wire: dtype names, shapes and exact byte counts.

Guarantees: a tensor is described by (dtype, shape) and its bytes number exactly
shape × item size, checked before the bytes are viewed; dimensions are bounded; elements lie in row
order, little-endian. The only dtype table. Sans-IO; torch appears as storage, never as a model.
"""

from __future__ import annotations

import math

import msgspec
import torch

from engine.errors import LocalProtocolError, RemoteProtocolError, shown

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
MAX_ELEMENTS = 2**28  # a frame holds no more of any dtype


class TensorMeta(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Name, dtype and shape of one tensor; its bytes follow the message's header, in order."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def num_bytes(self) -> int:
        """Exact byte count.

        Raises:
            RemoteProtocolError: unknown dtype, too many dimensions or elements, a negative size.
        """
        name = shown(self.name)
        if self.dtype not in DTYPES:
            raise RemoteProtocolError(
                f"tensor {name!r} has unknown dtype {shown(self.dtype)!r}; "
                f"valid: {', '.join(DTYPES)}"
            )
        if not _possible(self.shape):
            raise RemoteProtocolError(
                f"tensor {name!r} has an impossible shape {self.shape[: MAX_DIMS + 1]}; allowed: "
                f"{MAX_DIMS} dimensions, {MAX_ELEMENTS} elements"
            )
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


def describe(name: str, tensor: torch.Tensor) -> TensorMeta:
    """Describe a tensor.

    Raises:
        LocalProtocolError: it cannot be sent: its dtype, shape, device or layout.
    """
    if tensor.dtype not in _NAMES:
        raise LocalProtocolError(
            f"tensor {name!r}: dtype {tensor.dtype} has no wire name; valid: {', '.join(DTYPES)}"
        )
    if not _possible(tuple(tensor.shape)):
        raise LocalProtocolError(
            f"tensor {name!r} has shape {tuple(tensor.shape)}; a frame carries {MAX_DIMS} "
            f"dimensions and {MAX_ELEMENTS} elements at most"
        )
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise LocalProtocolError(
            f"tensor {name!r} is {tensor.layout} on {tensor.device}; make it a dense one on the CPU"
        )
    return TensorMeta(name, _NAMES[tensor.dtype], tuple(tensor.shape))


def storage_view(tensor: torch.Tensor) -> memoryview:
    """Bytes of a contiguous CPU tensor, without a copy (copied first if not contiguous)."""
    # Stride 1 is set, not found: torch calls one element contiguous whatever its stride.
    flat = tensor.contiguous().as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


def view_bytes(meta: TensorMeta, blob: memoryview) -> torch.Tensor:
    """View received bytes as a tensor that shares them.

    Raises:
        RemoteProtocolError: the byte count does not match the declared shape, or a bool is
            neither 0 nor 1.
    """
    if len(blob) != meta.num_bytes():
        raise RemoteProtocolError(
            f"tensor {shown(meta.name)!r} {meta.dtype}{list(meta.shape)} needs "
            f"{meta.num_bytes()} bytes, the frame holds {len(blob)}"
        )
    if not len(blob):
        return torch.empty(meta.shape, dtype=DTYPES[meta.dtype])
    # Kernels take for granted that a bool is 0 or 1; a sum over others counts wrongly.
    if meta.dtype == "bool" and int(torch.frombuffer(blob, dtype=torch.uint8).max()) > 1:
        raise RemoteProtocolError(f"tensor {shown(meta.name)!r}: bools must be bytes 0 or 1")
    return torch.frombuffer(blob, dtype=DTYPES[meta.dtype]).reshape(meta.shape)


def _possible(shape: tuple[int, ...]) -> bool:
    """Whether a frame may hold such a tensor; a size of zero does not hide what is beside it.

    Torch multiplies the other sizes even then, and overflows.
    """
    return (
        len(shape) <= MAX_DIMS
        and all(size >= 0 for size in shape)
        and math.prod(max(size, 1) for size in shape) <= MAX_ELEMENTS
    )
