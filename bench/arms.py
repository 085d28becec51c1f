"""The arms: every variant that a job can run, in one registry.

Guarantees: an arm is complete and immutable; every numeric configuration has one reference arm; a
null arm differs from what it repeats in name and description only. A new arm is one entry.
Must never know: cells, schedules, processes.

Which reference judges which ring: the kernels are row invariant, so an output on a lossless wire is
the same on any ring of the same weights: `ar` on the run's default ring judges all f32 arms, and
`ar-int4`, on its ring of 4-bit weights, all int4 arms. A lossy wire rounds hidden states where one
stage hands them to the next, so its output belongs to a layer plan: an arm with such a
configuration keeps the layer plan of its reference (`bench.plan` refuses another).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bench.bounds import CLAIRVOYANT, ORACLE
from engine.defaults import (
    DEPTH,
    DEPTH_MAX,
    DRAFT_LEN,
    DRAFT_LEN_MAX,
    DRAFTER,
    MIN_MATCH_LEN,
    POLICY,
)
from engine.errors import unknown_name
from engine.numeric import NUMERIC_CONFIGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One variant of decoding; every field but the names is a lever: of the job, or of its ring.

    Attributes:
        policy: name of the draft-length policy.
        policy_params: the policy's own numbers, by name.
        draft_len: k, or where an adaptive policy starts; 0 drafts nothing.
        depth: cap on frames in flight.
        drafter: name of the drafter; "none" is never called.
        drafter_params: the drafter's own numbers, by name.
        min_match_len: shortest suffix that the n-gram drafter believes.
        numeric_config: weights, wire dtype and kernels; outputs compare within one only.
        reply: what the last stage answers with, "ids" or "logits".
        suite: ring lever: what seals the frames; None: the run's default.
        num_stages: ring lever; None: the run's default.
        keepwarm_ms: silence on a link before a noop; 0: none.
        attestation: whether stages state what they did, and sign it.
    """

    name: str
    policy: str
    policy_params: dict[str, int] = field(default_factory=dict)
    draft_len: int
    depth: int
    drafter: str
    drafter_params: dict[str, int] = field(default_factory=dict)
    min_match_len: int = MIN_MATCH_LEN
    numeric_config: str = "f32"
    reply: str = "ids"
    suite: str | None = None
    num_stages: int | None = None
    keepwarm_ms: int = 0
    attestation: bool = False
    description: str


def _autoregressive(name: str, description: str) -> Arm:
    return Arm(
        name=name,
        policy="fixed-k",
        draft_len=0,
        depth=1,
        drafter="none",
        description=description,
    )


def _chain(name: str, draft_len: int, description: str) -> Arm:
    return Arm(
        name=name,
        policy=POLICY,
        draft_len=draft_len,
        depth=DEPTH,
        drafter=DRAFTER,
        description=description,
    )


BASE_ARM = f"chain-k{DRAFT_LEN}"
# numeric configuration -> the arm whose output defines lossless
REFERENCE_ARMS = {"f32": "ar", "fp8": "ar-fp8", "int4": "ar-int4"}
# Numeric configurations whose output depends on the layer plan: stages compute in f32, so any other
# wire rounds.
LOSSY_WIRES = tuple(name for name, config in NUMERIC_CONFIGS.items() if config.wire != "f32")
# null arm -> the arm it repeats
NULL_PAIRS = {"null": BASE_ARM, "null-ar": "ar", "null-seal": "seal-none"}
WARM_MS = 100  # half of the least time after which Linux takes a window back (TCP_RTO_MIN, 200 ms)
TREE_PARAMS = {"nodes": 16, "children": 3, "depth": 6}
FRAME_STAGES = (1, 2, 3, 4)  # rings on which frames a traversal are counted

_AR = _autoregressive("ar", "One token a traversal: no drafts, one frame in flight.")
_BASE = _chain(BASE_ARM, DRAFT_LEN, f"Frames of {DRAFT_LEN} n-gram drafts, {DEPTH} in flight.")


def _planned(name: str, policy: str, drafter: str, description: str) -> Arm:
    return replace(
        _BASE,
        name=name,
        policy=policy,
        draft_len=DRAFT_LEN_MAX,
        depth=DEPTH_MAX,
        drafter=drafter,
        description=description,
    )


def _sealed(name: str, suite: str, description: str) -> Arm:
    return replace(_BASE, name=name, suite=suite, description=description)


def _attested(name: str, arm: Arm) -> Arm:
    words = f"{arm.name}, stages state what they did and sign it."
    return replace(arm, name=name, attestation=True, description=words)


def _warm(name: str, arm: Arm) -> Arm:
    words = f"{arm.name}, a noop on each link after {WARM_MS} ms of silence."
    return replace(arm, name=name, keepwarm_ms=WARM_MS, description=words)


def _learned(name: str, drafter: str, draft_len: int, description: str) -> Arm:
    """The base arm with a drafter that has the learned head."""
    params = {} if drafter == "eagle" else TREE_PARAMS
    changed = replace(_BASE, name=name, description=description, drafter_params=params)
    return replace(changed, drafter=drafter, draft_len=draft_len)


