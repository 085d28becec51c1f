"""`bench check` on schedules, failed jobs, commits and its command line."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bench import check
from bench.check import check_experiment, main
from bench.check_plan import check_plan, check_schedule
from bench.experiments import EXPERIMENTS, choose_cells
from bench.plan import Selection, attests
from bench.plan import make_plan as make_real_plan
from bench.schema import Plan
from bench.schema_versions import later_fields
from engine.errors import ReceiptError
from engine.trust.identity import Identity
from tests.bench.receipt_builder import SmallExperiment, make_plan


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> SmallExperiment:
    identity = Identity.load_or_create(tmp_path_factory.mktemp("home") / "harness.key")
    return SmallExperiment(tmp_path_factory.mktemp("pristine") / "experiment", identity)


@pytest.fixture
def experiment(pristine: SmallExperiment, tmp_path: Path) -> SmallExperiment:
    """A fresh copy to damage."""
    return pristine.copied(tmp_path / "experiment")


def changed_plan(change: Callable[[dict], object]) -> Plan:
    tree = msgspec.to_builtins(make_plan())
    change(tree)
    return msgspec.convert(tree, Plan)


def swap_rows(tree: dict, one: int, two: int) -> None:
    """Two jobs change arms, not places."""
    rows = tree["jobs"]
    for name in ("arm", "role"):
        rows[one][name], rows[two][name] = rows[two][name], rows[one][name]


def same_order_everywhere(tree: dict) -> None:
    for idx, row in enumerate(tree["jobs"]):
        row["arm"] = ["ar", "ar", "chain-k4", "null"][idx % 4]


def reorder(tree: dict) -> None:
    tree["jobs"][1], tree["jobs"][2] = tree["jobs"][2], tree["jobs"][1]


def interleave(tree: dict) -> None:
    for name in ("cell", "block_idx", "arm", "role", "rep"):
        tree["jobs"][3][name], tree["jobs"][4][name] = (
            tree["jobs"][4][name],
            tree["jobs"][3][name],
        )


def warmed_up(tree: dict, *arms: str) -> None:
    """Warm-up jobs of these arms before all else."""
    first = tree["jobs"][0]
    warm = [
        {**first, "arm": arm, "role": "warmup", "order_idx": idx} for idx, arm in enumerate(arms)
    ]
    tree["jobs"] = [*warm, *tree["jobs"]]
    for idx, row in enumerate(tree["jobs"]):
        row["job_idx"] = idx


def warmed_up_late(tree: dict) -> None:
    tree["jobs"].append({**tree["jobs"][0], "role": "warmup", "job_idx": len(tree["jobs"])})


PLAN_EDITS: dict[str, Callable[[dict], object]] = {
    "an arm warmed up twice": lambda t: warmed_up(t, "ar", "ar"),
    "a late warm-up": warmed_up_late,
    "reordered": reorder,
    "reference second": lambda t: swap_rows(t, 0, 1),
    "no reference": lambda t: t["jobs"][0].update(role="measured"),
    "two references": lambda t: t["jobs"][1].update(role="reference"),
    "arm twice": lambda t: t["jobs"][2].update(arm="null"),
    "arm left out": lambda t: t["jobs"].pop(),
    "arm unknown": lambda t: t["jobs"][2].update(arm="other"),
    "arm never run": lambda t: t["arms"].update(spare=t["arms"]["ar"]),
    "blocks interleaved": interleave,
    "rep twice": lambda t: [row.update(rep=0) for row in t["jobs"]],
    "rep beyond": lambda t: t.update(reps=1),
    "cell without jobs": lambda t: t.update(reps=3),
    "order_idx": lambda t: t["jobs"][2].update(order_idx=3),
    "job_idx": lambda t: t["jobs"][2].update(job_idx=3),
    "same order everywhere": same_order_everywhere,
    "another configuration": lambda t: t["arms"]["null"].update(numeric_config="fp8"),
}


@pytest.mark.parametrize("name", PLAN_EDITS)
def test_bad_schedules_are_found(name: str) -> None:
    """Catches a schedule that favours an arm or leaves a job without its reference."""
    found = list(check_schedule(changed_plan(PLAN_EDITS[name])))
    assert found and {rule for rule, _ in found} == {"schedule"}


def test_made_up_plan_is_clean() -> None:
    """Catches a balance rule that refuses a reversed pair of blocks, or a ring of one arm."""
    assert list(check_plan(make_plan())) == []


def lossy_on_two_rings(tree: dict) -> None:
    """`ar` and `null` in fp8, on rings of one and of two stages."""
    for arm in ("ar", "null", "chain-k4"):
        tree["arms"][arm]["numeric_config"] = "fp8"


# name -> (change of the plan, rule, words of the detail)
RING_EDITS: dict[str, tuple[Callable[[dict], object], str, str]] = {
    "foreign arm": (lambda t: t["arm_rings"].update(x=t["arm_rings"]["ar"]), "rings", "'x' has"),
    "default ring again": (lambda t: t["arm_rings"].update(ar=t["ring"]), "rings", "is the def"),
    "another profile": (lambda t: t["arm_rings"]["ar"].update(profile="lan"), "rings", "differs"),
    "more threads": (
        lambda t: t["arm_rings"]["ar"].update(threads_per_stage=2),
        "rings",
        "differs",
    ),
    "stages without layers": (
        lambda t: t["arm_rings"]["ar"].update(num_stages=2),
        "rings",
        "1 layer ranges for 2 stages",
    ),
    "layers left out": (
        lambda t: t["arm_rings"]["ar"].update(layer_plan=[[0, 8]]),
        "rings",
        "tile",
    ),
    "layers with a hole": (lambda t: t["ring"].update(layer_plan=[[0, 5], [6, 9]]), "rings", "til"),
    "lossy on another layer plan": (lossy_on_two_rings, "rings", "other layer plans"),
    "int4 on a float32 ring": (
        lambda t: t["arms"]["ar"].update(numeric_config="int4"),
        "rings",
        "'ar' is int4, its ring's kernel is 'invented'",
    ),
    "f32 on a 4-bit ring": (
        lambda t: t["arm_rings"]["ar"].update(kernel="int4-x"),
        "rings",
        "'ar' is f32, its ring's kernel is 'int4-x'",
    ),
    "one configuration, two kernels": (
        lambda t: t["arm_rings"]["ar"].update(kernel="other"),
        "rings",
        "'ar' has kernel 'other', others of its weights 'invented'",
    ),
    "no null": (lambda t: t.update(null_pairs={}), "base", "without its null"),
    "null of another ring": (
        lambda t: t["arm_rings"].update(null=t["arm_rings"]["ar"]),
        "base",
        "not 'chain-k4' under another name",
    ),
    "null of other levers": (lambda t: t["arms"]["null"].update(depth=2), "base", "another name"),
    "base arm not measured": (lambda t: t.update(base_arm="x"), "base", "not measured"),
    "untimed with a null": (lambda t: t.update(base_arm=""), "base", "nothing is timed"),
    "no rings by arm": (lambda t: t.pop("arm_rings"), "version", "$.arm_rings is missing"),
    "an older version": (lambda t: t.update(schema="longhaul-plan/1"), "version", "is no field"),
}


@pytest.mark.parametrize("name", RING_EDITS)
def test_bad_rings_bases_and_versions_are_found(name: str) -> None:
    """Catches arms compared across rings or outputs that do not compare."""
    change, rule, words = RING_EDITS[name]
    found = [(named, detail) for named, detail in check_plan(changed_plan(change))]
    assert [rule for named, detail in found if named == rule and words in detail], found


def test_an_exact_wire_is_judged_on_any_ring() -> None:
    """Catches a rule against the f32 reference, which judges every ring."""
    plan = make_plan()
    assert plan.ring_of("ar").layer_plan != plan.ring_of("null").layer_plan
    assert list(check_plan(plan)) == []


def as_version_1(plan: Plan) -> Plan:
    """The same plan without every field that came later."""

    def lacking(value: object) -> object:
        if isinstance(value, msgspec.Struct):
            later = later_fields(type(value))
            return {
                name: lacking(getattr(value, name))
                for name in value.__struct_fields__
                if name not in later
            }
        if isinstance(value, dict):
            return {key: lacking(item) for key, item in value.items()}
        return [lacking(item) for item in value] if isinstance(value, list) else value

    return msgspec.convert({**lacking(plan), "schema": "longhaul-plan/1"}, Plan)


def test_a_receipt_of_another_version_than_its_plan_is_found(tmp_path: Path) -> None:
    """Catches receipts of two versions in one experiment."""
    identity = Identity.load_or_create(tmp_path / "home" / "x.key")
    plan = as_version_1(make_plan())
    made = SmallExperiment(tmp_path / "experiment", identity, plan)
    assert ("receipts/0002.json", "version") in found_in(made)
    assert ("plan.json", "version") not in found_in(made)


def real_plan(
    scale: str,
    arms: tuple[str, ...] | None = None,
    reps: int | None = None,
    experiment: str = "decode",
) -> Plan:
    """What `bench run` would sign."""
    registered = EXPERIMENTS[experiment]
    chosen = registered.scales[scale]
    selection = Selection(
        experiment=registered,
        arms=arms or registered.arms,
        cells=tuple(choose_cells(chosen, None)),
        max_new_tokens=chosen.max_new_tokens,
        reps=reps or chosen.reps,
        seed=1,
    )
    small = make_plan()
    num_stages = small.ring.num_stages
    signers = [f"{idx:064x}" for idx in range(num_stages)] if attests(selection.arms) else []
    ring = msgspec.structs.replace(small.ring, signers=signers)
    return make_real_plan(selection, ring, small.build, small.model, small.created)


@pytest.mark.parametrize("reps", [None, 1, 2, 3, 4, 5, 6, 7, 12])
@pytest.mark.parametrize("scale", ["quick", "full"])
def test_the_harness_own_schedules_are_clean(scale: str, reps: int | None) -> None:
    """Catches a harness and a checker that disagree on what balanced means."""
    assert list(check_plan(real_plan(scale, reps=reps))) == []


@pytest.mark.parametrize("reps", [1, 2, 3, 4])
def test_the_harness_own_schedule_of_three_arms_is_clean(reps: int) -> None:
    """Catches the same for an odd number of arms."""
    assert list(check_plan(real_plan("quick", ("ar", "chain-k8", "null"), reps))) == []


@pytest.mark.parametrize("scale", ["quick", "full"])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_registered_experiment_makes_a_clean_plan(name: str, scale: str) -> None:
    """Catches an experiment that its own check would refuse after hours of running."""
    assert list(check_plan(real_plan(scale, experiment=name))) == []


def test_plan_registers_the_reference_arm_even_when_it_is_not_measured() -> None:
    """Catches a plan whose reference jobs run levers that nobody promised."""
    assert list(check_plan(real_plan("quick", ("chain-k8", "null")))) == []


def found_in(experiment: SmallExperiment, repo_root: Path | None = None) -> set[tuple[str, str]]:
    keys = {experiment.identity.key_id: experiment.identity.public}
    findings = check_experiment(experiment.folder, keys, repo_root)
    return {(finding.file, finding.rule) for finding in findings}


def test_failed_job_is_no_finding(experiment: SmallExperiment) -> None:
    """Catches a checker that makes honest failures unreportable."""
    experiment.fail(3)
    assert found_in(experiment) == set()


def test_failed_reference_leaves_its_block_uncompared(experiment: SmallExperiment) -> None:
    """Catches a verdict without anything to compare with."""
    experiment.fail(0)
    assert found_in(experiment) == {(f"receipts/000{idx}.json", "lossless") for idx in (1, 2, 3)}
    uncompared = {"verdict": "not_compared", "reference_id": None, "first_difference": None}
    for idx in (1, 2, 3):
        experiment.edit(idx, lambda tree: tree.update(lossless=uncompared))
    assert found_in(experiment) == set()


def test_honest_difference_is_still_a_finding(experiment: SmallExperiment) -> None:
    """Catches lossless taken from the verdict: output is compared id by id."""

    def differ(tree: dict) -> None:
        tree["output_ids"][5] += 1
        tree["lossless"].update(verdict="different", first_difference=5)

    experiment.edit(2, differ)
    assert found_in(experiment) == {("receipts/0002.json", "lossless")}


def test_nothing_hides_anything(experiment: SmallExperiment) -> None:
    """Catches a check that stops at its first finding."""
    experiment.edit(1, lambda tree: tree["counters"].update(discarded_len=7))
    experiment.edit(2, lambda tree: tree["position"].update(plan_digest="0" * 64))
    experiment.edit(3, lambda tree: tree["requested"].update(depth=1), relog=False)
    path = experiment.path(5)
    path.write_bytes(path.read_bytes().replace(b'"in_flight":1', b'"in_flight":9'))
    (experiment.folder / "plan.sig.json").unlink()
    (experiment.folder / "stray").write_text("")
    assert found_in(experiment) >= {
        ("receipts/0001.json", "counters"),
        ("receipts/0002.json", "plan-digest"),
        ("receipts/0003.json", "config"),
        ("log.jsonl", "log"),
        ("receipts/0005.json", "signature"),
        ("receipts/0005.json", "frames"),
        ("plan.json", "signature"),
        ("stray", "foreign"),
    }


def git(folder: Path, *args: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    command = ["git", "-C", str(folder), *identity, *args]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commits_are_looked_up(tmp_path: Path) -> None:
    """Catches a commit that is taken on trust, and a dirty tree that goes unsaid."""
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "-q")
    git(repository, "commit", "-q", "--allow-empty", "-m", "x")
    known = git(repository, "rev-parse", "HEAD")
    tree = git(repository, "rev-parse", "HEAD^{tree}")
    identity = Identity.load_or_create(tmp_path / "home" / "x.key")
    for number, (commit, dirty, num_findings) in enumerate(
        [
            (known, False, 0),
            (known, True, 1),
            (known, None, 1),
            ("1" * 40, False, 1),
            (tree, False, 1),
            (None, False, 1),
            ("HEAD", False, 1),
            ("--help", True, 2),
        ]
    ):
        plan = make_plan()
        build = msgspec.structs.replace(plan.build, commit=commit, dirty=dirty)
        plan = msgspec.structs.replace(plan, build=build)
        made = SmallExperiment(tmp_path / f"experiment-{number}", identity, plan)
        keys = {identity.key_id: identity.public}
        findings = check_experiment(made.folder, keys, repository)
        assert [finding.rule for finding in findings] == ["commit"] * num_findings, (commit, dirty)
        without_git = check_experiment(made.folder, keys)
        assert len(without_git) == (dirty is not False) + (commit is None)


def run_main(experiment: SmallExperiment, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(check, "_commit_is_known", lambda commit, repo_root: True)
    keys = experiment.folder.parent / "trusted"
    keys.mkdir(exist_ok=True)
    (keys / "x.pub").write_text(experiment.identity.public.to_text())
    return main([str(experiment.folder), "--keys", str(keys)])


def test_command_line(
    experiment: SmallExperiment,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Catches an exit status of 0 with findings, and a summary that hides failed jobs."""
    assert run_main(experiment, monkeypatch) == 0
    assert capsys.readouterr().out == "16 receipts, 0 findings\n"
    experiment.fail(3)
    assert run_main(experiment, monkeypatch) == 0
    assert capsys.readouterr().out == "1 failed jobs: 0003 kv_gap\n16 receipts, 0 findings\n"
    (experiment.folder / "stray").write_text("")
    assert run_main(experiment, monkeypatch) == 1
    out = capsys.readouterr().out
    assert out.startswith("stray: foreign: ") and out.endswith("16 receipts, 1 findings\n")


