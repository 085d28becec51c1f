"""What digests cost: sums over stages and jobs, from signed statements, and the 0.4 % claimed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from analysis.attest_tables import attest_table, shares, statement_rows
from analysis.load import Experiment
from analysis.rule_parts import FAILS, HOLDS, NOT_EVALUATED
from bench.experiments import EXPERIMENTS
from bench.schema import Receipt
from engine.trust.attestation import StageStatement, sign_statement
from engine.trust.identity import Identity
from tests.analysis.altered import changed, load_invented, measured_of, outcome_of
from tests.analysis.conftest import Invented

NUM_STAGES, FRAMES = 4, 20


@pytest.fixture
def bare(attest_invented: Invented) -> Experiment:
    return load_invented(attest_invented, *EXPERIMENTS["attest"].hypotheses)


@pytest.fixture
def attested(bare: Experiment, attest_invented: Invented) -> Experiment:
    """Stage i spends (i + 1) ns in 1000 on digests."""
    return signing(bare, attest_invented.identity, lambda stage_idx: stage_idx + 1)


def signing(
    experiment: Experiment, identity: Identity, per_mille: Callable[[int], int]
) -> Experiment:
    def sign(receipt: Receipt) -> Receipt:
        statements = [
            StageStatement(
                job_nonce=receipt.job_nonce,
                segment=0,
                stage_idx=idx,
                num_stages=NUM_STAGES,
                layer_start=idx,
                layer_end=idx + 1,
                model_digest="0" * 64,
                frames=FRAMES,
                positions=3 * FRAMES,
                in_root="1" * 64,
                out_root="2" * 64,
                hash_ns=1000 * per_mille(idx),
                compute_ns=1_000_000,
                answers=None,
            )
            for idx in range(NUM_STAGES)
        ]
        signed = [sign_statement(statement, identity) for statement in statements]
        return msgspec.structs.replace(receipt, attestations=signed)

    for arm in ("ar-attest", "chain-attest"):
        experiment = changed(experiment, arm, sign)
    return experiment


def test_a_row_a_stage_and_attested_job(attested: Experiment) -> None:
    rows = statement_rows(attested)
    assert len(rows) == 2 * 2 * 4 * NUM_STAGES  # arms, cells, reps
    assert set(rows["arm"]) == {"ar-attest", "chain-attest"}


def test_a_jobs_share_is_of_its_sums(attested: Experiment) -> None:
    """Catches a mean of ratios, and jobs that are mixed."""
    found = shares(statement_rows(attested))
    assert len(found) == 16
    assert found.tolist() == pytest.approx([100 * (1 + 2 + 3 + 4) / 4000] * 16)


def test_the_table_is_by_arm_and_stage(attested: Experiment) -> None:
    table = attest_table(attested).rows.set_index(["arm", "stage"])
    for stage_idx in range(NUM_STAGES):
        row = table.loc["chain-attest", stage_idx]
        assert row["share"] == pytest.approx((stage_idx + 1) / 10)
        assert row["jobs"] == 8 and row["frames"] == 8 * FRAMES
        assert row["us_per_frame"] == pytest.approx((stage_idx + 1) / FRAMES)


def test_the_claim_is_of_every_job(
    bare: Experiment, attested: Experiment, attest_invented: Invented
) -> None:
    """Catches a median that hides one dear job, and a claim without a measurement."""
    assert outcome_of(attested)["H3"] == HOLDS
    assert measured_of(attested)["H3"] == "0.250 % [0.250–0.250] in 16 jobs"
    dear = signing(bare, attest_invented.identity, lambda stage_idx: 5)
    assert outcome_of(dear)["H3"] == FAILS
    assert outcome_of(bare)["H3"] == NOT_EVALUATED


def test_attested_jobs_are_as_fast_as_their_twins(attested: Experiment) -> None:
    found = outcome_of(attested)
    assert found["H1"] == found["H2"] == HOLDS
