"""This engine's decoder against the transformers library, same weights, same process.

Guarantees: both sides compute in float32 with the same weights and threads, take turns within every
repetition, and must produce the same greedy ids, or there is no result. Nothing is downloaded: the
peer is built from this engine's dequantised weights.

    python -m bench.peers.transformers_speed [--threads 2] [--reps 5] [--new-tokens 48]

Prints a table; the last line is JSON: medians over repetitions and the two ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time

import torch

from engine.errors import ConfigError
from engine.model.config import ModelConfig
from engine.model.decoder import Decoder
from engine.model.threads import openmp_env, set_threads
from engine.model.tokenizer import Tokenizer
from engine.model.unsplit import generate_greedy, verify_ms
from engine.model.weights import ModelFiles, StageWeights, load_layers, prepare_model

VERIFIED_POSITIONS = 9  # a frame of the default draft length: 8 drafts and their anchor
_NUM_VERIFIES = 15
_PROMPT = "Explain in plain words why a long network link makes text generation slow."

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


@torch.inference_mode()
def peer_greedy(peer: torch.nn.Module, prompt_ids: list[int], num_new: int) -> list[int]:
    """Generate greedily with the library's own loop."""
    ids = torch.tensor([prompt_ids])
    output = peer.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_new
    )
    return output[0, len(prompt_ids) :].tolist()


def measure(num_threads: int, num_reps: int, num_new: int) -> dict[str, float | int | str]:
    """Run both sides in turns and return medians and ratios.

    Raises:
        ConfigError: if the two sides disagree on a token.
    """
    set_threads(num_threads)
    files = prepare_model()
    tokenizer = Tokenizer.load(files)
    decoder = Decoder.load(files, 0, files.config.num_layers)
    peer = build_peer(files)
    prompt_ids = tokenizer.encode_chat([{"role": "user", "content": _PROMPT}])
    rows = []
    for rep_idx in range(num_reps + 1):
        row = _one_rep(decoder, peer, prompt_ids, num_new)
        if rep_idx:  # the first one warms both sides up
            rows.append(row)
            print("  ".join(f"{value:9.2f}" for value in row), flush=True)
    peer_rate, our_rate, verify_rate = (
        statistics.median(column) for column in zip(*rows, strict=True)
    )
    return {
        "kernel": decoder.kernel.name,
        "num_threads": num_threads,
        "num_reps": num_reps,
        "spin_count": os.environ.get("GOMP_SPINCOUNT", "default"),
        "transformers_tok_per_s": round(peer_rate, 2),
        "decode_tok_per_s": round(our_rate, 2),
        "verify_positions_per_s": round(verify_rate, 2),
        "decode_ratio": round(statistics.median(row[1] / row[0] for row in rows), 2),
        "verify_ratio": round(statistics.median(row[2] / row[0] for row in rows), 2),
    }


def _one_rep(
    decoder: Decoder, peer: torch.nn.Module, prompt_ids: list[int], num_new: int
) -> tuple[float, float, float]:
    began_ns = time.perf_counter_ns()
    theirs = peer_greedy(peer, prompt_ids, num_new)
    peer_s = (time.perf_counter_ns() - began_ns) / 1e9
    began_ns = time.perf_counter_ns()
    ours = generate_greedy(decoder, prompt_ids, num_new, decoder.config.eos_ids)
    our_s = (time.perf_counter_ns() - began_ns) / 1e9
    if ours != theirs:
        raise ConfigError(f"the sides disagree, so there is nothing to compare: {ours} {theirs}")
    times_ms = verify_ms(decoder, prompt_ids + ours, VERIFIED_POSITIONS, _NUM_VERIFIES)
    verify_rate = VERIFIED_POSITIONS * 1e3 / statistics.median(times_ms)
    return len(theirs) / peer_s, len(ours) / our_s, verify_rate


def _restart_with(num_threads: int) -> None:
    """Start this program anew under the waiting policy that stages run with."""
    wanted = openmp_env(num_threads)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        arguments = [sys.executable, "-m", "bench.peers.transformers_speed", *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, **wanted})


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument(
        "--keep-env", action="store_true", help="keep the caller's OpenMP environment"
    )
    arguments = parser.parse_args()
    if not arguments.keep_env:
        _restart_with(arguments.threads)
    print("transformers tok/s   ours tok/s   verify positions/s")
    print(json.dumps(measure(arguments.threads, arguments.reps, arguments.new_tokens)))


if __name__ == "__main__":
    main()
