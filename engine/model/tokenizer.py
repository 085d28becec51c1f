"""Text to token ids and back, and messages to text, as the model's own files say.

Guarantees: ids equal those of the model's published tokenizer; streamed pieces joined equal the
text decoded at once, and no piece ever ends inside a UTF-8 character. Never knows about weights,
tensors or sockets.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import ConfigError
from engine.model.vocabulary import build_vocabulary
from engine.model.weights import ModelFiles, load_tokenizer_json

_TOOLS_PREAMBLE = (
    "You may call these tools. Each is described by a JSON schema; to call one, answer with a JSON "
    'object {"name": ..., "arguments": {...}}.\n'
)


class Tokenizer:
    """A vocabulary with its chat template."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        """Build from the fields that a checkpoint keeps.

        Args:
            fields: GGUF `tokenizer.*` keys, or the texts of a folder's files.

        Raises:
            ModelError: for a tokenizer kind or pre-tokenizer this engine does not know, or if the
                model has none.
        """
        self._vocabulary = build_vocabulary(fields)
        self.vocab_size = len(self._vocabulary.token_bytes)
        self.special_ids = self._vocabulary.special_ids
        self._chat_template: jinja2.Template | None = None  # compiled when a chat first needs it
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
            add_special: prepend what the model's files ask for (SmolLM2 asks for nothing).

        Raises:
            ConfigError: if it is not valid Unicode.
        """
        try:
            ids = self._vocabulary.backend.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeEncodeError) as error:  # half a surrogate pair, from a bad argv
            raise ConfigError(f"this text is not valid Unicode: {text[:40]!r}") from error
        return [*self._vocabulary.prefix_ids, *ids] if add_special else ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Join tokens into text; bytes that are no UTF-8 become U+FFFD."""
        stream = self.stream(skip_special)
        return stream.push(ids) + stream.finish()

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
            ConfigError: if there is no template, it cannot be read or it refuses the messages.
        """
        if self._vocabulary.chat_source is None:
            raise ConfigError("this model has no chat template; send plain text")
        if tools and "tools" not in (self._vocabulary.chat_source or ""):
            messages, tools = _with_tools_in_system(messages, tools), None
        try:
            self._chat_template = self._chat_template or _compiled(self._vocabulary.chat_source)
            return self._chat_template.render(
                messages=messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                bos_token=self._vocabulary.bos_token,
                eos_token=self._vocabulary.eos_token,
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
        # a model may have more ids than its tokenizer has tokens; those say nothing
        if idx >= self.vocab_size or (skip_special and idx in self.special_ids):
            return b""
        return self._vocabulary.token_bytes[idx]


class TextStream:
    """Turns ids into text as they arrive; holds back bytes until their character is whole."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._drops_space = tokenizer._vocabulary.strips_first_space

    def push(self, ids: Iterable[int]) -> str:
        """Take more ids and return the text that is now certain."""
        pieces = (self._tokenizer._bytes_for(idx, self._skip_special) for idx in ids)
        text = self._utf8.decode(b"".join(pieces))
        if self._drops_space and text:
            self._drops_space = False
            return text.removeprefix(" ")
        return text

    def finish(self) -> str:
        """Return what an unfinished character at the end decodes to."""
        return self._utf8.decode(b"", final=True)


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks an answer for training; here, its content."""

    tags: ClassVar = {"generation"}

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _compiled(source: str) -> jinja2.Template:
    # the template is part of a downloaded file: sandboxed, it can read its inputs and no more
    extensions = [_GenerationTag, loopcontrols]
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=extensions
    )
    environment.globals["raise_exception"] = _raise_from_template
    environment.filters["tojson"] = _to_json
    return environment.from_string(source)


def _to_json(value: Any, ensure_ascii: bool = False, **style: Any) -> str:
    """As templates are written for; Jinja's own filter sorts keys and escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **style)


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
