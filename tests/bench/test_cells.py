"""Cells: what a file may say, what the shipped ones hold, and how a prompt is rendered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.cells import (
    CELLS_DIR,
    PROMPTS_DIR,
    load_cell,
    load_cells,
    parse_cell,
    quick_cells,
    study_cells,
)
from engine.errors import ConfigError

DRAFTABLE = {"verbatim", "verbatim-long", "quoting", "json-extraction", "code-edit", "mixed"}
NOVEL = {"summary", "reasoning", "chat"}
HEAD = 'name = "made"\nkind = "novel"\ndescription = "made for a test"\n'
BODY = HEAD + "max_new_tokens = 8\n"
MESSAGE = '[[messages]]\nrole = "user"\ncontent = "Say hello."\n'


class RecordingTokenizer:
    """Notes what it was asked to render and answers with the lengths of the contents."""

    def __init__(self) -> None:
        self.asked: list[tuple[Sequence[Any], Sequence[Any] | None]] = []

    def encode_chat(self, messages: Sequence[Any], tools: Sequence[Any] | None = None) -> list[int]:
        self.asked.append((messages, tools))
        return [len(message["content"]) for message in messages]


def write_cell(folder: Path, text: str, name: str = "made") -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def test_the_shipped_cells_are_the_promised_ones_with_draftable_ones_first() -> None:
    cells = load_cells()
    kinds = [cell.kind for cell in cells.values()]
    assert {name for name, cell in cells.items() if cell.kind == "draftable"} == DRAFTABLE
    assert {name for name, cell in cells.items() if cell.kind == "novel"} == NOVEL
    assert kinds == sorted(kinds)
    assert all(name == cell.name for name, cell in cells.items())


def test_budgets_fit_the_kind() -> None:
    for name, cell in load_cells().items():
        usual = 96 if cell.kind == "draftable" else 64
        assert cell.max_new_tokens == {"verbatim-long": 320, "mixed": 128}.get(name, usual)


def test_the_study_has_eight_groups_of_prompts_of_their_own() -> None:
    """Catches a prompt that is asked twice, or that a bench cell asks too."""
    study, bench = study_cells(), load_cells()
    sizes = Counter(cell.group for cell in study.values())
    assert len(sizes) == 8 and min(sizes.values()) >= 20
    assert len({cell.prompt_digest for cell in (*study.values(), *bench.values())}) == len(
        study
    ) + len(bench)
    assert not set(study) & set(bench)
    assert all(name.startswith(f"{cell.group}-") for name, cell in study.items())
    assert all(cell.group == name for name, cell in bench.items())
    assert sum(len(cell.messages) > 2 for cell in study.values()) >= 30, "several turns"
    assert sum(bool(cell.tools) for cell in study.values()) >= 20, "a tool schema"


def test_the_quick_run_has_two_cells_of_each_kind() -> None:
    assert set(quick_cells()) == {"verbatim", "json-extraction", "reasoning", "chat"}


def test_no_two_cells_ask_the_same_and_every_prompt_file_is_used() -> None:
    cells = load_cells()
    assert len({cell.prompt_digest for cell in cells.values()}) == len(cells)
    contents = "\n".join(message["content"] for cell in cells.values() for message in cell.messages)
    for path in PROMPTS_DIR.glob("*.txt"):
        assert path.read_text().strip() in contents


def test_cells_come_in_the_order_asked_and_only_once() -> None:
    assert list(load_cells(["summary", "chat"])) == ["summary", "chat"]
    with pytest.raises(ConfigError, match="given twice: chat, chat"):
        load_cells(["chat", "chat"])


def test_an_unknown_cell_lists_every_valid_one() -> None:
    with pytest.raises(ConfigError) as caught:
        load_cell("poem")
    assert all(name in str(caught.value) for name in ("poem", *DRAFTABLE, *NOVEL))


def test_a_prompt_is_rendered_by_the_tokenizer_with_its_tools(tmp_path: Path) -> None:
    tool = '[[tools]]\ntype = "function"\n[tools.function]\nname = "clock"\n'
    tokenizer = RecordingTokenizer()
    with_tool = parse_cell(write_cell(tmp_path, BODY + MESSAGE + tool))
    assert with_tool.prompt_ids(tokenizer) == [len("Say hello.")]
    without = parse_cell(write_cell(tmp_path, BODY + MESSAGE))
    without.prompt_ids(tokenizer)
    message = {"role": "user", "content": "Say hello."}
    assert tokenizer.asked == [
        ([message], [{"type": "function", "function": {"name": "clock"}}]),
        ([message], None),
    ]
    assert with_tool.prompt_digest != without.prompt_digest


def test_a_prompt_file_follows_the_content_and_changes_the_digest(tmp_path: Path) -> None:
    path = write_cell(tmp_path, BODY + MESSAGE + 'prompt_file = "long.txt"\n')
    digests = set()
    for passage in ("The passage.\n", "Another passage.\n"):
        (tmp_path / "long.txt").write_text(passage)
        cell = parse_cell(path, tmp_path)
        assert cell.messages[0]["content"] == f"Say hello.\n\n{passage.strip()}"
        digests.add(cell.prompt_digest)
    assert len(digests) == 2


def test_a_missing_prompt_file_lists_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "here.txt").write_text("x")
    path = write_cell(tmp_path, BODY + MESSAGE + 'prompt_file = "gone.txt"\n')
    with pytest.raises(ConfigError, match=r"made\.toml.*gone\.txt.*here\.txt"):
        parse_cell(path, tmp_path)


def test_an_unknown_key_names_the_file_and_the_allowed_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cell(write_cell(tmp_path, BODY + "max_tokens = 9\n" + MESSAGE))
    for part in ("made.toml", "max_tokens", "max_new_tokens", "messages", "prompt_file"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        BODY,
        BODY + "messages = []\n",
        HEAD + MESSAGE,
        HEAD + "max_new_tokens = 0\n" + MESSAGE,
        HEAD + "max_new_tokens = 1.5\n" + MESSAGE,
        BODY.replace("novel", "easy") + MESSAGE,
        BODY + MESSAGE.replace("user", "narrator"),
        BODY + MESSAGE.replace("Say hello.", " "),
        BODY + MESSAGE + 'prompt_file = "../secret.txt"\n',
        BODY + MESSAGE + "colour = 3\n",
        BODY.replace("made for a test", "") + MESSAGE,
        BODY + "not toml\n",
    ],
)
def test_bad_files_are_refused_with_their_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"made\.toml"):
        parse_cell(write_cell(tmp_path, text))


def test_a_name_that_differs_from_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="other"):
        parse_cell(write_cell(tmp_path, BODY + MESSAGE, name="other"))


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml"):
        parse_cell(CELLS_DIR / "gone.toml")
