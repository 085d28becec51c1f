"""The workloads: cells as files, with real prompts.

Guarantees: a cell that loads is complete, inside its ranges, and has its prompt files; an unknown
key, name, role or file is refused with the file's name and what is allowed; equal prompts have
equal digests. A new cell is a new file.
Must never know: models, tokenizer files, arms, links.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import msgspec

from bench.toml_file import read_named
from engine.errors import ConfigError, unknown_name

CELLS_DIR = Path(__file__).resolve().parent / "cells"
STUDY_DIR = CELLS_DIR / "acceptance"  # a folder a group
PROMPTS_DIR = Path(__file__).resolve().parent / "prompts"


class ChatTokenizer(Protocol):
    """What a cell needs of a tokenizer: the model's own chat template."""

    def encode_chat(self, messages: Sequence[Any], tools: Sequence[Any] | None = None) -> list[int]:
        """Render messages, tools and the assistant's opening into token ids."""


class MessageEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[messages]]` of a cell file; `prompt_file` follows `content` after an empty line."""

    role: Literal["system", "user", "assistant"]
    content: str = ""
    prompt_file: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9-]+\.txt$")] | None = None


class CellFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cell file as written."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    kind: Literal["draftable", "novel"]
    description: Annotated[str, msgspec.Meta(min_length=1)]
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    quick: bool = False
    messages: Annotated[tuple[MessageEntry, ...], msgspec.Meta(min_length=1)]
    tools: tuple[dict[str, Any], ...] = ()


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One workload.

    Attributes:
        kind: "draftable" when the answer repeats the prompt, "novel" when it is new text.
        max_new_tokens: the budget of output tokens.
        is_quick: part of the short run.
        messages: role and full content, prompt files filled in.
        tools: tool schemas for the chat template; empty for most cells.
        group: what it is counted with in tables; its own name if it stands alone.
    """

    name: str
    group: str
    kind: Literal["draftable", "novel"]
    description: str
    max_new_tokens: int
    is_quick: bool
    messages: tuple[dict[str, str], ...]
    tools: tuple[dict[str, Any], ...]

    @property
    def prompt_digest(self) -> str:
        """SHA-256 over messages and tools: what the model is asked, before any template."""
        asked = {"messages": self.messages, "tools": self.tools}
        return hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()

    def prompt_ids(self, tokenizer: ChatTokenizer) -> list[int]:
        """Render the prompt through the model's chat template."""
        messages = [dict(message) for message in self.messages]
        return tokenizer.encode_chat(messages, tools=list(self.tools) or None)


def cell_names() -> list[str]:
    """Return the names that `load_cell` knows, sorted."""
    return sorted(path.stem for path in CELLS_DIR.glob("*.toml"))


def load_cell(name: str) -> Cell:
    """Load one cell.

    Raises:
        ConfigError: the caller's name is unknown, or the file is invalid.
    """
    valid = cell_names()
    if name not in valid:
        raise unknown_name("cell", name, valid)
    return parse_cell(CELLS_DIR / f"{name}.toml")


def load_cells(names: Sequence[str] | None = None) -> dict[str, Cell]:
    """Load cells by name, in the order given; all of them by default, draftable ones first.

    Raises:
        ConfigError: a name is unknown or given twice, or a file is invalid.
    """
    if names is not None:
        if len(set(names)) < len(names):
            raise ConfigError(f"cells: a name is given twice: {', '.join(names)}")
        return {name: load_cell(name) for name in names}
    cells = [load_cell(name) for name in cell_names()]
    return {cell.name: cell for cell in sorted(cells, key=lambda cell: (cell.kind, cell.name))}


def study_cells() -> dict[str, Cell]:
    """Load the prompts of the acceptance study, group by group."""
    cells = [parse_cell(path) for path in sorted(STUDY_DIR.glob("*/*.toml"))]
    return {cell.name: cell for cell in cells}


def quick_cells() -> dict[str, Cell]:
    """Load the cells of the short run."""
    return {name: cell for name, cell in load_cells().items() if cell.is_quick}


def parse_cell(path: Path, prompts_dir: Path = PROMPTS_DIR) -> Cell:
    """Read one cell file strictly.

    Args:
        path: a TOML file named after its cell.
        prompts_dir: where its prompt files lie.

    Raises:
        ConfigError: the file is unreadable or invalid, or names a prompt file that is not there.
    """
    written = read_named(path, CellFile, "messages", MessageEntry)
    return Cell(
        name=written.name,
        group=written.name if path.parent == CELLS_DIR else path.parent.name,
        kind=written.kind,
        description=written.description,
        max_new_tokens=written.max_new_tokens,
        is_quick=written.quick,
        messages=tuple(
            {"role": entry.role, "content": _content(path.name, entry, prompts_dir)}
            for entry in written.messages
        ),
        tools=written.tools,
    )


def _content(cell_file_name: str, entry: MessageEntry, prompts_dir: Path) -> str:
    parts = [entry.content.strip()] if entry.content.strip() else []
    if entry.prompt_file is not None:
        prompt_path = prompts_dir / entry.prompt_file
        if not prompt_path.is_file():
            valid = sorted(path.name for path in prompts_dir.glob("*.txt"))
            raise unknown_name(f"prompt file in {cell_file_name}", entry.prompt_file, valid)
        parts.append(prompt_path.read_text(encoding="utf-8").strip())
    if not parts:
        raise ConfigError(f"{cell_file_name}: a {entry.role} message is empty")
    return "\n\n".join(parts)
