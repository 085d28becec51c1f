"""Test only: a small head with random weights, in a file, and tables to go with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file

from engine.draft.head import EagleHead
from engine.draft.head_file import (
    METADATA_KEY,
    VOCAB_TENSOR,
    HeadFacts,
    HeadShape,
    load_head,
    tensor_shapes,
)

VOCAB_SIZE, CONTEXT_LEN = 50, 1600
SHAPE = HeadShape(
    num_taps=3,
    hidden_size=32,
    intermediate_size=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=20,
)
FACTS = HeadFacts(
    format=1,
    model_digest="5f" * 32,
    tap_layers=(0, 2, 3),
    shape=SHAPE,
    rms_eps=1e-5,
    rope_theta=10000.0,
    texts_digest="aa" * 32,
    seed=1,
    num_tokens=100,
    confidence=tuple(range(25_000, 1_000_000, 50_000)),
)


def write_head(path: Path, seed: int = 3, facts: HeadFacts = FACTS) -> Path:
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: torch.randn(shape, generator=generator) * (shape[-1] ** -0.5 if len(shape) > 1 else 1)
        for name, shape in tensor_shapes(facts.shape).items()
        if name != VOCAB_TENSOR
    }
    chosen = torch.randperm(VOCAB_SIZE, generator=generator)[: facts.shape.vocab_size]
    tensors[VOCAB_TENSOR] = chosen.sort().values.to(torch.int32)
    save_file(tensors, path, metadata={METADATA_KEY: msgspec.json.encode(facts).decode()})
    return path


def embedding() -> torch.Tensor:
    generator = torch.Generator().manual_seed(9)
    return torch.randn(VOCAB_SIZE, SHAPE.hidden_size, generator=generator)


def tiny_head(folder: Path, seed: int = 3) -> EagleHead:
    path = write_head(folder / f"head-{seed}.safetensors", seed)
    return EagleHead(load_head(path), embedding(), CONTEXT_LEN)


def taps_of(ids: list[int], seed: int = 4) -> dict[int, torch.Tensor]:
    """Made-up taps that depend on layer, position and all tokens up to it, as a target's do."""
    taps = {}
    for layer in FACTS.tap_layers:
        rows = [
            torch.randn(
                SHAPE.hidden_size,
                generator=torch.Generator().manual_seed(
                    hash((seed, layer, *ids[: position + 1])) % 2**63
                ),
            )
            for position in range(len(ids))
        ]
        taps[layer] = torch.stack(rows)
    return taps


def other_format() -> HeadFacts:
    return msgspec.structs.replace(FACTS, format=2)


def wider() -> HeadFacts:
    return msgspec.structs.replace(FACTS, shape=replace(SHAPE, intermediate_size=64))
