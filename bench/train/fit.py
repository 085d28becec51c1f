"""Fit the head to texts: fixed order of batches, resumable, a row now and then of how it does.

Guarantees: what a step sees is a function of the texts, the seed and the step's number; a run that
was stopped, or is made longer, goes on with the same bits on the same machine as one that was not;
held-out texts are never learned from. Never knows how texts were made.

Source: the rate stays, then falls to nothing over the last part (Hu et al. 2024, MiniCPM), so that
a course can be made longer from before the fall.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.nn import functional

from bench.train.checkpoints import Checkpoints, Done
from bench.train.learner import Learner, Lesson
from bench.train.texts import Text

BATCH_TEXTS = 8
LESSON_STEPS = 3  # drafted tokens that are unrolled: the drafts that pay
TESTED_STEPS = 4
_STEP_DISCOUNT = 0.8
_RATE, _HEAD_RATE, _WARM_UP_STEPS, _FALL_FRAC = 1e-3, 3e-4, 15, 0.3
_BETAS, _WEIGHT_DECAY, _CLIP = (0.9, 0.95), 0.01, 1.0
_POOL_BATCHES = 16  # texts of so many batches are sorted by length together: little padding


@dataclass(frozen=True, slots=True)
class Course:
    """How long and from what.

    Attributes:
        num_steps: optimiser steps in all.
        seed: of the order.
        single_steps: the first ones, which unroll one token only: three times as fast.
        tell_every: steps between rows of the log.
    """

    num_steps: int
    seed: int
    single_steps: int = 360
    tell_every: int = 40


@dataclass(frozen=True, slots=True)
class Reached:
    """One row of the log.

    Attributes:
        step: optimiser steps done.
        num_tokens: answer tokens seen so far, repeats counted.
        num_token_steps: the same, times the unrolled steps.
        loss: mean cross entropy with the target's own distribution since the last row, first token.
        held_out: per drafted token, how often it is the target's, given that those before it were.
        spent_s: since the run began or was resumed.
    """

    step: int
    num_tokens: int
    num_token_steps: int
    loss: float
    held_out: tuple[float, ...]
    spent_s: float


@dataclass(slots=True)
class Teacher:
    """The target's tables that lessons are made with.

    Attributes:
        embedding: [vocabulary, H].
        vocab_ids: the draft vocabulary, [V].
        head: the target's rows of it, [V, H].
        full_head: [vocabulary, H].

    All of one device, on which lessons are laid out too.
    """

    embedding: torch.Tensor
    vocab_ids: torch.Tensor
    head: torch.Tensor
    full_head: torch.Tensor

    def lesson(self, texts: Sequence[Text]) -> Lesson:
        """Lay texts side by side."""
        width = max(len(text.ids) for text in texts)

        def padded(rows: torch.Tensor) -> torch.Tensor:
            missing = width - len(rows)
            return functional.pad(rows, (0, 0, 0, missing) if rows.dim() == 2 else (0, missing))

        ids = torch.stack([padded(text.ids) for text in texts])
        taught = torch.zeros(ids.shape, dtype=torch.bool)
        for row, text in enumerate(texts):
            taught[row, text.prompt_len - 1 : len(text.ids) - 1] = True
        final = torch.stack([padded(text.final) for text in texts]).float()
        taps = torch.stack([padded(text.taps) for text in texts]).float()
        device = self.embedding.device
        embedded = self.embedding[ids.to(device)]
        return Lesson(taps.to(device), embedded, final.to(device), taught.to(device))


def count_taught(texts: Sequence[Text]) -> int:
    """Answer tokens."""
    return sum(len(text.ids) - text.prompt_len for text in texts)


def loss_of(
    learner: Learner, lesson: Lesson, teacher: Teacher, num_steps: int
) -> tuple[torch.Tensor, float]:
    """Return the discounted loss of all steps, and that of the first alone."""
    total, first = torch.zeros((), device=lesson.taps.device), 0.0
    for step, outputs in enumerate(learner.unroll(lesson, num_steps)):
        is_taught = lesson.is_taught[:, step + 1 :]
        with torch.no_grad():
            wanted = torch.softmax(lesson.final[:, step + 1 :][is_taught] @ teacher.head.t(), 1)
        scores = learner.scores(outputs[is_taught])
        loss = functional.cross_entropy(scores, wanted)
        first = loss.item() if step == 0 else first
        total = total + _STEP_DISCOUNT**step * loss
    return total, first


@torch.no_grad()
def held_out_rates(
    learner: Learner, texts: Sequence[Text], teacher: Teacher, num_steps: int = TESTED_STEPS
) -> tuple[float, ...]:
    """Per drafted token, how often it is the target's own choice, those before it being so."""
    tested, right = [0] * num_steps, [0] * num_steps
    for batch in _batches_of(sorted(texts, key=lambda text: len(text.ids))):
        lesson = teacher.lesson(batch)
        alive = lesson.is_taught.clone()
        truth = torch.zeros(alive.shape, dtype=torch.int64, device=alive.device)
        truth[alive] = (lesson.final[alive] @ teacher.full_head.t()).argmax(1)
        for step, outputs in enumerate(learner.unroll(lesson, num_steps)):
            rows = alive[:, : outputs.shape[1]] & lesson.is_taught[:, step + 1 :]
            drafted = teacher.vocab_ids[learner.scores(outputs[rows]).argmax(1)]
            hits = drafted == truth[:, step + 1 :][rows]
            tested[step] += len(hits)
            right[step] += int(hits.sum())
            alive = torch.zeros_like(alive)
            alive[:, : outputs.shape[1]][rows] = hits
    return tuple(good / max(num, 1) for good, num in zip(right, tested, strict=True))


