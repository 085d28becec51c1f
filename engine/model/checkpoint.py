"""What every kind of model file is read into, and the check that it is whole.

Guarantees: a file that does not hold exactly the tensors of its config, each in its shape, is
refused with the name that the file itself uses. Never knows file formats, caches or kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.model.config import ModelConfig, tensor_shapes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model, decoded completely.

    Attributes:
        config: the decoder's shape.
        tensors: this engine's name to float32 array; matrices are [out, in], rows half-split for
            rotation, norms the factor itself.
        tokenizer_fields: whatever `vocabulary` needs to build the tokenizer; JSON values.
    """

    config: ModelConfig
    tensors: dict[str, np.ndarray]
    tokenizer_fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a file's tensor goes.

    Attributes:
        name: this engine's tensor.
        expert_idx: its first index, if the file stores experts one by one; else None.
    """

    name: str
    expert_idx: int | None = None


def check_tensors(
    where: str,
    found: Mapping[str, tuple[int, ...]],
    slots: Mapping[str, Slot],
    config: ModelConfig,
    ignored: Iterable[str] = (),
) -> None:
    """Compare a file's tensors with what its config needs.

    Args:
        where: file or folder, for the message.
        found: shape of every tensor, by the file's own name.
        slots: every tensor needed, by the file's own name.
        config: says the shapes.
        ignored: names that may be present and are not used.

    Raises:
        ModelError: a tensor is missing, has another shape, or would be ignored.
    """
    shapes = tensor_shapes(config)
    for file_name, slot in slots.items():
        if file_name not in found:
            raise ModelError(f"{where} lacks tensor {file_name}")
        expected = shapes[slot.name] if slot.expert_idx is None else shapes[slot.name][1:]
        if found[file_name] != expected:
            raise ModelError(
                f"tensor {file_name} in {where} has shape {list(found[file_name])}, its config "
                f"says {list(expected)}: file and config are not of one model"
            )
    unused = sorted(set(found) - set(slots) - set(ignored))
    if unused:
        listed = ", ".join(unused[:5])
        raise ModelError(f"{where} holds tensors this engine would ignore: {listed}")
