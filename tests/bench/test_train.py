"""Training the head: what it learns from, that it learns what jobs draft with, that it resumes.

Catches taps of a neighbouring layer or position, a learner that computes another head than
`engine.draft.head`, a resumed run that differs, held-out texts that leak, and rounds that are
counted as no job would.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from bench.train import texts as text_module
from bench.train.evaluate import Round, confidence_of, rounds_of, worth_of
from bench.train.export import export
from bench.train.fit import Course, Reached, Teacher, fit, held_out_rates
from bench.train.learner import Learner, Lesson
from bench.train.shards import Shards
from bench.train.target import BatchedTarget
from bench.train.texts import SHARED_LEN, Text, answer, runs_of
from engine.draft.head import EagleHead
from engine.draft.head_file import load_head, read_facts
from engine.errors import ConfigError, ModelError
from engine.model.config import Rope
from engine.model.decoder import Decoder
from engine.model.rotary import rotations
from engine.model.weights import ModelFiles, prepare_model
from tests.draft.tiny_head import FACTS, SHAPE, VOCAB_SIZE, embedding
from tests.model.tiny_models import CASES, VOCAB, make_peer, write_gguf

TAPPED = (0, 2)
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelFiles]:
    folder = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGHAUL_CACHE", str(folder / "cache"))
        path = folder / "tiny.gguf"
        write_gguf(make_peer(CASES["llama-tied"]), CASES["llama-tied"], path)
        yield prepare_model(path)


def draw_ids(num: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (num, length), generator=generator)


def test_the_target_over_batches_is_the_engine_s(files: ModelFiles) -> None:
    """Ragged starts, a prompt and single tokens; taps are outputs of exactly these layers."""
    target = BatchedTarget(files, TAPPED)
    ids, lens = draw_ids(3, 12), [12, 7, 9]
    cache = target.new_cache(3, 16)
    seen = target.forward(ids, torch.zeros(3, dtype=torch.int64), cache)
    following = draw_ids(3, 1, seed=1)
    later = target.forward(following, torch.tensor(lens), cache)
    for row, length in enumerate(lens):
        whole = torch.cat([ids[row, :length], following[row]])
        wanted = [
            Decoder.load(files, 0, layer + 1).forward(
                (decoder := Decoder.load(files, 0, layer + 1)).embed(whole), 0, decoder.new_cache()
            )
            for layer in TAPPED
        ]
        taps = torch.cat([seen.taps[row, :length], later.taps[row]])
        assert torch.allclose(taps, torch.cat(wanted, dim=1), atol=TOLERANCE)
        full = Decoder.load(files, 0, files.config.num_layers)
        hidden = full.forward(full.embed(whole), 0, full.new_cache())
        logits = later.final[row] @ target.head.t()
        assert torch.allclose(logits, full.logits(hidden[-1:]), atol=10 * TOLERANCE)


def test_other_families_are_refused(files: ModelFiles) -> None:
    config = replace(files.config, architecture="qwen2")
    with pytest.raises(ModelError, match="Llama family, not qwen2"):
        BatchedTarget(replace(files, config=config), TAPPED)


def test_answers_are_the_target_s_greedy_ones(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "ANSWER_LEN_MAX", 20)
    prompts = [row[:length].tolist() for row, length in zip(draw_ids(3, 9), (9, 4, 6), strict=True)]
    texts = answer(BatchedTarget(files, TAPPED), prompts, files.config.eos_ids)
    decoder = Decoder.load(files, 0, files.config.num_layers)
    for prompt, text in zip(prompts, texts, strict=True):
        assert text.prompt_len == len(prompt) and len(text.ids) > len(prompt)
        hidden = decoder.forward(decoder.embed(text.ids), 0, decoder.new_cache())
        greedy = decoder.greedy(hidden)
        assert text.ids[len(prompt) :].tolist() == greedy[len(prompt) - 1 : -1]
        assert len(text.taps) == len(text.final) == len(text.ids)


def test_an_answer_that_repeats_itself_is_a_loop() -> None:
    fresh = list(range(60))
    assert not text_module._is_loop(fresh)
    for period in (1, 7, 24):
        looped = [*fresh, *itertools.islice(itertools.cycle(range(100, 100 + period)), 48)]
        assert text_module._is_loop(looped)
        assert not text_module._is_loop(looped[:-1])


def test_runs_are_every_stretch_of_a_prompt() -> None:
    ids = list(range(SHARED_LEN + 2))
    assert list(runs_of(ids)) == [tuple(range(at, at + SHARED_LEN)) for at in range(3)]
    assert list(runs_of(ids[: SHARED_LEN - 1])) == []


def make_text(length: int, prompt_len: int, seed: int) -> Text:
    generator = torch.Generator().manual_seed(seed)
    hidden = SHAPE.hidden_size
    return Text(
        ids=torch.randint(0, VOCAB_SIZE, (length,), generator=generator),
        prompt_len=prompt_len,
        taps=torch.randn(length, SHAPE.num_taps * hidden, generator=generator),
        final=torch.randn(length, hidden, generator=generator),
    )


def test_shards_come_back_and_an_unfinished_one_does_not_count(tmp_path: Path) -> None:
    shards, texts = Shards(tmp_path), [make_text(12, 5, 0), make_text(9, 3, 1)]
    assert shards.write(0, texts) == 7 + 6
    (tmp_path / "shard-00001.partial").write_bytes(b"half")
    assert len(shards) == 1
    for text, back in zip(texts, shards.read(0), strict=True):
        assert torch.equal(text.ids, back.ids) and text.prompt_len == back.prompt_len
        assert torch.equal(text.taps.bfloat16(), back.taps)
    with pytest.raises(ConfigError, match="make texts first"):
        shards.read(1)
    before = shards.digest(1)
    shards.write(0, [texts[0], make_text(9, 3, 2)])
    assert shards.digest(1) != before


def make_learner(seed: int = 0) -> Learner:
    torch.manual_seed(seed)
    factors = rotations_of()
    return Learner(SHAPE, FACTS.rms_eps, factors[..., 0], factors[..., 1])


def rotations_of() -> torch.Tensor:
    return torch.view_as_real(rotations(Rope(FACTS.rope_theta), SHAPE.head_dim, 64))


def make_teacher() -> Teacher:
    generator = torch.Generator().manual_seed(5)
    full_head = torch.randn(VOCAB_SIZE, SHAPE.hidden_size, generator=generator)
    vocab_ids = torch.arange(0, 2 * SHAPE.vocab_size, 2)
    return Teacher(embedding(), vocab_ids, full_head[vocab_ids], full_head)


@torch.no_grad()
def test_the_learner_is_the_head_that_jobs_draft_with(tmp_path: Path) -> None:
    """Every unrolled step, from every position: the same outputs as slots of the drafter's head."""
    learner, teacher, text = make_learner(), make_teacher(), make_text(14, 4, 3)
    export(learner, teacher.vocab_ids, FACTS, tmp_path / "head.safetensors")
    head = EagleHead(load_head(tmp_path / "head.safetensors"), embedding(), 64)
    for parameter in learner.parameters():
        parameter.copy_(parameter.half().float())
    lesson = teacher.lesson([text, make_text(17, 5, 4)])
    steps = learner.unroll(lesson, 3)
    taps = text.taps.unflatten(1, (SHAPE.num_taps, -1))
    ids = text.ids
    for last in range(len(ids) - 4):
        head.reset()
        output = head.extend(head.fuse(taps[: last + 1]), ids[1 : last + 2])[-1:]
        assert torch.allclose(steps[0][0, last], output[0], atol=1e-4)
        scratch = None
        for step in (1, 2):
            hidden = torch.zeros(1, step, dtype=torch.bool)
            token = ids[last + 1 + step : last + 2 + step]
            slots = head.draft(output, token, step, scratch, hidden)
            output = slots.outputs
            parts = [slots.keys_values] if scratch is None else [scratch, slots.keys_values]
            scratch = torch.cat(parts, dim=2)
            assert torch.allclose(steps[step][0, last], output[0], atol=1e-4)
    scores = torch.log_softmax(learner.scores(output), dim=1)
    assert torch.allclose(scores, head.log_probs(output), atol=1e-4)


