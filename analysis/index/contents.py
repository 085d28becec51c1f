"""Everything that the page shows, joined: sections, numbers, receipts, gaps.

Guarantees: what `paper/` and `receipts/` hold is on the page once, in an order that their names
alone decide; what is missing or contradicts itself is a gap in words, never an exception. Must
never know HTML.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from analysis.index.anchors import Links, anchor
from analysis.index.cell_numbers import linked_cells
from analysis.index.drawn_figures import DrawnFigure, read_figures
from analysis.index.experiment_facts import (
    ExperimentFacts,
    commit_words,
    experiment_facts,
    experiment_names,
    machine_words,
    minute,
)
from analysis.index.named_numbers import Numbers, ReceiptSets, read_numbers
from analysis.index.printed_tables import PrintedTable, read_tables
from analysis.index.receipt_files import ReceiptFile, RecordPlace, receipt_files
from analysis.index.shown import (
    Contents,
    FigureShown,
    NumberShown,
    RecordShown,
    Section,
    TableShown,
)
from analysis.study_records import PRODUCTS as STUDIES
from analysis.trace import PUBLIC, RERUN

OVERALL = "report"  # products that join experiments
FIRST = (OVERALL, STUDIES)  # behind the experiments
TITLES = {
    STUDIES: "Studies: measurements that are not jobs",
    OVERALL: "Over all experiments",
    PUBLIC: "Public receipts of another engine",
}
PRODUCTS = {"tables": "make tables", "figures": "make figures", "numbers": "make tables"}


def read_contents(repository: Path, links: Links) -> Contents:
    """Read `paper/` and `receipts/`.

    Raises:
        ReceiptError: a file of `receipts/keys` is no public key.
    """
    paper, top = repository / "paper", repository / "receipts"
    receipts = receipt_files(top)
    sets = ReceiptSets(receipts, [links.name(receipt.path) for receipt in receipts])
    numbers, number_gaps = read_numbers(paper)
    tables, table_gaps = read_tables(paper / "tables")
    figures, figure_gaps = read_figures(paper / "figures")
    experiments = {
        name: experiment_facts(top, name, [each for each in receipts if each.group == name])
        for name in experiment_names(top)
    }
    found = {*numbers, *(each.group for each in receipts)}
    found |= {each.group for each in tables} | {each.group for each in figures}
    others = sorted(found - experiments.keys(), key=lambda name: (name not in FIRST, name))
    groups = [*experiments, *others]
    sections = [
        _section(group, experiments.get(group), numbers, tables, figures, sets) for group in groups
    ]
    report = paper / "report.pdf"
    shown = _shown_numbers(groups, numbers, sets)
    gaps = [*number_gaps, *table_gaps, *figure_gaps]
    gaps += [gap for section in sections for gap in section.gaps]
    gaps += [
        f"{name}: {each.problem}"
        for name, each in zip(sets.names, receipts, strict=True)
        if each.problem
    ]
    gaps += _missing_words(shown)
    gaps += [] if report.is_file() else ["paper/report.pdf is not there; `make paper` writes it"]
    return Contents(
        sections=sections,
        numbers=shown,
        records=_records(receipts),
        receipts=sets,
        report=report if report.is_file() else None,
        gaps=gaps,
    )


def _section(
    group: str,
    experiment: ExperimentFacts | None,
    numbers: Numbers,
    tables: list[PrintedTable],
    figures: list[DrawnFigure],
    sets: ReceiptSets,
) -> Section:
    own_tables = [table for table in tables if table.group == group]
    own_figures = [figure for figure in figures if figure.group == group]
    own_receipts = [each for each in sets.receipts if each.group == group]
    shown, gaps = [], []
    for table in own_tables:
        cells, differences = linked_cells(table, numbers.get(group, {}))
        shown.append(TableShown(table, anchor("table", f"{group}/{table.name}"), cells))
        gaps += differences
    if experiment is not None:
        present = {"tables": own_tables, "figures": own_figures, "numbers": numbers.get(group)}
        gaps += experiment.gaps
        gaps += [
            f"{group}: no {kind} in paper/; `{PRODUCTS[kind]}` writes them"
            for kind, found in present.items()
            if not found
        ]
    return Section(
        name=group,
        title=TITLES.get(group, group),
        anchor=anchor("section", group),
        experiment=experiment,
        folder=own_receipts[0].path.parent if experiment and own_receipts else None,
        num_receipts=len(own_receipts),
        tables=shown,
        figures=[
            FigureShown(
                each,
                anchor("figure", f"{group}/{each.name}"),
                anchor("drawn", f"{group}/{each.name}"),
                sets.add(group, each.receipt_ids),
            )
            for each in own_figures
        ],
        num_numbers=len(numbers.get(group, {})),
        gaps=gaps,
    )


def _shown_numbers(groups: list[str], numbers: Numbers, sets: ReceiptSets) -> list[NumberShown]:
    shown = []
    for group in groups:
        for name, number in sorted(numbers.get(group, {}).items()):
            receipt_set = sets.add(group, number.receipt_ids)
            shown.append(
                NumberShown(
                    group=group,
                    name=name,
                    number=number,
                    anchor=anchor("number", f"{group}:{name}"),
                    receipt_set=receipt_set,
                    rerun=sets.rerun(group, name, number, receipt_set),
                    missing=0 if group == PUBLIC else len(sets.missing(receipt_set)),
                )
            )
    return shown


def _missing_words(numbers: list[NumberShown]) -> list[str]:
    """Groups with numbers whose receipts are not here."""
    counts = Counter(each.group for each in numbers if each.missing)
    return [
        f"{group}: {count} of its numbers rest on receipts that are not here; each says which"
        for group, count in counts.items()
    ]


def _records(receipts: list[ReceiptFile]) -> list[RecordShown]:
    return [
        RecordShown(
            receipt=each,
            study=each.place.study,
            created=minute(each.place.created),
            commit=commit_words(each.place.build),
            machine=machine_words(each.place.host),
            rerun=RERUN.get(each.place.study, f"python -m bench.studies.{each.place.study}"),
        )
        for each in receipts
        if isinstance(each.place, RecordPlace)
    ]
