"""What a user can get wrong with models and plans: each a clear error before anything is loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ConfigError, ModelError
from engine.model.config import ModelConfig
from engine.model.layer_plan import check_layer_plan
from engine.model.weights import ModelFiles, prepare_model
from tests.model.tiny_models import CASES, make_peer, save_folder, write_gguf

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """One folder in a single file, one in shards, for each test to copy and damage."""
    root = tmp_path_factory.mktemp("saved")
    for name in ("llama", "qwen3moe", "gemma3"):
        peer = make_peer(CASES[name])
        save_folder(peer, root / name)
        save_folder(peer, root / f"{name}-shards", max_shard_size="40KB")
        write_gguf(peer, CASES[name], root / f"{name}.gguf")
    return root


@pytest.fixture
def copy_of(saved, tmp_path, monkeypatch) -> Callable[[str], Path]:
    monkeypatch.setenv("LONGHAUL_CACHE", str(tmp_path / "cache"))

    def copy(name: str) -> Path:
        return Path(shutil.copytree(saved / name, tmp_path / name))

    return copy


def edit_json(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text())
    content.update(changes)
    path.write_text(json.dumps(content))


def assert_refused(folder: Path, reason: str) -> None:
    """The error names what is wrong, and nothing is left that a later call could believe."""
    with pytest.raises(ModelError, match=reason):
        prepare_model(folder)
    assert not list((folder.parent / "cache").glob("*.safetensors"))


@pytest.mark.parametrize("name", ["llama-shards", "qwen3moe-shards"])
def test_shards_are_one_model(copy_of, saved, name) -> None:
    sharded = copy_of(name)
    assert len(list(sharded.glob("model-*.safetensors"))) > 2
    ours, whole = prepare_model(sharded), prepare_model(saved / name.removesuffix("-shards"))
    assert ours.model_digest != whole.model_digest  # other files
    assert load_file(ours.cache_path).keys() == load_file(whole.cache_path).keys()
    for part, weight in load_file(ours.cache_path).items():
        assert torch.equal(weight, load_file(whole.cache_path)[part])


def test_a_folder_s_digest_follows_every_file(copy_of) -> None:
    folder = copy_of("llama")
    first = prepare_model(folder)
    assert prepare_model(folder) == first
    edit_json(folder / "generation_config.json", eos_token_id=[2, 7])
    second = prepare_model(folder)
    assert second.model_digest != first.model_digest
    assert second.config.eos_ids == (2, 7)


def test_a_missing_shard_is_named(copy_of) -> None:
    folder = copy_of("llama-shards")
    sorted(folder.glob("model-*.safetensors"))[1].unlink()
    assert_refused(folder, r"lacks model-00002-of-.*get the missing files")


def test_an_index_that_names_a_missing_file(copy_of) -> None:
    folder = copy_of("llama-shards")
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    edit_json(folder / INDEX, weight_map={**weight_map, "model.norm.weight": "elsewhere.bin"})
    assert_refused(folder, r"lacks elsewhere\.bin")
    edit_json(folder / INDEX, weight_map={**weight_map, "model.norm.weight": "../x.safetensors"})
    assert_refused(folder, r"names '\.\./x\.safetensors'; weight files lie in the folder itself")
    edit_json(folder / INDEX, weight_map={})
    assert_refused(folder, "has no weight_map")


def test_an_index_that_puts_a_tensor_elsewhere(copy_of) -> None:
    folder = copy_of("llama-shards")
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    other = next(file for file in weight_map.values() if file != weight_map["model.norm.weight"])
    edit_json(folder / INDEX, weight_map={**weight_map, "model.norm.weight": other})
    assert_refused(folder, r"holds model\.norm\.weight; it does not")


def test_a_folder_without_weights_or_config(copy_of) -> None:
    folder = copy_of("llama")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-9])
    assert_refused(folder, r"model\.safetensors is not a complete safetensors file")
    (folder / "model.safetensors").unlink()
    assert_refused(folder, r"lacks model\.safetensors .*only safetensors are read")
    (folder / "config.json").write_text("{")
    (folder / "model.safetensors").write_bytes(weights)
    assert_refused(folder, r"config\.json is not readable JSON")
    (folder / "config.json").unlink()
    assert_refused(folder, r"has no config\.json; give a GGUF file or a Hugging Face folder")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model.layers.1.mlp.up_proj.weight": torch.zeros(3, 4)},
         r"model\.layers\.1\.mlp\.up_proj\.weight .* shape \[3, 4\], its config says \[72, 48\]"),
        ({"model.layers.0.self_attn.q_proj.weight": None}, r"lacks tensor .*q_proj\.weight"),
        ({"model.layers.0.self_attn.q_proj.bias": torch.zeros(48)}, r"would ignore: .*proj\.bias"),
        ({"lm_head.weight": None}, r"lacks tensor lm_head\.weight"),
    ],
)  # fmt: skip
def test_a_tensor_that_does_not_fit(copy_of, change, reason) -> None:
    folder = copy_of("llama")
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: weight for name, weight in (tensors | change).items() if weight is not None}
    save_file(tensors, folder / "model.safetensors")
    assert_refused(folder, reason)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("llama", {"model_type": "mamba"}, r"'mamba'; supported: llama, qwen2, .*gemma3_text"),
        ("llama", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}},
         r"rope scaling 'longrope' is not supported; allowed: none, .*linear, llama3, yarn"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}},
         r"rope scaling 'llama3' lacks original_max_position_embeddings"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
                                       "original_max_position_embeddings": 64, "mscale": 0.7}},
         r"'yarn' with \['mscale'\] is not supported"),
        ("llama", {"num_key_value_heads": 3}, r"4 heads over 3 key-value heads"),
        ("llama", {"head_dim": 11}, r"of size 11; .* the size must be even"),
        ("llama", {"num_hidden_layers": 0}, r"num_layers is 0; it must be at least 1"),
        ("llama", {"num_attention_heads": 0}, r"num_heads is 0; it must be at least 1"),
        ("llama", {"vocab_size": "many"}, r"field of the wrong type"),
        ("llama", {"eos_token_id": 320}, r"ids \(2, 320\) in a vocabulary of 320"),
        ("llama", {"attention_bias": True}, r"sets attention_bias: True; this is not supported"),
        ("llama", {"hidden_act": "relu"}, r"activation 'relu'; llama is supported with silu"),
        ("llama", {"quantization_config": {"bits": 4}}, "sets quantization_config"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "sets final_logit_softcapping"),
        ("gemma3", {"layer_types": ["full_attention"]}, "7 layers but 1 layer kinds"),
        ("gemma3", {"layer_types": ["chunked_attention"] * 7},
         r"layer type 'chunked_attention'; allowed: full_attention, sliding_attention"),
        ("gemma3", {"layer_types": ["full_attention"] * 6 + ["sliding_attention"],
                    "sliding_window": 0}, r"a window of 0 keys"),
        ("qwen3moe", {"num_experts_per_tok": 7}, r"7 of 6 experts a token"),
        ("qwen3moe", {"decoder_sparse_step": 2}, "decoder_sparse_step; only 1 is supported"),
        ("qwen3moe", {"mlp_only_layers": [1]}, "sets mlp_only_layers"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be(copy_of, name, change, reason) -> None:
    folder = copy_of(name)
    edit_json(folder / "config.json", **change)
    assert_refused(folder, reason)


def test_a_field_that_is_missing(copy_of) -> None:
    folder = copy_of("llama")
    content = json.loads((folder / "config.json").read_text())
    del content["rms_norm_eps"]
    (folder / "config.json").write_text(json.dumps(content))
    assert_refused(folder, r"config\.json lacks rms_norm_eps")


def rewrite_gguf(
    source: Path, target: Path, keys: dict[str, Any], tensors: dict[str, np.ndarray]
) -> Path:
    """Copy a float32 GGUF with some keys and tensors changed."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, keys.pop("general.architecture", architecture))
    for key, field in reader.fields.items():
        if key.startswith(("GGUF.", "general.architecture")):
            continue
        writer.add_key_value(key, keys.pop(key, field.contents()), field.types[0],
                             field.types[1] if len(field.types) > 1 else None)  # fmt: skip
    for key, value in keys.items():
        kinds = {str: "add_string", int: "add_uint32", float: "add_float32"}
        getattr(writer, kinds[type(value)])(key, value)
    for tensor in reader.tensors:
        weight = tensors.get(tensor.name, tensor.data)
        if weight is not None:
            writer.add_tensor(tensor.name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.mark.parametrize(
    ("name", "keys", "tensors", "reason"),
    [
        ("llama", {"general.architecture": "mamba"}, {}, r"'mamba'; supported: llama, .*qwen3moe"),
        ("llama", {"llama.rope.scaling.type": "su"}, {}, r"rope scaling 'su' is not supported"),
        ("llama", {"llama.rope.scaling.type": "yarn"}, {}, r"'yarn' lacks factor"),
        ("llama", {"llama.attention.head_count_kv": 3}, {}, "4 heads over 3 key-value heads"),
        ("llama", {"llama.expert_count": 4}, {}, "dense family with experts"),
        ("llama", {"llama.attention.value_length": 6}, {}, "keys and values of different size"),
        ("llama", {"llama.attention.sliding_window": 9}, {},
         r"llama\.attention\.sliding_window is set; .* gemma3 only"),
        ("gemma3", {"gemma3.final_logit_softcapping": 30.0}, {}, "final_logit_softcapping"),
        ("llama", {}, {"blk.1.ffn_up.weight": np.zeros((3, 4), np.float32)},
         r"blk\.1\.ffn_up\.weight .* shape \[3, 4\], its config says \[72, 48\]"),
        ("llama", {}, {"blk.1.ffn_up.weight": None}, r"lacks tensor blk\.1\.ffn_up\.weight"),
        ("gemma3", {"gemma3.attention.sliding_window_pattern": 0}, {}, "metadata cannot be"),
    ],
)  # fmt: skip
def test_a_gguf_that_cannot_be(saved, tmp_path, monkeypatch, name, keys, tensors, reason) -> None:
    monkeypatch.setenv("LONGHAUL_CACHE", str(tmp_path / "cache"))
    path = rewrite_gguf(saved / f"{name}.gguf", tmp_path / "bad.gguf", dict(keys), tensors)
    assert_refused(path, reason)


def test_a_gguf_of_the_other_byte_order(tmp_path, monkeypatch) -> None:
    """Catches weights that are read back to front, and no error."""
    monkeypatch.setenv("LONGHAUL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "big.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_uint32("llama.block_count", 1)
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert_refused(path, "other byte order")


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ([(0, 2), (3, 6)], r"stage 1 has layers \[3, 6\), but 2 comes next: layers .* skipped"),
        (
            [(0, 3), (2, 6)],
            r"stage 1 has layers \[2, 6\), but .* before reach 3: .*overlap",
        ),
        ([(0, 3), (3, 5)], r"ends at layer 5, the model at 6: the head"),
        ([(0, 3), (3, 9)], r"ends at layer 9, the model at 6"),
        ([(1, 6)], r"stage 0 has layers \[1, 6\), but 0 comes next: no stage embeds"),
        ([(0, 6), (6, 6)], r"stage 1 has layers \[6, 6\), which is none"),
        ([], r"ends at layer 0, the model at 6"),
    ],
)
def test_a_layer_plan_that_is_no_partition(plan, reason) -> None:
    with pytest.raises(ConfigError, match=reason):
        check_layer_plan(plan, 6)


def test_a_layer_plan_that_is_one() -> None:
    check_layer_plan([(0, 2), (2, 3), (3, 6)], 6)


def test_a_config_refuses_contradictions(files: ModelFiles) -> None:
    config = files.config
    assert ModelConfig.from_json(config.to_json()) == config
    for change, reason in (
        ({"sliding_window": 8}, "0 sliding layers with window 8"),
        ({"layer_kinds": ("sliding",) * 30}, "30 sliding layers with window None"),
        ({"num_experts": 4, "experts_per_token": 2}, "2 of 4 experts .* architecture llama"),
        ({"rope": replace(config.rope, factors=(1.0, 2.0))}, "one a pair, 32, or none"),
    ):
        with pytest.raises(ModelError, match=reason):
            replace(config, **change)
