"""Agreement with the transformers library on the same weights and vocabulary."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

from bench.peers.transformers_speed import build_peer, peer_greedy
from engine.model.unsplit import generate_greedy
from engine.model.weights import load_tokenizer_json

TEXTS = [
    "",
    " ",
    "plain words, and don't they're I'll",
    "1234567890 3.14159 0x1F 1e-9 ²³ Ⅷ ٣٤",
    "  leading\n\n\tand\t trailing   \r\n  ",
    "def f(x):\n    return {'a': [x ** 2, None]}  # comment\n",
    "naïve café Ünïcödé — “quotes” … 漢字かな交じり文 한국어 العربية हिन्दी",
    "😀👩‍👩‍👧‍👦🇨🇭 e\u0301 \u200b\ufeff zero width",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><|im_start|",
    "a" * 300 + " " * 50 + "=" * 70,
    "https://example.org/a?b=c&d=%20#e user@host",
    "\x00\x01\x7f control",
]


@pytest.fixture(scope="module")
def peer(files):
    return build_peer(files)


@pytest.fixture(scope="module")
def peer_tokenizer(files, tmp_path_factory):
    """The library's own GPT-2 tokenizer class over the file's vocabulary, digits split as declared.

    It is put together by the library from vocabulary and merges, not by this engine.
    """
    fields = json.loads(load_tokenizer_json(files))
    tokens = fields["tokenizer.ggml.tokens"]
    library = transformers.GPT2Tokenizer(
        vocab={text: idx for idx, text in enumerate(tokens)},
        merges=[tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]],
        unk_token=tokens[0],
        bos_token=tokens[1],
        eos_token=tokens[2],
        pad_token=tokens[2],
    )
    kinds = fields["tokenizer.ggml.token_type"]
    control = [text for text, kind in zip(tokens, kinds, strict=True) if kind == 3]
    library.add_special_tokens({"additional_special_tokens": control})
    backend = library.backend_tokenizer
    from tokenizers import pre_tokenizers

    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer]
    )
    library.chat_template = fields["tokenizer.chat_template"]
    return library


@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_agrees(tokenizer, peer_tokenizer, text) -> None:
    ids = tokenizer.encode(text)
    assert ids == peer_tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special=False) == text


def test_chat_template_agrees(tokenizer, peer_tokenizer) -> None:
    for messages in (
        [{"role": "user", "content": "Hi 12"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " x\n"}],
    ):
        theirs = peer_tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        assert tokenizer.render_chat(messages) == theirs


def test_logits_are_close(decoder, peer, passage_ids) -> None:
    ids = passage_ids[:200]
    ours = decoder.logits(decoder.forward(decoder.embed(ids), 0, decoder.new_cache()))
    with torch.inference_mode():
        theirs = peer(ids.unsqueeze(0)).logits[0]
    assert (ours - theirs).abs().max().item() < 1e-3


@pytest.mark.parametrize(
    "question",
    ["What is the capital of France, and why?", "Write a haiku about the sea.", "List 1 to 20."],
)
def test_greedy_ids_are_equal(decoder, peer, tokenizer, question) -> None:
    prompt_ids = tokenizer.encode_chat([{"role": "user", "content": question}])
    ours = generate_greedy(decoder, prompt_ids, 40, decoder.config.eos_ids)
    assert len(ours) >= 8
    assert ours == peer_greedy(peer, prompt_ids, 40)
