"""Makes an experiment's plan: what will run, in which order, on what; signed before the first job.

Guarantees: the plan depends on its inputs, the recorded seed and, for weights that the default ring
does not hold, the name of this host's kernel alone. Must never know results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import msgspec

from bench.arms import LOSSY_WIRES, NULL_PAIRS, Arm, get_arm, reference_arm
from bench.bounds import STAND_INS
from bench.cells import Cell
from bench.experiment import Experiment
from bench.schedule import make_schedule
from bench.schema import (
    Build,
    CellRow,
    JobConfig,
    ModelFacts,
    Plan,
    PlannedJobRow,
    RingConfig,
)
from bench.schema_levers import SamplingRow
from engine.cluster.launch import stage_key_ids
from engine.cluster.plan import even_plan
from engine.coordinator.job import make_levers
from engine.draft.head_file import load_head
from engine.errors import ConfigError
from engine.model.linear import kernel_for, weights_of_kernel
from engine.numeric import NUMERIC_CONFIGS
from engine.transport.message import Levers

KernelOf = Callable[[str], str]


def host_kernel(weights: str) -> str:
    """The kernel of these weights on this host, probed on first use."""
    return kernel_for(weights).name


@dataclass(frozen=True, slots=True)
class Selection:
    """What of an experiment the caller wants."""

    experiment: Experiment
    arms: tuple[str, ...]
    cells: tuple[Cell, ...]
    max_new_tokens: int | None  # None: each cell's own budget
    reps: int
    seed: int

    def budget(self, cell: Cell) -> int:
        """Output tokens of a cell, equal for all arms."""
        if self.max_new_tokens is None:
            return cell.max_new_tokens
        return min(cell.max_new_tokens, self.max_new_tokens)


def arm_levers(arm_name: str, max_new_tokens: int) -> Levers:
    """The levers of an arm.

    Raises:
        ConfigError: unknown arm.
    """
    arm = get_arm(arm_name)
    levers = make_levers(
        policy=STAND_INS.get(arm.policy, arm.policy),
        policy_params=arm.policy_params,
        draft_len=arm.draft_len,
        depth=arm.depth,
        drafter=STAND_INS.get(arm.drafter, arm.drafter),
        drafter_params=arm.drafter_params,
        min_match_len=arm.min_match_len,
        max_new_tokens=max_new_tokens,
        numeric_config=arm.numeric_config,
        reply=arm.reply,
        keepwarm_ms=arm.keepwarm_ms,
        attestation=arm.attestation,
    )
    return msgspec.structs.replace(levers, policy=arm.policy, drafter=arm.drafter)


def drafter_digest(arm_names: Sequence[str]) -> str | None:
    """Of the learned head, if an arm drafts with one.

    Raises:
        ModelError: its file is damaged.
    """
    has_head = any(arm_levers(name, 1).tap_layers for name in arm_names)
    return load_head().digest if has_head else None


def job_config(arm_name: str, levers: Levers) -> JobConfig:
    """An arm's levers as a receipt writes them."""
    return JobConfig(
        arm=arm_name,
        policy=levers.policy,
        policy_params=dict(levers.policy_params),
        draft_len=levers.draft_len,
        depth=levers.depth,
        drafter=levers.drafter,
        drafter_params=dict(levers.drafter_params),
        min_match_len=levers.min_match_len,
        prefill_chunk=levers.prefill_chunk,
        max_new_tokens=levers.max_new_tokens,
        numeric_config=levers.numeric_config,
        attestation=levers.attestation,
        keepwarm_ms=levers.keepwarm_ms,
        tap_layers=list(levers.tap_layers),
        tap_wire=levers.tap_wire,
        reply=levers.reply,
        sampling=SamplingRow(
            temperature=levers.sampling.temperature,
            top_k=levers.sampling.top_k,
            top_p=levers.sampling.top_p,
            seed=levers.sampling.seed,
        ),
    )


def arm_ring(
    arm_name: str, ring: RingConfig, num_layers: int, kernel_of: KernelOf = host_kernel
) -> RingConfig:
    """The ring that an arm's jobs run on: the run's default, but for the arm's own ring levers.

    Its weights are those of the arm's numeric configuration; a receipt tells them by the kernel.

    Raises:
        ConfigError: unknown arm, or more stages than layers.
    """
    arm = get_arm(arm_name)
    weights = NUMERIC_CONFIGS[arm.numeric_config].weights
    if weights != weights_of_kernel(ring.kernel):
        ring = msgspec.structs.replace(ring, kernel=kernel_of(weights))
    if arm.num_stages not in (None, ring.num_stages):
        layer_plan = even_plan(num_layers, arm.num_stages)
        signers = stage_key_ids(arm.num_stages) if ring.signers else []
        ring = msgspec.structs.replace(
            ring, num_stages=arm.num_stages, layer_plan=layer_plan, signers=signers
        )
    return msgspec.structs.replace(ring, suite=arm.suite or ring.suite)


