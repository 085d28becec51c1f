"""The forms of the public receipts: what of their records is used, each field with its range.

Guarantees: a record that decodes has every field that the audit reads, of the right type and within
its range; fields that it does not read may be there. Must never know files or verdicts.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from analysis.public.quotes import QUOTES

MAX_DRAFT_LEN = int(QUOTES["draft_len"].high)  # K: no round accepts more
LOCATED_STAGE = re.compile(r"(?P<country>[A-Z][A-Za-z ]*)\[(?P<start>\d+):(?P<end>\d+)\)")
HOP = " -> "
WHOLE = "decode_weighted_mean"  # stands among the cells of the tree trial
TREE_ARMS = ("chain", "tree_eagle_only", "tree_hybrid")

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
PositiveCount = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(min_length=1)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
# A list: msgspec 0.23 crashes on a fixed tuple in a union with a number that has a range.
Pair = Annotated[list[Positive], Meta(min_length=2, max_length=2)]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job of the paper's bench.

    `tok_s` is new tokens, the prompt pass's among them, over decode time; `accept` is accepted
    drafts a round, `g` committed tokens a round; `wasted` counts replies that were discarded;
    `traversal_s` sums frames from sending to reply, `stage_s` what stages spent of it;
    `per_stage_ms` has means over frames of span and compute, by stage.
    """

    arm: Literal["ar", "chain", "hybrid"]
    cell: Name
    rep: PositiveCount
    prompt_tokens: PositiveCount
    new_tokens: Annotated[int, Meta(ge=2)]
    tok_s: Positive
    g: Positive
    accept: Annotated[float, Meta(ge=0, le=MAX_DRAFT_LEN)]
    rounds: PositiveCount
    wasted: Count
    prefill_s: Positive
    decode_s: Positive
    traversal_s: Positive
    transport_s: NotNegative
    stage_s: Positive
    per_stage_ms: Annotated[dict[str, tuple[Positive, Positive]], Meta(min_length=1)]
    receipts_ok: bool | None

    @property
    def frames(self) -> int:
        """Frames that came back: those of rounds, and the discarded ones."""
        return self.rounds + self.wasted

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages that timed it."""
        return tuple(sorted(self.per_stage_ms))


class StageReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What one stage signed; only the fields that the audit counts."""

    layer_start: Count
    layer_end: PositiveCount
    nonce: Name
    schema: Literal["shard-receipt/1"]
    n_chunks: PositiveCount
    in_root: Digest
    out_root: Digest
    pubkey: Name


class RealRing(msgspec.Struct, frozen=True, kw_only=True):
    """The signed receipts of one job's stages."""

    receipts: Annotated[tuple[StageReceipt, ...], Meta(min_length=1)]


class TreeTrial(msgspec.Struct, frozen=True, kw_only=True):
    """Trees against chains on one ring, cell by cell; the jobs themselves are not in the file."""

    results_tok_s_and_g: dict[str, dict[str, Pair | Positive]]

    def __post_init__(self) -> None:
        for name, arms in self.results_tok_s_and_g.items():
            missing = [arm for arm in TREE_ARMS if arm not in arms]
            if missing:
                raise ValueError(f"results_tok_s_and_g: {name} has no {', '.join(missing)}")
            for arm in TREE_ARMS:
                if isinstance(arms[arm], list) == (name == WHOLE):
                    form = "a number" if name == WHOLE else "a pair of tok/s and g"
                    raise ValueError(f"results_tok_s_and_g: {name}, {arm}: {form} is needed")
        if WHOLE not in self.results_tok_s_and_g or len(self.results_tok_s_and_g) == 1:
            raise ValueError(f"results_tok_s_and_g: cells and {WHOLE} are needed")

    @property
    def cells(self) -> dict[str, dict[str, float]]:
        """tok/s by cell and arm."""
        return {
            cell: {arm: pair[0] for arm, pair in arms.items() if isinstance(pair, list)}
            for cell, arms in self.results_tok_s_and_g.items()
            if cell != WHOLE
        }

    @property
    def means(self) -> dict[str, float]:
        """The file's own decode-weighted tok/s by arm."""
        whole = self.results_tok_s_and_g[WHOLE]
        return {arm: mean for arm, mean in whole.items() if not isinstance(mean, list)}


class MatrixRing(msgspec.Struct, frozen=True, kw_only=True):
    """The ring of the matrix: `country[layers) -> country[layers) …`."""

    topology: str

    def __post_init__(self) -> None:
        for stage in self.topology.split(HOP):
            if LOCATED_STAGE.fullmatch(stage) is None:
                raise ValueError(f"topology: {stage!r} is not of the form Country[start:end)")

    @property
    def places(self) -> list[tuple[str, int, int]]:
        """Country and layers of each stage."""
        found = map(LOCATED_STAGE.fullmatch, self.topology.split(HOP))
        return [(at["country"], int(at["start"]), int(at["end"])) for at in found if at]


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """The fastest prompt of the matrix's ring."""

    median_tok_s: Positive
    reps: Annotated[tuple[Positive, ...], Meta(min_length=2)]  # the first one cold


class MatrixRow(msgspec.Struct, frozen=True, kw_only=True):
    """A workload at a context length."""

    workload: Name
    ctx_tokens: Count
    dspark_best_tok_s: Positive
    dspark_median_tok_s: Positive
    dspark_reps: PositiveCount
    greedy_tok_s: Positive
    speedup_vs_greedy: Positive
    lossless_vs_greedy: bool
    receipts_ok: bool


class Integrity(msgspec.Struct, frozen=True, kw_only=True):
    """What the matrix says of its jobs."""

    dspark_cells: Count
    lossless_cells: Count
    receipts_verified: Count
    total_jobs: Count


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """Speculation against greedy decoding, by workload and context length."""

    ring: MatrixRing
    headline: Headline
    control_by_rep: Annotated[dict[str, Positive], Meta(min_length=1)]
    matrix: Annotated[tuple[MatrixRow, ...], Meta(min_length=1)]
    integrity: Integrity
