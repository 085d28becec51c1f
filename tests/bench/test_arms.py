"""The arm registry: complete, immutable, and honest about its null arms."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from bench.arm_groups import DECODE_ARMS, FRAME_ARMS
from bench.arms import (
    ARMS,
    BASE_ARM,
    LOSSY_WIRES,
    NULL_PAIRS,
    REFERENCE_ARMS,
    get_arm,
    reference_arm,
)
from bench.plan import arm_levers
from engine.cluster.launch import CHECKOUT_DIR
from engine.defaults import DEPTH, DRAFT_LEN, DRAFT_LEN_MAX
from engine.errors import ConfigError
from engine.numeric import NUMERIC_CONFIGS
from engine.transport.message import REPLIES
from engine.transport.seal import SUITES


def test_null_arms_repeat_their_arm_in_every_lever() -> None:
    assert NULL_PAIRS == {"null": "chain-k8", "null-ar": "ar", "null-seal": "seal-none"}
    for null_name, name in NULL_PAIRS.items():
        renamed = dataclasses.replace(get_arm(null_name), name=name, description="")
        assert renamed == dataclasses.replace(get_arm(name), description="")


def test_the_reference_is_autoregressive() -> None:
    for config, name in REFERENCE_ARMS.items():
        reference = reference_arm(config)
        assert reference.name == name
        assert (reference.draft_len, reference.depth, reference.drafter) == (0, 1, "none")
        assert reference.numeric_config == config


def test_the_base_arm_uses_the_defaults() -> None:
    base = get_arm(BASE_ARM)
    assert BASE_ARM == "chain-k8"
    assert (base.policy, base.draft_len, base.depth) == ("fixed-k", DRAFT_LEN, DEPTH)


def test_two_state_says_its_numbers() -> None:
    two_state = get_arm("two-state")
    assert two_state.draft_len == 8  # its base
    assert two_state.policy_params == {"high": 16, "up": 6}


def test_the_default_order_names_known_arms_once() -> None:
    assert len(set(DECODE_ARMS)) == len(DECODE_ARMS)
    assert {"ar", "null-ar", "chain-k8", "null", "chain-k16", "two-state"} == set(DECODE_ARMS)
    assert set(DECODE_ARMS) <= set(ARMS)


def test_every_arm_is_inside_the_engine_s_bounds_and_says_what_it_is() -> None:
    for name, arm in ARMS.items():
        assert arm.name == name
        assert 0 <= arm.draft_len <= DRAFT_LEN_MAX
        assert (arm.draft_len == 0) == (arm.drafter == "none")
        assert arm.numeric_config in REFERENCE_ARMS
        assert arm.description.endswith(".")
        assert arm.suite is None or arm.suite in SUITES
        assert arm.reply in REPLIES


def test_sealed_arms_differ_from_the_base_in_their_suite_only() -> None:
    """Catches an A/B of suites that also changes something else."""
    suites = {"seal-none": "plain", "seal-chacha": "chacha20-poly1305", "seal-aes": "aes-256-gcm"}
    base = dataclasses.replace(get_arm(BASE_ARM), description="")
    for name, suite in suites.items():
        arm = get_arm(name)
        assert arm.suite == suite
        assert dataclasses.replace(arm, name=BASE_ARM, suite=None, description="") == base


def test_fp8_arms_differ_from_theirs_in_the_wire_only() -> None:
    """Catches an fp8 arm that is judged against f32, or that changes another lever."""
    for name, exact in (("ar-fp8", "ar"), ("chain-fp8", BASE_ARM)):
        arm = dataclasses.replace(get_arm(name), name=exact, numeric_config="f32", description="")
        assert arm == dataclasses.replace(get_arm(exact), description="")
    assert reference_arm("fp8").name == "ar-fp8" != reference_arm("f32").name
    lossy = {name for name, config in NUMERIC_CONFIGS.items() if config.wire != "f32"}
    assert set(LOSSY_WIRES) == lossy and set(REFERENCE_ARMS) == set(NUMERIC_CONFIGS)


def test_a_new_lossy_wire_is_known_as_one() -> None:
    """Catches a typed list: a wire that rounds, judged on any layer plan."""
    program = (
        "from engine import numeric\n"
        "rounding = numeric.NumericConfig(weights='int4', wire='fp8')\n"
        "numeric.NUMERIC_CONFIGS = {**numeric.NUMERIC_CONFIGS, 'int4-fp8': rounding}\n"
        "from bench.arms import LOSSY_WIRES\n"
        "print(*LOSSY_WIRES)"
    )
    shown = subprocess.check_output([sys.executable, "-c", program], text=True, cwd=CHECKOUT_DIR)
    assert shown.split() == ["fp8", "int4-fp8"]


def test_int4_arms_differ_from_theirs_in_the_weights_only() -> None:
    """Catches an int4 arm that is judged against f32, or that changes another lever."""
    for name, exact in (("ar-int4", "ar"), ("chain-int4", BASE_ARM)):
        arm = dataclasses.replace(get_arm(name), name=exact, numeric_config="f32", description="")
        assert get_arm(name).numeric_config == "int4"
        assert arm == dataclasses.replace(get_arm(exact), description="")
    assert reference_arm("int4").name == "ar-int4" != reference_arm("f32").name


def test_warm_arms_differ_from_theirs_in_the_noops_only() -> None:
    """Catches an A/B of keep-warm that also changes something else, or nothing."""
    for name, cold in (("ar-warm", "ar"), ("chain-warm", BASE_ARM)):
        arm = get_arm(name)
        assert 0 < arm.keepwarm_ms < 200, "a window is taken back after 200 ms at the earliest"
        assert arm_levers(name, 8).keepwarm_ms == arm.keepwarm_ms
        assert dataclasses.replace(
            arm, name=cold, keepwarm_ms=0, description=""
        ) == dataclasses.replace(get_arm(cold), description="")


def test_counting_arms_are_ar_on_each_ring_with_each_reply() -> None:
    """Catches a ring or a reply whose frames nobody counts."""
    counted = {(get_arm(name).num_stages, get_arm(name).reply) for name in FRAME_ARMS}
    assert counted == {(n, reply) for n in (1, 2, 3, 4) for reply in ("ids", "logits")}
    for name in FRAME_ARMS:
        arm = dataclasses.replace(get_arm(name), name="ar", num_stages=None, reply="ids")
        assert dataclasses.replace(arm, description="") == dataclasses.replace(
            get_arm("ar"), description=""
        )


def test_an_arm_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        get_arm("ar").depth = 2  # type: ignore[misc]


def test_an_unknown_arm_lists_every_valid_one() -> None:
    with pytest.raises(ConfigError) as caught:
        get_arm("chain-k7")
    assert all(name in str(caught.value) for name in ("chain-k7", *ARMS))


def test_an_unknown_numeric_configuration_lists_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match=r"'f99'.*f32"):
        reference_arm("f99")
