"""Pre-registered hypotheses: each has a rule, which holds, fails and abstains as its words say."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from analysis.arm_slots import slot_of
from analysis.comparisons import compare
from analysis.hypotheses import DRAFTABLE, RULES, outcomes
from analysis.readme import HYPOTHESIS
from analysis.rule_parts import FAILS, HOLDS, NOT_EVALUATED, UNDECIDED
from bench.experiments import EXPERIMENTS
from bench.schema import Receipt
from tests.analysis.altered import (
    as_failed,
    changed,
    load_invented,
    measured_of,
    not_used,
    outcome_of,
    slowed,
    with_plan,
    with_warmup,
    without_arms,
)
from tests.analysis.conftest import Invented

SEAL_TEXTS = ("Primary metric: speed.", "H1: chacha.", "H2: aes.", "H3: lossless.")
FP8_TEXTS = ("H1: own ids.", "H2: other text.", "H3: bytes.")
FRAME_TEXTS = ("H1: N + 1 frames.", "H2: lossless.")


def test_what_is_counted_needs_no_repetitions(
    fp8_invented: Invented, int4_invented: Invented, decode_invented: Invented
) -> None:
    texts = ("H1: one.", "H2: two.", "H3: three.", "H4: four.")
    int4, decode = load_invented(int4_invented, *texts[:3]), load_invented(decode_invented, *texts)
    fp8 = with_plan(load_invented(fp8_invented, *FP8_TEXTS), reps=1)
    assert outcome_of(fp8) == dict.fromkeys(("H1", "H2", "H3"), HOLDS)
    few = outcome_of(with_plan(int4, reps=1))
    assert few == {"H1": HOLDS, "H2": NOT_EVALUATED, "H3": HOLDS}
    assert outcome_of(with_plan(decode, reps=1))["H4"] == HOLDS


def test_every_registered_hypothesis_has_a_rule() -> None:
    """Catches an experiment that is run and whose hypotheses nobody evaluates."""
    for name, experiment in EXPERIMENTS.items():
        promised = [text.partition(":")[0] for text in experiment.hypotheses]
        claims = [text for text in promised if HYPOTHESIS.fullmatch(text)]
        assert claims and claims == list(RULES[name]), name
    assert set(RULES) == set(EXPERIMENTS)


def test_planner_rules_are_about_the_cells_and_numbers_that_were_promised() -> None:
    """Catches a mean over other cells than the signed plan names."""
    planned = {name for name in EXPERIMENTS if name.startswith("planner")}
    assert planned == set(DRAFTABLE)
    for name in planned:
        texts = {text.partition(":")[0]: text for text in EXPERIMENTS[name].hypotheses}
        cells = " and ".join(DRAFTABLE[name])
        assert f"over the cells {cells} planner decodes at 1.10 or more" in texts["H2"]
        assert "at 0.95 or more" in texts["H1"] and "every cell" in texts["H1"]
        assert "verbatim-long at 12 times" in texts["H5"]


def test_every_registered_arm_has_a_coloured_slot_of_its_own() -> None:
    looks = {}
    for name, experiment in EXPERIMENTS.items():
        slots = [slot_of(arm, experiment.arms) for arm in experiment.arms]
        assert all(slot.colour_idx is not None for slot in slots), name
        assert len(set(slots)) == len(slots), f"{name}: two arms look alike"
        looks |= dict(zip(experiment.arms, slots, strict=True))
    bounds = {"clairvoyant", "oracle"}
    assert bounds == {arm for arm, slot in looks.items() if slot.marker == "*"}
    assert looks["null-seal"].is_hollow and not looks["seal-none"].is_hollow
    assert looks["null-seal"].colour_idx == looks["seal-none"].colour_idx


def test_seal_hypotheses_follow_the_interval_over_all_cells(seal_invented: Invented) -> None:
    experiment = load_invented(seal_invented, *SEAL_TEXTS)
    ratios = compare(experiment)[0].ratios.set_index(["cell", "arm"])
    row = ratios.loc[("all cells", "seal-chacha")]
    assert row["low"] >= 0.98, "the invented spread is small"
    found = outcome_of(experiment)
    assert found["H1"] == HOLDS and found["H2"] == FAILS and found["H3"] == HOLDS
    assert found["Primary metric"] == NOT_EVALUATED
    measured = outcomes(experiment)["measured"]
    assert measured[1].startswith(f"seal-chacha {row['ratio']:.3f} [{row['low']:.3f}")
    assert "null-seal" in measured[1] and "null band" in measured[1]
    on_the_line = changed(experiment, "seal-chacha", slowed(row["ratio"] / 0.98))
    assert outcome_of(on_the_line)["H1"] == UNDECIDED
    assert outcome_of(changed(experiment, "seal-aes", as_failed))["H3"] == FAILS
    few = outcome_of(with_plan(experiment, reps=3))
    assert few["H1"] == few["H2"] == NOT_EVALUATED
    assert few["H3"] == HOLDS, "ids need no repetitions"
    without_null = outcome_of(with_plan(experiment, null_pairs={}))
    assert without_null["H1"] == NOT_EVALUATED, "no band, no verdict on a speed"
    lost = not_used(experiment, "seal-chacha", "chat")
    assert outcome_of(lost)["H1"] == NOT_EVALUATED, "no mean over the cells that are left"
    assert outcome_of(lost)["H2"] == FAILS


def test_warm_ups_are_not_judged_lossless_and_take_nothing_from_it(seal_invented: Invented) -> None:
    """Catches an experiment that is called lossy for jobs that come before its references."""
    experiment = load_invented(seal_invented, *SEAL_TEXTS)
    warmed = with_warmup(experiment, experiment.plan.jobs[-1].job_idx)
    assert outcome_of(warmed)["H3"] == HOLDS
    whole = len(experiment.plan.jobs)
    assert measured_of(warmed)["H3"] == f"{whole - 1} of {whole - 1} jobs"
    assert outcome_of(changed(warmed, "seal-aes", as_failed))["H3"] == FAILS


def test_fp8_hypotheses(fp8_invented: Invented) -> None:
    experiment = load_invented(fp8_invented, *FP8_TEXTS)
    assert set(outcome_of(experiment).values()) == {HOLDS}
    assert "chat from output 10; 0 jobs judged across" in list(outcomes(experiment)["measured"])

    def other_ids(receipt: Receipt) -> Receipt:
        return msgspec.structs.replace(receipt, output_ids=receipt.output_ids[::-1])

    assert outcome_of(changed(experiment, "chain-fp8", other_ids))["H1"] == FAILS
    identical = {
        receipt.position.cell: receipt.output_ids
        for receipt in experiment.receipts
        if receipt.requested.arm == "ar"
    }
    same_text = changed(
        experiment,
        "ar-fp8",
        lambda r: msgspec.structs.replace(r, output_ids=identical[r.position.cell]),
    )
    assert outcome_of(same_text)["H2"] == FAILS
    crossed = changed(
        experiment,
        "chain-fp8",
        lambda r: msgspec.structs.replace(
            r, lossless=msgspec.structs.replace(r.lossless, reference_id=experiment.receipt_ids[0])
        ),
    )
    assert experiment.receipts[0].requested.numeric_config == "f32"
    assert outcome_of(crossed)["H2"] == FAILS


def test_fp8_bytes_hold_only_if_both_bounds_do(fp8_invented: Invented) -> None:
    """Catches a claim that a friendly guess about dropped frames carries."""
    experiment = load_invented(fp8_invented, *FP8_TEXTS)

    def scaled(num: int, den: int) -> Callable[[Receipt], Receipt]:
        def change(receipt: Receipt) -> Receipt:
            hops = [
                hop
                if hop.sender in ("coordinator", "stage-3")
                else msgspec.structs.replace(hop, bytes=hop.bytes * num // den)
                for hop in receipt.counters.hops
            ]
            counters = msgspec.structs.replace(receipt.counters, hops=hops)
            return msgspec.structs.replace(receipt, counters=counters)

        return change

    def dropping(receipt: Receipt) -> Receipt:
        """One overtaken frame of many positions, and every stage dropped some frame or other."""
        overtaken = [idx for idx, frame in enumerate(receipt.frames) if frame.outcome == "stale"]
        if not overtaken:
            return receipt
        frames, hops = list(receipt.frames), receipt.counters.hops
        frames[overtaken[0]] = msgspec.structs.replace(frames[overtaken[0]], positions_len=60)
        fewer = [msgspec.structs.replace(hop, frames=hop.frames - 1) for hop in hops[1:]]
        counters = msgspec.structs.replace(receipt.counters, hops=[hops[0], *fewer])
        return msgspec.structs.replace(receipt, frames=frames, counters=counters)

    assert outcome_of(changed(experiment, "chain-fp8", scaled(12, 10)))["H3"] == FAILS
    dropped = changed(changed(experiment, "chain-fp8", dropping), "chain-k8", dropping)
    least, _, most = outcomes(dropped)["measured"][2].partition("–")
    assert float(least) < float(most)
    # The claim stands between the two bounds: neither held nor refuted.
    factor = round(0.27 / ((float(least) + float(most)) / 2) * 10_000)
    between = changed(dropped, "chain-fp8", scaled(factor, 10_000))
    assert outcome_of(between)["H3"] == UNDECIDED


def test_frame_hypotheses_need_every_ring_and_every_job(frames_invented: Invented) -> None:
    experiment = load_invented(frames_invented, *FRAME_TEXTS)
    assert experiment.plan.reps == 1, "what is counted needs no repetitions"
    assert set(outcome_of(experiment).values()) == {HOLDS}

    def skipping(receipt: Receipt) -> Receipt:
        hops = list(receipt.counters.hops)
        hops[-1] = msgspec.structs.replace(hops[-1], frames=hops[-1].frames - 1)
        counters = msgspec.structs.replace(receipt.counters, hops=hops)
        return msgspec.structs.replace(receipt, counters=counters)

    assert outcome_of(changed(experiment, "logits-s3", skipping))["H1"] == FAILS
    without = without_arms(experiment, "ids-s4")
    assert outcome_of(without)["H1"] == FAILS, "four rings were promised"
