"""Texts to train on: the target answers prompts that it proposes itself.

A chat model that is given its template up to the user's words goes on with what users ask. Prompts
are sampled, answers are greedy, as the bench decodes. Guarantees: a batch of texts is a function of
the target, the seed and the batch's number; no prompt shares `SHARED_LEN` tokens in a row with a
prompt of the bench. Never knows files.

Source: Xu et al. 2024, Magpie, for prompts from an open user turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from bench.cells import load_cells, study_cells
from bench.train.target import BatchedTarget, Seen
from engine.model.tokenizer import Tokenizer

SHARED_LEN = 8
PROMPT_LEN_MIN, PROMPT_LEN_MAX = 5, 48
ANSWER_LEN_MAX = 160
NUM_PROPOSED, NUM_ANSWERED = 128, 96  # of one shard: about four of five proposals are good
_ENDED_FRAC = 0.9  # enough: the last prompts of a batch are not waited for
_PERIOD_MAX, _PERIODIC_LEN, _LOOP_CHECK_STEPS = 24, 48, 16
_TOP_K = 200  # likely words only, and a draw from 49152 takes longer than the model
_MARK = "\x00"


@dataclass(frozen=True, slots=True)
class Text:
    """One prompt and its answer, and what the target saw in them.

    Attributes:
        ids: the rendered prompt, then the answer, [T].
        prompt_len: tokens before the answer.
        taps: [T, taps * H].
        final: [T, H].
    """

    ids: torch.Tensor
    prompt_len: int
    taps: torch.Tensor
    final: torch.Tensor


class ProposedPrompts:
    """Prompts of the target's own.

    Args:
        known: token runs that a prompt must not share, from `bench_runs`.
    """

    def __init__(
        self, target: BatchedTarget, tokenizer: Tokenizer, known: Collection[tuple[int, ...]]
    ) -> None:
        self._target, self._known = target, known
        head, tail = tokenizer.render_chat([{"role": "user", "content": _MARK}]).split(_MARK)
        self._head, self._tail = tokenizer.encode(head), tokenizer.encode(tail)

    def of(self, seed: int) -> list[list[int]]:
        """Return up to `NUM_ANSWERED` different rendered prompts."""
        generator = torch.Generator().manual_seed(seed)
        words = self._sample(generator)
        kept = dict.fromkeys(tuple(ids) for ids in words if self._is_good(ids))
        rendered = [[*self._head, *ids, *self._tail] for ids in kept]
        return rendered[:NUM_ANSWERED]

    def _sample(self, generator: torch.Generator) -> list[list[int]]:
        head = torch.tensor(self._head).expand(NUM_PROPOSED, -1)
        cache = self._target.new_cache(NUM_PROPOSED, len(self._head) + PROMPT_LEN_MAX + 1)
        starts = torch.zeros(NUM_PROPOSED, dtype=torch.int64)
        end_id = self._tail[0]
        ended = torch.zeros(NUM_PROPOSED, dtype=torch.bool)
        seen = self._target.forward(head, starts, cache)
        starts += len(self._head)
        chosen: list[torch.Tensor] = []
        for _ in range(PROMPT_LEN_MAX + 1):
            logits = seen.final[:, -1] @ self._target.head.t()
            best = logits.topk(_TOP_K, dim=1)
            probs = torch.softmax(best.values, dim=1)
            drawn = torch.multinomial(probs, 1, generator=generator)
            chosen.append(best.indices.gather(1, drawn))
            ended |= chosen[-1][:, 0] == end_id
            if ended.float().mean() >= _ENDED_FRAC:
                break
            seen = self._target.forward(chosen[-1], starts, cache)
            starts += 1
        rows = torch.cat(chosen, dim=1).tolist()
        return [row[: row.index(end_id)] for row in rows if end_id in row]

    def _is_good(self, ids: Sequence[int]) -> bool:
        if not PROMPT_LEN_MIN <= len(ids) <= PROMPT_LEN_MAX:
            return False
        return not any(run in self._known for run in runs_of(ids))


def runs_of(ids: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every run of `SHARED_LEN` tokens."""
    return zip(*(ids[offset:] for offset in range(SHARED_LEN)), strict=False)


def bench_runs(tokenizer: Tokenizer) -> set[tuple[int, ...]]:
    """Token runs of what the bench's cells and the acceptance study ask."""
    cells = itertools.chain(load_cells().values(), study_cells().values())
    return {
        run
        for cell in cells
        for message in cell.messages
        for run in runs_of(tokenizer.encode(message["content"]))
    }


def answer(
    target: BatchedTarget, prompts: Sequence[Sequence[int]], eos_ids: Collection[int]
) -> list[Text]:
    """Let the target answer, greedily; an answer that has begun to repeat itself is cut there."""
    prompt_lens = [len(prompt) for prompt in prompts]
    width = max(prompt_lens)
    padded = torch.tensor([[*ids, *([0] * (width - len(ids)))] for ids in prompts])
    cache = target.new_cache(len(prompts), width + ANSWER_LEN_MAX)
    seen = target.forward(padded, torch.zeros(len(prompts), dtype=torch.int64), cache)
    lens = torch.tensor(prompt_lens)
    rows = torch.arange(len(prompts))
    final = seen.final[rows, lens - 1]
    steps: list[tuple[torch.Tensor, Seen]] = []
    answers: list[list[int]] = [[] for _ in prompts]
    ended_lens: dict[int, int] = {}
    for step in range(ANSWER_LEN_MAX):
        ids = (final @ target.head.t()).argmax(dim=1)
        new = target.forward(ids.unsqueeze(1), lens + step, cache)
        final = new.final[:, 0]
        steps.append((ids, new))
        for row, token in enumerate(ids.tolist()):
            answers[row].append(token)
            if token in eos_ids:
                ended_lens.setdefault(row, step + 1)
        if (step + 1) % _LOOP_CHECK_STEPS == 0:
            for row, said in enumerate(answers):
                if row not in ended_lens and _is_loop(said):
                    ended_lens[row] = step + 1 - _PERIODIC_LEN // 2
        if len(ended_lens) == len(prompts):
            break
    return [
        _text(row, prompts[row], seen, steps, ended_lens.get(row, len(steps)))
        for row in range(len(prompts))
    ]


def _is_loop(ids: Sequence[int]) -> bool:
    """Has the text been repeating itself for `_PERIODIC_LEN` tokens?"""
    tail = ids[-_PERIODIC_LEN:]
    if len(tail) < _PERIODIC_LEN:
        return False
    return any(tail[period:] == tail[:-period] for period in range(1, _PERIOD_MAX + 1))


def _text(
    row: int,
    prompt: Sequence[int],
    seen: Seen,
    steps: Sequence[tuple[torch.Tensor, Seen]],
    answer_len: int,
) -> Text:
    """Put one row's prompt and answer together."""
    kept, prompt_len = steps[:answer_len], len(prompt)
    return Text(
        ids=torch.tensor([*prompt, *(int(ids[row]) for ids, _ in kept)]),
        prompt_len=prompt_len,
        taps=torch.cat([seen.taps[row, :prompt_len], *(new.taps[row] for _, new in kept)]),
        final=torch.cat([seen.final[row, :prompt_len], *(new.final[row] for _, new in kept)]),
    )
