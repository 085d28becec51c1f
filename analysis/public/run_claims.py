"""Claims of the other public files, and those that no file of them can decide.

Guarantees: what a file only sums up is said to be a summary; what rests on a run that is not among
the files is not testable, with what would decide it. Must never know files.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import harmonic_mean, median

from analysis.public.claim import NOT_TESTABLE, Claim, ClaimMaker, Finding, judged
from analysis.public.files import (
    MATRIX,
    PAPER_ON,
    REAL_RING,
    TREE_TRIAL,
    PublicReceipts,
)
from analysis.public.quotes import QUOTES

CHAIN_ARM, TREE_ARM = "chain", "tree_hybrid"  # as the tree trial calls them
RATIO_ROUNDING = 0.01  # ratios of the matrix are printed to two decimals, from rounded speeds
VERIFY = "python -m engine verify --format shard-receipt/1 --num-layers"


def stage_receipts(public: PublicReceipts) -> Claim:
    """Supported if the receipts tile all layers, chain, share a nonce and have signers of their
    own."""
    found, quote = Finding("stage_receipts", public, (REAL_RING,)), QUOTES["layers"]
    stages = sorted(public.real_ring.receipts, key=lambda receipt: receipt.layer_start)
    pairs = list(pairwise(stages))
    tiled = [left.layer_end == right.layer_start for left, right in pairs]
    chained = [left.out_root == right.in_root for left, right in pairs]
    signers, nonces = ({getattr(one, name) for one in stages} for name in ("pubkey", "nonce"))
    num = found.count("stages", len(stages), "receipts", "stage receipts in the file")
    layers = found.count("layers", stages[-1].layer_end, "layers", "end of the last stage")
    links = found.count("chained", sum(chained), "links", "out_root equals the next in_root")
    of = found.count("links", len(pairs), "links", "pairs of neighbouring stages")
    keys = found.count("signers", len(signers), "keys", "distinct public keys")
    fresh = found.count("nonces", len(nonces), "nonces", "distinct nonces of the job")
    holds = (
        stages[0].layer_start == 0
        and stages[-1].layer_end == int(quote.low)
        and all(tiled)
        and all(chained)
        and len(signers) == len(stages)
        and len(nonces) == 1
    )
    return found.claim(
        f"On a later ring the stages' receipts of a job cover all {quote} layers, are bound to the "
        "job and chain.",
        f"{num} receipts end at layer {layers}, {links} of {of} roots chain, {keys} keys, "
        f"{fresh} nonce. Signatures: {VERIFY} {quote} FILE.",
        judged(holds),
    )


def tree_by_cell(public: PublicReceipts) -> Claim:
    """Supported if every quoted cell gains as much as quoted."""
    found = Finding("tree_gain", public, (TREE_TRIAL,))
    gains = {
        cell: 100.0 * (arms[TREE_ARM] / arms[CHAIN_ARM] - 1.0)
        for cell, arms in public.tree_trial.cells.items()
    }
    quoted = {cell: QUOTES[f"tree_gain.{cell}"] for cell in gains if f"tree_gain.{cell}" in QUOTES}
    words = [
        f"{cell} {found.say(cell, gain, 0, '%', 'tok/s of the hybrid tree / chain − 1')} %"
        for cell, gain in gains.items()
    ]
    return found.claim(
        "Trees gain "
        + ", ".join(f"{quote} % on {cell}" for cell, quote in quoted.items())
        + " over chains.",
        f"From the summary's own speeds: {', '.join(words)}. The jobs are not in the file.",
        judged(all(quote.holds(gains[cell]) for cell, quote in quoted.items())),
    )


def tree_over_all(public: PublicReceipts) -> Claim:
    """Weights of the mean are not in the file; what equal weights give stands beside it."""
    found, quote = Finding("tree_mean", public, (TREE_TRIAL,)), QUOTES["tree_gain.all"]
    means, cells = public.tree_trial.means, public.tree_trial.cells.values()
    printed = 100.0 * (means[TREE_ARM] / means[CHAIN_ARM] - 1.0)
    equal = [harmonic_mean([arms[arm] for arms in cells]) for arm in (TREE_ARM, CHAIN_ARM)]
    gain = found.say("printed", printed, 0, "%", "ratio of the summary's two means − 1")
    form = "ratio of harmonic means over cells − 1: as many tokens on every cell"
    even = found.say("equal", 100.0 * (equal[0] / equal[1] - 1.0), 0, "%", form)
    return found.claim(
        f"Over all cells, weighted by decoding, trees gain {quote} %.",
        f"The summary's two means give {gain} %, as many tokens on every cell would give {even} %; "
        "tokens and times of the jobs are not in the file.",
        NOT_TESTABLE,
    )


def matrix_headline(public: PublicReceipts) -> Claim:
    """Supported if the printed median is that of the warm repetitions, at its own rounding."""
    found, headline = Finding("matrix.headline", public, (MATRIX,)), public.matrix.headline
    unit = "tokens/s"
    warm = median(headline.reps[1:])
    printed = found.say("printed", headline.median_tok_s, 2, unit, "median_tok_s of the file")
    value = found.say("warm", warm, 2, unit, "median of reps, the first one (cold) left out")
    every = found.say("all", median(headline.reps), 2, unit, "median of all reps")
    return found.claim(
        f"The later engine's median over warm repetitions is {printed} tok/s.",
        f"The warm ones give {value}, all of them, the cold one too, {every}; one prompt.",
        judged(round(warm, 2) == round(headline.median_tok_s, 2)),
    )


def matrix_speedup(public: PublicReceipts) -> Claim:
    """Supported if ratios of medians span the same range at one decimal."""
    found, quote = Finding("matrix.speedup", public, (MATRIX,)), QUOTES["matrix.speedup"]
    rows = public.matrix.matrix
    typical = [row.dspark_median_tok_s / row.greedy_tok_s for row in rows]
    best = [
        abs(row.dspark_best_tok_s / row.greedy_tok_s - row.speedup_vs_greedy) <= RATIO_ROUNDING
        for row in rows
    ]
    low = found.say("low", min(typical), 2, "ratio", "median / greedy tok/s, least row")
    high = found.say("high", max(typical), 2, "ratio", "median / greedy tok/s, greatest row")
    of_best = found.count("best", sum(best), "rows", "printed ratio = best repetition / greedy")
    of = found.count("rows", len(rows), "rows", "workloads × context lengths")
    return found.claim(
        f"The later engine's speculation is {quote} times as fast as greedy decoding.",
        f"The printed ratio is the best repetition's in {of_best} of {of} rows, each over a single "
        f"greedy job; medians give {low} to {high}.",
        judged((round(min(typical), 1), round(max(typical), 1)) == (quote.low, quote.high)),
    )


def matrix_lossless(public: PublicReceipts) -> Claim:
    """Supported if all rows are flagged and the rows' repetitions make the number of jobs."""
    found, matrix = Finding("matrix.lossless", public, (MATRIX,)), public.matrix
    integrity, rows = matrix.integrity, matrix.matrix
    jobs = sum(row.dspark_reps for row in rows) + len(matrix.control_by_rep)
    flagged = sum(row.lossless_vs_greedy and row.receipts_ok for row in rows)
    said = found.count("said", integrity.lossless_cells, "jobs", "lossless_cells of the file")
    made = found.count("jobs", jobs, "jobs", "repetitions of all rows and of the control")
    flags = found.count("flagged", flagged, "rows", "flagged lossless and receipts verified")
    of = found.count("rows", len(rows), "rows", "rows of the file")
    return found.claim(
        f"All {said} jobs of the later engine's matrix wrote what greedy decoding writes.",
        f"{flags} of {of} rows carry the flags, and their repetitions with the control's make "
        f"{made}. Flags only: the file holds no ids and no receipt.",
        judged(flagged == len(rows) and jobs == integrity.lossless_cells == integrity.dspark_cells),
    )


