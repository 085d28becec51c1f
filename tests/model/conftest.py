"""Fixtures of the model room: the real model, loaded once a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.model.decoder import Decoder
from engine.model.threads import set_threads
from engine.model.tokenizer import Tokenizer
from engine.model.weights import ModelFiles, prepare_model

PASSAGE = """\
A long link is not a slow link: it carries much, late. def loop(x): return {"k": [1, 23, 456]}
The 4 stages answer in order; nobody waits for a peer that waits for him. Ünïcödé, 漢字 and 😀 too.
"""


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two spinning threads on busy cores wait for each other; one does not, with the same bits."""
    set_threads(1)


@pytest.fixture(scope="session")
def files() -> ModelFiles:
    return prepare_model()


@pytest.fixture(scope="session")
def tokenizer(files: ModelFiles) -> Tokenizer:
    return Tokenizer.load(files)


@pytest.fixture(scope="session")
def decoder(files: ModelFiles) -> Decoder:
    return Decoder.load(files, 0, files.config.num_layers)


@pytest.fixture(scope="session")
def short_decoder(files: ModelFiles) -> Decoder:
    """The first two layers: enough for properties that hold layer by layer, and 15 times faster."""
    return Decoder.load(files, 0, 2)


@pytest.fixture(scope="session")
def passage_ids(tokenizer: Tokenizer) -> torch.Tensor:
    """Token ids of real text, long enough for several key blocks."""
    return torch.tensor(tokenizer.encode(PASSAGE * 20)[:1200])


@pytest.fixture
def two_threads() -> Iterator[None]:
    set_threads(2)
    yield
    set_threads(1)
