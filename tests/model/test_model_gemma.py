"""The real Gemma 3 with 270 million parameters, where its packages are installed."""

from __future__ import annotations

import importlib.util
import json
from itertools import pairwise

import pytest
import torch
import transformers

from engine.errors import ModelError
from engine.model import packaged
from engine.model.decoder import Decoder
from engine.model.packaged import PACKAGED_MODELS
from engine.model.tokenizer import Tokenizer
from engine.model.unsplit import generate_greedy
from engine.model.weights import ModelFiles, load_layers, load_tokenizer_json, prepare_model

NAME = "gemma3-270m"
MISSING = [
    package
    for package, _ in PACKAGED_MODELS[NAME].parts
    if importlib.util.find_spec(package) is None
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]
PROMPTS = ("The capital of France is", "Once upon a time, in a small village,")
NUM_NEW = 32


@pytest.fixture(scope="module")
def gemma_files() -> ModelFiles:
    return prepare_model(NAME)


@pytest.fixture(scope="module")
def gemma(gemma_files) -> Decoder:
    return Decoder.load(gemma_files, 0, gemma_files.config.num_layers)


@pytest.fixture(scope="module")
def gemma_tokenizer(gemma_files) -> Tokenizer:
    return Tokenizer.load(gemma_files)


@pytest.fixture(scope="module")
def gemma_peer(gemma_files):
    """The library's model with the same dequantised weights, set one by one under its names."""
    ours = gemma_files.config
    theirs = transformers.Gemma3TextConfig(
        vocab_size=ours.vocab_size,
        hidden_size=ours.hidden_size,
        intermediate_size=ours.intermediate_size,
        num_hidden_layers=ours.num_layers,
        num_attention_heads=ours.num_heads,
        num_key_value_heads=ours.num_kv_heads,
        head_dim=ours.head_dim,
        query_pre_attn_scalar=256,
        sliding_window=512,
        max_position_embeddings=ours.context_len,
        attn_implementation="eager",
    )
    with torch.device("meta"):
        peer = transformers.Gemma3ForCausalLM(theirs)
    weights = load_layers(gemma_files, 0, ours.num_layers, with_embed=True, with_head=True)
    peer.to_empty(device="cpu")
    state = {"model.embed_tokens.weight": weights.embedding, "lm_head.weight": weights.embedding}
    state["model.norm.weight"] = weights.final_norm - 1
    for layer_idx, layer in enumerate(weights.layers):
        prefix = f"model.layers.{layer_idx}"
        for name in "qkv":
            part = {"q": "query", "k": "key", "v": "value"}[name]
            state[f"{prefix}.self_attn.{name}_proj.weight"] = getattr(layer, part)
        for part in ("gate", "up", "down"):
            state[f"{prefix}.mlp.{part}_proj.weight"] = getattr(layer, part)
        state[f"{prefix}.self_attn.o_proj.weight"] = layer.attention_output
        state[f"{prefix}.self_attn.q_norm.weight"] = layer.query_norm - 1
        state[f"{prefix}.self_attn.k_norm.weight"] = layer.key_norm - 1
        state[f"{prefix}.input_layernorm.weight"] = layer.attention_norm - 1
        state[f"{prefix}.post_attention_layernorm.weight"] = layer.attention_post_norm - 1
        state[f"{prefix}.pre_feedforward_layernorm.weight"] = layer.mlp_norm - 1
        state[f"{prefix}.post_feedforward_layernorm.weight"] = layer.mlp_post_norm - 1
    peer.load_state_dict(state, assign=True)
    # buffers were made on no device: make them anew
    peer.model.rotary_emb = type(peer.model.rotary_emb)(theirs)
    scale = torch.tensor(ours.hidden_size**0.5)
    peer.model.embed_tokens.register_buffer("embed_scale", scale, persistent=False)
    return peer.eval()


