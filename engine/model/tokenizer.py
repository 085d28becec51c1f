"""Text to token ids and back, from a GGUF's own tokenizer fields.

Guarantees: ids equal those of the model's published tokenizer; streamed pieces joined equal the
text decoded at once, and no piece ever ends inside a UTF-8 character. Never knows about weights,
tensors or sockets.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as BpeTokenizer

from engine.errors import ConfigError, ModelError
from engine.model.weights import ModelFiles, load_tokenizer_json

_CONTROL_TYPE = 3
_USER_DEFINED_TYPE = 4

_TOOLS_PREAMBLE = (
    "You may call these tools. Each is described by a JSON schema; to call one, answer with a JSON "
    'object {"name": ..., "arguments": {...}}.\n'
)


class Tokenizer:
    """A byte-level BPE tokenizer with its chat template."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Build from the `tokenizer.*` fields of a GGUF file.

        Args:
            fields: GGUF key to value.

        Raises:
            ModelError: for a tokenizer kind or pre-tokenizer this engine does not know.
        """
        self._bpe = _build_bpe(fields)
        tokens: list[str] = fields["tokenizer.ggml.tokens"]
        types: list[int] = fields["tokenizer.ggml.token_type"]
        self.vocab_size = len(tokens)
        self.special_ids = frozenset(idx for idx, kind in enumerate(types) if kind == _CONTROL_TYPE)
        self._token_bytes = [
            text.encode() if kind in (_CONTROL_TYPE, _USER_DEFINED_TYPE) else _bytes_of(text)
            for text, kind in zip(tokens, types, strict=True)
        ]
        bos_id = fields.get("tokenizer.ggml.bos_token_id")
        adds_bos = fields.get("tokenizer.ggml.add_bos_token", False)
        self._prefix_ids = [bos_id] if adds_bos and bos_id is not None else []
        self._names = {
            "bos_token": _token_text(fields, "bos"),
            "eos_token": _token_text(fields, "eos"),
        }
        self._chat_source: str | None = fields.get("tokenizer.chat_template")
        self._chat_template = _compile_template(self._chat_source)
        canonical = json.dumps(fields, sort_keys=True, ensure_ascii=False)
        self.tokenizer_digest = hashlib.sha256(canonical.encode()).hexdigest()

    @classmethod
    def load(cls, files: ModelFiles) -> Tokenizer:
        """Build the tokenizer of a prepared model."""
        return cls(json.loads(load_tokenizer_json(files)))

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """Tokenise text; control tokens written out in it become their ids.

        Args:
            text: any string.
            add_special: prepend what the model file asks for (SmolLM2 asks for nothing).
        """
        ids = self._bpe.encode(text, add_special_tokens=False).ids
        return [*self._prefix_ids, *ids] if add_special else ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Join tokens into text; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self._bytes_for(idx, skip_special) for idx in ids).decode(
            "utf-8", errors="replace"
        )

    def stream(self, skip_special: bool = True) -> TextStream:
        """Start an incremental decoder for one output."""
        return TextStream(self, skip_special)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Render messages through the model's chat template.

        Args:
            messages: mappings with `role` and `content`.
            tools: JSON schemas. A template that knows no tools gets them in the system message.
            add_generation_prompt: end with the opening of the assistant's turn.

        Raises:
            ConfigError: if there is no template or it refuses the messages.
        """
        if self._chat_template is None:
            raise ConfigError("this model has no chat template; send plain text")
        if tools and "tools" not in (self._chat_source or ""):
            messages, tools = _with_tools_in_system(messages, tools), None
        try:
            return self._chat_template.render(
                messages=messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                **self._names,
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise ConfigError(f"the chat template refuses these messages: {error}") from error

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Render messages and tokenise the result, ready for generation."""
        return self.encode(self.render_chat(messages, tools))

    def _bytes_for(self, idx: int, skip_special: bool) -> bytes:
        if skip_special and idx in self.special_ids:
            return b""
        return self._token_bytes[idx]


class TextStream:
    """Turns ids into text as they arrive; holds back bytes until their character is whole."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """Take more ids and return the text that is now certain."""
        pieces = (self._tokenizer._bytes_for(idx, self._skip_special) for idx in ids)
        return self._utf8.decode(b"".join(pieces))

    def finish(self) -> str:
        """Return what an unfinished character at the end decodes to."""
        return self._utf8.decode(b"", final=True)


def _build_bpe(fields: Mapping[str, Any]) -> BpeTokenizer:
    kind = fields.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ModelError(f"tokenizer kind {kind!r} is not supported; supported: gpt2")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    types: list[int] = fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {text: idx for idx, text in enumerate(tokens)}
    bpe = BpeTokenizer(models.BPE(vocab=vocabulary, merges=merges))
    bpe.pre_tokenizer = _pre_tokenizer(fields.get("tokenizer.ggml.pre"))
    bpe.decoder = decoders.ByteLevel()
    added = [
        AddedToken(text, special=kind == _CONTROL_TYPE, normalized=False)
        for text, kind in zip(tokens, types, strict=True)
        if kind in (_CONTROL_TYPE, _USER_DEFINED_TYPE)
    ]
    bpe.add_tokens(added)
    return bpe


def _pre_tokenizer(name: str | None) -> pre_tokenizers.PreTokenizer:
    """Return the splitter a GGUF names; `smollm` is GPT-2's with every digit on its own."""
    if name == "smollm":
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    raise ModelError(f"pre-tokenizer {name!r} is not supported; supported: smollm")


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


def _bytes_of(text: str) -> bytes:
    return bytes(_BYTE_OF[char] for char in text)


def _token_text(fields: Mapping[str, Any], name: str) -> str:
    idx = fields.get(f"tokenizer.ggml.{name}_token_id")
    return "" if idx is None else fields["tokenizer.ggml.tokens"][idx]


def _compile_template(source: str | None) -> jinja2.Template | None:
    if source is None:
        return None
    # the template is part of a downloaded file: sandboxed, it can read its inputs and no more
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _raise_from_template
    return environment.from_string(source)


def _raise_from_template(message: str) -> None:
    raise jinja2.TemplateError(message)


def _with_tools_in_system(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Put tool schemas into the system message, adding one if there is none."""
    schemas = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    listing = f"{_TOOLS_PREAMBLE}{schemas}"
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{listing}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": listing}, *messages]
