"""The shape of one decoder, read from GGUF metadata.

Guarantees: a `ModelConfig` is complete, immutable, checked, and survives JSON unchanged; an
architecture this engine cannot run is refused by name. Never knows about files, tensors or text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from engine.errors import ModelError

SUPPORTED_ARCHITECTURES = ("llama",)

# Control tokens at which a chat model stops. A GGUF names one eos id, but a base-model end of text
# ends a chat answer as well; the list is by text because ids differ between vocabularies.
END_OF_GENERATION = frozenset(
    {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "</s>"}
)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything that fixes a decoder's arithmetic apart from its weights.

    Attributes:
        architecture: family name as GGUF spells it.
        num_layers: L.
        hidden_size: H.
        num_heads: N, query heads.
        num_kv_heads: G, key and value heads; divides N.
        head_dim: D.
        intermediate_size: width of the gated feed-forward block.
        vocab_size: V.
        rms_eps: added to the mean square in every norm.
        rope_theta: base of the rotary frequencies.
        context_len: positions the model was trained for; caches refuse more.
        bos_id: id of the beginning-of-text token, None if the model has none.
        eos_ids: every id that ends generation, ascending.
        tied_head: True if the output head is the embedding matrix.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    rms_eps: float
    rope_theta: float
    context_len: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    tied_head: bool

    def to_json(self) -> str:
        """Serialise with sorted keys, so that equal configs are equal strings."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ModelConfig:
        """Read what `to_json` wrote.

        Raises:
            ModelError: if the fields are not exactly those of this class.
        """
        try:
            fields = json.loads(text)
            return cls(**{**fields, "eos_ids": tuple(fields["eos_ids"])})
        except (ValueError, TypeError, KeyError) as error:
            raise ModelError(f"model config is not readable: {error}") from error


def config_from_gguf(metadata: Mapping[str, Any], tied_head: bool) -> ModelConfig:
    """Build the config from GGUF key-value pairs.

    Args:
        metadata: GGUF keys and their Python values.
        tied_head: True if the file holds no `output.weight`.

    Raises:
        ModelError: for an unsupported architecture, a missing key or shapes that cannot be.
    """
    architecture = metadata.get("general.architecture")
    if architecture not in SUPPORTED_ARCHITECTURES:
        supported = ", ".join(SUPPORTED_ARCHITECTURES)
        raise ModelError(f"unsupported model architecture {architecture!r}; supported: {supported}")
    _refuse_unhandled(metadata, architecture)
    try:
        num_heads = int(metadata[f"{architecture}.attention.head_count"])
        hidden_size = int(metadata[f"{architecture}.embedding_length"])
        config = ModelConfig(
            architecture=architecture,
            num_layers=int(metadata[f"{architecture}.block_count"]),
            hidden_size=hidden_size,
            num_heads=num_heads,
            num_kv_heads=int(metadata.get(f"{architecture}.attention.head_count_kv", num_heads)),
            head_dim=int(
                metadata.get(f"{architecture}.attention.key_length", hidden_size // num_heads)
            ),
            intermediate_size=int(metadata[f"{architecture}.feed_forward_length"]),
            vocab_size=len(metadata["tokenizer.ggml.tokens"]),
            rms_eps=_decimal(metadata[f"{architecture}.attention.layer_norm_rms_epsilon"]),
            rope_theta=_decimal(metadata.get(f"{architecture}.rope.freq_base", 10000.0)),
            context_len=int(metadata[f"{architecture}.context_length"]),
            bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
            eos_ids=_eos_ids(metadata),
            tied_head=tied_head,
        )
    except KeyError as error:
        raise ModelError(f"GGUF metadata lacks {error.args[0]}") from error
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise ModelError(
            f"{config.num_heads} heads over {config.num_kv_heads} key-value heads of size "
            f"{config.head_dim}: heads must divide evenly and the size must be even"
        )
    return config


def _refuse_unhandled(metadata: Mapping[str, Any], architecture: str) -> None:
    """Refuse variants of a supported family whose arithmetic would silently be wrong."""
    if metadata.get(f"{architecture}.expert_count", 0):
        raise ModelError(f"{architecture} with experts is not supported; use a dense model")
    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none":
        raise ModelError(f"rope scaling {scaling!r} is not supported; allowed: none")


def _decimal(value: float) -> float:
    """Return the short decimal a float32 field was written from (1e-5, not 9.99999975e-06)."""
    return float(f"{value:.7g}")


def _eos_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Collect the declared eos id and every known end-of-generation control token."""
    tokens = metadata["tokenizer.ggml.tokens"]
    eos_ids = {idx for idx, text in enumerate(tokens) if text in END_OF_GENERATION}
    declared = metadata.get("tokenizer.ggml.eos_token_id")
    if declared is not None:
        eos_ids.add(int(declared))
    return tuple(sorted(eos_ids))
