"""The audit's verdicts: each follows its files, and flips when one thing of them changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.public.claim import (
    NOT_SUPPORTED,
    NOT_TESTABLE,
    SUPPORTED,
    VERDICTS,
    Claim,
    ClaimMaker,
    Finding,
)
from analysis.public.claims import CLAIMS, all_claims, claim_numbers, claims_table
from analysis.public.files import PAPER_OFF, PAPER_ON, PublicReceipts, read_public
from analysis.public.quotes import QUOTES, quoted_numbers
from tests.analysis.public_builder import Entry, PublicSet, honest, stage_times

UNTESTABLE = {
    "draftable", "batched", "batched_receipts", "kill", "binding", "countries", "tree_mean",
}  # fmt: skip
FORMULA_ALONE = "calibration"  # no file has a say in it


@pytest.fixture(scope="module")
def makers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ClaimMaker]:
    """The function of each claim, by the key that it gives."""
    public = read(tmp_path_factory.mktemp("honest"), honest())
    return {maker(public).key: maker for maker in CLAIMS}


def claims_of(folder: Path, files: PublicSet) -> dict[str, Claim]:
    return {claim.key: claim for claim in all_claims(read(folder, files))}


def read(folder: Path, files: PublicSet) -> PublicReceipts:
    return read_public(folder, files.write(folder))


def records(files: PublicSet, arm: str = "", cell: str = "") -> list[Entry]:
    """Records of both files, of an arm and of cells of this beginning."""
    return [
        record
        for record in [*files.on, *files.off]
        if record["arm"].startswith(arm) and record["cell"].startswith(cell)
    ]


def setting(arm: str = "", cell: str = "", **changes: object) -> Callable[[PublicSet], None]:
    """A change of all such records."""

    def change(files: PublicSet) -> None:
        for record in records(files, arm, cell):
            record.update(changes)

    return change


def test_files_that_bear_every_claim_are_said_to(tmp_path: Path) -> None:
    """Catches a verdict that no file can make better."""
    verdicts = {key: claim.verdict for key, claim in claims_of(tmp_path, honest()).items()}
    assert {key for key, verdict in verdicts.items() if verdict == NOT_TESTABLE} == UNTESTABLE
    assert verdicts.pop(FORMULA_ALONE) == NOT_SUPPORTED
    assert {
        key: verdict for key, verdict in verdicts.items() if key not in UNTESTABLE
    } == dict.fromkeys(verdicts.keys() - UNTESTABLE, SUPPORTED)


def _reversed_blocks(files: PublicSet) -> None:
    """Arms as blocks of a repetition, as the published harness ran them."""
    order = {"ar": 0, "chain": 1, "hybrid": 2}
    files.on.sort(key=lambda record: (record["rep"], order[record["arm"]]))


def _mirrored(files: PublicSet) -> None:
    """The second repetition in an order that is no turn of the first one's."""
    order = {"ar": 0, "hybrid": 1, "chain": 2}
    files.on.sort(
        key=lambda record: (record["rep"], order[record["arm"]] if record["rep"] == 2 else 0)
    )


def _without_bursts(files: PublicSet) -> None:
    for record in records(files):
        if record["cell"] in ("reason-math", "reason-logic", "open-chat", "agentic-tool"):
            record.update(wasted=0, g=record["accept"] + 1.0)


def _slow_run(files: PublicSet) -> None:
    """The same speeds with and without receipts."""
    for record in records(files, arm="chain"):
        record.update(tok_s=12.5, decode_s=96 / 12.5)


def _costly(files: PublicSet) -> None:
    for record in files.on:
        record["per_stage_ms"] = stage_times(0.008)


def _even_stages(files: PublicSet) -> None:
    for record in records(files):
        for times in record["per_stage_ms"].values():
            times[:] = [11.0, 10.0]


def _ring_of(idx: int, **changes: object) -> Callable[[PublicSet], None]:
    return lambda files: files.real_ring["receipts"][idx].update(changes)


def _row_of(idx: int, **changes: object) -> Callable[[PublicSet], None]:
    return lambda files: files.matrix["matrix"][idx].update(changes)


def _tree_gain(files: PublicSet) -> None:
    files.tree["results_tok_s_and_g"]["reason-math"]["tree_hybrid"] = [4.9, 3.0]


def _topology(words: str) -> Callable[[PublicSet], None]:
    return lambda files: files.matrix["ring"].update(topology=words)


def _one_flag_less(files: PublicSet) -> None:
    files.on[5]["receipts_ok"] = None


def _one_job_less(files: PublicSet) -> None:
    del files.on[-1]


