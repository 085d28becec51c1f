"""Plans: which ring an arm runs on, and which selections nobody could judge."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from bench import arms
from bench.arms import Arm, get_arm
from bench.check_plan import check_plan
from bench.experiments import EXPERIMENTS, choose_cells
from bench.plan import Selection, arm_ring, check_selection, make_plan
from bench.schema import Plan
from engine.cluster.plan import even_plan
from engine.defaults import SUITE
from engine.errors import ConfigError
from engine.model.linear import kernel_for, weights_of_kernel
from tests.bench.receipt_builder import NUM_LAYERS, RING
from tests.bench.receipt_builder import make_plan as make_small_plan


def selection(experiment: str, names: tuple[str, ...] | None = None) -> Selection:
    registered = EXPERIMENTS[experiment]
    scale = registered.scales["quick"]
    return Selection(
        experiment=registered,
        arms=names or registered.arms,
        cells=tuple(choose_cells(scale, None)),
        max_new_tokens=scale.max_new_tokens,
        reps=scale.reps,
        seed=1,
    )


def plan_of(chosen: Selection) -> Plan:
    small = make_small_plan()
    return make_plan(chosen, RING, small.build, small.model, small.created, "{}-planted".format)


def test_arms_without_ring_levers_stay_on_the_default_ring() -> None:
    assert plan_of(selection("decode")).arm_rings == {}
    assert plan_of(selection("fp8")).arm_rings == {}


def test_sealed_arms_run_on_rings_of_their_suite() -> None:
    """Catches a default ring that is listed as if an arm had left it, or a suite lost."""
    plan = plan_of(selection("seal"))
    assert RING.suite == SUITE == "chacha20-poly1305"
    assert isinstance(plan.arm_rings, dict)
    assert {arm: ring.suite for arm, ring in plan.arm_rings.items()} == {
        "seal-none": "plain",
        "null-seal": "plain",
        "seal-aes": "aes-256-gcm",
    }
    assert plan.ring_of("seal-chacha") == plan.ring_of("ar") == RING
    assert plan.base_arm == "seal-none" and plan.null_pairs == {"null-seal": "seal-none"}


def test_arms_of_other_lengths_get_whole_layer_plans() -> None:
    plan = plan_of(selection("frames"))
    for name in plan.arms:
        ring = plan.ring_of(name)
        num_stages = get_arm(name).num_stages or RING.num_stages
        assert ring.num_stages == num_stages and ring.suite == RING.suite
        assert ring.layer_plan == even_plan(NUM_LAYERS, num_stages)
        assert plan.arms[name].reply == get_arm(name).reply
    assert plan.ring_of("logits-s2") == RING, "two stages are the default ring here"


def test_nothing_timed_needs_no_null() -> None:
    """Catches a null demanded where no speed is compared, and one forgotten where it is."""
    plan = plan_of(selection("frames"))
    assert plan.base_arm == "" and plan.null_pairs == {}
    check_selection(selection("frames", ("ids-s1", "logits-s4")))
    with pytest.raises(ConfigError, match="add: null-seal"):
        check_selection(selection("seal", ("seal-none", "seal-aes")))


def test_a_null_pair_is_planned_only_with_both_of_its_arms() -> None:
    plan = plan_of(selection("decode", ("chain-k8", "null", "null-seal")))
    assert plan.null_pairs == {"null": "chain-k8"}


def test_fp8_jobs_have_their_own_reference_in_every_block() -> None:
    plan = plan_of(selection("fp8"))
    for block_idx in {job.block_idx for job in plan.jobs}:
        references = [
            job.arm for job in plan.jobs if job.block_idx == block_idx and job.role == "reference"
        ]
        assert sorted(references) == ["ar", "ar-fp8"]


def test_int4_arms_run_on_a_ring_of_their_weights() -> None:
    """Catches 4-bit jobs on the float32 ring, and a ring of theirs that differs in more."""
    plan = plan_of(selection("int4"))
    assert isinstance(plan.arm_rings, dict)
    own = msgspec.structs.replace(RING, kernel="int4-planted")
    assert plan.arm_rings == {"ar-int4": own, "chain-int4": own}
    for block_idx in {job.block_idx for job in plan.jobs}:
        references = {
            job.arm for job in plan.jobs if job.block_idx == block_idx and job.role == "reference"
        }
        assert references == {"ar", "ar-int4"}


def test_f32_arms_leave_a_default_ring_of_other_weights() -> None:
    """Catches a default ring whose weights are taken for every arm's."""
    ring = msgspec.structs.replace(RING, kernel="int4-planted")
    assert arm_ring("ar", ring, NUM_LAYERS, "{}-host".format).kernel == "f32-host"
    assert arm_ring("ar-int4", ring, NUM_LAYERS, "{}-host".format) == ring


def test_the_kernels_of_a_plan_are_this_host_s() -> None:
    """Catches a planned kernel that no stage will report."""
    own = arm_ring("ar-int4", RING, NUM_LAYERS).kernel
    assert own == kernel_for("int4").name and weights_of_kernel(own) == "int4"


def test_an_int4_output_is_judged_on_any_layer_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a lossless wire that is taken for a lossy one because its weights are coarse."""
    whole = dataclasses.replace(get_arm("chain-int4"), name="chain-int4-s1", num_stages=1)
    monkeypatch.setattr(arms, "ARMS", {**arms.ARMS, whole.name: whole})
    plan = plan_of(selection("int4", ("chain-k8", "null", whole.name)))
    assert plan.ring_of(whole.name).num_stages == 1 != plan.ring_of("ar-int4").num_stages
    assert [detail for _, detail in check_plan(plan)] == []


def test_a_lossy_wire_on_another_layer_plan_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches an fp8 output that is judged by one which was rounded at other layers."""
    short = dataclasses.replace(get_arm("chain-fp8"), name="chain-fp8-s1", num_stages=1)
    exact = dataclasses.replace(get_arm("chain-k8"), name="chain-k8-s1", num_stages=1)
    registry: dict[str, Arm] = {**arms.ARMS, short.name: short, exact.name: exact}
    monkeypatch.setattr(arms, "ARMS", registry)
    plan = plan_of(selection("decode", ("chain-k8", "null", exact.name)))
    assert plan.ring_of(exact.name).num_stages == 1
    with pytest.raises(ConfigError, match=r"chain-fp8-s1.*between 1 stages.*ar-fp8.*between 2"):
        plan_of(selection("decode", ("chain-k8", "null", short.name)))


def test_more_stages_than_layers_are_refused() -> None:
    tiny = msgspec.structs.replace(RING, num_stages=1, layer_plan=[(0, 3)])
    with pytest.raises(ConfigError):
        arm_ring("ids-s4", tiny, 3)


def test_each_timed_arm_is_warmed_up_once_but_bounds() -> None:
    """Catches an arm whose first frames on its ring are measured ones, and a bound that is asked
    for an answer nobody has yet."""
    plan = plan_of(selection("planner"))
    warm = [row.arm for row in plan.jobs if row.role == "warmup"]
    bounds = ("clairvoyant", "oracle")
    assert warm == [arm for arm in EXPERIMENTS["planner"].arms if arm not in bounds]
    assert not list(check_plan(plan))
    untimed = plan_of(selection("frames"))
    assert all(row.role != "warmup" for row in untimed.jobs)
