"""The named numbers of `paper/`, and which receipts of the repository each rests on.

Guarantees: a number is what its file says; a receipt is found by its id, in the number's own
experiment first, and one that is nowhere stays as its id; a file that is missing or damaged is
named. Must never know how a number is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from analysis.folders import DEFAULT_EXPERIMENT
from analysis.index.receipt_files import ReceiptFile
from analysis.named_number import NamedNumber
from analysis.trace import MISSING, NumbersFile, Traced, rerun_commands

Numbers = dict[str, dict[str, NamedNumber]]
Reference = int | str  # place in the list of receipts, or the id of one that is not there
NOT_THERE = "is missing; `make tables` writes it"


def read_numbers(paper: Path) -> tuple[Numbers, list[str]]:
    """Numbers by group and name, and what is wrong with their files."""
    default = paper / "numbers.json"
    paths = {path.stem: path for path in sorted((paper / "numbers").glob("*.json"))}
    paths = {**paths, DEFAULT_EXPERIMENT: default}
    numbers: Numbers = {}
    gaps = []
    for group, path in paths.items():
        try:
            file = msgspec.json.decode(path.read_bytes(), type=NumbersFile)
        except FileNotFoundError:
            gaps.append(f"paper/{path.relative_to(paper).as_posix()} {NOT_THERE}")
            continue
        except msgspec.DecodeError as error:
            gaps.append(f"paper/{path.relative_to(paper).as_posix()} cannot be read: {error}")
            continue
        numbers[group] = dict(file.numbers)
    return numbers, gaps


@dataclass(slots=True)
class ReceiptSets:
    """Lists of receipts, each kept once: many numbers rest on the same ones."""

    receipts: list[ReceiptFile]
    names: list[str]  # of their files, as commands take them
    sets: list[tuple[Reference, ...]] = field(default_factory=list)
    _by_id: dict[str, list[int]] = field(default_factory=dict)
    _set_idx: dict[tuple[Reference, ...], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for idx, receipt in enumerate(self.receipts):
            self._by_id.setdefault(receipt.receipt_id, []).append(idx)

    def add(self, group: str, receipt_ids: Iterable[str]) -> int:
        """Which of the lists holds these receipts; those of the group's own folder first."""
        found = tuple(self._find(group, each) for each in receipt_ids)
        # In the order of their files: a reader goes through jobs in order.
        ordered: tuple[Reference, ...] = (
            *sorted(each for each in found if isinstance(each, int)),
            *(each for each in found if isinstance(each, str)),
        )
        if ordered not in self._set_idx:
            self._set_idx[ordered] = len(self.sets)
            self.sets.append(ordered)
        return self._set_idx[ordered]

    def missing(self, set_idx: int) -> list[str]:
        """Ids of the list that no file has."""
        return [each for each in self.sets[set_idx] if isinstance(each, str)]

    def rerun(self, group: str, name: str, number: NamedNumber, set_idx: int) -> list[str]:
        """What measures a number's receipts again."""
        paths: Mapping[str, str] = {
            str(each): MISSING if isinstance(each, str) else self.names[each]
            for each in self.sets[set_idx]
        }
        return rerun_commands(Traced(group, name, number, paths))

    def _find(self, group: str, identifier: str) -> Reference:
        places = self._by_id.get(identifier, [])
        own = [idx for idx in places if self.receipts[idx].group == group]
        return next(iter(own or places), identifier)
