"""Tokenizer properties that need no peer: streaming, round trips, chat rendering."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ConfigError, ModelError
from engine.model.tokenizer import Tokenizer
from engine.model.weights import load_tokenizer_json


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60))
def test_text_survives(tokenizer, text) -> None:
    """Except for bytes that the published vocabulary has no token for: those vanish."""
    known = {token for token in tokenizer._vocabulary.token_bytes if len(token) == 1}
    kept = "".join(char for char in text if all(bytes([byte]) in known for byte in char.encode()))
    assert tokenizer.decode(tokenizer.encode(kept), skip_special=False) == kept


@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=40), cut=st.integers(1, 5))
def test_stream_equals_decode_for_any_ids(tokenizer, ids, cut) -> None:
    stream = tokenizer.stream()
    pieces = [stream.push(ids[start : start + cut]) for start in range(0, len(ids), cut)]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(ids)


@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.integers(17, 49151), max_size=40))
def test_decode_equals_the_tokenizers_library(tokenizer, ids) -> None:
    assert tokenizer.decode(ids) == tokenizer._vocabulary.backend.decode(ids)


def test_no_half_characters(tokenizer) -> None:
    ids = tokenizer.encode("漢😀")
    assert len(ids) > 2  # otherwise nothing is split here
    stream = tokenizer.stream()
    pieces = [stream.push([idx]) for idx in ids]
    assert "\ufffd" not in "".join(pieces)
    assert "" in pieces
    assert "".join(pieces) == "漢😀"


def test_cut_character_shows_at_the_end(tokenizer) -> None:
    stream = tokenizer.stream()
    assert stream.push(tokenizer.encode("😀")[:-1]) == ""
    assert stream.finish() == "\ufffd"


def test_digits_stand_alone(tokenizer) -> None:
    assert len(tokenizer.encode("123456")) == 6


def test_special_tokens_can_be_kept(tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>x<|im_end|>")
    assert ids[0] == 1 and ids[-1] == 2
    assert tokenizer.decode(ids) == "x"
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|>x<|im_end|>"


def test_tool_schema_reaches_the_prompt(tokenizer) -> None:
    tool = {"name": "find_flight", "parameters": {"to": {"type": "string"}}}
    for messages in (
        [{"role": "user", "content": "Go"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go"}],
    ):
        rendered = tokenizer.render_chat(messages, tools=[tool])
        assert json.dumps(tool) in rendered
        assert rendered.count("<|im_start|>system") == 1
    assert "Be brief." in rendered


def test_bad_messages_are_config_errors(tokenizer) -> None:
    with pytest.raises(ConfigError, match="chat template"):
        tokenizer.render_chat([{"role": "user"}])


def test_digest_follows_the_fields(files, tokenizer) -> None:
    fields = json.loads(load_tokenizer_json(files))
    assert Tokenizer(fields).tokenizer_digest == tokenizer.tokenizer_digest
    fields["tokenizer.chat_template"] += " "
    assert Tokenizer(fields).tokenizer_digest != tokenizer.tokenizer_digest


@pytest.mark.parametrize("key", ["tokenizer.ggml.model", "tokenizer.ggml.pre"])
def test_unknown_kinds_are_refused(files, key) -> None:
    fields = json.loads(load_tokenizer_json(files))
    with pytest.raises(ModelError, match=r"odd.*supported"):
        Tokenizer({**fields, key: "odd"})
