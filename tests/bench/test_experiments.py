"""The registry of experiments: what is committed can be run again by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench import experiments
from bench.arms import BASE_ARM, NULL_PAIRS, get_arm
from bench.experiment import Experiment, Scale
from bench.experiments import EXPERIMENTS, choose_cells, get_experiment
from bench.plan import Selection, check_selection
from bench.receipt import parse_document
from bench.schema import Plan
from bench.wan.profile import load_profile

RECEIPTS_DIR = Path(__file__).resolve().parents[2] / "receipts"


def committed_plan(name: str) -> Plan:
    return parse_document((RECEIPTS_DIR / name / "plan.json").read_bytes(), Plan)


def full_selection(name: str) -> Selection:
    experiment = get_experiment(name)
    scale = experiment.scales["full"]
    return Selection(
        experiment=experiment,
        arms=experiment.arms,
        cells=tuple(choose_cells(scale, None)),
        max_new_tokens=scale.max_new_tokens,
        reps=scale.reps,
        seed=1,
    )


def planned_cells(selection: Selection) -> list[tuple[str, int, str]]:
    return [(cell.name, selection.budget(cell), cell.prompt_digest) for cell in selection.cells]


@pytest.mark.parametrize("name", ["seal", "fp8", "frames", "decode"])
def test_a_committed_run_is_the_registered_full_scale(name: str) -> None:
    """Catches a committed experiment that its documented command would not run again."""
    plan, selection = committed_plan(name), full_selection(name)
    experiment = selection.experiment
    committed = [(cell.name, cell.max_new_tokens, cell.prompt_digest) for cell in plan.cells]
    cells = planned_cells(selection)
    if experiment.scales["full"].cells == "all":  # and cells were added since
        cells = [cell for cell in cells if cell[0] in {name for name, _, _ in committed}]
    assert committed == cells
    assert plan.reps == selection.reps
    measured = {job.arm for job in plan.jobs if job.role != "reference"}
    assert measured == set(experiment.arms)
    assert plan.hypotheses == list(experiment.hypotheses)
    assert (plan.alpha, plan.exclusions) == (experiment.alpha, list(experiment.exclusions))
    assert (plan.base_arm, plan.ring.profile) == (experiment.base_arm or "", experiment.profile)


def test_every_experiment_has_a_quick_and_a_full_scale() -> None:
    for name, experiment in EXPERIMENTS.items():
        assert experiment.name == name and set(experiment.scales) == {"quick", "full"}
        check_selection(full_selection(name))


def test_an_experiment_says_only_what_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a second place to edit: null arms follow from the arms, level and exclusions too."""
    entry = Experiment(
        name="own",
        arms=("ar", BASE_ARM, "null"),
        base_arm=BASE_ARM,
        profile="loopback",
        scales={"full": Scale(cells=("chat",), max_new_tokens=4, reps=1)},
        hypotheses=("H1: none.",),
    )
    monkeypatch.setattr(experiments, "EXPERIMENTS", {entry.name: entry})
    check_selection(full_selection("own"))
    assert entry.alpha == "0.05" and len(entry.exclusions) == 2
    fields = {field.name for field in dataclasses.fields(entry)}
    assert not fields & {"null_pairs"} and NULL_PAIRS["null"] == BASE_ARM


@pytest.mark.parametrize(
    ("name", "lever"),
    [
        ("k", "draft_len"),
        ("depth", "depth"),
        ("stages", "num_stages"),
        ("keepwarm", "keepwarm_ms"),
        ("keepwarm-bbr", "keepwarm_ms"),
    ],
)
def test_a_sweep_turns_one_lever(name: str, lever: str) -> None:
    """Catches an arm of a sweep that differs in something else too, or in nothing."""
    swept = [get_arm(arm) for arm in get_experiment(name).arms]
    values = set()
    for arm in swept:
        base = get_arm("ar" if arm.drafter == "none" else BASE_ARM)
        unchanged = dataclasses.replace(
            arm, name=base.name, description="", **{lever: getattr(base, lever)}
        )
        assert unchanged == dataclasses.replace(base, description="")
        values.add(getattr(arm, lever))
    assert len(values) > 1


def test_experiments_on_packets_say_so() -> None:
    """Catches a keep-warm study on relays, whose connections have no window worth keeping."""
    for name in ("keepwarm", "keepwarm-bbr"):
        experiment = get_experiment(name)
        assert experiment.links == "netns"
        control = load_profile(experiment.profile).congestion_control
        assert control == ("bbr" if name.endswith("bbr") else "cubic")
