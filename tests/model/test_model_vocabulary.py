"""Vocabularies of both kinds, from GGUF fields and from folders, against the transformers library.

The vocabularies are trained here on a few lines, so that every merge matters.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from engine.errors import ConfigError, ModelError
from engine.model.hf_folder import _tokenizer_fields
from engine.model.tokenizer import Tokenizer
from engine.model.vocabulary import merges_of

TEXTS = [
    "",
    "a long link is not a slow link",
    " two  spaces   and more ",
    "it's 12345 and 3.14, don't",
    "line\n\n  next\tTAB\r\n",
    "naïve 漢字 😀 e\u0301 — “quotes”",
    "<s> in the middle </s> and <|end|>",
    "Z" * 40,
]
CORPUS = [
    "A long link is not a slow link: it carries much, late. Nobody waits for a peer that waits.",
    "The four stages answer in order, and 12345 tokens don't make it's way in 3.14 seconds.",
    "def loop(x):\n    return {'k': [1, 23, 456]}\n\n  # two  spaces   and more\n",
] * 4
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]


def train_byte_level() -> tuple[list[str], list[tuple[str, str]]]:
    """Return tokens by id and merges of a byte-level BPE."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>", "<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return _tokens_and_merges(backend)


def train_sentence_piece() -> tuple[list[str], list[tuple[str, str]]]:
    """Return tokens by id and merges of a BPE over characters with a piece for every byte."""
    backend = Backend(models.BPE(byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<unk>", "<s>", "</s>", *BYTE_PIECES],
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return _tokens_and_merges(backend)


def _tokens_and_merges(backend: Backend) -> tuple[list[str], list[tuple[str, str]]]:
    vocabulary = backend.get_vocab()
    merges = json.loads(backend.to_str())["model"]["merges"]
    return sorted(vocabulary, key=vocabulary.__getitem__), [tuple(pair) for pair in merges]


def byte_level_fields(pre: str) -> dict[str, Any]:
    tokens, merges = train_byte_level()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if text in ("<|end|>", "<s>") else 1 for text in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": tokens.index("<s>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|end|>"),
        "tokenizer.chat_template": TEMPLATE,
    }


def sentence_piece_fields(**settings: Any) -> dict[str, Any]:
    """Ids run against the scores, so that neither order passes for the other."""
    ranked, _ = train_sentence_piece()
    num_fixed = 3 + len(BYTE_PIECES)
    tokens = [*ranked[:num_fixed], *reversed(ranked[num_fixed:])]
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3, **dict.fromkeys(BYTE_PIECES, 6)}
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [kinds.get(text, 1) for text in tokens],
        "tokenizer.ggml.scores": [-float(ranked.index(text)) for text in tokens],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{key}": value for key, value in settings.items()},
    }


def sentence_piece_ids(text: str, tokens: Sequence[str], scores: Sequence[float]) -> list[int]:
    """SentencePiece's BPE, spelt out: join the best-scoring neighbours until none are joined."""
    id_of = {piece: idx for idx, piece in enumerate(tokens)}
    pieces = list(text.replace(" ", "▁"))
    while True:
        joined = [left + right for left, right in pairwise(pieces)]
        known = [idx for idx, piece in enumerate(joined) if piece in id_of]
        if not known:
            break
        best = max(known, key=lambda idx: (scores[id_of[joined[idx]]], -idx))
        pieces[best : best + 2] = [joined[best]]
    ids: list[int] = []
    for piece in pieces:
        if piece in id_of:
            ids.append(id_of[piece])
        else:
            ids += [id_of[f"<0x{byte:02X}>"] for byte in piece.encode()]
    return ids


@pytest.mark.parametrize("text", [text for text in TEXTS if "<" not in text])
def test_scores_make_sentence_piece_s_ids(text) -> None:
    """Catches merges in another order than the scores'."""
    fields = sentence_piece_fields(add_space_prefix=False)
    ids = Tokenizer(fields).encode(text)
    expected = sentence_piece_ids(
        text, fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.scores"]
    )
    assert ids == expected


def test_sentence_piece_agrees_with_the_library() -> None:
    fields = sentence_piece_fields(add_space_prefix=False)
    tokens, scores = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.scores"]
    peer = transformers.GemmaTokenizer(
        vocab={text: idx for idx, text in enumerate(tokens)},
        merges=merges_of(tokens, scores),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<unk>",
        mask_token="<unk>",
    )
    ours = Tokenizer(fields)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == peer.encode(text, add_special_tokens=False), text
        assert ours.decode(ids, skip_special=False) == text


