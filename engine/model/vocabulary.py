"""A vocabulary from a GGUF's tokenizer fields or a Hugging Face tokenizer.json.

Guarantees: ids equal those of the model's published tokenizer; a kind of tokenizer this engine does
not know is refused by name. Never knows about chat, streams, weights or sockets.

Supported: byte-level BPE (GGUF kind `gpt2`), SentencePiece-style BPE with byte fallback (`llama`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from engine.errors import ModelError

_FOLDER_TOKENIZER = "tokenizer.json"
_SPACE = "▁"  # stands for a space in SentencePiece vocabularies

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class _Kind(IntEnum):
    """What a GGUF says of each token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer and what each of its ids stands for.

    Attributes:
        backend: text to ids.
        token_bytes: what an id adds to a text.
        special_ids: control tokens, which a reader does not see.
        prefix_ids: what a prompt starts with where the model asks for it.
        bos_token: text of the beginning-of-text token, empty if there is none.
        eos_token: text of the end-of-text token, empty if there is none.
        chat_source: the chat template, None if there is none.
        strips_first_space: encoding puts a space before a text, decoding takes it away.
    """

    backend: Tokenizer
    token_bytes: Sequence[bytes]
    special_ids: frozenset[int]
    prefix_ids: Sequence[int]
    bos_token: str
    eos_token: str
    chat_source: str | None
    strips_first_space: bool = False


def build_vocabulary(fields: Mapping[str, Any]) -> Vocabulary:
    """Build from the fields that a checkpoint keeps.

    Args:
        fields: GGUF `tokenizer.*` keys, or the texts of a folder's files.

    Raises:
        ModelError: an unknown kind of tokenizer or pre-tokenizer, none, or fields that cannot be.
    """
    if not fields:
        raise ModelError(
            "this model has no tokenizer; put its tokenizer.json into the folder, or send ids"
        )
    try:
        return _from_folder(fields) if _FOLDER_TOKENIZER in fields else _from_gguf(fields)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ModelError(f"this model's tokenizer cannot be: {error!r}") from error


def merges_of(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """List the merges that scores imply: the pair whose result has the highest score comes first.

    Source:
        SentencePiece's BPE joins, at each step, the neighbours whose union scores highest.
    """
    id_of = {text: idx for idx, text in enumerate(tokens)}
    ranked = []
    for text, idx in id_of.items():
        for cut in range(1, len(text)):
            left, right = id_of.get(text[:cut]), id_of.get(text[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[idx], idx, left, right))
    ranked.sort()
    return [(tokens[left], tokens[right]) for _, _, left, right in ranked]


def _from_gguf(fields: Mapping[str, Any]) -> Vocabulary:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    kind = fields.get("tokenizer.ggml.model")
    match kind:
        case "gpt2":
            backend = _byte_level_bpe(fields)
            bytes_of = _byte_level_bytes
        case "llama":
            backend = _sentence_piece_bpe(fields)
            bytes_of = _sentence_piece_bytes
        case _:
            raise ModelError(f"tokenizer kind {kind!r} is not supported; supported: gpt2, llama")
    added = [
        AddedToken(text, special=each == _Kind.CONTROL, normalized=False)
        for text, each in zip(tokens, kinds, strict=True)
        if each in (_Kind.CONTROL, _Kind.USER_DEFINED)
    ]
    backend.add_tokens(added)
    bos_id = fields.get("tokenizer.ggml.bos_token_id")
    # files from before the key was written: these tokenizers add one, others do not
    is_llama = fields.get("tokenizer.ggml.pre") == "llama-bpe" or kind == "llama"
    adds_bos = fields.get("tokenizer.ggml.add_bos_token", is_llama)
    return Vocabulary(
        backend=backend,
        token_bytes=[
            text.encode() if each in (_Kind.CONTROL, _Kind.USER_DEFINED) else bytes_of(text)
            for text, each in zip(tokens, kinds, strict=True)
        ],
        special_ids=frozenset(idx for idx, each in enumerate(kinds) if each == _Kind.CONTROL),
        prefix_ids=[bos_id] if adds_bos and bos_id is not None else [],
        bos_token=_token_text(fields, "bos"),
        eos_token=_token_text(fields, "eos"),
        chat_source=fields.get("tokenizer.chat_template"),
        strips_first_space=_adds_space_prefix(fields),
    )


def _byte_level_bpe(fields: Mapping[str, Any]) -> Tokenizer:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    name = fields.get("tokenizer.ggml.pre")
    # llama 3 takes a whole word that is a token as it is
    model = _bpe(
        vocab={text: idx for idx, text in enumerate(tokens)},
        merges=merges,
        ignore_merges=name == "llama-bpe",
    )
    backend = Tokenizer(model)
    if name == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _splitter(name)
    backend.decoder = decoders.ByteLevel()
    return backend


def _bpe(**parts: Any) -> models.BPE:
    try:
        return models.BPE(**parts)
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"the tokenizer's merges do not fit its tokens: {error}") from error


def _splitter(name: str | None) -> pre_tokenizers.PreTokenizer:
    """Return the splitter a GGUF names.

    Source:
        The published tokenizers: `smollm` is GPT-2's with every digit on its own; Llama 3 and Qwen
        share an expression that takes three digits or one.
    """
    first: list[pre_tokenizers.PreTokenizer]
    match name:
        case "gpt-2":
            first, use_regex = [], True
        case "smollm":
            first, use_regex = [pre_tokenizers.Digits(individual_digits=True)], True
        case "llama-bpe":
            expression = Regex(_WORDS + r"\p{N}{1,3}" + _REST)
            first, use_regex = [pre_tokenizers.Split(expression, "isolated")], False
        case "qwen2":
            expression = Regex(_WORDS + r"\p{N}" + _REST)
            first, use_regex = [pre_tokenizers.Split(expression, "isolated")], False
        case _:
            raise ModelError(
                f"pre-tokenizer {name!r} is not supported; supported: gpt-2, llama-bpe, qwen2, "
                "smollm"
            )
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    return pre_tokenizers.Sequence([*first, to_bytes])


def _sentence_piece_bpe(fields: Mapping[str, Any]) -> Tokenizer:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    unknown_id = fields.get("tokenizer.ggml.unknown_token_id")
    merges = fields.get("tokenizer.ggml.merges")
    if merges is None:
        merges = merges_of(tokens, fields["tokenizer.ggml.scores"])
    model = _bpe(
        vocab={text: idx for idx, text in enumerate(tokens)},
        # a file writes "left right"; worked out they are pairs
        merges=[tuple(it.split(" ", 1)) if isinstance(it, str) else tuple(it) for it in merges],
        unk_token=None if unknown_id is None else tokens[unknown_id],
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Tokenizer(model)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    if _adds_space_prefix(fields):
        steps.insert(0, normalizers.Prepend(_SPACE))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return backend


def _adds_space_prefix(fields: Mapping[str, Any]) -> bool:
    is_sentence_piece = fields["tokenizer.ggml.model"] == "llama"
    return is_sentence_piece and bool(fields.get("tokenizer.ggml.add_space_prefix", True))


def _from_folder(fields: Mapping[str, Any]) -> Vocabulary:
    """Take a tokenizer.json as it is; only what ids stand for is worked out here."""
    described = json.loads(fields[_FOLDER_TOKENIZER])
    try:
        backend = Tokenizer.from_str(fields[_FOLDER_TOKENIZER])
    except Exception as error:  # the library raises nothing narrower
        raise ModelError(f"{_FOLDER_TOKENIZER} cannot be read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    kind = described["model"].get("type")
    if kind != "BPE":
        raise ModelError(f"tokenizer kind {kind!r} is not supported; supported: BPE")
    steps = _decoder_steps(described.get("decoder"))
    is_byte_level = any(step["type"] == "ByteLevel" for step in steps)
    if not is_byte_level and not any(step["type"] == "ByteFallback" for step in steps):
        listed = ", ".join(step["type"] for step in steps) or "none"
        raise ModelError(
            f"tokenizer decoder {listed} is not supported; supported: ByteLevel, or a sequence "
            "with ByteFallback"
        )
    bytes_of = _byte_level_bytes if is_byte_level else _sentence_piece_bytes
    added = {token["id"]: token for token in described.get("added_tokens") or []}
    # a byte-level text is its own bytes; of SentencePiece's, only control tokens are no pieces
    verbatim = {idx for idx in added if is_byte_level or added[idx]["special"]}
    texts = {idx: text for text, idx in backend.get_vocab(with_added_tokens=True).items()}
    return Vocabulary(
        backend=backend,
        token_bytes=[
            texts[idx].encode() if idx in verbatim else bytes_of(texts.get(idx, ""))
            for idx in range(max(texts, default=-1) + 1)
        ],
        special_ids=frozenset(idx for idx, token in added.items() if token["special"]),
        prefix_ids=backend.encode("", add_special_tokens=True).ids,
        bos_token=fields["bos_token"] or "",
        eos_token=fields["eos_token"] or "",
        chat_source=fields["chat_template"],
        strips_first_space=any(step["type"] == "Strip" for step in steps),
    )


def _decoder_steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    return decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]


def _byte_alphabet() -> dict[str, int]:
    """Map each character of the byte-level alphabet to its byte.

    Source:
        GPT-2: printable Latin-1 stands for itself, the others follow from U+0100 in order.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + idx): byte for idx, byte in enumerate(others)})
    return alphabet


_BYTE_OF = _byte_alphabet()


def _byte_level_bytes(text: str) -> bytes:
    return b"".join(_bytes_of_chars(text))


def _bytes_of_chars(text: str) -> Iterable[bytes]:
    # a character outside the alphabet stands for itself: some vocabularies are padded with text
    return (bytes([_BYTE_OF[char]]) if char in _BYTE_OF else char.encode() for char in text)


def _sentence_piece_bytes(text: str) -> bytes:
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return text.replace(_SPACE, " ").encode()


def _token_text(fields: Mapping[str, Any], name: str) -> str:
    idx = fields.get(f"tokenizer.ggml.{name}_token_id")
    return "" if idx is None else fields["tokenizer.ggml.tokens"][idx]