def attests(arms: Sequence[str]) -> bool:
    """Whether one of them asks stages to sign; then the keys of all of them stand in the plan."""
    return any(get_arm(name).attestation for name in arms)


def check_selection(selection: Selection) -> None:
    """Refuse a selection whose arms cannot be judged.

    Raises:
        ConfigError: an arm is unknown or named twice, or arms are timed without the base arm's
            null beside them.
    """
    arms, experiment = selection.arms, selection.experiment
    for name in arms:
        get_arm(name)
    if len(set(arms)) < len(arms):
        raise ConfigError(f"an arm is named twice: {', '.join(arms)}")
    if selection.reps < 1:
        raise ConfigError(f"reps is {selection.reps}; allowed: 1 or more")
    if experiment.base_arm is None:
        return  # nothing is timed
    nulls = [null for null, of in NULL_PAIRS.items() if of == experiment.base_arm]
    missing = [name for name in (experiment.base_arm, *nulls) if name not in arms]
    if len(arms) > 1 and missing:
        raise ConfigError(
            f"arms are timed against {experiment.base_arm!r} and its null; add: "
            + ", ".join(missing)
        )


def make_plan(
    selection: Selection,
    ring: RingConfig,
    build: Build,
    model: ModelFacts,
    created: str,
    kernel_of: KernelOf = host_kernel,
) -> Plan:
    """Write everything down.

    Args:
        ring: the run's default; arms may leave it by their own ring levers.
        created: RFC 3339 time.
        kernel_of: given weights, the name of the kernel that stages will compute them with.

    Raises:
        ConfigError: arms that cannot be judged, or a ring that cannot be.
    """
    check_selection(selection)
    experiment = selection.experiment
    cells = _cell_rows(selection)
    # The budget belongs to the cell; an arm's own figure is only the largest it meets.
    largest = max(cell.max_new_tokens for cell in cells)
    arm_names = _all_arms(selection)
    rings = {name: arm_ring(name, ring, model.num_layers, kernel_of) for name in arm_names}
    _check_layer_plans(rings)
    return Plan(
        experiment=experiment.name,
        created=created,
        seed=f"{selection.seed:016x}",
        base_arm=experiment.base_arm or "",
        null_pairs=_null_pairs(selection, arm_names),
        arms={name: job_config(name, arm_levers(name, largest)) for name in arm_names},
        cells=cells,
        reps=selection.reps,
        ring=ring,
        build=build,
        model=model,
        hypotheses=list(experiment.hypotheses),
        alpha=experiment.alpha,
        exclusions=list(experiment.exclusions),
        jobs=_planned_jobs(selection, cells),
        arm_rings={name: own for name, own in rings.items() if own != ring},
        stopping=experiment.stopping,
    )


def _cell_rows(selection: Selection) -> list[CellRow]:
    return [
        CellRow(
            name=cell.name,
            kind=cell.kind,
            max_new_tokens=selection.budget(cell),
            prompt_digest=cell.prompt_digest,
            group=cell.group,
        )
        for cell in selection.cells
    ]


def _all_arms(selection: Selection) -> list[str]:
    """The measured arms, and the reference arms that they need but that nobody measures."""
    needed = [reference_arm(get_arm(name).numeric_config).name for name in selection.arms]
    return list(dict.fromkeys([*selection.arms, *needed]))


def _null_pairs(selection: Selection, arm_names: Sequence[str]) -> dict[str, str]:
    """Null arm → the arm it repeats, where both have jobs; none where nothing is timed."""
    if selection.experiment.base_arm is None:
        return {}
    return {
        null: of for null, of in NULL_PAIRS.items() if null in selection.arms and of in arm_names
    }


def _check_layer_plans(rings: dict[str, RingConfig]) -> None:
    """Refuse an arm with a lossy wire whose reference runs on another layer plan."""
    for name, ring in rings.items():
        config = get_arm(name).numeric_config
        reference = reference_arm(config).name
        if config in LOSSY_WIRES and ring.layer_plan != rings[reference].layer_plan:
            raise ConfigError(
                f"arm {name!r} rounds hidden states between {ring.num_stages} stages, its "
                f"reference {reference!r} between {rings[reference].num_stages}, so their outputs "
                "do not compare; give both the same num_stages"
            )


def _warmups(selection: Selection, arms: Sequence[Arm]) -> list[Arm]:
    """Each timed arm once: its ring has carried its frames, and planners have seen what they cost.

    Bounds are left out: what they have to be told is not known before the first reference job.
    """
    if selection.experiment.base_arm is None:
        return []
    return [arm for arm in arms if not {arm.policy, arm.drafter} & STAND_INS.keys()]


def _planned_jobs(selection: Selection, cells: Sequence[CellRow]) -> list[PlannedJobRow]:
    arms = [get_arm(name) for name in selection.arms]
    jobs = make_schedule(cells, arms, selection.reps, selection.seed, _warmups(selection, arms))
    return [PlannedJobRow(**asdict(job)) for job in jobs]
