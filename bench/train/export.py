"""Write a learner as the file that jobs draft with.

Guarantees: the file says what it was made from; half precision, which drafts do not feel. Never
knows training.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file

from bench.train.learner import Learner
from engine.draft.head_file import (
    METADATA_KEY,
    VOCAB_TENSOR,
    HeadFacts,
    load_head,
    read_facts,
)


def export(learner: Learner, vocab_ids: torch.Tensor, facts: HeadFacts, path: Path) -> None:
    """Write the head."""
    tensors = {
        name: parameter.detach().to(torch.float16).contiguous()
        for name, parameter in learner.named_parameters()
    }
    tensors[VOCAB_TENSOR] = vocab_ids.to(torch.int32)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata={METADATA_KEY: msgspec.json.encode(facts).decode()})
    path.chmod(0o644)  # the library makes it its owner's alone
    for reader in (read_facts, load_head):
        reader.cache_clear()  # of this path both know what it said before