def matrix_ring(public: PublicReceipts) -> Claim:
    """Supported if the topology names that many countries and tiles all layers."""
    found, quote = Finding("matrix.ring", public, (MATRIX,)), QUOTES["matrix.countries"]
    places = public.matrix.ring.places
    tiled = all(left[2] == right[1] for left, right in pairwise(places))
    countries = len({country for country, _, _ in places})
    num = found.count("countries", countries, "countries", "distinct countries of the topology")
    layers = found.count("layers", places[-1][2], "layers", "end of the last stage")
    stages = found.count("stages", len(places), "stages", "stages of the topology")
    last = int(QUOTES["matrix.layers"].low)
    return found.claim(
        f"The later ring has all {last} layers in {quote} countries.",
        f"The topology names {stages} stages in {num} countries, up to layer {layers}.",
        judged(
            tiled
            and places[0][1] == 0
            and places[-1][2] == last
            and countries == int(quote.low)
        ),
    )  # fmt: skip


def ring_countries(public: PublicReceipts) -> Claim:
    """Records of the paper's bench name no place."""
    found = Finding("countries", public, (PAPER_ON,))
    stages = found.count("stages", len(public.on[0].stages), "stages", "stages that timed a job")
    return found.claim(
        f"The paper's ring spans {QUOTES['countries']} countries.",
        f"Its records number {stages} stages and name no place. The paper itself says "
        f"{QUOTES['countries_elsewhere']} elsewhere.",
        NOT_TESTABLE,
    )


def _untested(key: str, claim: str, needed: str) -> ClaimMaker:
    def made(public: PublicReceipts) -> Claim:
        return Finding(key, public, ()).claim(claim, needed, NOT_TESTABLE)

    return made


UNTESTED: tuple[ClaimMaker, ...] = (
    _untested(
        "batched",
        f"Four streams together write {QUOTES['batched']} tok/s, on contexts up to about "
        f"{QUOTES['batched_context']} thousand tokens.",
        "No batched job is among these files; the run behind it is a text, which is outside them.",
    ),
    _untested(
        "batched_receipts",
        "The batched speeds were measured with receipts on.",
        "No batched job is among these files, nor the code that ran it.",
    ),
    _untested(
        "kill",
        f"The coordinator was killed {QUOTES['kill_s']} s into the run, with "
        f"{QUOTES['chunks_at_kill']} chunks in flight, and the next one used the warm ring.",
        "The log of that run is a text outside these files.",
    ),
    _untested(
        "binding",
        "In the headline runs receipts prove who did which work, fresh and in a chain.",
        "Their records hold a flag and no receipt.",
    ),
)
