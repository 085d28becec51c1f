"""The shape of one decoder, and what sets one family of decoders apart from another.

Guarantees: a `ModelConfig` is complete, immutable, checked, and survives JSON unchanged; fields
that contradict each other are refused. Everything a family does in its own way stands in one row
of `FAMILIES`. Never knows about files, tensors or text.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import msgspec

from engine.errors import ModelError

LayerKind = Literal["full", "sliding"]

# Control tokens at which a chat model stops. A GGUF names one eos id, but a base-model end of text
# ends a chat answer as well; the list is by text because ids differ between vocabularies.
END_OF_GENERATION = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<end_of_turn>",
    }
)


@dataclass(frozen=True, slots=True)
class Family:
    """What one family's block does that another's does not.

    Attributes:
        folder_name: `model_type` in a Hugging Face config.json.
        qkv_bias: queries, keys and values have biases.
        qk_norm: queries and keys are normalised per head before they are rotated.
        post_norms: attention and feed-forward outputs are normalised before they are added.
        unit_offset_norms: a checkpoint stores norms as w and multiplies by 1 + w (GGUF: by w).
        scales_embedding: embeddings are multiplied by sqrt(H).
        activation: of the gate in the feed-forward block.
        has_experts: the feed-forward block is a router over experts.
    """

    folder_name: str
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    unit_offset_norms: bool = False
    scales_embedding: bool = False
    activation: Literal["silu", "gelu_tanh"] = "silu"
    has_experts: bool = False


# Keyed by the architecture's name in GGUF.
FAMILIES = {
    "llama": Family("llama"),
    "qwen2": Family("qwen2", qkv_bias=True),
    "qwen3": Family("qwen3", qk_norm=True),
    "qwen3moe": Family("qwen3_moe", qk_norm=True, has_experts=True),
    "gemma3": Family(
        "gemma3_text",
        qk_norm=True,
        post_norms=True,
        unit_offset_norms=True,
        scales_embedding=True,
        activation="gelu_tanh",
    ),
}


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotary frequencies of one kind of layer.

    Attributes:
        theta: base of the frequencies.
        factors: what each pair's frequency is divided by, [D/2]; empty: nothing.
        magnitude: factor of the rotated vectors; 1 but for YaRN.
    """

    theta: float
    factors: tuple[float, ...] = ()
    magnitude: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything that fixes a decoder's arithmetic apart from its weights.

    Attributes:
        architecture: family name as GGUF spells it, a key of `FAMILIES`.
        num_layers: L.
        hidden_size: H.
        num_heads: N, query heads.
        num_kv_heads: G, key and value heads; divides N.
        head_dim: D; H / N in some families only.
        intermediate_size: width of the gated feed-forward block, or of one expert.
        vocab_size: V.
        rms_eps: added to the mean square in every norm.
        rope: rotation of full layers.
        sliding_rope: rotation of sliding layers.
        attention_scale: factor of every score, D^-0.5 in most families.
        context_len: positions the model was trained for; caches refuse more.
        bos_id: id of the beginning-of-text token, None if the model has none.
        eos_ids: every id that ends generation, ascending.
        tied_head: True if the output head is the embedding matrix.
        sliding_window: keys a sliding layer sees, its own included; None without sliding layers.
        layer_kinds: of every layer.
        num_experts: E; 0 for dense models.
        experts_per_token: experts that compute a token.
        renormalise_experts: True if the chosen experts' weights are scaled to sum to 1.
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
    rope: Rope
    sliding_rope: Rope
    attention_scale: float
    context_len: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    tied_head: bool
    sliding_window: int | None
    layer_kinds: tuple[LayerKind, ...]
    num_experts: int = 0
    experts_per_token: int = 0
    renormalise_experts: bool = False

    def __post_init__(self) -> None:
        """Refuse fields that contradict each other.

        Raises:
            ModelError: naming the fields and what is allowed.
        """
        family_of(self.architecture)
        for complaint in _contradictions(self):
            raise ModelError(f"model config contradicts itself: {complaint}")

    @property
    def family(self) -> Family:
        """What this model's family does in its own way."""
        return FAMILIES[self.architecture]

    @property
    def rope_theta(self) -> float:
        """Base of the rotary frequencies of full layers."""
        return self.rope.theta

    def to_json(self) -> str:
        """Serialise with sorted keys, so that equal configs are equal strings."""
        return msgspec.json.encode(self, order="sorted").decode()

    @classmethod
    def from_json(cls, text: str) -> ModelConfig:
        """Read what `to_json` wrote.

        Raises:
            ModelError: if the fields are not those of this class, or contradict each other.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise ModelError(f"model config is not readable: {error}") from error


def family_of(architecture: object) -> Family:
    """Look a family up by its GGUF name.

    Raises:
        ModelError: naming the architecture and the supported ones.
    """
    if not isinstance(architecture, str) or architecture not in FAMILIES:
        supported = ", ".join(FAMILIES)
        raise ModelError(f"unsupported model architecture {architecture!r}; supported: {supported}")
    return FAMILIES[architecture]


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name every tensor a model of this shape consists of; matrices are [out, in]."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "embedding": (config.vocab_size, hidden),
        "final_norm": (hidden,),
    }
    if not config.tied_head:
        shapes["head"] = (config.vocab_size, hidden)
    parts = layer_shapes(config)
    for layer_idx in range(config.num_layers):
        for part, shape in parts.items():
            shapes[layer_tensor_name(layer_idx, part)] = shape
    return shapes


def layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name the tensors of one layer; all layers of a model are alike."""
    hidden, width, family = config.hidden_size, config.intermediate_size, config.family
    query = config.num_heads * config.head_dim
    key = config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attention_norm": (hidden,),
        "query": (query, hidden),
        "key": (key, hidden),
        "value": (key, hidden),
        "attention_output": (hidden, query),
        "mlp_norm": (hidden,),
    }
    if family.qkv_bias:
        shapes |= {"query_bias": (query,), "key_bias": (key,), "value_bias": (key,)}
    if family.qk_norm:
        shapes |= {"query_norm": (config.head_dim,), "key_norm": (config.head_dim,)}
    if family.post_norms:
        shapes |= {"attention_post_norm": (hidden,), "mlp_post_norm": (hidden,)}
    experts = (config.num_experts,) if family.has_experts else ()
    if family.has_experts:
        shapes["router"] = (config.num_experts, hidden)
    return shapes | {
        "gate": (*experts, width, hidden),
        "up": (*experts, width, hidden),
        "down": (*experts, hidden, width),
    }


