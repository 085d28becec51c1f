"""Numeric configurations: what the stages' weights are kept in, and what states travel in.

Guarantees: one table; outputs compare within one configuration only. Must never know kernels,
tensors or sockets: the names are those of `engine.model.linear` and `engine.transport.hidden_wire`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NumericConfig:
    """What one name stands for.

    Attributes:
        weights: of the layers' matrices; fixed when a ring is brought up.
        wire: of hidden states between stages; free to differ from job to job.
    """

    weights: str
    wire: str


NUMERIC_CONFIGS: Mapping[str, NumericConfig] = {
    "f32": NumericConfig(weights="f32", wire="f32"),
    "fp8": NumericConfig(weights="f32", wire="fp8"),
    "int4": NumericConfig(weights="int4", wire="f32"),
}
