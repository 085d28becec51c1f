"""From texts to a head: what `python -m bench.train` does behind its options.

Guarantees: everything follows from the texts and the seed; what is done is not done again. Never
knows how a step or a text is computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.train.evaluate import confidence_of, rounds_of
from bench.train.export import export
from bench.train.fit import Course, Reached, Teacher, count_taught, fit
from bench.train.learner import Learner
from bench.train.shards import Shards
from bench.train.target import TAP_LAYERS, BatchedTarget
from bench.train.texts import Text
from engine.draft.head import EagleHead
from engine.draft.head_file import HeadFacts, HeadShape, load_head
from engine.model.rotary import rotations
from engine.model.weights import ModelFiles, load_layers

VOCAB_LEN = 8192
NUM_HELD_OUT = 64  # texts of the last shard: never learned from
NUM_CALIBRATED = 24  # of those, whose nodes say what the head's probabilities are worth


@dataclass(frozen=True, slots=True)
class Texts:
    """What is learned from, and what is not."""

    learned: list[Text]
    held_out: list[Text]
    digest: str


def read_texts(shards: Shards, num_shards: int) -> Texts:
    """Read shards; the end of the last one is held out."""
    texts = [text for idx in range(num_shards) for text in shards.read(idx)]
    return Texts(texts[:-NUM_HELD_OUT], texts[-NUM_HELD_OUT:], shards.digest(num_shards))


def draft_vocabulary(texts: Sequence[Text], vocab_size: int) -> torch.Tensor:
    """The tokens that answers use most; where they use fewer, the tokenizer's first ones too."""
    counts = Counter(int(token) for text in texts for token in text.ids[text.prompt_len :])
    chosen = [token for token, _ in counts.most_common(VOCAB_LEN)]
    seen = set(chosen)
    spare = (token for token in range(vocab_size) if token not in seen)
    chosen += [token for token, _ in zip(spare, range(VOCAB_LEN - len(chosen)), strict=False)]
    return torch.tensor(sorted(chosen))


class Workshop:
    """A learner and its teacher on one device.

    Args:
        files: of the target.
        texts: to learn from.
        seed: of the head's first weights and of the order.
        device: where it learns.
    """

    def __init__(self, files: ModelFiles, texts: Texts, seed: int, device: str) -> None:
        self._files, self._texts, self._seed = files, texts, seed
        config = files.config
        target = BatchedTarget(files, TAP_LAYERS)
        vocab_ids = draft_vocabulary(texts.learned, config.vocab_size)
        self._vocab_ids = vocab_ids
        self._shape = HeadShape(
            num_taps=len(TAP_LAYERS),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            vocab_size=len(vocab_ids),
        )
        torch.manual_seed(seed)
        factors = torch.view_as_real(rotations(config.rope, config.head_dim, config.context_len))
        self._learner = Learner(self._shape, config.rms_eps, factors[..., 0], factors[..., 1])
        final_norm = load_layers(files, 0, 0, with_embed=False, with_head=True).final_norm
        assert final_norm is not None, "asked for"
        self._learner.begin_as(target.head[vocab_ids], final_norm)
        self._learner.to(device)
        self._teacher = Teacher(
            target.embedding.to(device),
            vocab_ids.to(device),
            target.head[vocab_ids].to(device),
            target.head.to(device),
        )

    def fit(self, num_steps: int, folder: Path, tell: Callable[[Reached], None]) -> None:
        """Train, or go on training, and leave checkpoint and log in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        course = Course(num_steps, self._seed)
        held_out, learned = self._texts.held_out, self._texts.learned
        fit(self._learner, learned, held_out, self._teacher, course, folder, tell)

    def export(self, path: Path) -> None:
        """Write the head, then calibrate it on held-out texts and write it again."""
        self._write(path, confidence_of([]))
        head = EagleHead(load_head(path), self._teacher.embedding.cpu(), self._context_len)
        calibrated = self._texts.held_out[:NUM_CALIBRATED]
        rounds = [one for text in calibrated for one in rounds_of(head, text, "tree")]
        self._write(path, confidence_of(rounds))

    @property
    def _context_len(self) -> int:
        return self._files.config.context_len

    def _write(self, path: Path, confidence: tuple[int, ...]) -> None:
        config = self._files.config
        facts = HeadFacts(
            format=1,
            model_digest=self._files.model_digest,
            tap_layers=TAP_LAYERS,
            shape=self._shape,
            rms_eps=config.rms_eps,
            rope_theta=config.rope.theta,
            texts_digest=self._texts.digest,
            seed=self._seed,
            num_tokens=count_taught(self._texts.learned),
            confidence=confidence,
        )
        export(self._learner, self._vocab_ids, facts, path)