def test_space_prefix_comes_and_goes() -> None:
    """Llama 2's habit: a space before the text, which neither decoding nor streaming shows."""
    ours = Tokenizer(sentence_piece_fields())
    ids = ours.encode("a long link")
    assert ours._vocabulary.token_bytes[ids[0]].startswith(b" ")
    assert ours.decode(ids) == "a long link"
    stream = ours.stream()
    assert "".join(stream.push([idx]) for idx in ids) + stream.finish() == "a long link"
    assert ours.encode("x", add_special=True)[0] == 1


def test_stream_holds_back_half_characters() -> None:
    ours = Tokenizer(sentence_piece_fields(add_space_prefix=False))
    ids = ours.encode("😀é")
    assert len(ids) > 4  # bytes
    stream = ours.stream()
    assert "\ufffd" not in "".join(stream.push([idx]) for idx in ids)


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe", "gpt-2", "smollm"])
def test_byte_level_text_survives(pre) -> None:
    ours = Tokenizer(byte_level_fields(pre))
    for text in TEXTS:
        assert ours.decode(ours.encode(text), skip_special=False).encode() in (
            text.encode(),
            text.replace("e\u0301", "é").encode(),  # Qwen composes characters
        )


def test_qwen_agrees_with_the_library() -> None:
    fields = byte_level_fields("qwen2")
    peer = transformers.Qwen2Tokenizer(
        vocab={text: idx for idx, text in enumerate(fields["tokenizer.ggml.tokens"])},
        merges=[tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]],
        unk_token="<|end|>",
        bos_token="<s>",
        eos_token="<|end|>",
        pad_token="<|end|>",
    )
    ours = Tokenizer(fields)
    for text in TEXTS:
        assert ours.encode(text) == peer.encode(text, add_special_tokens=False), text


def test_digits_are_taken_by_threes_or_alone() -> None:
    by_threes = Tokenizer(byte_level_fields("llama-bpe"))._vocabulary.backend.pre_tokenizer
    alone = Tokenizer(byte_level_fields("qwen2"))._vocabulary.backend.pre_tokenizer
    assert [piece for piece, _ in by_threes.pre_tokenize_str("12345")] == ["123", "45"]
    assert [piece for piece, _ in alone.pre_tokenize_str("12345")] == list("12345")


def test_llama_3_takes_a_known_word_whole() -> None:
    """Its tokenizer looks a word up before it merges; a word that merges cannot reach shows it."""
    for pre, num_ids in (("llama-bpe", 1), ("gpt-2", 4)):
        fields = byte_level_fields(pre)
        fields["tokenizer.ggml.tokens"] = [*fields["tokenizer.ggml.tokens"], "ZQZQ"]
        fields["tokenizer.ggml.token_type"] = [*fields["tokenizer.ggml.token_type"], 1]
        assert len(Tokenizer(fields).encode("ZQZQ")) == num_ids


def folder_of(kind: str, folder: Path) -> Any:
    """Save a tokenizer as the library does and return the library's."""
    if kind == "byte-level":
        tokens, merges = train_byte_level()
        make, names = transformers.Qwen2Tokenizer, {"eos_token": "<|end|>", "unk_token": "<|end|>"}
        names |= {"pad_token": "<|end|>"}
    else:
        tokens, merges = train_sentence_piece()
        make = transformers.GemmaTokenizer if kind == "gemma" else transformers.LlamaTokenizer
        names = {"eos_token": "</s>", "pad_token": "<unk>"}
        names |= {"mask_token": "<unk>"} if kind == "gemma" else {}
    vocabulary = {text: idx for idx, text in enumerate(tokens)}
    peer = make(vocab=vocabulary, merges=merges, bos_token="<s>", **names)
    peer.chat_template = TEMPLATE
    peer.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", ["byte-level", "gemma", "llama"])
def test_folder_agrees_with_the_library(kind, tmp_path) -> None:
    peer = folder_of(kind, tmp_path)
    ours = Tokenizer(_tokenizer_fields(tmp_path))
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == peer.encode(text, add_special_tokens=False), text
        assert ours.encode(text, add_special=True) == peer.encode(text), text
        assert ours.decode(ids, skip_special=False) == peer.decode(ids), text
        assert ours.decode(ids) == peer.decode(ids, skip_special_tokens=True), text
    messages = [{"role": "user", "content": "Hi"}]
    theirs = peer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours.render_chat(messages) == theirs
    assert "[assistant]" in theirs


def test_ids_beyond_the_vocabulary_say_nothing(tmp_path) -> None:
    folder_of("byte-level", tmp_path)
    ours = Tokenizer(_tokenizer_fields(tmp_path))
    assert ours.decode([*ours.encode("link"), ours.vocab_size + 3]) == "link"


def test_a_folder_without_a_tokenizer_has_none() -> None:
    with pytest.raises(ModelError, match=r"no tokenizer; put its tokenizer\.json"):
        Tokenizer({})


