"""One default for every knob, the same at every entry point.

Guarantees: no other module holds a default for these. Imports nothing.
"""

from __future__ import annotations

NUM_STAGES = 4
SUITE = "chacha20-poly1305"  # how frames are protected; "plain" must be asked for by name
DRAFT_LEN = 8  # k
DEPTH = 4  # frames in flight
DRAFT_LEN_MAX = 64  # k_max
DEPTH_MAX = 8
TREE_NODES_MAX = 64  # of one frame
PREFILL_CHUNK = 256  # positions a prefill frame
MAX_NEW_TOKENS = 128
POLICY = "fixed-k"
DRAFTER = "ngram"
PROFILE = "wan-275"
MIN_MATCH_LEN = 1  # shortest suffix the n-gram drafter believes (decision 0011)
KEEPWARM_MS = 0  # off
DRAFT_BUDGET_S = 1.0  # a drafter that takes longer twice running is given up
TAP_WIRE = "fp8"  # taps only ever change drafts: a quarter of the bytes
REPLY_TIMEOUT_S = 20.0  # one decode exchange
PREFILL_TIMEOUT_S = 180.0  # the prompt pass as a whole
START_TIMEOUT_S = 120.0  # a stage process from exec to listening, weights loaded
