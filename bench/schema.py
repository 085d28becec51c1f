"""The schema of receipts, plans, studies and signatures.

Guarantees: strict structs (unknown or missing keys are errors) of integers below 2**53, strings,
booleans, nulls, lists and objects; no derived statistic; units in the names. They read every
version: fields that default to `UNSET` came after version 1 (`bench.schema_versions`).
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from bench.schema_levers import JobConfig
from bench.schema_levers import SamplingRow as SamplingRow
from bench.schema_links import Count, Decimal, Digest, Hex, LinkRow, LinkTest, Record

ReceiptSchema = Literal[
    "longhaul-receipt/1",
    "longhaul-receipt/2",
    "longhaul-receipt/3",
    "longhaul-receipt/4",
    "longhaul-receipt/5",
    "longhaul-receipt/6",
    "longhaul-receipt/7",
]
PlanSchema = Literal[
    "longhaul-plan/1",
    "longhaul-plan/2",
    "longhaul-plan/3",
    "longhaul-plan/4",
    "longhaul-plan/5",
    "longhaul-plan/6",
    "longhaul-plan/7",
]
RECEIPT_SCHEMA: ReceiptSchema = "longhaul-receipt/7"  # what is written now
PLAN_SCHEMA: PlanSchema = "longhaul-plan/7"
STUDY_SCHEMA: Literal["longhaul-study/1"] = "longhaul-study/1"

LINK_MISMATCH = "link_mismatch"  # failure of a job that decoded well on links not the profile's
Outcome = Literal["prefill", "applied", "refuted", "closed", "stale"]
FinishReason = Literal["eos", "length", "stop", "none"]
Verdict = Literal["reference", "identical", "different", "not_compared"]


class StageSpan(Record, frozen=True, kw_only=True):
    """What one stage spent on one frame; durations on that stage's clock."""

    queue_ns: Count  # from read off the socket to the start of compute
    compute_ns: Count  # embed, layers, head
    span_ns: Count  # from read off the socket to handed to the next link


class FrameRow(Record, frozen=True, kw_only=True):
    """One frame of one job (DESIGN section 5). Times are ns since job start, coordinator clock."""

    epoch: Count
    start: Count  # first position in the frame
    positions_len: Count  # positions in the frame
    sent_len: Count  # drafts in the frame as sent
    draft_len: Count  # k: sent drafts at or before the last output position
    accepted_len: Count  # a
    tested_len: Count
    committed_len: Count  # tokens that this frame's reply appended
    outcome: Outcome
    source: Literal["none", "ngram", "filler", "eagle", "tree", "oracle", "prefill"]
    match_len: Count  # suffix length that the n-gram drafter matched; 0: none
    in_flight: Count  # frames of the epoch in flight when it was sent, itself included
    sent_ns: Count
    received_ns: Count | None  # None: no reply was seen
    sent_bytes: Count  # header and payload of the frame the coordinator sent
    received_bytes: Count  # of the reply
    spans: list[StageSpan]  # by stage; empty if no reply was seen
    frontier: Count | UnsetType = UNSET  # committed tokens, prompt included, when it was sent
    draft_ns: Count | UnsetType = UNSET  # drafting and planning it before it was sent
    parents: list[int] | UnsetType = UNSET  # of a tree's nodes, its last rows; -1: the root
    node_ids: list[Count] | UnsetType = UNSET  # their tokens


class RingConfig(Record, frozen=True, kw_only=True):
    """Every ring lever, fixed at bring-up."""

    num_stages: Count
    layer_plan: list[tuple[Count, Count]]
    threads_per_stage: Count
    profile: str
    profile_digest: Digest
    suite: str  # that seals the frames; "plain" seals none
    kernel: str  # the row-invariant products in use, and since version 3 the attention
    max_kv_size: Count | UnsetType = UNSET  # keys a query may see; 0: all
    links: Literal["relay", "netns"] | UnsetType = UNSET  # how they are emulated
    signers: list[Hex] | UnsetType = UNSET  # key ids of the stages, ring order; none: none signs


class StageObserved(Record, frozen=True, kw_only=True):
    """What a stage said in its `reset_ack`."""

    stage_idx: Count
    layer_start: Count
    layer_end: Count
    levers_digest: Digest  # of the levers it applied
    model_digest: Digest
    source_digest: Digest
    kernel: str
    num_threads: Count
    max_kv_size: Count | UnsetType = UNSET


class Build(Record, frozen=True, kw_only=True):
    """What ran. The source digest binds; the commit informs."""

    commit: str | None
    dirty: bool | None
    source_digest: Digest
    engine_digest: Digest  # of the engine alone, which every stage reports too
    environment_digest: Digest


class ModelFacts(Record, frozen=True, kw_only=True):
    name: str
    model_digest: Digest
    tokenizer_digest: Digest
    drafter_digest: Digest | None  # None: the drafter has no weights
    num_layers: Count


class _Place(Record, frozen=True, kw_only=True):
    job_idx: Count
    rep: Count
    cell: str
    block_idx: Count
    order_idx: Count
    role: Literal["reference", "measured", "warmup"]


class PlanPosition(_Place, frozen=True, kw_only=True):
    """Where in the plan this job stands."""

    experiment: str
    plan_digest: Digest


class Timing(Record, frozen=True, kw_only=True):
    """End points of every interval a speed is made of; ns since job start (monotonic)."""

    wall_start: str  # RFC 3339
    prefill_sent_ns: Count | None
    first_commit_ns: Count | None  # the prefill's token
    last_commit_ns: Count | None
    end_ns: Count  # nothing pending anywhere
    draft_ns: Count  # drafting (since version 3: and planning) while a frame could have been sent
    prepare_ns: Count | UnsetType = UNSET  # drafting ahead while nothing had come