def test_lessons_teach_answers_only() -> None:
    lesson = make_teacher().lesson([make_text(10, 4, 0), make_text(7, 6, 1)])
    assert lesson.is_taught.tolist() == [
        [False] * 3 + [True] * 6 + [False],
        [False] * 5 + [True] + [False] * 4,
    ]


class StoppedError(Exception):
    """As if the process had been killed."""


def run_course(
    folder: Path, texts: list[Text], stop_after: int | None, num_steps: int = 12
) -> Learner:
    learner = make_learner()
    seen: list[Reached] = []

    def tell(reached: Reached) -> None:
        seen.append(reached)
        if stop_after is not None and reached.step >= stop_after:
            raise StoppedError

    folder.mkdir(exist_ok=True)
    course = Course(num_steps, seed=7, single_steps=5, tell_every=4)
    try:
        fit(learner, texts[:-4], texts[-4:], make_teacher(), course, folder, tell)
    except StoppedError:
        return learner
    assert seen[-1].step == num_steps
    return learner


def test_a_stopped_run_ends_like_one_that_was_not(tmp_path: Path) -> None:
    texts = [make_text(10 + idx % 5, 4, idx) for idx in range(40)]
    whole = run_course(tmp_path / "whole", texts, None)
    run_course(tmp_path / "parts", texts, 4)
    resumed = run_course(tmp_path / "parts", texts, None)
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, resumed.get_parameter(name)), name
    rows = [(tmp_path / part / "log.jsonl").read_text().splitlines() for part in ("whole", "parts")]
    assert len(rows[0]) == len(rows[1]) == 3


