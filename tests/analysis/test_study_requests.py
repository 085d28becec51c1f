"""The data rule on receipts: which jobs, which bits, and what an arm's frames allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from analysis.iid_bits import ruled_len
from analysis.load import Experiment, load_experiment
from analysis.requests import policy_limits, requests_of, study_of
from bench.schema import Failure, Receipt
from engine.errors import ConfigError, ReceiptError
from tests.analysis.altered import as_failed, changed, load_invented
from tests.analysis.conftest import Invented
from tests.analysis.experiment_builder import PROMPT_LEN, build_experiment, text_of
from tests.analysis.plan_builder import Recipe

ARM = "accept-k8"
STUDY = Recipe(
    experiment="acceptance",
    cells=("quote", "summary", "chat"),
    arms=(ARM, "chain-k8", "two-state"),
    base_arm="chain-k8",
    reps=2,
    output_len=60,
)


@pytest.fixture(scope="module")
def study(invented: Invented, tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    folder = tmp_path_factory.mktemp("study") / "experiment"
    return load_experiment(build_experiment(folder, invented.identity, STUDY), invented.key_folders)


def test_one_request_a_prompt_and_its_bits_are_the_texts(study: Experiment) -> None:
    """Catches repetitions counted as evidence, bits out of order, and a bonus taken for a draft."""
    requests = requests_of(study, ARM)
    assert [request.cell for request in requests] == list(
        dict.fromkeys(row.cell for row in study.plan.jobs)
    )
    for request in requests:
        _, right = text_of(request.cell, "f32", STUDY.output_len)
        bits, position, last = [], 1, STUDY.output_len
        while position < last:  # output 0 is the prefill's; a full round skips the bonus
            length = 0
            while length < 8 and position < last:
                bits.append(int(right[position]))
                position += 1
                if not bits[-1]:
                    break
                length += 1
            else:
                position += 1
        assert list(request.bits) == bits, request.cell
        assert request.num_committed == STUDY.output_len - 1
        assert request.is_whole and not request.ends_unforeseen


def test_the_study_uses_the_first_n_bits(study: Experiment) -> None:
    requests = requests_of(study, ARM)
    found = study_of(requests, study.plan.arms[ARM])
    assert (found.kind, found.draft_len) == ("fixed", 8)
    num_bits = ruled_len(STUDY.output_len - 1, 8, 8)
    assert [list(bits) for bits in found.bits] == [
        list(request.bits[:num_bits]) for request in requests
    ]
    assert all(k == 8 for rounds in found.rounds for k, _ in rounds)


def test_missing_bits_are_an_error_that_names_the_receipt(study: Experiment) -> None:
    """Catches a study that shrinks in silence."""
    requests = requests_of(study, ARM)
    short = replace(requests[1], bits=requests[1].bits[:10])
    with pytest.raises(ReceiptError, match=rf"{short.cell} \(receipt {short.receipt_id}\): 10 "):
        study_of([requests[0], short], study.plan.arms[ARM])


def excluding(experiment: Experiment, receipts: list[Receipt]) -> Experiment:
    """The experiment with these receipts instead, failed measured jobs excluded."""
    failed = [
        receipt.position.job_idx
        for receipt in receipts
        if receipt.status == "failed" and receipt.position.role == "measured"
    ]
    table = experiment.exclusions.reindex(range(len(failed))).assign(job_idx=failed)
    return replace(experiment, receipts=tuple(receipts), exclusions=table)


def test_a_job_that_an_error_ended_enters_context_e_only(study: Experiment) -> None:
    """Catches a stop that the text did not decide taken for its end."""
    cell = study.receipts[0].position.cell
    spoiled = excluding(
        study,
        [
            as_failed(r) if (r.requested.arm, r.position.cell) == (ARM, cell) else r
            for r in study.receipts
        ],
    )
    requests = requests_of(spoiled, ARM)
    assert [request.cell for request in requests if not request.is_whole] == [cell]
    found = study_of(requests, study.plan.arms[ARM])
    assert len(found.all_rounds) == len(requests) == len(found.bits) + 1


def failed_as(code: str, verdict: str) -> Callable[[Receipt], Receipt]:
    """A job that decoded to its end and was then found wanting."""

    def fail(receipt: Receipt) -> Receipt:
        failure = Failure(code=code, detail="planted", stage_idx=None)
        lossless = msgspec.structs.replace(receipt.lossless, verdict=verdict)
        return msgspec.structs.replace(receipt, status="failed", failure=failure, lossless=lossless)

    return fail


@pytest.mark.parametrize(
    ("code", "verdict", "is_there"),
    [("link_mismatch", "identical", True), ("not_lossless", "different", False)],
)
def test_links_change_no_text_and_a_wrong_text_tells_nothing(
    study: Experiment, code: str, verdict: str, is_there: bool
) -> None:
    """Catches a study cut short by slow links, and one that counts drafts of a wrong text."""
    fail, cell = failed_as(code, verdict), study.receipts[0].position.cell
    spoiled = excluding(
        study,
        [
            fail(r) if (r.requested.arm, r.position.cell) == (ARM, cell) else r
            for r in study.receipts
        ],
    )
    requests = requests_of(spoiled, ARM)
    assert (cell in {request.cell for request in requests}) == is_there
    assert all(request.is_whole for request in requests)


def test_a_reference_on_slow_links_still_says_what_the_text_is(study: Experiment) -> None:
    fail, cell = failed_as("link_mismatch", "reference"), study.receipts[0].position.cell
    receipts = [
        fail(r)
        if (r.position.role, r.position.cell) == ("reference", cell)
        else as_failed(r)
        if (r.requested.arm, r.position.cell) == (ARM, cell)
        else r
        for r in study.receipts
    ]
    assert cell in {request.cell for request in requests_of(excluding(study, receipts), ARM)}


def test_an_end_at_the_budget_was_foreseen(study: Experiment) -> None:
    """Catches an end of text in the last position taken for one that cuts drafts."""
    for finish, budget, unforeseen in (
        ("length", STUDY.output_len, False),
        ("eos", STUDY.output_len, False),
        ("eos", STUDY.output_len + 1, True),
        ("stop", STUDY.output_len + 1, True),
    ):

        def ends(receipt: Receipt, finish: str = finish, budget: int = budget) -> Receipt:
            levers = msgspec.structs.replace(receipt.requested, max_new_tokens=budget)
            return msgspec.structs.replace(receipt, requested=levers, finish_reason=finish)

        requests = requests_of(changed(study, ARM, ends), ARM)
        assert {request.ends_unforeseen for request in requests} == {unforeseen}


def test_a_failed_job_without_a_reference_is_left_out(study: Experiment) -> None:
    """Catches drafts of a text that nothing vouches for."""
    cell = study.receipts[0].position.cell
    arms = (ARM, "ar")  # the reference failed too
    spoiled = excluding(
        study,
        [
            as_failed(r) if r.requested.arm in arms and r.position.cell == cell else r
            for r in study.receipts
        ],
    )
    assert cell not in {request.cell for request in requests_of(spoiled, ARM)}


def test_a_whole_repetition_is_preferred_to_one_cut_short(study: Experiment) -> None:
    """Catches a prompt lost to the tests because its first repetition failed."""
    requests = requests_of(study, ARM)
    victim = requests[0].receipt_id
    pairs = zip(study.receipts, study.receipt_ids, strict=True)
    spoiled = excluding(study, [as_failed(r) if name == victim else r for r, name in pairs])
    found = requests_of(spoiled, ARM)
    assert [request.cell for request in found] == [request.cell for request in requests]
    assert found[0].is_whole and found[0].receipt_id != victim
    assert found[0].bits == requests[0].bits, "greedy repetitions repeat themselves"


def test_adaptive_arms_are_bounded(study: Experiment) -> None:
    found = study_of(requests_of(study, "two-state"), study.plan.arms["two-state"])
    assert (found.kind, found.draft_len, found.rounds) == ("bounded", None, [])
    num_bits = ruled_len(STUDY.output_len - 1, 8, 16)
    assert {len(bits) for bits in found.bits} == {num_bits}


def test_an_arm_whose_drafter_falls_short_is_open(study: Experiment) -> None:
    """Catches exact tests run where the drafter chose k, so that no reference set holds."""

    def starved(receipt: Receipt) -> Receipt:
        frames = list(receipt.frames)
        # Any early round that is not full: its refusal stands, with fewer drafts behind it.
        idx = next(i for i, f in enumerate(frames) if f.tested_len > f.accepted_len)
        frame = frames[idx]
        short = frame.accepted_len + 1
        frames[idx] = msgspec.structs.replace(frame, draft_len=short, sent_len=short)
        return msgspec.structs.replace(receipt, frames=frames)

    altered = changed(study, "chain-k8", starved)
    levers = study.plan.arms["chain-k8"]
    assert study_of(requests_of(study, "chain-k8"), levers).kind == "fixed"
    found = study_of(requests_of(altered, "chain-k8"), levers)
    assert found.kind == "open" and found.all_rounds


def test_limits_of_policies(two_state_invented: Invented) -> None:
    """Catches a policy without bounds taken for one that has them."""
    arms = load_invented(two_state_invented).plan.arms
    fixed = arms["chain-k8"]
    assert policy_limits(fixed) == (8, 8)
    assert policy_limits(msgspec.structs.replace(fixed, draft_len=0)) is None
    adaptive = msgspec.structs.replace(fixed, policy="two-state", policy_params={"high": 16})
    assert policy_limits(adaptive) == (8, 16)
    for policy in ("streak", "planner", "clairvoyant"):
        assert policy_limits(msgspec.structs.replace(fixed, policy=policy)) is None


def test_an_unknown_arm_is_named(study: Experiment) -> None:
    with pytest.raises(ConfigError, match=r"measured arm 'accept-k9'.*accept-k8"):
        requests_of(study, "accept-k9")


def test_prompt_length_does_not_enter(study: Experiment) -> None:
    """Catches N counted with the prompt or with the prefill's token."""
    assert all(
        request.num_committed < PROMPT_LEN + STUDY.output_len - 1
        for request in requests_of(study, ARM)
    )