class Lossless(Record, frozen=True, kw_only=True):
    verdict: Verdict
    reference_id: str | None  # receipt id of the block's reference job
    first_difference: Count | None  # output index


class Failure(Record, frozen=True, kw_only=True):
    code: str
    detail: str
    stage_idx: Count | None


class HopRow(Record, frozen=True, kw_only=True):
    """What one process put on the wire in one job: verify frames; the last stage's are replies."""

    sender: str  # "coordinator", "stage-0", …
    frames: Count
    bytes: Count  # header and tag included
    codec_ns: Count | UnsetType = UNSET  # packing and unpacking messages, on its ring links
    seal_ns: Count | UnsetType = UNSET  # sealing and opening frames, on its ring links
    noops: Count | UnsetType = UNSET  # sent to keep its link onward warm; no frames


class Counters(Record, frozen=True, kw_only=True):
    stale_replies: Count  # replies of an older epoch, dropped by the coordinator
    stale_dropped: Count  # verify frames that stages dropped uncomputed
    stale_computed: Count  # stale verify frames that stages computed
    uncorrelated: Count  # messages that matched nothing, dropped by the coordinator
    discarded_len: Count  # drafts lost to flushes
    frames_on_wire: Count  # verify and reply frames written by all processes, prefill included
    bytes_on_wire: Count | UnsetType = UNSET  # of those frames
    hops: list[HopRow] | UnsetType = UNSET  # the same, by sender
    stages_uncorrelated: Count | UnsetType = UNSET  # messages that stages dropped as unentitled


class AttestedRow(Record, frozen=True, kw_only=True):
    """The coordinator's own account of an attested job, over the frames it applied."""

    segment: Count  # 0, or how often the job was resumed before
    first_root: Digest  # of the frames that it sent to the first stage
    last_root: Digest  # of the replies that it received from the last


class Receipt(Record, frozen=True, kw_only=True):
    """The record of one job of the harness."""

    schema: ReceiptSchema = RECEIPT_SCHEMA
    status: Literal["ok", "failed"]
    failure: Failure | None
    position: PlanPosition
    job_nonce: Hex
    seed: Hex
    build: Build
    model: ModelFacts
    requested: JobConfig
    observed: JobConfig | None  # as the coordinator ran it
    stages: list[StageObserved]
    ring: RingConfig
    links: list[LinkRow]
    link_test: LinkTest | UnsetType | None = UNSET  # None: no relay stands on the links
    host: dict[str, str | int | None]
    timing: Timing
    prompt_digest: Digest
    prompt_ids: list[Count]
    output_ids: list[Count]
    finish_reason: FinishReason
    lossless: Lossless
    counters: Counters
    frames: list[FrameRow]
    attestations: list[str]  # verbatim signed statements, ring order
    attested: AttestedRow | UnsetType | None = UNSET  # None: not asked for, or the job failed first
    degraded: str | UnsetType | None = (
        UNSET  # why the drafter fell back to n-grams; None: it did not
    )

    @property
    def text_stands(self) -> bool:
        """Whether it decoded to its end, with nothing against its ids: links change no text."""
        is_mismatch = self.failure is not None and self.failure.code == LINK_MISMATCH
        return self.status == "ok" or is_mismatch


class PlannedJobRow(_Place, frozen=True, kw_only=True):
    arm: str
    max_new_tokens: Count


class CellRow(Record, frozen=True, kw_only=True):
    name: str
    kind: Literal["draftable", "novel"]
    max_new_tokens: Count
    prompt_digest: Digest
    group: str | UnsetType = UNSET  # what cells of one kind share in the tables; else its name


class Plan(Record, frozen=True, kw_only=True):
    """What was promised before the first job."""

    schema: PlanSchema = PLAN_SCHEMA
    experiment: str
    created: str  # RFC 3339
    seed: Hex
    base_arm: str  # "": nothing is timed
    null_pairs: dict[str, str]  # null arm -> arm it repeats
    arms: dict[str, JobConfig]
    cells: list[CellRow]
    reps: Count
    ring: RingConfig  # the run's default
    build: Build
    model: ModelFacts
    hypotheses: list[str]
    alpha: Decimal
    exclusions: list[str]
    jobs: list[PlannedJobRow]
    arm_rings: dict[str, RingConfig] | UnsetType = UNSET  # of the arms that leave the default ring
    stopping: str | UnsetType = UNSET  # when the run ends, and who may look before

    def ring_of(self, arm: str) -> RingConfig:
        """The ring that an arm's jobs run on."""
        return self.ring if self.arm_rings is UNSET else self.arm_rings.get(arm, self.ring)


class Study(Record, frozen=True, kw_only=True):
    """Measurements that are not jobs, as they were read: no mean, no ratio."""

    schema: Literal["longhaul-study/1"] = STUDY_SCHEMA
    study: Annotated[str, msgspec.Meta(pattern="^[a-z0-9][a-z0-9-]*$")]
    created: str  # RFC 3339
    build: Build
    host: dict[str, str | int | None]
    settings: dict[str, str | int]
    rows: list[dict[str, str | int]]


class Signature(Record, frozen=True, kw_only=True):
    """The detached signature `<name>.sig.json` beside `<name>.json`."""

    schema: Literal["longhaul-signature/1"] = "longhaul-signature/1"
    key_id: Hex
    type: str  # schema of the signed document
    sha256: Digest  # of the exact bytes
    signature: str  # base64, Ed25519 over type and exact bytes
