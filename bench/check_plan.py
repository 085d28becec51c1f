"""What a plan must satisfy: whole blocks, references first, balance, rings that can be compared.

Guarantees: a rule yields (rule name, detail) for each contradiction and goes on. Separate from the
code that makes plans, on purpose. Must never know files, keys, signatures or results.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from bench.check_wire import Found
from bench.schema import Plan, PlannedJobRow, RingConfig
from bench.schema_versions import version_defects

EXACT_WIRES = ("f32", "int4")  # numeric configurations whose output is the same on every layer plan
OWN_WEIGHTS = ("int4",)  # numeric configurations whose kernel is named after them
# In which arms' rings may differ.
ARM_RING_LEVERS = ("num_stages", "layer_plan", "suite", "kernel", "signers")


def check_plan(plan: Plan) -> Found:
    """Every rule of a plan."""
    for detail in version_defects(plan):
        yield "version", detail
    yield from check_schedule(plan)
    yield from _check_base(plan)
    yield from _check_rings(plan)


def _check_base(plan: Plan) -> Found:
    """What is timed has a base and its null; what is not claims neither."""
    measured = {row.arm for row in plan.jobs if row.role == "measured"}
    if not plan.base_arm:
        if plan.null_pairs:
            yield "base", f"nothing is timed, yet there are null arms: {sorted(plan.null_pairs)}"
        return
    nulls = {null for null, repeated in plan.null_pairs.items() if repeated == plan.base_arm}
    if len(measured) > 1 and plan.base_arm not in measured:
        yield "base", f"base arm {plan.base_arm!r} is not measured"
    if len(measured) > 1 and not measured & nulls:
        yield "base", f"arms are timed against {plan.base_arm!r} without its null beside them"
    for null, repeated in plan.null_pairs.items():
        if not _same_arm(plan, null, repeated):
            yield "base", f"null arm {null!r} is not {repeated!r} under another name"


def _same_arm(plan: Plan, null: str, repeated: str) -> bool:
    """Whether two arms differ in nothing but the name, ring included."""
    if null not in plan.arms or repeated not in plan.arms:
        return False
    renamed = msgspec.structs.replace(plan.arms[null], arm=repeated)
    return renamed == plan.arms[repeated] and plan.ring_of(null) == plan.ring_of(repeated)


def _check_rings(plan: Plan) -> Found:
    """Each ring is whole; arms leave the default ring in ring levers only, and really leave it."""
    arm_rings: dict[str, RingConfig] = {} if plan.arm_rings is msgspec.UNSET else plan.arm_rings
    for detail in _check_ring(plan.ring, plan.model.num_layers):
        yield "rings", f"default ring: {detail}"
    for arm, ring in arm_rings.items():
        if arm not in plan.arms:
            yield "rings", f"arm {arm!r} has a ring, but is not among the plan's arms"
        for detail in _check_ring(ring, plan.model.num_layers):
            yield "rings", f"ring of {arm!r}: {detail}"
        differing = [
            name
            for name in ring.__struct_fields__
            if getattr(ring, name) != getattr(plan.ring, name)
        ]
        if not differing:
            yield "rings", f"arm {arm!r} has a ring of its own that is the default ring"
        if not set(differing) <= set(ARM_RING_LEVERS):
            yield "rings", f"ring of {arm!r} differs from the default ring in {differing}"
    for arm, config in plan.arms.items():
        if config.attestation and not plan.ring_of(arm).signers:
            yield "rings", f"{arm!r} is to be attested, and its ring has no signers"
    yield from _check_lossy_wires(plan)
    yield from _check_kernels(plan)


def _check_ring(ring: RingConfig, num_layers: int) -> Iterator[str]:
    starts = [start for start, _ in ring.layer_plan]
    ends = [end for _, end in ring.layer_plan]
    if len(ring.layer_plan) != ring.num_stages:
        yield f"{len(ring.layer_plan)} layer ranges for {ring.num_stages} stages"
    signers = ring.signers or []
    if signers and (len(signers) != ring.num_stages or len(set(signers)) < len(signers)):
        yield f"{len(set(signers))} signers for {ring.num_stages} stages"
    if starts != [0, *ends[:-1]] or ends[-1:] != [num_layers]:
        yield f"layers {ring.layer_plan} do not tile [0, {num_layers})"


def _check_lossy_wires(plan: Plan) -> Found:
    """An output that depends on the layer plan is judged by a reference on the same one."""
    references = {
        plan.arms[row.arm].numeric_config: row.arm
        for row in plan.jobs
        if row.role == "reference" and row.arm in plan.arms
    }
    for arm, config in plan.arms.items():
        reference = references.get(config.numeric_config)
        if config.numeric_config in EXACT_WIRES or reference is None:
            continue
        if plan.ring_of(arm).layer_plan != plan.ring_of(reference).layer_plan:
            yield "rings", f"{arm!r} and its reference {reference!r} have other layer plans"


def _check_kernels(plan: Plan) -> Found:
    """Each ring computes in its arms' weights, and equal weights on one kernel."""
    by_weights = {_own_weights(plan.ring.kernel): plan.ring.kernel}
    for arm, config in plan.arms.items():
        kernel = plan.ring_of(arm).kernel
        weights = config.numeric_config if config.numeric_config in OWN_WEIGHTS else ""
        if _own_weights(kernel) != weights:
            yield "rings", f"{arm!r} is {config.numeric_config}, its ring's kernel is {kernel!r}"
        elif by_weights.setdefault(weights, kernel) != kernel:
            other = by_weights[weights]
            yield "rings", f"{arm!r} has kernel {kernel!r}, others of its weights {other!r}"