FLIPS: list[tuple[str, Callable[[PublicSet], None]]] = [
    ("plain", setting("ar", "reason-math", tok_s=4.74)),
    ("interactive", setting("hybrid", "rag-quote", tok_s=6.2)),
    ("interactive", setting("chain", "code-edit", tok_s=12.7)),
    ("novel_ceiling", lambda files: files.off[0].update(tok_s=14.1)),
    ("same_g", setting("hybrid", "open-chat", g=3.01)),
    ("tool_call", setting("", "agentic-tool", prompt_tokens=52)),
    ("tool_call", setting("chain", "agentic-tool", tok_s=12.4)),
    ("context_8k", setting("hybrid", "ctx-8k-quote", tok_s=7.5)),
    ("context_30k", setting("chain", "ctx-30k-quote", tok_s=4.9)),
    ("prefill_30k", lambda files: records(files, "chain", "ctx-30k-")[-1].update(prefill_s=51.0)),
    ("transport_share", setting("hybrid", transport_s=2.1)),
    ("stage_spread", _even_stages),
    ("depth", _without_bursts),
    ("loop", setting("ar", traversal_s=2.0)),
    ("interleaved", _reversed_blocks),
    ("rotated", lambda files: files.on.sort(key=lambda record: (record["rep"], record["arm"]))),
    ("rotated", _mirrored),
    ("attest_cost", _costly),
    ("end_to_end", _slow_run),
    ("verified", _one_flag_less),
    ("verified", _one_job_less),
    ("stage_receipts", _ring_of(0, layer_start=1)),
    ("stage_receipts", _ring_of(2, layer_end=61)),
    ("stage_receipts", _ring_of(1, layer_start=11)),
    ("stage_receipts", _ring_of(1, in_root="f" * 64)),
    ("stage_receipts", _ring_of(1, pubkey="key 0")),
    ("stage_receipts", _ring_of(2, nonce="another")),
    ("tree_gain", _tree_gain),
    ("matrix.headline", lambda files: files.matrix["headline"].update(median_tok_s=29.5)),
    ("matrix.speedup", _row_of(0, dspark_median_tok_s=15.0)),
    ("matrix.speedup", _row_of(0, dspark_median_tok_s=20.0)),
    ("matrix.speedup", _row_of(1, dspark_median_tok_s=53.0)),
    ("matrix.speedup", _row_of(1, dspark_median_tok_s=50.0)),
    ("matrix.lossless", _row_of(1, lossless_vs_greedy=False)),
    ("matrix.lossless", _row_of(0, receipts_ok=False)),
    ("matrix.lossless", _row_of(0, dspark_reps=2)),
    ("matrix.ring", _topology("Poland[0:8) -> Estonia[8:24) -> Denmark[24:43)")),
    ("matrix.ring", _topology("Poland[0:8) -> Estonia[9:16) -> Denmark[16:24) -> Malta[24:43)")),
    ("matrix.ring", _topology("Poland[0:8) -> Estonia[8:16) -> Denmark[16:24) -> Malta[24:42)")),
]


@pytest.mark.parametrize(("key", "change"), FLIPS)
def test_a_claim_that_the_files_contradict_is_not_supported(
    tmp_path: Path,
    makers: dict[str, ClaimMaker],
    key: str,
    change: Callable[[PublicSet], None],
) -> None:
    """Catches a verdict that was typed, or a rule that leaves out what it should look at."""
    public = read(tmp_path, honest().changed(change))
    assert makers[key](public).verdict == NOT_SUPPORTED


def test_every_claim_that_files_decide_has_a_flip(makers: dict[str, ClaimMaker]) -> None:
    """Catches a new claim whose verdict no test can turn, and two claims of one key."""
    assert len(makers) == len(CLAIMS)
    decided = makers.keys() - UNTESTABLE - {FORMULA_ALONE}
    assert {key for key, _ in FLIPS} == decided


@pytest.mark.parametrize("sign", [{"g": 3.0, "accept": 2.5}, {"wasted": 3}])
def test_depth_needs_one_sign_of_a_second_frame(tmp_path: Path, sign: dict[str, float]) -> None:
    """Catches a rule that asks for both signs, or for one alone: a bonus token that was dropped
    and a reply that was discarded."""
    files = honest().changed(_without_bursts)
    records(files, "hybrid", "open-chat")[0].update(sign)
    assert claims_of(tmp_path, files)["depth"].verdict == SUPPORTED


def test_the_laws_figure_by_hand(tmp_path: Path) -> None:
    """0.97^8 = 0.78374; 4 · 7.2086 / (0.38 · 1.64877) = 46.02; 1 + 0.9324 + 0.9324² + … = 4.37."""
    numbers = claims_of(tmp_path, honest())[FORMULA_ALONE].numbers
    assert numbers["audit.calibration.chain"].value == "46.0"
    assert numbers["audit.calibration.tree"].value == "4.37"
    assert numbers["audit.calibration.chain"].receipt_ids == []