def _swept(letter: str, lever: str, value: int, words: str) -> Arm:
    """The base arm with one lever turned."""
    name, description = f"chain-{letter}{value}", f"{BASE_ARM}, {value} {words}."
    changed: dict[str, int] = {lever: value}
    return replace(_BASE, name=name, description=description, **changed)


def _counted(num_stages: int, reply: str) -> Arm:
    return replace(
        _AR,
        name=f"{reply}-s{num_stages}",
        num_stages=num_stages,
        reply=reply,
        description=f"ar on {num_stages} stage(s), answering with {reply}: counts frames.",
    )


ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        _AR,
        replace(_AR, name="null-ar", description="ar under another name: noise of ratios to ar."),
        _BASE,
        replace(_BASE, name="null", description=f"{BASE_ARM} under another name: the noise band."),
        _chain("chain-k16", 16, f"Frames of 16 n-gram drafts, {DEPTH} in flight."),
        Arm(
            name="two-state",
            policy="two-state",
            policy_params={"high": 16, "up": 6},
            draft_len=8,
            depth=DEPTH,
            drafter=DRAFTER,
            description="8 drafts; 16 after a frame that fully accepted or accepted at least 6.",
        ),
        replace(
            _BASE,
            name="chain-m3",
            min_match_len=3,
            description=f"{BASE_ARM}, believing no match of fewer than 3 tokens.",
        ),
        _chain("chain-k32", 32, f"Frames of 32 n-gram drafts, {DEPTH} in flight."),
        _chain("chain-k64", 64, f"Frames of 64 n-gram drafts, {DEPTH} in flight."),
        Arm(
            name="streak",
            policy="streak",
            policy_params={"cap": DRAFT_LEN_MAX, "up": 6},
            draft_len=DRAFT_LEN,
            depth=DEPTH,
            drafter=DRAFTER,
            description="8 drafts, doubled after each frame that fully accepted, up to 64.",
        ),
        _planned("planner", "planner", DRAFTER, "Length and depth by expected tokens a second."),
        _planned(
            CLAIRVOYANT,
            CLAIRVOYANT,
            DRAFTER,
            "A bound, no claim: the planner, told which drafts the target will accept.",
        ),
        _planned(ORACLE, CLAIRVOYANT, ORACLE, "A bound, no claim: perfect drafts."),
        Arm(
            name="accept-k8",
            policy="fixed-k",
            draft_len=8,
            depth=1,
            drafter="ngram-filled",
            min_match_len=1,
            description="Always 8 drafts, one frame in flight: for the tests of acceptance.",
        ),
        _sealed("seal-none", "plain", f"{BASE_ARM} on a ring whose frames are not protected."),
        _sealed("null-seal", "plain", "seal-none under another name: the noise band."),
        _sealed("seal-chacha", "chacha20-poly1305", f"{BASE_ARM} sealed by ChaCha20-Poly1305."),
        _sealed("seal-aes", "aes-256-gcm", f"{BASE_ARM} sealed by AES-256-GCM."),
        replace(_AR, name="ar-fp8", numeric_config="fp8", description="ar, hidden states in fp8."),
        replace(
            _BASE,
            name="chain-fp8",
            numeric_config="fp8",
            description=f"{BASE_ARM}, hidden states in fp8 between stages.",
        ),
        replace(_AR, name="ar-int4", numeric_config="int4", description="ar, weights in 4 bits."),
        replace(
            _BASE,
            name="chain-int4",
            numeric_config="int4",
            description=f"{BASE_ARM}, weights in 4 bits.",
        ),
        _chain("chain-k4", 4, f"Frames of 4 n-gram drafts, {DEPTH} in flight."),
        *(_swept("d", "depth", depth, "in flight") for depth in (1, 2, 8)),
        *(_swept("s", "num_stages", num, "stages") for num in (1, 2, 3, 6)),
        *(
            replace(
                arm, name=f"{name}-attest", attestation=True, description=f"{arm.name}, attested."
            )
            for name, arm in (("ar", _AR), ("chain", _BASE))
        ),
        _learned("chain-eagle", "eagle", 6, "6 drafts of the head's, one frame at a time."),
        _learned("tree", "tree", 6, "A tree of the head's, 16 nodes, one frame at a time."),
        _learned("hybrid", "hybrid", DRAFT_LEN, "n-grams in depth or a tree, by the second."),
        replace(
            _planned("hybrid-planner", "planner", "hybrid", "hybrid, its n-grams as planned."),
            drafter_params=TREE_PARAMS,
        ),
        _warm("ar-warm", _AR),
        _warm("chain-warm", _BASE),
        *(_counted(num_stages, "ids") for num_stages in FRAME_STAGES),
        *(_counted(num_stages, "logits") for num_stages in FRAME_STAGES),
    )
}


def get_arm(name: str) -> Arm:
    """Return the arm of this name.

    Raises:
        ConfigError: the caller's name is unknown; the message lists the valid ones.
    """
    if name not in ARMS:
        raise unknown_name("arm", name, ARMS)
    return ARMS[name]


def reference_arm(numeric_config: str) -> Arm:
    """Return the arm that every job of this numeric configuration is compared with.

    Raises:
        ConfigError: no reference is registered for the configuration.
    """
    if numeric_config not in REFERENCE_ARMS:
        raise unknown_name("numeric configuration", numeric_config, REFERENCE_ARMS)
    return get_arm(REFERENCE_ARMS[numeric_config])
