"""The learned head's weights: one safetensors file that says what it was made for and from.

Guarantees: what is loaded fits the model that it drafts for, or is refused with what to do; the
digest names the exact bytes. Never knows how the head computes or was trained.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelError

WEIGHTS_DIR = Path(__file__).parent / "weights"
DEFAULT_HEAD = WEIGHTS_DIR / "eagle-smollm2-135m.safetensors"
METADATA_KEY = "longhaul"
VOCAB_TENSOR = "vocab_ids"  # the target's id of every id of the draft vocabulary
_HEAD_FORMAT = 1


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Sizes of a head.

    Attributes:
        num_taps: tapped layers that are fused.
        hidden_size: H, the target's.
        intermediate_size: width of the gated block.
        num_heads: N, of queries.
        num_kv_heads: G, of keys and values.
        head_dim: D.
        vocab_size: V, of the draft vocabulary.
    """

    num_taps: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int


class HeadFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the file says of itself.

    Attributes:
        format: of the file; what this engine reads.
        model_digest: of the target.
        tap_layers: whose outputs it fuses, in order.
        shape: its sizes.
        rms_eps, rope_theta: the target's.
        texts_digest: of the tokens it was trained on.
        seed: of texts and training.
        num_tokens: answer tokens it was trained on, each counted once.
        confidence: what its cumulative probabilities are worth: of nodes whose probability lies in
            bin `i` of as many equal bins from 0 to 1, this many of a million are the target's.
    """

    format: int
    model_digest: str
    tap_layers: tuple[int, ...]
    shape: HeadShape
    rms_eps: float
    rope_theta: float
    texts_digest: str
    seed: int
    num_tokens: int
    confidence: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HeadFile:
    """A head's file, read.

    Attributes:
        digest: SHA-256 of its bytes, hex.
        tensors: by name, float32; `VOCAB_TENSOR` int64.
    """

    facts: HeadFacts
    digest: str
    tensors: dict[str, torch.Tensor]


@cache
def read_facts(path: Path = DEFAULT_HEAD) -> HeadFacts:
    """Read what a head's file says, without its weights.

    Raises:
        ModelError: it is missing, damaged or of another format.
    """
    if not path.is_file():
        raise ModelError(f"no drafter's weights at {path}; train some: python -m bench.train")
    try:
        with safe_open(path, framework="pt") as opened:
            facts = msgspec.json.decode((opened.metadata() or {})[METADATA_KEY], type=HeadFacts)
    except (SafetensorError, KeyError, msgspec.MsgspecError) as error:
        raise ModelError(f"{path} is no drafter's file: {error}") from error
    if facts.format != _HEAD_FORMAT:
        raise ModelError(f"{path} is of format {facts.format}; this engine reads {_HEAD_FORMAT}")
    return facts


@cache
def load_head(path: Path = DEFAULT_HEAD) -> HeadFile:
    """Read a head.

    Raises:
        ModelError: as `read_facts`, or tensors are missing or of other shapes.
    """
    facts = read_facts(path)
    with safe_open(path, framework="pt") as opened:
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    wanted = tensor_shapes(facts.shape)
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != wanted:
        odd = sorted({*wanted.items()} ^ {*found.items()})
        raise ModelError(f"{path}: tensors are not those of its shape: {odd[:4]}")
    widened = {
        name: tensor.long() if name == VOCAB_TENSOR else tensor.float()
        for name, tensor in tensors.items()
    }
    return HeadFile(facts, hashlib.sha256(path.read_bytes()).hexdigest(), widened)


def tensor_shapes(shape: HeadShape) -> dict[str, tuple[int, ...]]:
    """Name every tensor of a head, with its shape."""
    hidden, inner, taps = shape.hidden_size, shape.intermediate_size, shape.num_taps
    queries = shape.num_heads * shape.head_dim
    return {
        "tap_norm": (taps, hidden),
        "fuse": (hidden, taps * hidden),
        "token_norm": (hidden,),
        "feature_norm": (hidden,),
        "query_key_value": (queries + 2 * shape.num_kv_heads * shape.head_dim, 2 * hidden),
        "attention_output": (hidden, queries),
        "mlp_norm": (hidden,),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
        "final_norm": (hidden,),
        "head": (shape.vocab_size, hidden),
        VOCAB_TENSOR: (shape.vocab_size,),
    }