def test_numbers_of_a_finding_are_those_in_its_sentence(tmp_path: Path) -> None:
    """Catches a sentence that says one number and a file of numbers that has another."""
    for claim in claims_of(tmp_path, honest()).values():
        for name, number in claim.numbers.items():
            said = f"{claim.claim} {claim.finding}"
            assert number.value.replace("-", "−") in said, name
            assert name.startswith(f"audit.{claim.key}.")


def test_findings_by_hand(tmp_path: Path) -> None:
    """Catches counts of the wrong records; the honest set has 64 and 52 of them."""
    public = read(tmp_path, honest())
    numbers = claim_numbers(public, all_claims(public))
    values = {name.removeprefix("audit."): number.value for name, number in numbers.items()}
    assert values["depth.chain.jobs"] == "52" and values["depth.chain.deep"] == "52"
    assert values["novel_ceiling.jobs"] == "48" and values["novel_ceiling.most"] == "13.75"
    assert values["attest_cost.chain.ms"] == "0.40" and values["attest_cost.stages"] == "8"
    assert (values["attest_cost.low"], values["attest_cost.high"]) == ("0.40", "0.40")
    assert values["end_to_end.chain"] == "-9.1"
    assert (values["interleaved.blocks"], values["interleaved.spread"]) == ("64", "1.00")
    assert values["stage_spread.ratio"] == "4.0" and values["stage_spread.inner"] == "4.0"
    assert values["stage_receipts.links"] == values["stage_receipts.chained"] == "2"
    assert values["tree_mean.printed"] == "18" and values["tree_mean.equal"] == "40"
    assert values["matrix.headline.all"] == "29.50" and values["matrix.speedup.best"] == "2"


def test_a_ratio_of_something_else_than_the_best_repetition_is_not_counted(
    tmp_path: Path, makers: dict[str, ClaimMaker]
) -> None:
    """Catches a count of all rows: one's best repetition is faster than its printed ratio."""
    public = read(tmp_path, honest().changed(_row_of(0, dspark_best_tok_s=16.2)))
    assert makers["matrix.speedup"](public).numbers["audit.matrix.speedup.best"].value == "1"


def test_numbers_name_the_files_they_rest_on(tmp_path: Path) -> None:
    public = read(tmp_path, honest())
    numbers = claim_numbers(public, all_claims(public))
    both = sorted(public.ids(PAPER_ON, PAPER_OFF))
    assert numbers["audit.attest_cost.low"].receipt_ids == both
    assert numbers["audit.plain.low"].receipt_ids == public.ids(PAPER_ON)
    assert len(numbers["claims.all"].receipt_ids) == 5


def test_verdicts_are_counted(tmp_path: Path) -> None:
    public = read(tmp_path, honest().changed(setting("ar", "reason-math", tok_s=4.0)))
    claims = all_claims(public)
    numbers = claim_numbers(public, claims)
    counts = [int(numbers[f"claims.{verdict.replace(' ', '_')}"].value) for verdict in VERDICTS]
    assert counts == [22, 2, 7] and int(numbers["claims.all"].value) == 31
    printed = claims_table(public, claims).to_markdown()
    assert printed.count("| not supported |") == 2
    assert "| Plain decoding on this ring writes 4.8–5.0 tok/s. | Medians by cell run" in printed


def test_a_number_is_said_once(tmp_path: Path) -> None:
    """Catches two numbers under one name, of which the second would be lost."""
    found = Finding("twice", read(tmp_path, honest()), (PAPER_ON,))
    assert found.say("x", -1.25, 1, "ms", "a formula") == "−1.2"
    with pytest.raises(KeyError, match=r"audit\.twice\.x is said twice"):
        found.say("x", 2.0, 1, "ms", "a formula")


def test_quotes_hold_at_their_own_rounding() -> None:
    """Catches 12.64 held to be outside 10.7–12.6, and 12.66 held to be inside."""
    quote = QUOTES["interactive"]
    assert [quote.holds(value) for value in (10.64, 10.66, 12.64, 12.66)] == [
        False, True, True, False,
    ]  # fmt: skip
    assert (str(quote), str(QUOTES["receipt_cost"])) == ("10.7–12.6", "0.4")
    numbers = quoted_numbers()
    assert numbers["published.interactive.high"].value == "12.6"
    assert numbers["published.receipt_cost"].value == "0.4"
    assert "published.receipt_cost.low" not in numbers