@pytest.mark.parametrize("model", [models.WordPiece({"[UNK]": 0}), models.Unigram()])
def test_other_models_are_refused_by_name(model) -> None:
    with pytest.raises(ModelError, match=f"{type(model).__name__}.*supported: BPE"):
        Tokenizer({"tokenizer.json": Backend(model).to_str()})


def test_other_decoders_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match="decoder none is not supported"):
        Tokenizer({"tokenizer.json": Backend(models.BPE()).to_str()})


def test_other_splitters_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"'falcon' is not supported; supported: gpt-2, llama-bpe"):
        Tokenizer(byte_level_fields("falcon"))


def test_merges_may_be_written_as_text() -> None:
    """Catches the converter of 2023, which wrote SentencePiece's merges as "left right"."""
    fields = sentence_piece_fields(add_space_prefix=False)
    pairs = merges_of(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.scores"])
    written = Tokenizer({**fields, "tokenizer.ggml.merges": [" ".join(pair) for pair in pairs]})
    for text in TEXTS:
        assert written.encode(text) == Tokenizer(fields).encode(text), text


def test_runs_of_spaces_that_are_added_tokens_are_spaces(tmp_path: Path) -> None:
    """Catches Gemma's tokens of several spaces shown as the character that stands for one."""
    peer = folder_of("gemma", tmp_path)
    peer.add_tokens([AddedToken("▁▁", normalized=False, special=False)])
    peer.save_pretrained(tmp_path)
    ours = Tokenizer(_tokenizer_fields(tmp_path))
    idx = peer.convert_tokens_to_ids("▁▁")
    assert ours.decode([idx]) == peer.decode([idx]) == "  "


@pytest.mark.parametrize(("pre", "adds"), [("llama-bpe", True), ("qwen2", False), ("gpt-2", False)])
def test_who_starts_a_text_when_the_file_does_not_say(pre: str, adds: bool) -> None:
    """Catches raw prompts of Llama 3 without the token that its texts begin with."""
    fields = byte_level_fields(pre)
    begun = Tokenizer(fields).encode("x", add_special=True)[0]
    assert (begun == fields["tokenizer.ggml.bos_token_id"]) == adds
    silent = Tokenizer({**fields, "tokenizer.ggml.add_bos_token": False})
    assert silent.encode("x", add_special=True) == silent.encode("x")


def with_template(source: str) -> Tokenizer:
    return Tokenizer({**byte_level_fields("qwen2"), "tokenizer.chat_template": source})


def test_tools_are_written_as_the_library_writes_them(tmp_path: Path) -> None:
    """Catches Jinja's own filter: sorted keys, escapes for HTML."""
    source = "{% for t in tools %}<tool>{{ t | tojson }}</tool>{% endfor %}"
    peer = folder_of("byte-level", tmp_path)
    tool = {"type": "function", "function": {"name": "f", "description": "it's ‹é> & so on"}}
    messages = [{"role": "user", "content": "Hi"}]
    theirs = peer.apply_chat_template(messages, tools=[tool], chat_template=source, tokenize=False)
    assert with_template(source).render_chat(messages, [tool]) == theirs
    indented = with_template("{{ tools | tojson(indent=2) }}").render_chat([], [tool])
    assert indented == json.dumps([tool], indent=2, ensure_ascii=False)


def test_tags_that_the_library_knows_are_read() -> None:
    """Catches a template of a trained model that does not compile here."""
    source = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m['content'] }}!{% endgeneration %}{% endfor %}"
    )
    messages = [{"role": "user", "content": each} for each in "ab"]
    assert with_template(source).render_chat(messages) == "a!"


def test_a_broken_template_spoils_chats_only() -> None:
    broken = with_template("{% nonsense %}")
    assert broken.decode(broken.encode("link")) == "link"
    with pytest.raises(ConfigError, match="the chat template refuses"):
        broken.render_chat([{"role": "user", "content": "Hi"}])


def test_text_that_is_no_unicode_is_refused() -> None:
    """Catches a traceback for an argument in another encoding."""
    with pytest.raises(ConfigError, match="not valid Unicode"):
        Tokenizer(byte_level_fields("qwen2")).encode("caf\udce9")


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer.ggml.merges": None},
        {"tokenizer.ggml.token_type": [1]},
        {"tokenizer.ggml.eos_token_id": 10**6},
        {"tokenizer.ggml.merges": ["nobody knows"]},
    ],
)
def test_fields_that_contradict_each_other_are_the_models_fault(change: dict[str, Any]) -> None:
    """Catches a traceback where a file is to blame."""
    with pytest.raises(ModelError, match="tokenizer"):
        Tokenizer({**byte_level_fields("qwen2"), **change})


def test_a_tokenizer_that_the_library_cannot_read_is_named() -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        Tokenizer({"tokenizer.json": json.dumps({"model": {"type": "BPE"}, "version": "1.0"})})