def test_default_keys_are_the_users_own(
    experiment: SmallExperiment,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Catches a check that trusts whatever key signed."""
    monkeypatch.setattr(check, "_commit_is_known", lambda commit, repo_root: True)
    monkeypatch.setenv("LONGHAUL_HOME", str(tmp_path / "home"))
    assert main([str(experiment.folder)]) == 1
    assert capsys.readouterr().out.count("unknown key") == 17
    (tmp_path / "home" / "keys").mkdir(parents=True)
    public = experiment.identity.public.to_text()
    (tmp_path / "home" / "keys" / "mine.pub").write_text(public)
    assert main([str(experiment.folder)]) == 0


def test_missing_folder_is_said(tmp_path: Path) -> None:
    """Catches 'nothing wrong' about nothing."""
    with pytest.raises(ReceiptError, match="no such folder"):
        main([str(tmp_path / "absent")])
    (tmp_path / "empty").mkdir()
    findings = check_experiment(tmp_path / "empty", {})
    assert {(finding.file, finding.rule) for finding in findings} == {
        ("plan.json", "missing"),
        ("log.jsonl", "missing"),
    }


def test_warm_ups_before_all_else_are_no_fault() -> None:
    """Catches blocks that count a warm-up among their jobs."""
    assert not list(check_plan(changed_plan(lambda tree: warmed_up(tree, "ar", "chain-k4"))))
