"""Configs of both formats: older layouts mean what they always meant."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from engine.errors import ModelError
from engine.model.config import FAMILIES, ModelConfig
from engine.model.gguf_config import config_from_gguf
from engine.model.hf_config import config_from_hf

SIZES = {
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
GEMMA = SIZES | {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def read(fields: dict[str, Any]) -> ModelConfig:
    return config_from_hf(fields, eos_ids=[2], has_head=True)


@pytest.mark.parametrize(
    "fields",
    [
        SIZES | {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": LLAMA3},
        SIZES | {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 4.0}},
        SIZES | {"model_type": "llama"},
        SIZES | {"model_type": "qwen2", "rope_theta": 1e6, "use_sliding_window": True,
                 "sliding_window": 32, "max_window_layers": 5},
        SIZES | {"model_type": "qwen3", "sliding_window": 32, "use_sliding_window": False},
        SIZES | {"model_type": "qwen3_moe", "num_experts": 6, "num_experts_per_tok": 2,
                 "moe_intermediate_size": 24, "norm_topk_prob": True},
        GEMMA | {"model_type": "gemma3_text", "sliding_window": 32},
        GEMMA | {"model_type": "gemma3_text", "sliding_window": 32, "sliding_window_pattern": 3,
                 "rope_theta": 5e5, "rope_local_base_freq": 2e4,
                 "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ],
)  # fmt: skip
def test_older_layouts_mean_what_the_library_makes_of_them(fields) -> None:
    """Catches a default or a rule of older folders that this engine reads otherwise."""
    settings = {key: value for key, value in fields.items() if key != "model_type"}
    newer = transformers.CONFIG_MAPPING[fields["model_type"]](**settings).to_dict()
    assert "rope_theta" not in newer  # otherwise this compares a layout with itself
    assert read(fields) == read(newer)


def test_a_head_is_tied_where_none_is_stored() -> None:
    fields = {key: value for key, value in SIZES.items() if key != "tie_word_embeddings"}
    fields["model_type"] = "llama"
    assert config_from_hf(fields, [2], has_head=False).tied_head
    assert not config_from_hf(fields, [2], has_head=True).tied_head


def test_windows_of_qwen_start_where_the_config_says() -> None:
    fields = SIZES | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32}
    config = read(fields | {"max_window_layers": 5})
    assert config.layer_kinds == ("full",) * 5 + ("sliding",) * 3
    assert config.sliding_rope == config.rope


def gguf_keys(architecture: str, **changes: Any) -> dict[str, Any]:
    keys = {
        "block_count": 8,
        "context_length": 256,
        "embedding_length": 48,
        "feed_forward_length": 72,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }
    keys |= {name.replace("__", "."): value for name, value in changes.items()}
    return {
        "general.architecture": architecture,
        "tokenizer.ggml.tokens": ["a", "<|im_end|>", "</s>"],
        **{f"{architecture}.{name}": value for name, value in keys.items()},
    }


def test_gemma_s_gguf_keys_are_used() -> None:
    plain = config_from_gguf(gguf_keys("gemma3", attention__sliding_window=32), tied_head=True)
    assert plain.layer_kinds == ("sliding",) * 5 + ("full",) + ("sliding",) * 2
    assert (plain.sliding_rope.theta, plain.attention_scale) == (1e4, 16**-0.5)
    keys = gguf_keys(
        "gemma3",
        attention__sliding_window=32,
        attention__sliding_window_pattern=2,
        attention__scale=0.125,
        rope__freq_base_swa=5e3,
    )
    config = config_from_gguf(keys, tied_head=True)
    assert config.layer_kinds == ("sliding", "full") * 4
    assert (config.sliding_rope.theta, config.attention_scale) == (5e3, 0.125)
    keys["gemma3.attention.sliding_window_pattern"] = [True] * 7 + [False]
    assert config_from_gguf(keys, tied_head=True).layer_kinds == ("sliding",) * 7 + ("full",)


def test_the_largest_gemma_scales_by_its_width() -> None:
    """27B has 62 layers and divides by sqrt(H / N), the others by sqrt(D)."""
    keys = gguf_keys("gemma3", attention__sliding_window=32, block_count=62)
    assert config_from_gguf(keys, tied_head=True).attention_scale == 12**-0.5


def test_only_chat_marks_end_generation_unasked() -> None:
    config = config_from_gguf(gguf_keys("llama"), tied_head=True)
    assert config.eos_ids == (1,)
    keys = gguf_keys("llama") | {"tokenizer.ggml.eos_token_id": 2}
    assert config_from_gguf(keys, tied_head=True).eos_ids == (1, 2)


@pytest.mark.parametrize("mark", ["eot", "eom"])
def test_every_declared_mark_ends_generation(mark: str) -> None:
    """Catches a model that goes on behind a tool call."""
    keys = gguf_keys("llama") | {f"tokenizer.ggml.{mark}_token_id": 0}
    assert config_from_gguf(keys, tied_head=True).eos_ids == (0, 1)


@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.scale_linear"])
def test_a_factor_without_a_kind_is_linear(key: str) -> None:
    """Catches a long-context file of 2023 whose factor is dropped."""
    keys = gguf_keys("llama") | {f"llama.{key}": 4.0}
    assert config_from_gguf(keys, tied_head=True).rope.factors == (4.0,) * 8


@pytest.mark.parametrize("key", ["yarn_ext_factor", "yarn_attn_factor"])
def test_what_yarn_is_not_computed_with_is_refused(key: str) -> None:
    keys = gguf_keys("llama") | {f"llama.rope.scaling.{key}": 0.5}
    with pytest.raises(ModelError, match=key):
        config_from_gguf(keys, tied_head=True)
    keys[f"llama.rope.scaling.{key}"] = 1.0
    assert config_from_gguf(keys, tied_head=True)


def test_every_family_is_known_to_the_library() -> None:
    for family in FAMILIES.values():
        assert family.folder_name in transformers.CONFIG_MAPPING