def layer_tensor_name(layer_idx: int, part: str) -> str:
    """Name one tensor of one layer, such as `layers.3.query`."""
    return f"layers.{layer_idx}.{part}"


def _contradictions(config: ModelConfig) -> list[str]:
    """Say, field by field, what cannot be."""
    kinds = Counter(config.layer_kinds)
    sizes = ["num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim"]
    sizes += ["intermediate_size", "vocab_size", "context_len"]
    complaints = [
        f"{name} is {getattr(config, name)}; it must be at least 1"
        for name in sizes
        if getattr(config, name) < 1
    ]
    if complaints:
        return complaints  # the checks below divide by these
    checks = [
        (
            config.num_heads % config.num_kv_heads == 0 and config.head_dim % 2 == 0,
            f"{config.num_heads} heads over {config.num_kv_heads} key-value heads of size "
            f"{config.head_dim}; heads must divide evenly and the size must be even",
        ),
        (
            len(config.layer_kinds) == config.num_layers,
            f"{config.num_layers} layers but {len(config.layer_kinds)} layer kinds",
        ),
        (
            (config.sliding_window is not None) == (kinds["sliding"] > 0),
            f"{kinds['sliding']} sliding layers with window {config.sliding_window}; a window is "
            "needed exactly when there are sliding layers",
        ),
        (
            config.sliding_window is None or config.sliding_window >= 1,
            f"a window of {config.sliding_window} keys; a position sees at least itself",
        ),
        (
            {len(config.rope.factors), len(config.sliding_rope.factors)}
            <= {0, config.head_dim // 2},
            f"rotary factors must be one a pair, {config.head_dim // 2}, or none",
        ),
        (
            (config.num_experts > 0) == config.family.has_experts
            and config.experts_per_token <= config.num_experts
            and (config.experts_per_token > 0) == (config.num_experts > 0),
            f"{config.experts_per_token} of {config.num_experts} experts a token in a model of "
            f"architecture {config.architecture}",
        ),
        (
            all(0 <= idx < config.vocab_size for idx in config.eos_ids),
            f"end-of-generation ids {config.eos_ids} in a vocabulary of {config.vocab_size}",
        ),
    ]
    return [complaint for holds, complaint in checks if not holds]
