"""The transformers library as a peer: this engine's weights, the library's model and loop, timed.

Guarantees: the peer computes in float32 with the same weights; nothing is downloaded, since it is
built from this engine's dequantised ones. Both sides of a comparison are timed by one `Clock`. Must
never know what it is compared with.
"""

from __future__ import annotations

import torch

from bench.peers.turn import Clock, Turn
from engine.errors import ConfigError
from engine.model.config import ModelConfig
from engine.model.weights import ModelFiles, StageWeights, load_layers

_PEER_NAMES = {
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "attention_output": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def build_peer(files: ModelFiles) -> torch.nn.Module:
    """Return a transformers LlamaForCausalLM with this engine's weights.

    Raises:
        ConfigError: if transformers is not installed.
    """
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise ConfigError(
            "this comparison needs transformers: `pip install transformers`"
        ) from error
    config = files.config
    peer_config = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.context_len,
        rms_norm_eps=config.rms_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=config.tied_head,
        bos_token_id=config.bos_id,
        eos_token_id=list(config.eos_ids),
        pad_token_id=config.eos_ids[0],
    )
    peer = LlamaForCausalLM(peer_config).float().eval()
    weights = load_layers(files, 0, config.num_layers, with_embed=True, with_head=True)
    missing, unexpected = peer.load_state_dict(_peer_state(weights, config), strict=False)
    # a tied head has no tensor of its own
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ConfigError(f"weights do not fit transformers: {missing} {unexpected}")
    peer.tie_weights()
    return peer


def _peer_state(weights: StageWeights, config: ModelConfig) -> dict[str, torch.Tensor]:
    state = {
        f"model.layers.{layer_idx}.{theirs}.weight": getattr(layer, ours)
        for layer_idx, layer in enumerate(weights.layers)
        for ours, theirs in _PEER_NAMES.items()
    }
    state["model.embed_tokens.weight"] = weights.embedding
    state["model.norm.weight"] = weights.final_norm
    if not config.tied_head:
        state["lm_head.weight"] = weights.head
    return state


class _Streamer:
    """The library's idea of a clock: it is handed ids as they come, and before them the prompt."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._has_prompt = False

    def put(self, ids: torch.Tensor) -> None:
        """Note tokens."""
        if self._has_prompt:
            self._clock.note(ids.numel())
        self._has_prompt = True

    def end(self) -> None:
        """Called by the library after the last token."""


@torch.inference_mode()
def peer_greedy(
    peer: torch.nn.Module,
    prompt_ids: list[int],
    num_new: int,
    clock: Clock | None = None,
    num_lookup: int = 0,
) -> list[int]:
    """Generate greedily with the library's own loop.

    Args:
        clock: notes when tokens came.
        num_lookup: drafts of the library's prompt lookup a round; 0: none.
    """
    ids = torch.tensor([prompt_ids])
    output = peer.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=num_new,
        streamer=_Streamer(clock) if clock else None,
        prompt_lookup_num_tokens=num_lookup or None,
    )
    return output[0, len(prompt_ids) :].tolist()


def peer_turn(
    peer: torch.nn.Module, prompt_ids: list[int], num_new: int, num_lookup: int = 0
) -> Turn:
    """Time the library's own loop."""
    clock = Clock()
    ids = peer_greedy(peer, prompt_ids, num_new, clock, num_lookup)
    return clock.turn(ids, len(prompt_ids))
