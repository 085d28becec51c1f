"""What travels: frames and bytes per traversal, ids or full logits, f32 or fp8, any sampling."""

from __future__ import annotations

import pytest
import torch
from oracle_ring import HIDDEN_LEN, OracleRing, continuation, repetitive_truth

from engine.coordinator.job import JobRequest, JobResult, make_levers
from engine.transport.message import Levers

TRUTH = repetitive_truth(alphabet=13, period=11)
PROMPT = tuple(TRUTH([0] * (idx + 1)) for idx in range(30))
NUM_NEW = 20
VOCAB_LEN = 151_936  # of the model whose logits made the protocol this one learnt from slow


def levers(**changes: object) -> Levers:
    asked = {"drafter": "none", "draft_len": 0, "depth": 1, "max_new_tokens": NUM_NEW, **changes}
    return make_levers(**asked)  # type: ignore[arg-type]


def decode(ring: OracleRing, asked: Levers, **changes: object) -> JobResult:
    request = JobRequest(
        prompt_ids=PROMPT, levers=asked, eos_ids=frozenset(), nonce="00", **changes
    )
    with ring.session() as session:
        result = session.run(request)
    assert result.failure is None
    return result


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
def test_full_logits_travel_once_a_traversal_and_as_raw_f16(num_stages: int) -> None:
    """Catches logits that go back stage by stage, or as text: 304 KB a token, once."""
    seen: list[tuple[int, torch.Tensor]] = []
    with OracleRing(num_stages, TRUTH) as ring:
        ring.executors[-1].vocab_size = VOCAB_LEN
        result = decode(
            ring,
            levers(reply="logits"),
            on_logits=lambda start, logits: seen.append((start, logits)),
        )
    assert result.output_ids == continuation(TRUTH, PROMPT, NUM_NEW, ())
    assert len(result.frames) == NUM_NEW  # the prefill's traversal, then one a token
    assert [item.frames_sent for item in result.statements] == [NUM_NEW] * num_stages
    for frame in result.frames:
        assert 0 <= frame.received_bytes - 2 * VOCAB_LEN < 500, "f16, and little around it"
        assert frame.sent_bytes < 500
    *between, last = (item.bytes_sent for item in result.statements)
    assert last == sum(frame.received_bytes for frame in result.frames)
    assert sum(between) < VOCAB_LEN, "hidden states only, no logits on the way"
    assert len(seen) == NUM_NEW
    for (_, logits), token in zip(seen, result.output_ids, strict=True):
        assert logits.shape == (1, VOCAB_LEN) and logits.dtype == torch.float16
        assert int(logits[0].argmax()) == token


@pytest.mark.parametrize("drafts", [{}, {"drafter": "ngram", "draft_len": 3, "depth": 4}])
def test_the_caller_gets_the_logits_of_each_output_token_once(drafts: dict[str, object]) -> None:
    """Catches rows of refuted drafts, rows handed out twice, and rows under another position."""
    seen: dict[int, int] = {}

    def note(first_position: int, logits: torch.Tensor) -> None:
        for row_idx, row in enumerate(logits):
            assert first_position + row_idx not in seen
            seen[first_position + row_idx] = int(row.argmax())

    with OracleRing(3, TRUTH) as ring:
        asked = levers(reply="logits", min_match_len=1, prefill_chunk=7, **drafts)
        result = decode(ring, asked, on_logits=note)
    assert list(seen) == list(range(len(PROMPT), len(PROMPT) + NUM_NEW))
    assert list(seen.values()) == result.output_ids


def test_ids_alone_are_a_few_bytes() -> None:
    with OracleRing(2, TRUTH) as ring:
        result = decode(ring, levers())
    assert all(frame.received_bytes < 200 for frame in result.frames)


def test_the_fp8_wire_is_one_byte_a_value_and_one_scale_a_position() -> None:
    """Catches a wire lever that reaches no tensor."""
    with OracleRing(3, TRUTH) as ring:
        result = decode(ring, levers(numeric_config="fp8", prefill_chunk=7))
        wide = decode(ring, levers(prefill_chunk=7))
    assert result.output_ids == wide.output_ids == continuation(TRUTH, PROMPT, NUM_NEW, ())
    num_positions = sum(frame.positions_len for frame in result.frames)
    saved = wide.statements[0].bytes_sent - result.statements[0].bytes_sent
    per_position = 4 * HIDDEN_LEN - (HIDDEN_LEN + 4)
    longer_header = 40 * len(result.frames)  # one more tensor to describe
    assert 0 <= num_positions * per_position - saved < longer_header


def test_speculation_on_the_fp8_wire_gives_the_same_ids() -> None:
    """Catches a scale that depends on the chunk. (Bytes differ: a stage may drop stale frames.)"""
    with OracleRing(3, TRUTH) as ring:
        asked = levers(numeric_config="fp8", drafter="ngram", draft_len=3, depth=4, min_match_len=1)
        assert decode(ring, asked).output_ids == continuation(TRUTH, PROMPT, NUM_NEW, ())


def test_sampled_ids_do_not_depend_on_how_they_were_verified() -> None:
    """Catches noise drawn per frame instead of per position: every arm must agree."""
    with OracleRing(2, TRUTH) as ring:
        sampled = {"temperature": "0.9", "top_k": 9, "sampling_seed": "00000000000000a7"}
        plain = decode(ring, levers(**sampled)).output_ids
        for drafts in (
            {"drafter": "ngram", "draft_len": 8, "depth": 4, "min_match_len": 1},
            {"drafter": "ngram", "draft_len": 2, "depth": 8, "min_match_len": 1},
            {"prefill_chunk": 3},
        ):
            assert decode(ring, levers(**sampled, **drafts)).output_ids == plain
        assert plain != decode(ring, levers(**{**sampled, "sampling_seed": "0" * 16})).output_ids
        assert plain != continuation(TRUTH, PROMPT, NUM_NEW, ())