def _own_weights(kernel: str) -> str:
    """The weights that a kernel is named after; empty for the usual ones."""
    return next((own for own in OWN_WEIGHTS if kernel.startswith(f"{own}-")), "")


def check_schedule(plan: Plan) -> Found:
    """Blocks are whole, references come first, and no arm is favoured by its place."""
    if [row.job_idx for row in plan.jobs] != list(range(len(plan.jobs))):
        yield "schedule", "job_idx does not count the jobs from 0, in order"
    blocks: dict[int, list[PlannedJobRow]] = defaultdict(list)
    for row in plan.jobs:
        if row.arm not in plan.arms:
            yield "schedule", f"job {row.job_idx}: arm {row.arm!r} is not among the plan's arms"
        if row.role != "warmup":
            blocks[row.block_idx].append(row)
    yield from _check_warmups(plan)
    for arm in plan.arms.keys() - {row.arm for row in plan.jobs}:
        yield "schedule", f"arm {arm!r} is planned but has no job"
    places = Counter((rows[0].rep, rows[0].cell) for rows in blocks.values())
    for place in [(rep, cell.name) for rep in range(plan.reps) for cell in plan.cells]:
        if places.pop(place, 0) != 1:
            yield "schedule", f"rep {place[0]} of cell {place[1]!r} is not exactly one block"
    if places:
        yield "schedule", f"blocks outside the plan's reps and cells: {sorted(places)}"
    measured = {row.arm for row in plan.jobs if row.role == "measured"}
    for block_idx, rows in blocks.items():
        for detail in _check_block(plan, rows, measured):
            yield "schedule", f"block {block_idx}: {detail}"
    for cell in plan.cells:
        reps = [rows for rows in blocks.values() if rows[0].cell == cell.name]
        for detail in _check_balance(reps, measured):
            yield "schedule", f"cell {cell.name!r}: {detail}"


def _check_warmups(plan: Plan) -> Found:
    """Warm-ups come before all else, no arm twice: so many on one side warm nothing on another."""
    warmups = [row for row in plan.jobs if row.role == "warmup"]
    if any(row.role == "warmup" for row in plan.jobs[len(warmups) :]):
        yield "schedule", "a warm-up job behind one that counts"
    for arm, times in Counter(row.arm for row in warmups).items():
        if times > 1:
            yield "schedule", f"arm {arm!r} is warmed up {times} times"


def _check_block(plan: Plan, rows: list[PlannedJobRow], measured: set[str]) -> Iterator[str]:
    if len({(row.rep, row.cell) for row in rows}) != 1:
        yield "more than one rep or cell"
    if any(after.job_idx != before.job_idx + 1 for before, after in pairwise(rows)):
        yield "its jobs are not back to back"
    if [row.order_idx for row in rows] != list(range(len(rows))):
        yield "order_idx does not count its jobs from 0"
    roles = [row.role for row in rows]
    num_references = roles.count("reference")
    if "reference" in roles[num_references:]:
        yield "a reference job behind a measured one"
    configs = Counter(
        plan.arms[row.arm].numeric_config
        for row in rows
        if row.role == "reference" and row.arm in plan.arms
    )
    needed = {plan.arms[arm].numeric_config for arm in measured & plan.arms.keys()}
    if configs != Counter(needed):
        yield f"reference jobs {dict(configs)} instead of one for each of {sorted(needed)}"
    times = Counter(row.arm for row in rows if row.role == "measured")
    if times != Counter(measured):
        wrong = sorted(arm for arm in measured | times.keys() if times[arm] != 1)
        yield f"not every arm exactly once: {', '.join(wrong)}"


def _check_balance(blocks: list[list[PlannedJobRow]], measured: set[str]) -> Iterator[str]:
    """Either every arm stands in every place equally often (to one), or all have the same mean
    place but for one block without a reversed partner."""
    orders = [[row.arm for row in rows if row.role == "measured"] for rows in blocks]
    num_blocks, last = len(orders), len(measured) - 1
    counts = Counter((arm, place) for order in orders for place, arm in enumerate(order))
    spread = [counts[arm, place] for arm in measured for place in range(last + 1)]
    if not spread or max(spread) - min(spread) <= 1:
        return
    for arm in sorted(measured):
        total = sum(place * counts[arm, place] for place in range(last + 1))
        if abs(2 * total - num_blocks * last) > (last if num_blocks % 2 else 0):
            mean = total / num_blocks
            yield f"unbalanced: {arm!r} stands at {mean:.2f} on average, not {last / 2:.2f}"
