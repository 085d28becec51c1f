"""Tables of what the tests of the acceptance study can find, and how often they err.

Guarantees: what `make power` wrote for these very inputs, or a note that it was not run. Must never
know files of its own, nor simulate anything.
"""

from __future__ import annotations

import pandas as pd

from analysis.iid import TESTS
from analysis.iid_power import SizeInputs, size_limit
from analysis.load import Experiment
from analysis.power import SIZE_NAME, STUDY_ARM, power_folder, read_result
from analysis.study import study_result
from analysis.study_rules import UNITS
from analysis.table_parts import make_spec
from analysis.table_spec import Column, TableSpec, interval, number, text

SIZE_TITLE = "Size of the tests"
NOT_SIMULATED = "Not simulated yet for these requests (`python -m analysis.power`, about an hour)."


def power_table(experiment: Experiment, arm: str = STUDY_ARM) -> TableSpec:
    """Power of every test at every pre-registered effect, null rows among them."""
    power = study_result(experiment, arm).power
    rows, columns = pd.DataFrame(columns=["family"]), (text("family"),)
    notes = [NOT_SIMULATED]
    if power is not None:
        rows, tests = _by_test(power, ["family", "effect"], "power")
        columns = (text("family"), Column("effect", _effect_words), *map(_share_column, tests))
        notes = [
            f"Share of {int(power['studies'].min())} simulated studies that a test rejects at "
            "Holm's entry level [95 % Clopper–Pearson]; effect 0: the null. Every study has the "
            "study's own requests, N and K, its data rule and its mean acceptance."
        ]
    return make_spec(experiment, "power", "Power of the tests", rows, columns, notes)


def size_table(experiment: Experiment) -> TableSpec:
    """How often each test rejects a true null, by design: no receipt enters.

    Raises:
        ConfigError: `make power` was run for other designs.
    """
    inputs = SizeInputs()
    sizes = read_result(power_folder(is_committed=True) / SIZE_NAME, inputs.digest())
    if sizes is None:
        nothing = pd.DataFrame(columns=["k"])
        return make_spec(experiment, "size", SIZE_TITLE, nothing, (text("k"),), [NOT_SIMULATED])
    rows, tests = _by_test(sizes, ["k_min", "k_max", "depth", "alpha"], "size")
    columns = (
        Column("k", _lengths_words, is_number=False),
        number("depth", "depth"),
        number("alpha", "α", 2),
        *map(_share_column, tests),
    )
    beyond = int((sizes["size"] > sizes["limit"]).sum())
    notes = [
        f"Share of {inputs.num_studies} i.i.d. studies of {inputs.num_requests} requests, decoded "
        f"by the engine's rules (at most {inputs.budget} tokens, an end of text with chance "
        f"{inputs.eos_chance:g} a token), that a test rejects at {inputs.level:g} [95 % "
        f"Clopper–Pearson]. Allowed: the level and three standard errors, "
        f"{size_limit(inputs.level, inputs.num_studies):.3f}; above it: {beyond} of {len(sizes)}."
    ]
    return make_spec(experiment, "size", SIZE_TITLE, rows, columns, notes)


def _by_test(shares: pd.DataFrame, keys: list[str], value: str) -> tuple[pd.DataFrame, list[str]]:
    """One row per key, three columns a test: the share and its interval."""
    tests = [test for test in TESTS if test in set(shares["test"])]
    rows = shares[keys].drop_duplicates().reset_index(drop=True)
    for test in tests:
        chosen = shares[shares["test"] == test][[*keys, value, "low", "high"]]
        names = {value: test, "low": f"{test} low", "high": f"{test} high"}
        rows = rows.merge(chosen.rename(columns=names), on=keys, how="left")
    return rows, tests


def _share_column(test: str) -> Column:
    return interval((test, f"{test} low", f"{test} high"), test, 3)


def _effect_words(row: dict[str, object]) -> str:
    effect = row["effect"]
    return UNITS[str(row["family"])].format(effect) if effect else "0"


def _lengths_words(row: dict[str, object]) -> str:
    low, high = row["k_min"], row["k_max"]
    return str(low) if low == high else f"{low} or {high}"