def test_config_is_gemma_s(gemma_files) -> None:
    config = gemma_files.config
    assert (config.num_layers, config.hidden_size, config.head_dim) == (18, 640, 256)
    assert (config.sliding_window, config.layer_kinds.count("full")) == (512, 3)
    assert config.layer_kinds[5] == config.layer_kinds[11] == config.layer_kinds[17] == "full"
    assert (config.rope.theta, config.sliding_rope.theta) == (1e6, 1e4)
    assert config.eos_ids == (1, 106)  # "</s>" is a mark-up token in this vocabulary


@torch.inference_mode()
def test_ids_and_logits_are_the_library_s(gemma, gemma_peer, gemma_tokenizer) -> None:
    for prompt in PROMPTS:
        ids = gemma_tokenizer.encode(prompt, add_special=True)
        ours = generate_greedy(gemma, ids, NUM_NEW, eos_ids=())
        theirs = gemma_peer.generate(
            torch.tensor([ids]), max_new_tokens=NUM_NEW, do_sample=False, eos_token_id=-1
        )
        assert ours == theirs[0, len(ids) :].tolist()
        tensor = torch.tensor(ids)
        logits = gemma.logits(gemma.forward(gemma.embed(tensor), 0, gemma.new_cache()))
        expected = gemma_peer(tensor.unsqueeze(0)).logits[0]
        assert ((logits - expected) / expected.std()).abs().max() < 1e-4


def test_text_makes_sense(gemma, gemma_tokenizer) -> None:
    for prompt, expected in (
        ("The capital city of France is called", " Paris"),
        ("Monday, Tuesday, Wednesday,", " Thursday, Friday"),
    ):
        ids = gemma_tokenizer.encode(prompt, add_special=True)
        text = gemma_tokenizer.decode(generate_greedy(gemma, ids, 4, eos_ids=()))
        assert text.startswith(expected)


def test_split_beyond_the_window_is_exact(gemma, gemma_files, gemma_tokenizer) -> None:
    """The last stage is one sliding layer, one full one; the prompt is longer than the window."""
    bounds = (0, 5, 16, 17, 18)
    stages = [Decoder.load(gemma_files, *span) for span in pairwise(bounds)]
    ids = torch.tensor(gemma_tokenizer.encode("The river was long and slow. " * 90)[:560])
    whole = gemma.forward(gemma.embed(ids), 0, gemma.new_cache())
    caches = [stage.new_cache() for stage in stages]
    pieces = []
    for start, end in ((0, 300), (300, 301), (301, 350), (350, 560)):
        hidden = stages[0].embed(ids[start:end])
        for stage, cache in zip(stages, caches, strict=True):
            hidden = stage.forward(hidden, start, cache)
        pieces.append(hidden)
    assert torch.equal(torch.cat(pieces), whole)


def test_known_ids(gemma_tokenizer) -> None:
    """Ids that Gemma 3's published tokenizer gives."""
    assert gemma_tokenizer.encode("Hello world", add_special=True) == [2, 9259, 1902]
    assert gemma_tokenizer.encode("\n\n") == [108]
    assert gemma_tokenizer.encode("<start_of_turn>user\n") == [105, 2364, 107]


def test_tokenizer_agrees_with_the_library(gemma_files, gemma_tokenizer) -> None:
    """The library's own class over the file's pieces. (Its reader of the whole GGUF agreed as well,
    on 165 texts, but for runs of more than 31 spaces; it takes a minute.)"""
    fields = json.loads(load_tokenizer_json(gemma_files))
    peer = transformers.GemmaTokenizer(
        vocab={text: idx for idx, text in enumerate(fields["tokenizer.ggml.tokens"])},
        merges=[tuple(pair) for pair in fields["tokenizer.ggml.merges"]],
    )
    for text in ("plain words, don't", "a b", "naïve “café” 漢字 😀", "x = [1, 23, 456]", "\tx"):
        ids = gemma_tokenizer.encode(text)
        assert ids == peer.encode(text, add_special_tokens=False), text
        assert gemma_tokenizer.decode(ids) == text


def test_a_missing_part_is_named(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(packaged.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("LONGHAUL_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="part1 is not installed; run: make gemma"):
        prepare_model(NAME)
