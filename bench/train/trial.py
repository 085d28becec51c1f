"""A head's trial on held-out prompts, and rows of records.

Guarantees: the prompts are the acceptance study's, of which no run of tokens is in any prompt that
was trained on; the answers are the target's own. Rows hold counts, no rates. Never knows how the
head was trained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from bench.cells import study_cells
from bench.train.evaluate import CHAIN_LEN, TREE, Round, rounds_of, worth_of
from bench.train.target import TAP_LAYERS, BatchedTarget
from bench.train.texts import answer
from engine.draft.head import EagleHead
from engine.draft.head_file import HeadFile
from engine.model.tokenizer import Tokenizer
from engine.model.weights import prepare_model

TRAINING, EVALUATION = "head-training", "head-evaluation"
GROUPS = ("chat", "reasoning")
PARTS_PER = 1_000_000  # rates and losses are written as so many parts
Row = dict[str, str | int]


def trial_rows(head: HeadFile) -> list[Row]:
    """One row for each group of prompts and shape of draft."""
    files = prepare_model()
    tokenizer, target = Tokenizer.load(files), BatchedTarget(files, TAP_LAYERS)
    ready = EagleHead(head, target.embedding, files.config.context_len)
    rows: list[Row] = []
    for group in GROUPS:
        cells = [cell for cell in study_cells().values() if cell.group == group]
        prompts = [cell.prompt_ids(tokenizer) for cell in cells]
        texts = answer(target, prompts, set(files.config.eos_ids))
        rounds: Mapping[str, list[Round]] = defaultdict(list)
        for text in texts:
            for shape in ("chain", "tree"):
                rounds[shape] += rounds_of(ready, text, shape)
        for shape, done in rounds.items():
            worth = worth_of(done)
            rows.append(
                {
                    "group": group,
                    "shape": shape,
                    "prompts": len(prompts),
                    "rounds": worth.num_rounds,
                    "right_first": worth.num_right_first,
                    "accepted": worth.num_accepted,
                }
            )
    return rows


def log_rows(log: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The log of a training as a record holds it."""
    return [
        {
            "step": row["step"],
            "tokens": row["num_tokens"],
            "token_steps": row["num_token_steps"],
            "loss": round(row["loss"] * PARTS_PER),
            "spent_ms": round(row["spent_s"] * 1000),
            **{
                f"held_out_{idx + 1}": round(rate * PARTS_PER)
                for idx, rate in enumerate(row["held_out"])
            },
        }
        for row in log
    ]


def settings_of(head: HeadFile) -> Row:
    """What was fixed."""
    facts = head.facts
    return {
        "head_digest": head.digest,
        "model_digest": facts.model_digest,
        "texts_digest": facts.texts_digest,
        "seed": facts.seed,
        "distinct_tokens": facts.num_tokens,
        "tap_layers": " ".join(str(layer) for layer in facts.tap_layers),
        "vocab": facts.shape.vocab_size,
        "chain_len": CHAIN_LEN,
        "tree_nodes": TREE.num_nodes,
        "tree_children": TREE.num_children,
        "tree_depth": TREE.depth,
        "parts_per": PARTS_PER,
    }
