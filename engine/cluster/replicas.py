"""A verifier's own copy of a ring's stages, in this process.

Guarantees: the same layers, weights and cache limits as the ring was asked for; nothing comes from
a stage. Must never know links.
"""

from __future__ import annotations

from engine.cluster.launch import LocalRing
from engine.model.decoder import Decoder
from engine.model.span import CacheLimits
from engine.stage.executor import DecoderExecutor


def load_replicas(ring: LocalRing) -> list[DecoderExecutor]:
    """Load every stage's layers; takes the memory of the whole model."""
    limits = CacheLimits(max_kv_size=ring.spec.max_kv_size or None)
    return [
        DecoderExecutor(
            Decoder.load(ring.files, *span, ring.spec.weights), ring.files.model_digest, limits
        )
        for span in ring.layer_plan
    ]
