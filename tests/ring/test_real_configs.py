"""The real model under every suite, wire and way of choosing: exact within a configuration."""

from __future__ import annotations

import pytest

from engine.cluster.launch import LocalRing, RingSpec
from engine.coordinator.generate import Generator
from engine.coordinator.job import make_levers
from engine.errors import ConfigError, JobError
from engine.model.linear import kernel_for
from engine.transport.message import Levers

PROMPT = "Repeat this sentence twice: The ferry leaves the harbour at nine and returns at noon."
LONG_PROMPT = "Write three sentences about a lighthouse."
SAMPLED = {"temperature": "0.8", "top_p": "0.95", "sampling_seed": "00000000c0ffee00"}


def arms(**changes: object) -> list[Levers]:
    """Plain decoding and three ways to speculate."""
    asked: list[dict[str, object]] = [
        {"drafter": "none", "draft_len": 0, "depth": 1},
        {"min_match_len": 1},
        {"policy": "two-state", "prefill_chunk": 9},
        {"draft_len": 17, "depth": 2, "prefill_chunk": 2},
    ]
    return [make_levers(max_new_tokens=24, **{**one, **changes}) for one in asked]  # type: ignore[arg-type]


def ids_of(spec: RingSpec, asked: list[Levers], prompt: str = PROMPT) -> list[list[int]]:
    with LocalRing(spec) as ring, ring.session() as session:
        generator = Generator(session, ring.files)
        return [generator.generate(prompt, levers=one).result.output_ids for one in asked]


@pytest.fixture(scope="module")
def greedy_ids() -> list[int]:
    return ids_of(RingSpec(num_stages=2, suite="plain"), arms()[:1])[0]


def test_speculation_is_exact_on_the_fp8_wire(greedy_ids: list[int]) -> None:
    """Catches a scale that depends on the frame: chain-fp8 must equal ar-fp8, id by id."""
    plain, *speculated = ids_of(RingSpec(num_stages=4), arms(numeric_config="fp8"))
    assert all(ids == plain for ids in speculated)
    assert plain[0] == greedy_ids[0], "fp8 is near f32: the first, clear token is the same"


def test_speculation_is_exact_on_4_bit_weights() -> None:
    """Catches a 4-bit product whose rows depend on each other: chain-int4 must equal ar-int4."""
    asked = arms(numeric_config="int4")
    plain, *speculated = ids_of(RingSpec(num_stages=2, weights="int4"), asked, LONG_PROMPT)
    assert len(plain) == 24 and all(ids == plain for ids in speculated)
    assert ids_of(RingSpec(num_stages=3, weights="int4"), asked[:1], LONG_PROMPT) == [plain]


@pytest.mark.parametrize(("held", "others"), [("f32", ["int4"]), ("int4", ["f32", "fp8"])])
def test_a_job_of_other_weights_is_refused_and_the_ring_stays(held: str, others: list[str]) -> None:
    """Catches an answer in weights that nobody asked for, and a refusal that costs the ring."""
    spec = RingSpec(num_stages=2, weights=held, suite="plain")
    with LocalRing(spec) as ring, ring.session() as session:
        generator = Generator(session, ring.files)
        for asked in others:
            refusal = f"numeric_config.*'{asked}' computes with .* {held} "
            with pytest.raises(JobError, match=refusal):
                generator.generate(PROMPT, levers=arms(numeric_config=asked)[0])
        result = generator.generate(PROMPT, levers=arms(numeric_config=held)[0]).result
    assert result.finish_reason == "eos" and result.output_ids
    assert {ack.kernel for ack in result.acks} == {kernel_for(held).name}


def test_unknown_weights_are_refused_before_any_process_starts() -> None:
    with pytest.raises(ConfigError, match=r"'int3'.*f32, int4"):
        LocalRing(RingSpec(weights="int3"))


def test_sampling_is_exact_on_any_split() -> None:
    """Catches noise that depends on frames, stages or drafts."""
    split = ids_of(RingSpec(num_stages=3), arms(**SAMPLED))
    seeds = arms(**SAMPLED)[:1] + arms(**{**SAMPLED, "sampling_seed": "0" * 16})[:1]
    whole, other = ids_of(RingSpec(num_stages=1), seeds)
    assert all(ids == whole for ids in split)
    assert other != whole


def test_sealing_changes_no_token(greedy_ids: list[int]) -> None:
    for suite in ("chacha20-poly1305", "aes-256-gcm"):
        assert ids_of(RingSpec(num_stages=2, suite=suite), arms()[1:2]) == [greedy_ids]
