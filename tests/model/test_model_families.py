"""Every family against the transformers library, and its GGUF against its folder, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from engine.model.decoder import Decoder
from engine.model.unsplit import generate_greedy
from engine.model.weights import ModelFiles, prepare_model
from tests.model.tiny_models import CASES, GGUF_CASES, VOCAB, make_peer, save_folder, write_gguf

PROMPT_LEN, NUM_NEW = 60, 64  # prompts beyond the window of the sliding layers
LOGITS_TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=CASES)
def case_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def peer(case_name):
    return make_peer(CASES[case_name])


@pytest.fixture(scope="module")
def folder_files(peer, tmp_path_factory) -> ModelFiles:
    folder = tmp_path_factory.mktemp("folder")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGHAUL_CACHE", str(folder / "cache"))
        return prepare_model(save_folder(peer, folder / "model"))


@pytest.fixture(scope="module")
def decoder(folder_files) -> Decoder:
    return Decoder.load(folder_files, 0, folder_files.config.num_layers)


def draw_ids(num_ids: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (num_ids,), generator=generator)


def logits_of(decoder: Decoder, ids: torch.Tensor) -> torch.Tensor:
    return decoder.logits(decoder.forward(decoder.embed(ids), 0, decoder.new_cache()))


def test_logits_are_the_library_s(peer, decoder) -> None:
    """Standardised by the spread of all the library's logits, so that the bound means the same for
    every model: 1e-5 of one standard deviation."""
    ids = draw_ids(PROMPT_LEN)
    with torch.inference_mode():
        theirs = peer(ids.unsqueeze(0)).logits[0]
    spread = theirs.std()
    assert spread > 0.3  # otherwise the bound says nothing
    error = ((logits_of(decoder, ids) - theirs) / spread).abs().max().item()
    assert error < LOGITS_TOLERANCE


@torch.inference_mode()
def test_greedy_ids_are_the_library_s(peer, decoder) -> None:
    ids = draw_ids(PROMPT_LEN, seed=2)
    ours = generate_greedy(decoder, ids.tolist(), NUM_NEW, eos_ids=())
    theirs = peer.generate(
        ids.unsqueeze(0), max_new_tokens=NUM_NEW, min_new_tokens=NUM_NEW, do_sample=False
    )
    assert ours == theirs[0, PROMPT_LEN:].tolist()


def test_gguf_equals_folder(case_name, peer, folder_files, tmp_path, monkeypatch) -> None:
    """Catches a convention of one format (permuted rows, norms plus one, stacked experts, rotary
    factors) that the other does not undo: config, tensors and so logits are equal bit for bit."""
    if case_name not in GGUF_CASES:
        pytest.skip("this variant has no GGUF form")
    monkeypatch.setenv("LONGHAUL_CACHE", str(tmp_path / "cache"))
    gguf_files = prepare_model(write_gguf(peer, CASES[case_name], Path(tmp_path / "model.gguf")))
    assert gguf_files.config == folder_files.config
    with (
        safe_open(gguf_files.cache_path, "pt") as ours,
        safe_open(folder_files.cache_path, "pt") as theirs,
    ):
        names = set(ours.keys()) - {"tokenizer_json"}
        assert names == set(theirs.keys()) - {"tokenizer_json"}
        for name in names:
            assert torch.equal(ours.get_tensor(name), theirs.get_tensor(name)), name
