"""Test only: a small signed experiment whose frame rows are true.

Every job is played by the engine's round machine against a made-up target, so that rows, counts
and outputs fit together as a real run's do. Only times, bytes and links are invented. `ar` runs on
a ring of its own, of one stage and another suite.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import shutil
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec

from bench.receipt import receipt_id, write_signed
from bench.schema import (
    Build,
    CellRow,
    Counters,
    Failure,
    FrameRow,
    HopRow,
    JobConfig,
    LinkRow,
    Lossless,
    ModelFacts,
    Plan,
    PlannedJobRow,
    PlanPosition,
    Receipt,
    RingConfig,
    StageObserved,
    Timing,
)
from bench.schema_levers import SamplingRow
from engine.coordinator.policies import make_policy
from engine.coordinator.records import Arrival, FrameRecord, RequestDraft, RoundLimits, SendFrame
from engine.coordinator.rounds import RoundMachine
from engine.draft.drafter import NO_DRAFT, Draft
from engine.trust.identity import Identity

EOS = 2
LOOP_NS = 1_000_000
MAX_NEW_TOKENS = {"copy": 24, "talk": 20}
OUTPUT_LEN = {"copy": 24, "talk": 17}  # the second ends with EOS
RIGHT_FRAC = {"copy": 0.9, "talk": 0.5}  # how often the drafter is right
ARMS = {"ar": (0, 1), "chain-k4": (4, 3), "null": (4, 3)}  # name -> (k, depth)
NUM_REPS = 2
TEXT_SEED = 561  # chosen so that every outcome occurs
LAYER_PLAN = [(0, 5), (5, 9)]
NUM_LAYERS = 9
REPLY_BYTES = 50
HIDDEN_BYTES = 900


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def job_config(arm: str, max_new_tokens: int) -> JobConfig:
    draft_len, depth = ARMS[arm]
    return JobConfig(
        arm=arm,
        policy="fixed-k",
        policy_params={},
        draft_len=draft_len,
        depth=depth,
        drafter="ngram" if draft_len else "none",
        min_match_len=3,
        prefill_chunk=8,
        max_new_tokens=max_new_tokens,
        numeric_config="f32",
        attestation=False,
        keepwarm_ms=0,
        drafter_params={},
        tap_layers=[],
        tap_wire="fp8",
        reply="ids",
        sampling=SamplingRow(temperature="0", top_k=0, top_p="1", seed="00"),
    )


RING = RingConfig(
    num_stages=len(LAYER_PLAN),
    layer_plan=LAYER_PLAN,
    threads_per_stage=1,
    profile="loopback",
    profile_digest=digest_of("profile"),
    suite="chacha20-poly1305",
    kernel="invented",
    max_kv_size=0,
    links="relay",
    signers=[],
)
AR_RING = msgspec.structs.replace(
    RING, num_stages=1, layer_plan=[(0, NUM_LAYERS)], suite="aes-256-gcm"
)


def planned_jobs() -> list[PlannedJobRow]:
    """Each block a reference, then every arm; every second rep is reversed."""
    rows: list[PlannedJobRow] = []
    for rep in range(NUM_REPS):
        for cell_idx, cell in enumerate(MAX_NEW_TOKENS):
            arms = list(ARMS)[:: -1 if rep % 2 else 1]
            for order_idx, arm in enumerate(["ar", *arms]):
                rows.append(
                    PlannedJobRow(
                        job_idx=len(rows),
                        rep=rep,
                        cell=cell,
                        block_idx=rep * len(MAX_NEW_TOKENS) + cell_idx,
                        order_idx=order_idx,
                        arm=arm,
                        role="measured" if order_idx else "reference",
                        max_new_tokens=MAX_NEW_TOKENS[cell],
                    )
                )
    return rows


def make_plan(commit: str = "0" * 40) -> Plan:
    return Plan(
        experiment="invented",
        created="2026-01-01T00:00:00Z",
        seed="01",
        base_arm="chain-k4",
        null_pairs={"null": "chain-k4"},
        arms={arm: job_config(arm, max(MAX_NEW_TOKENS.values())) for arm in ARMS},
        cells=[
            CellRow(
                name=name,
                kind="novel",
                max_new_tokens=budget,
                prompt_digest=digest_of(name),
                group=name,
            )
            for name, budget in MAX_NEW_TOKENS.items()
        ],
        reps=NUM_REPS,
        ring=RING,
        build=Build(
            commit=commit,
            dirty=False,
            source_digest=digest_of("source"),
            engine_digest=digest_of("engine"),
            environment_digest=digest_of("environment"),
        ),
        model=ModelFacts(
            name="invented",
            model_digest=digest_of("model"),
            tokenizer_digest=digest_of("tokenizer"),
            drafter_digest=None,
            num_layers=NUM_LAYERS,
        ),
        hypotheses=["none: invented"],
        alpha="0.05",
        exclusions=[],
        jobs=planned_jobs(),
        arm_rings={"ar": AR_RING},
        stopping="All planned jobs.",
    )


class MadeUpTarget:
    """A text per cell, and a drafter that is right or wrong by position."""

    def __init__(self, cell: str) -> None:
        rng = random.Random(f"{TEXT_SEED} {cell}")
        self.prompt = [rng.randrange(3, 500) for _ in range(19)]
        self.output = [rng.randrange(3, 500) for _ in range(OUTPUT_LEN[cell])]
        if OUTPUT_LEN[cell] < MAX_NEW_TOKENS[cell]:
            self.output[-1] = EOS
        self.right = [rng.random() < RIGHT_FRAC[cell] for _ in range(MAX_NEW_TOKENS[cell])]

    def token(self, position: int) -> int:
        idx = position - len(self.prompt)
        return self.output[idx] if idx < len(self.output) else 7

    def draft(self, position: int, max_len: int) -> Draft:
        span = range(position, position + max_len)
        right = [self.right[at - len(self.prompt)] for at in span]
        ids = [self.token(at) if ok else 501 for at, ok in zip(span, right, strict=True)]
        return Draft(tuple(ids), "ngram", 4) if ids else NO_DRAFT


def play(target: MadeUpTarget, config: JobConfig) -> tuple[RoundMachine, list[FrameRecord], int]:
    """Run one job to its end, stale replies included; returns the end time too."""
    limits = RoundLimits(
        max_new_tokens=config.max_new_tokens,
        eos_ids=frozenset({EOS}),
        depth=config.depth,
        prefill_chunk=config.prefill_chunk,
        prefill_depth=2,
        reply_timeout_ns=10**12,
        prefill_timeout_ns=10**12,
    )
    policy = make_policy(config.policy, config.draft_len, config.policy_params)
    machine = RoundMachine(target.prompt, limits, policy)
    wire: deque[tuple[int, SendFrame]] = deque()

    def carry_out(actions: list, now_ns: int) -> None:
        for action in actions:
            if isinstance(action, SendFrame):
                wire.append((now_ns + LOOP_NS, action))
            elif isinstance(action, RequestDraft):
                position = machine.frontier + len(action.speculative)
                draft = target.draft(position, action.max_len)
                now_ns += 1000
                carry_out(machine.on_draft(action.request_id, draft, now_ns), now_ns)

    carry_out(machine.start(1000), 1000)
    now_ns = 0
    while wire:
        due_ns, frame = wire.popleft()
        now_ns = max(now_ns + 1, due_ns)
        end = frame.start + len(frame.ids)
        ids = [target.token(at) for at in range(frame.answer_from + 1, end + 1)]
        carry_out(
            machine.on_reply(frame.epoch, frame.start, ids, Arrival(now_ns, REPLY_BYTES)), now_ns
        )
    return machine, machine.records(), now_ns


def frame_row(record: FrameRecord) -> FrameRow:
    columns = {name: getattr(record, name) for name in FrameRow.__struct_fields__}
    if record.outcome == "stale":
        columns["draft_len"] = 0  # DESIGN section 5: k, a and tested of a stale frame are 0
    sent_bytes = 40 + 4 * record.positions_len
    return FrameRow(
        **{**columns, "spans": [], "sent_bytes": sent_bytes, "parents": [], "node_ids": []}
    )


def observed_stages(plan: Plan, arm: str) -> list[StageObserved]:
    return [
        StageObserved(
            stage_idx=stage_idx,
            layer_start=start,
            layer_end=end,
            levers_digest=digest_of(arm),
            model_digest=plan.model.model_digest,
            source_digest=plan.build.engine_digest,
            kernel=plan.ring.kernel,
            num_threads=1,
            max_kv_size=0,
        )
        for stage_idx, (start, end) in enumerate(plan.ring_of(arm).layer_plan)
    ]


def measured_links(ring: RingConfig) -> list[LinkRow]:
    hosts = ["coordinator", *map(str, range(ring.num_stages)), "coordinator"]
    return [
        LinkRow(
            name=f"{source}->{sink}",
            one_way_ns=1000,
            jitter_ns=0,
            rate_bytes_per_s=0,
            rtt_ns=[2100, 2050],
            payload_bytes=70_000,
            payload_rtt_ns=[9100, 9050],
            idle_payload_rtt_ns=9900,
            jitter_distribution="none",
            queue_bytes=0,
            loss_ppm=0,
            reorder_ppm=0,
            congestion_control="",
            stall_ns=0,
            stall_every_ns=0,
        )
        for source, sink in pairwise(hosts)
    ]


def counters_of(machine: RoundMachine, rows: list[FrameRow], num_stages: int) -> Counters:
    """Every stage computed every frame here."""
    lost = [row for row in rows if row.outcome == "stale"]
    sizes = [HIDDEN_BYTES] * (num_stages - 1) + [REPLY_BYTES]
    sent_bytes = sum(row.sent_bytes for row in rows)
    hops = [
        HopRow(
            sender="coordinator", frames=len(rows), bytes=sent_bytes, codec_ns=5, seal_ns=7, noops=0
        )
    ]
    hops += [
        HopRow(
            sender=f"stage-{idx}",
            frames=len(rows),
            bytes=len(rows) * size,
            codec_ns=11,
            seal_ns=13,
            noops=0,
        )
        for idx, size in enumerate(sizes)
    ]
    return Counters(
        stale_replies=machine.flight.stale_replies,
        stale_dropped=0,
        stale_computed=len(lost) * num_stages,
        uncorrelated=0,
        discarded_len=sum(row.sent_len for row in lost),
        frames_on_wire=sum(hop.frames for hop in hops),
        bytes_on_wire=sum(hop.bytes for hop in hops),
        hops=hops,
        stages_uncorrelated=0,
    )


def timing_of(rows: list[FrameRow], end_ns: int) -> Timing:
    commits = [row.received_ns for row in rows if row.committed_len]
    return Timing(
        wall_start="2026-01-01T00:00:00Z",
        prefill_sent_ns=rows[0].sent_ns,
        first_commit_ns=commits[0],
        last_commit_ns=commits[-1],
        end_ns=end_ns,
        draft_ns=0,
        prepare_ns=0,
    )


def make_receipt(
    plan: Plan, plan_digest: str, row: PlannedJobRow, reference_id: str | None
) -> Receipt:
    target = MadeUpTarget(row.cell)
    config = job_config(row.arm, row.max_new_tokens)
    machine, records, end_ns = play(target, config)
    rows = [frame_row(record) for record in records]
    ring = plan.ring_of(row.arm)
    return Receipt(
        status="ok",
        failure=None,
        position=PlanPosition(
            experiment=plan.experiment,
            plan_digest=plan_digest,
            **{
                name: getattr(row, name)
                for name in ("job_idx", "rep", "cell", "block_idx", "order_idx", "role")
            },
        ),
        job_nonce=digest_of(f"nonce {row.job_idx}")[:32],
        seed="01",
        build=plan.build,
        model=plan.model,
        requested=config,
        observed=config,
        stages=observed_stages(plan, row.arm),
        ring=ring,
        links=measured_links(ring),
        link_test=None,
        attested=None,
        degraded=None,
        host={"invented": 1},
        timing=timing_of(rows, end_ns),
        prompt_digest=digest_of(row.cell),
        prompt_ids=target.prompt,
        output_ids=machine.output_ids,
        finish_reason=machine.finish_reason,
        lossless=Lossless(
            verdict="identical" if reference_id else "reference",
            reference_id=reference_id,
            first_difference=None,
        ),
        counters=counters_of(machine, rows, ring.num_stages),
        frames=rows,
        attestations=[],
    )


class SmallExperiment:
    """A folder on disk that tests may damage, with the key that signs it."""

    def __init__(self, folder: Path, identity: Identity, plan: Plan | None = None) -> None:
        self.folder = folder
        self.identity = identity
        self.plan = plan or make_plan()
        (folder / "receipts").mkdir(parents=True)
        self.plan_digest = write_signed(folder / "plan.json", self.plan, identity)
        reference_id = None
        for row in self.plan.jobs:
            is_reference = row.role == "reference"
            receipt = make_receipt(
                self.plan, self.plan_digest, row, None if is_reference else reference_id
            )
            write_signed(self.path(row.job_idx), receipt, identity)
            if is_reference:
                reference_id = self.receipt_id(row.job_idx)
        self.write_log()

    def copied(self, folder: Path) -> SmallExperiment:
        """The same experiment in another folder."""
        shutil.copytree(self.folder, folder)
        other = copy.copy(self)
        other.folder = folder
        return other

    def path(self, job_idx: int) -> Path:
        return self.folder / "receipts" / f"{job_idx:04d}.json"

    def receipt_id(self, job_idx: int) -> str:
        return receipt_id(self.path(job_idx).read_bytes())

    def load(self, job_idx: int) -> dict:
        """A receipt as plain objects, to be changed and signed again."""
        return msgspec.json.decode(self.path(job_idx).read_bytes())

    def edit(self, job_idx: int, change: Callable[[dict], object], relog: bool = True) -> None:
        """Change one receipt, sign it again and log it as it is now."""
        tree = self.load(job_idx)
        change(tree)
        write_signed(self.path(job_idx), msgspec.convert(tree, Receipt), self.identity)
        if relog:
            self.write_log()

    def fail(self, job_idx: int) -> None:
        """Make one job a failed one."""

        def change(tree: dict) -> None:
            tree["status"], tree["finish_reason"] = "failed", "none"
            tree["failure"] = msgspec.to_builtins(Failure(code="kv_gap", detail="x", stage_idx=1))
            tree["output_ids"], tree["frames"] = tree["output_ids"][:1], tree["frames"][:3]
            verdict = "reference" if tree["position"]["role"] == "reference" else "not_compared"
            tree["lossless"] = {
                "verdict": verdict,
                "reference_id": None,
                "first_difference": None,
            }

        self.edit(job_idx, change)

    def write_log(self) -> None:
        lines = [{"event": "plan", "plan_digest": self.plan_digest}]
        for path in sorted((self.folder / "receipts").glob("[0-9][0-9][0-9][0-9].json")):
            tree = msgspec.json.decode(path.read_bytes())
            lines.append(
                {
                    "event": "job",
                    "job_idx": int(path.stem),
                    "receipt_id": receipt_id(path.read_bytes()),
                    "status": tree["status"],
                }
            )
        text = "".join(json.dumps({**line, "at": "2026-01-01T00:00:00Z"}) + "\n" for line in lines)
        (self.folder / "log.jsonl").write_text(text)