@pytest.mark.parametrize("first_steps", [12, 20])
def test_a_course_made_longer_is_as_if_it_had_been_so_from_the_start(
    tmp_path: Path, first_steps: int
) -> None:
    """Catches a longer course that goes on from where the rate had fallen, and rows of the old."""
    texts = [make_text(10 + idx % 5, 4, idx) for idx in range(40)]
    whole = run_course(tmp_path / "whole", texts, None, 28)
    run_course(tmp_path / "longer", texts, None, first_steps)
    longer = run_course(tmp_path / "longer", texts, None, 28)
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, longer.get_parameter(name)), name
    steps = [
        [json.loads(row)["step"] for row in (tmp_path / part / "log.jsonl").open()]
        for part in ("whole", "longer")
    ]
    assert steps[0] == steps[1] == list(range(4, 29, 4))


def test_exports_are_read_as_they_are_last_written(tmp_path: Path) -> None:
    """Catches what a file said before it was written again."""
    learner, teacher, path = make_learner(), make_teacher(), tmp_path / "head.safetensors"
    for tokens in (1, 2):
        facts = msgspec.structs.replace(FACTS, num_tokens=tokens)
        export(learner, teacher.vocab_ids, facts, path)
        assert load_head(path).facts.num_tokens == read_facts(path).num_tokens == tokens


def test_it_learns_a_rule_that_taps_tell(tmp_path: Path) -> None:
    """The teacher's next words are a map of the first tap: a head that pairs rightly finds it."""
    generator = torch.Generator().manual_seed(1)
    hidden = SHAPE.hidden_size
    texts = []
    for seed in range(128):
        text = make_text(16, 2, seed)
        final = torch.randn(16, hidden, generator=generator)
        taps = torch.zeros(16, SHAPE.num_taps * hidden)
        taps[:-1, :hidden] = final[1:]  # a tap tells what its successor will say
        texts.append(replace(text, taps=taps, final=final))
    learner, teacher = make_learner(), make_teacher()
    vocab_ids = torch.arange(VOCAB_SIZE)
    teacher = replace_vocab(teacher, vocab_ids)
    shape = replace(SHAPE, vocab_size=VOCAB_SIZE)
    factors = rotations_of()
    learner = Learner(shape, FACTS.rms_eps, factors[..., 0], factors[..., 1])
    learner.begin_as(teacher.head, torch.ones(hidden))
    before = held_out_rates(learner, texts[-8:], teacher, 1)[0]
    course = Course(240, seed=0, single_steps=240, tell_every=240)
    fit(learner, texts[:-8], texts[-8:], teacher, course, tmp_path, lambda reached: None)
    after = held_out_rates(learner, texts[-8:], teacher, 1)[0]
    assert before < 0.1 and after > 3 * max(before, 0.05)


def replace_vocab(teacher: Teacher, vocab_ids: torch.Tensor) -> Teacher:
    return replace(teacher, vocab_ids=vocab_ids, head=teacher.full_head[vocab_ids])


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_rounds_commit_the_text_once(tmp_path: Path, shape: str) -> None:
    learner, teacher = make_learner(), make_teacher()
    export(learner, teacher.vocab_ids, FACTS, tmp_path / f"{shape}.safetensors")
    head = EagleHead(load_head(tmp_path / f"{shape}.safetensors"), embedding(), 64)
    text = make_text(30, 6, 11)
    rounds = list(rounds_of(head, text, shape))
    # all tokens but the prefill's and those behind the last position that can be drafted for
    committed = sum(one.accepted_len + 1 for one in rounds)
    assert len(text.ids) - 8 <= committed <= len(text.ids) - 7
    assert all(sum(right for _, right in one.nodes) == one.accepted_len for one in rounds)
    worth = worth_of(rounds)
    assert worth.num_rounds == len(rounds)
    assert worth.tokens_per_traversal == 1 + worth.num_accepted / len(rounds)


def test_confidence_rises_and_is_what_was_seen() -> None:
    rounds = [Round(1, True, ((0.93, True), (0.11, idx % 10 == 0))) for idx in range(400)]
    confidence = confidence_of(rounds)
    assert list(confidence) == sorted(confidence)
    assert abs(confidence[2] - 100_000) < 5_000 and confidence[18] > 985_000


def test_padding_teaches_nothing() -> None:
    """A text's outputs are the same beside a longer one."""
    learner, teacher, text = make_learner(), make_teacher(), make_text(9, 3, 2)
    alone: Lesson = teacher.lesson([text])
    beside = teacher.lesson([text, make_text(21, 3, 8)])
    for single, padded in zip(learner.unroll(alone, 3), learner.unroll(beside, 3), strict=True):
        assert torch.allclose(single[0], padded[0, : single.shape[1]], atol=1e-5)
