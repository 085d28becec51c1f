"""Products that join experiments: the law, and numbers of study records.

Guarantees: made from verified experiments and records alone; what an experiment's absence leaves
without ground is left out, and the report, which names it, then fails to compile. Must never know
files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache

from analysis.cost_figure import COST_EXPERIMENTS, STUDY, draw_cost
from analysis.figure_file import Drawing
from analysis.hero_figure import HERO_EXPERIMENTS, draw_hero
from analysis.law_figures import draw_crossover, draw_law, draw_predicted
from analysis.law_products import (
    COVER_EXPERIMENT,
    Cover,
    Law,
    crossover_numbers,
    law_numbers,
    law_table,
    prediction_table,
    study_law,
    tree_cover,
)
from analysis.load import Experiment
from analysis.named_number import NamedNumber
from analysis.power import STUDY_EXPERIMENT
from analysis.streak_gains import STUDY as STREAKS
from analysis.streak_products import draw_streaks, streak_numbers, streak_tables
from analysis.study_records import StudyRecord, study_records
from analysis.table_spec import TableSpec

REPORT = "report"  # their folder, and the name of their file of numbers


def joint_source(experiments: Sequence[Experiment]) -> str:
    """What products that join experiments say that they were made from."""
    names = ", ".join(each.plan.experiment for each in experiments)
    return f"experiments {names}; receipt sets {joint_digest(experiments)}"


def joint_digest(experiments: Sequence[Experiment]) -> str:
    """SHA-256 over the digests of their receipt sets."""
    listing = "\n".join(each.receipt_set_digest for each in experiments)
    return hashlib.sha256(listing.encode()).hexdigest()


def report_figures(experiments: Sequence[Experiment]) -> dict[str, Callable[[], Drawing]]:
    """Painters by the figure's name; the law is fitted when the first of its figures is drawn."""
    painters: dict[str, Callable[[], Drawing]] = {
        "alpha_law": lambda: draw_law(_law(tuple(experiments))),
        "predicted": lambda: draw_predicted(_law(tuple(experiments))),
    }
    cover = _cover(experiments)
    if cover is not None:
        painters["crossover"] = lambda: draw_crossover(cover)
    heroes = _named(experiments, HERO_EXPERIMENTS)
    if heroes:
        painters["hero"] = lambda: draw_hero(heroes)
    costs, record = _named(experiments, COST_EXPERIMENTS), next(iter(study_records(STUDY)), None)
    if costs or record:
        painters["trust_cost"] = lambda: draw_cost(costs, record)
    streaks = next(iter(study_records(STREAKS)), None)
    if streaks is not None:
        painters["streaks"] = lambda: draw_streaks(streaks)
    return painters


def report_tables(experiments: Sequence[Experiment]) -> list[TableSpec]:
    """Tables over all experiments."""
    studied = _streak_study(experiments)
    study = _law(tuple(experiments))
    laws = (law_table(study), prediction_table(study))
    return [*laws, *(streak_tables(*studied) if studied else ())]


def report_numbers(experiments: Sequence[Experiment]) -> dict[str, NamedNumber]:
    """Numbers over all experiments; the law's begin with `law.`."""
    own = law_numbers(_law(tuple(experiments)))
    cover = _cover(experiments)
    if cover is not None:
        own |= crossover_numbers(cover)
    studied = _streak_study(experiments)
    laws = {f"law.{name}": number for name, number in own.items()}
    return laws | (streak_numbers(*studied) if studied else {})


@lru_cache(maxsize=1)
def _law(experiments: tuple[Experiment, ...]) -> Law:
    """Fitted once a process: figures, tables and numbers ask for the same."""
    return study_law(experiments)


def _cover(experiments: Sequence[Experiment]) -> Cover | None:
    found = _named(experiments, (COVER_EXPERIMENT,))
    return tree_cover(found[COVER_EXPERIMENT]) if found else None


def _streak_study(experiments: Sequence[Experiment]) -> tuple[StudyRecord, Experiment] | None:
    """The record of replayed worlds, and the acceptance study beside which it stands."""
    found = next(iter(study_records(STREAKS)), None)
    known = _named(experiments, (STUDY_EXPERIMENT,))
    return (found, known[STUDY_EXPERIMENT]) if found and known else None


def _named(experiments: Sequence[Experiment], names: Sequence[str]) -> dict[str, Experiment]:
    """Those of the names that are committed, in the names' order."""
    known = {each.plan.experiment: each for each in experiments}
    return {name: known[name] for name in names if name in known}
