"""The planner's prior: what the fit finds in made-up texts, and that the shipped one is its own."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from bench.prior import SOURCE, DraftedToken, fit, fit_folders, prior_json
from engine.coordinator.survival import KINDS, MATCH_EDGES, PRIOR_PATH, SHIFTS
from engine.errors import ReceiptError
from engine.trust.identity import load_public_keys

ROOT = Path(__file__).resolve().parents[2]
KEYS = load_public_keys(ROOT / "receipts" / "keys")


def made_text(rng: random.Random, chance: float, num_tokens: int = 120) -> list[DraftedToken]:
    return [DraftedToken("later", 9, rng.random() < chance) for _ in range(num_tokens)]


def test_chances_are_counted_by_bucket() -> None:
    """Catches counts that land beside their bucket."""
    rng = random.Random(1)
    fitted = fit([made_text(rng, 0.9) for _ in range(20)])
    assert sum(fitted.tested) == fitted.tested[9] == 2400
    assert fitted.accepted[9] / 2400 == pytest.approx(0.9, abs=0.02)
    assert len(fitted.tested) == len(MATCH_EDGES)


def test_alike_texts_have_no_shift_and_unlike_ones_have_two() -> None:
    """Catches weights that do not follow the texts: the heavy tail of a copy hangs on them."""
    rng = random.Random(2)
    alike = np.array(fit([made_text(rng, 0.8) for _ in range(60)]).weights["later"])
    assert alike @ np.abs(SHIFTS) < 0.2
    halves = [made_text(rng, chance) for chance in (0.5, 0.97) for _ in range(30)]
    unlike = np.array(fit(halves).weights["later"])
    assert unlike[SHIFTS > 0.5].sum() == pytest.approx(0.5, abs=0.1)
    assert unlike[SHIFTS < -0.5].sum() == pytest.approx(0.5, abs=0.1)
    assert unlike.sum() == pytest.approx(1.0)


def test_rounded_weights_still_sum_to_one() -> None:
    """Catches a file whose weights lose a part to rounding."""
    rng = random.Random(3)
    fitted = fit([made_text(rng, rng.random()) for _ in range(31)])
    text = prior_json({SOURCE: fitted}, ["b", "a"])
    assert text == prior_json({SOURCE: fitted}, ["a", "b"])
    for kind in KINDS:
        assert sum(json.loads(text)["sources"][SOURCE]["weights"][kind]) == pytest.approx(1.0)


def test_the_shipped_prior_is_what_the_committed_receipts_give() -> None:
    """Catches a prior that was edited, or fitted on anything else."""
    assert fit_folders([ROOT / "receipts" / "acceptance"], KEYS) == PRIOR_PATH.read_text()


def test_a_folder_without_an_experiment_is_named(tmp_path: Path) -> None:
    """Catches a fit on nothing."""
    with pytest.raises(ReceiptError, match=str(tmp_path)):
        fit_folders([tmp_path], KEYS)
