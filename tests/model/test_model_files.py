"""Model files: what is refused, what is cached, what is rebuilt."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from engine.errors import ModelError
from engine.model import weight_cache
from engine.model.config import ModelConfig
from engine.model.gguf_config import config_from_gguf
from engine.model.gguf_file import _undo_rotary_permutation
from engine.model.packaged import DEFAULT_MODEL, PACKAGED_MODELS, PackagedModel
from engine.model.weight_cache import seal_path_of
from engine.model.weights import load_layers, prepare_model

VOCABULARY = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab"]
HIDDEN, NUM_HEADS, NUM_KV_HEADS, MLP = 32, 4, 2, 64


def write_gguf(path: Path, architecture: str = "llama", extra: dict | None = None) -> Path:
    """Write a one-layer model of a few kilobytes."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3, 3, 3, 1, 1, 1])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    for key, value in (extra or {}).items():
        writer.add_uint32(key, value)
    shapes = {
        "token_embd": (len(VOCABULARY), HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (HIDDEN // 2, HIDDEN),
        "blk.0.attn_v": (HIDDEN // 2, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.ffn_gate": (MLP, HIDDEN),
        "blk.0.ffn_up": (MLP, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, MLP),
    }
    draws = np.random.default_rng(3)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", draws.standard_normal(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def small(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("LONGHAUL_CACHE", str(tmp_path / "cache"))
    return write_gguf(tmp_path / "small.gguf")


def embedding_of(path: Path) -> torch.Tensor:
    embedding = load_layers(prepare_model(path), 0, 0, with_embed=True, with_head=False).embedding
    assert embedding is not None
    return embedding.clone()


def test_missing_file(tmp_path) -> None:
    with pytest.raises(ModelError, match=r"no model file at .*nowhere\.gguf"):
        prepare_model(tmp_path / "nowhere.gguf")


def test_environment_names_the_model(small, monkeypatch) -> None:
    monkeypatch.setenv("LONGHAUL_MODEL", str(small))
    assert prepare_model().source_path == small


def test_package_missing(monkeypatch) -> None:
    monkeypatch.delenv("LONGHAUL_MODEL", raising=False)
    absent = PackagedModel("x.gguf", "0" * 64, (("no_such_package_here", "x.gguf"),), "make model")
    monkeypatch.setitem(PACKAGED_MODELS, DEFAULT_MODEL, absent)
    with pytest.raises(ModelError, match=r"no_such_package_here is not installed; run: make model"):
        prepare_model()


@pytest.fixture
def in_parts(small, tmp_path, monkeypatch) -> Path:
    """A model packaged as three files of two packages; returns the last one."""
    content = small.read_bytes()
    cuts = (0, 100, len(content) // 2, len(content))
    parts = []
    for idx, package in enumerate(("part_package_one", "part_package_one", "part_package_two")):
        folder = tmp_path / "site" / package
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text("raise RuntimeError('a package must not be run')")
        (folder / f"x.part{idx}").write_bytes(content[cuts[idx] : cuts[idx + 1]])
        parts.append((package, f"x.part{idx}"))
    digest = hashlib.sha256(content).hexdigest()
    monkeypatch.syspath_prepend(tmp_path / "site")
    model = PackagedModel("x.gguf", digest, tuple(parts), "pip install x")
    monkeypatch.setitem(PACKAGED_MODELS, "in-parts", model)
    return tmp_path / "site" / "part_package_two" / "x.part2"


def test_a_model_in_parts_is_put_together_once(small, in_parts) -> None:
    files = prepare_model(Path("in-parts"))  # as a command line gives it
    assert files.source_path.read_bytes() == small.read_bytes()
    assert files.model_digest == prepare_model(small).model_digest
    inode = files.source_path.stat().st_ino
    assert prepare_model("in-parts") == files
    assert files.source_path.stat().st_ino == inode


def test_a_bad_part_is_noticed(in_parts) -> None:
    content = in_parts.read_bytes()
    in_parts.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ModelError, match=r"altered or cut short; remove it and run: pip install x"):
        prepare_model("in-parts")


def test_a_missing_part_is_noticed(in_parts) -> None:
    in_parts.unlink()
    with pytest.raises(ModelError, match=r"x\.part2 is missing; run: pip install x"):
        prepare_model("in-parts")


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ModelError, match=r"no model file at gemma4.*smollm2-135m, gemma3-270m"):
        prepare_model("gemma4")


def test_wrong_digest_of_the_default_model(small) -> None:
    renamed = small.with_name(PACKAGED_MODELS[DEFAULT_MODEL].file_name)
    small.rename(renamed)
    with pytest.raises(ModelError, match=r"SHA-256 .* expected .*make model"):
        prepare_model(renamed)


@pytest.mark.parametrize("kept", [0, 3, 200, -64])
def test_truncated_file(small, kept) -> None:
    small.write_bytes(small.read_bytes()[:kept])
    with pytest.raises(ModelError, match="not a complete GGUF file"):
        prepare_model(small)


def test_unsupported_architecture(small, tmp_path) -> None:
    with pytest.raises(ModelError, match=r"'mamba'; supported: llama, qwen2, .*gemma3"):
        prepare_model(write_gguf(tmp_path / "other.gguf", architecture="mamba"))


def test_experts_are_refused(small, tmp_path) -> None:
    with pytest.raises(ModelError, match="experts"):
        prepare_model(write_gguf(tmp_path / "moe.gguf", extra={"llama.expert_count": 4}))


def test_changed_model_is_noticed(small) -> None:
    first = prepare_model(small)
    content = bytearray(small.read_bytes())
    content[-5] ^= 1
    small.write_bytes(content)
    assert prepare_model(small).model_digest != first.model_digest


@pytest.mark.parametrize("damage", ["flip", "cut", "append", "header", "empty", "no_seal"])
def test_damaged_cache_is_rebuilt(small, damage) -> None:
    files = prepare_model(small)
    truth = embedding_of(small)
    content = files.cache_path.read_bytes()
    middle = len(content) // 2
    changed = {
        "flip": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "cut": content[:-7],
        "append": content + b"x",
        "header": b"\xff" * 16 + content[16:],
        "empty": b"",
        "no_seal": content,
    }[damage]
    files.cache_path.write_bytes(changed)
    if damage == "no_seal":
        seal_path_of(files.cache_path).unlink()
    assert torch.equal(embedding_of(small), truth)
    assert files.cache_path.read_bytes() == content


def test_cache_of_another_model_is_not_used(small, tmp_path) -> None:
    files = prepare_model(small)
    content = files.cache_path.read_bytes()
    other = write_gguf(tmp_path / "other.gguf", extra={"llama.vocab_size": 5})
    other_path = prepare_model(other).cache_path
    other_path.replace(files.cache_path)
    seal_path_of(other_path).replace(seal_path_of(files.cache_path))
    assert files.cache_path.read_bytes() != content
    prepare_model(small)
    assert files.cache_path.read_bytes() == content


def test_untouched_copy_is_believed_again(small) -> None:
    """A new mtime alone costs one hash, not a rebuild."""
    files = prepare_model(small)
    os.utime(files.cache_path, ns=(1, 1))
    inode = files.cache_path.stat().st_ino
    prepare_model(small)
    assert files.cache_path.stat().st_ino == inode


def test_nothing_half_written_is_left(small) -> None:
    folder = prepare_model(small).cache_path.parent
    assert not list(folder.glob("*.partial"))


def test_two_writers_of_one_number_do_not_meet(small, monkeypatch) -> None:
    """Catches containers that share a cache, where everybody has the same process id."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    meeting, written = threading.Barrier(2), []
    save = weight_cache.save_file

    def slow(tensors: object, target: Path, **named: object) -> None:
        written.append(target)
        meeting.wait(20)
        save(tensors, target, **named)

    monkeypatch.setattr(weight_cache, "save_file", slow)
    with ThreadPoolExecutor(2) as pool:
        files = list(pool.map(prepare_model, [small] * 2))
    assert len(set(written)) == 2 and files[0] == files[1]


def test_a_full_disk_is_said_with_what_is_needed(small, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(weight_cache, "save_file", refuse)
    with pytest.raises(ModelError, match=r"No space left.*LONGHAUL_CACHE"):
        prepare_model(small)


def test_prepared_model_is_ready_at_once(files) -> None:
    began = time.perf_counter()
    assert prepare_model() == files
    assert time.perf_counter() - began < 0.05


def test_only_the_asked_layers_come(files) -> None:
    stage = load_layers(files, 3, 5, with_embed=False, with_head=False)
    assert len(stage.layers) == 2
    assert stage.embedding is None and stage.head is None and stage.final_norm is None
    with pytest.raises(ModelError, match=r"\[29, 31\).*\[0, 30\)"):
        load_layers(files, 29, 31, with_embed=False, with_head=True)


def test_rotary_permutation_is_undone() -> None:
    draws = np.random.default_rng(0)
    original = draws.standard_normal((2 * 8, 5)).astype(np.float32)
    # what a llama converter does to a checkpoint
    permuted = original.reshape(2, 2, 4, 5).swapaxes(1, 2).reshape(16, 5)
    assert np.array_equal(_undo_rotary_permutation(permuted, 2), original)


def test_default_config(files) -> None:
    config = files.config
    assert (config.num_layers, config.hidden_size, config.head_dim) == (30, 576, 64)
    assert (config.num_heads, config.num_kv_heads, config.vocab_size) == (9, 3, 49152)
    assert (config.rms_eps, config.rope_theta, config.eos_ids) == (1e-5, 100000.0, (0, 2))
    assert config.tied_head
    assert ModelConfig.from_json(config.to_json()) == config


def test_config_names_what_is_missing() -> None:
    with pytest.raises(ModelError, match=r"llama\.block_count"):
        config_from_gguf({"general.architecture": "llama"}, tied_head=True)
    with pytest.raises(ModelError, match="config is not readable"):
        ModelConfig.from_json(json.dumps({"architecture": "llama"}))
