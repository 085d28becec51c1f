"""Experiments that turn one lever: draft length, depth, stages, noops on silent links.

Guarantees: arms of a sweep differ from the base arm in the lever alone; the base arm and its null
are among them, so that every value is judged by one band. Must never know how a job runs.
"""

from __future__ import annotations

from bench.arm_groups import ATTEST_ARMS, DEPTH_ARMS, KEEPWARM_ARMS, LENGTH_ARMS, STAGE_ARMS
from bench.arms import BASE_ARM
from bench.experiment import QUICK, SPEED, Experiment, Scale

_SWEPT = Scale(cells=("verbatim", "json-extraction", "chat"), max_new_tokens=48, reps=4)
_REPORTED = "Reported: the ratio of every arm to chain-k8; no order of the others is claimed."
_LOSSLESS = "every job is lossless."


def _sweep(name: str, arms: tuple[str, ...], *claims: str) -> Experiment:
    return Experiment(
        name=name,
        arms=arms,
        base_arm=BASE_ARM,
        profile="wan-275",
        scales={"quick": QUICK, "full": _SWEPT},
        hypotheses=(SPEED, *claims, _REPORTED),
    )


def _keepwarm(name: str, control: str, expected: str) -> Experiment:
    """Noops on silent links, on and off, under one congestion control of the kernel's own TCP."""
    return Experiment(
        name=name,
        arms=KEEPWARM_ARMS,
        base_arm=BASE_ARM,
        profile=f"wan-275-{control}",
        links="netns",
        scales={
            "quick": QUICK,
            "full": Scale(
                cells=("verbatim", "json-extraction", "summary"), max_new_tokens=48, reps=4
            ),
        },
        hypotheses=(
            SPEED,
            f"H1: over all cells, chain-warm is {expected} chain-k8 (frames of 20 KB).",
            "H2: over all cells, ar-warm decodes at 0.98 or more of the speed of ar (frames of 2 "
            "KB, which fit the first window).",
            "H3: every job is lossless.",
        ),
    )


SWEEPS = (
    _sweep(
        "k",
        LENGTH_ARMS,
        "H1: chain-k32 is faster than chain-k8 on verbatim beyond the null band.",
        f"H2: {_LOSSLESS}",
    ),
    _sweep(
        "depth",
        DEPTH_ARMS,
        "H1: chain-d1 is slower than chain-k8 on verbatim beyond the null band.",
        f"H2: {_LOSSLESS}",
    ),
    _sweep(
        "stages",
        STAGE_ARMS,
        f"H1: {_LOSSLESS}",
        "The loop of the profile is the same for every ring: what differs is what stages add.",
    ),
    _sweep(
        "attest",
        ATTEST_ARMS,
        "H1: over all cells, chain-attest decodes at 0.98 or more of the speed of chain-k8.",
        "H2: over all cells, ar-attest decodes at 0.98 or more of the speed of ar.",
        "H3: in every attested job stages spend at most 0.4 % of their computing time on digests.",
        f"H4: {_LOSSLESS}",
    ),
    _keepwarm("keepwarm", "cubic", "faster, beyond the null band, than"),
    _keepwarm("keepwarm-bbr", "bbr", "inside the null band of"),
)