def fit(
    learner: Learner,
    texts: Sequence[Text],
    held_out: Sequence[Text],
    teacher: Teacher,
    course: Course,
    folder: Path,
    tell: Callable[[Reached], None],
) -> None:
    """Train to the end of the course, from the last checkpoint in `folder` if there is one."""
    begun = time.monotonic()
    optimiser = _optimiser(learner)
    rates = [group["lr"] for group in optimiser.param_groups]
    checkpoints = Checkpoints(folder, course.num_steps, course.num_steps - _fall_steps(course))
    done = checkpoints.resume(learner, optimiser)
    losses: list[float] = []
    for step, batch in enumerate(_order(texts, course)):
        if step < done.step:
            continue
        unrolled = 1 if step < course.single_steps else LESSON_STEPS
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * _rate_at(step, course)
        loss, first = loss_of(learner, teacher.lesson(batch), teacher, unrolled)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(learner.parameters(), _CLIP)
        optimiser.step()
        losses.append(first)
        num_taught = count_taught(batch)
        done = Done(
            step + 1, done.num_tokens + num_taught, done.num_token_steps + num_taught * unrolled
        )
        if done.step % course.tell_every == 0 or done.step == course.num_steps:
            held = held_out_rates(learner, held_out, teacher)
            mean, spent_s = sum(losses) / len(losses), time.monotonic() - begun
            losses.clear()
            reached = Reached(done.step, done.num_tokens, done.num_token_steps, mean, held, spent_s)
            checkpoints.write(asdict(reached), done, learner, optimiser)
            tell(reached)


def _optimiser(learner: Learner) -> torch.optim.Optimizer:
    """The target's own rows of the head move less than what starts from nothing."""
    body = [parameter for parameter in learner.parameters() if parameter is not learner.head]
    return torch.optim.AdamW(
        [{"params": body, "lr": _RATE}, {"params": [learner.head], "lr": _HEAD_RATE}],
        betas=_BETAS,
        weight_decay=_WEIGHT_DECAY,
    )


def _fall_steps(course: Course) -> int:
    """The last steps, over which the rate falls."""
    return max(1, int(_FALL_FRAC * course.num_steps))


def _rate_at(step: int, course: Course) -> float:
    falling = (course.num_steps - step) / _fall_steps(course)
    return min((step + 1) / _WARM_UP_STEPS, 1.0, falling)


def _order(texts: Sequence[Text], course: Course) -> Iterator[list[Text]]:
    """Every text once in an epoch; batches of like lengths, shuffled."""
    num_yielded, epoch = 0, 0
    while num_yielded < course.num_steps:
        generator = torch.Generator().manual_seed(course.seed * 1009 + epoch)
        order = [texts[idx] for idx in torch.randperm(len(texts), generator=generator).tolist()]
        pool_len = BATCH_TEXTS * _POOL_BATCHES
        batches = []
        for first in range(0, len(order), pool_len):
            pool = sorted(order[first : first + pool_len], key=lambda text: len(text.ids))
            batches += list(_batches_of(pool))
        for idx in torch.randperm(len(batches), generator=generator).tolist():
            if num_yielded < course.num_steps:
                num_yielded += 1
                yield batches[idx]
        epoch += 1


def _batches_of(texts: Sequence[Text]) -> Iterator[list[Text]]:
    for first in range(0, len(texts), BATCH_TEXTS):
        yield list(texts[first : first + BATCH_TEXTS])
