"""Arms by the experiment that sets them against each other, in the order of its tables.

Guarantees: names only. Must never know what an arm does.
"""

from __future__ import annotations

from bench.arms import BASE_ARM, FRAME_STAGES
from bench.bounds import CLAIRVOYANT, ORACLE

# What a decode experiment runs when nobody says otherwise, in this order in tables.
DECODE_ARMS = ("ar", "null-ar", BASE_ARM, "null", "chain-k16", "two-state")
SEAL_ARMS = ("seal-none", "null-seal", "seal-chacha", "seal-aes")
FP8_ARMS = ("ar", "null-ar", "ar-fp8", BASE_ARM, "null", "chain-fp8")
INT4_ARMS = ("ar", "null-ar", "ar-int4", BASE_ARM, "null", "chain-int4")
PLANNER_ARMS = (
    "ar",
    "null-ar",
    BASE_ARM,
    "null",
    "two-state",
    "chain-k32",
    "chain-k64",
    "planner",
    CLAIRVOYANT,
    ORACLE,
)
_FRAME = ("ar", "null-ar", BASE_ARM, "null")  # what every sweep stands beside
LENGTH_ARMS = (*_FRAME, "chain-k4", "chain-k16", "chain-k32", "chain-k64")
DEPTH_ARMS = (*_FRAME, "chain-d1", "chain-d2", "chain-d8")
STAGE_ARMS = (*_FRAME, "chain-s1", "chain-s2", "chain-s3", "chain-s6")
ATTEST_ARMS = ("ar", "null-ar", "ar-attest", BASE_ARM, "null", "chain-attest")
KEEPWARM_ARMS = ("ar", "null-ar", "ar-warm", BASE_ARM, "null", "chain-warm")
FRAME_ARMS = tuple(f"{reply}-s{n}" for reply in ("ids", "logits") for n in FRAME_STAGES)
LEARNED_ARMS = (*_FRAME, "two-state", "chain-eagle", "tree", "hybrid", "hybrid-planner")
