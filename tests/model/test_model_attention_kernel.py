"""The probe of the attention, and what takes over where a processor's products fail it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from engine.model import attention_kernel as module
from engine.model.attention import attention, attention_by_position
from engine.model.attention_kernel import (
    DEFAULT_HEAD_SHAPES,
    PROBED_CALLS,
    attention_kernel,
    differing_calls,
    probe_attention,
)
from engine.model.linear import KERNELS, kernel_for, weights_of_kernel
from engine.model.masks import num_query_rows
from engine.model.span import NO_LIMITS, CacheLimits
from engine.stage.executor import DecoderExecutor
from tests.model import windowed_models
from tests.model.windowed_models import (
    RandomAttention,
    config_with,
    random_decoder,
    random_hidden,
    run_in_chunks,
)

SHAPE = (2, 3, 16)
NUM_POSITIONS = 150
CHUNKINGS = ([2], [3, 1, 9], [17], [64], [150])
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def by_rows(rows: torch.Tensor, matrix: torch.Tensor, product: Product) -> torch.Tensor:
    """Another order of summation for other numbers of rows."""
    shift = rows.shape[1] % 5
    return product(rows.roll(shift, 2), matrix.roll(shift, 1))


def by_columns(rows: torch.Tensor, matrix: torch.Tensor, product: Product) -> torch.Tensor:
    """Another order of summation for other numbers of columns."""
    shift = matrix.shape[2] // 128
    return product(rows.roll(shift, 2), matrix.roll(shift, 1))


def by_place(rows: torch.Tensor, matrix: torch.Tensor, product: Product) -> torch.Tensor:
    """Another rounding in some rows of a product, as at the end of a kernel's tiles."""
    errors = (torch.arange(rows.shape[1]) % 7 == 6) * 2.0**-22
    return product(rows, matrix) * (1 + errors.unsqueeze(1))


@pytest.fixture(params=[by_rows, by_columns, by_place])
def planted(request, monkeypatch) -> Iterator[None]:
    """A processor whose batched products are not row invariant, for a process that starts anew."""
    product = torch.bmm

    def bmm(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        return request.param(rows, matrix, product)

    def baddbmm(addend, rows, matrix, *, beta=1.0, alpha=1.0) -> torch.Tensor:
        return addend * beta + alpha * bmm(rows, matrix)

    def baddbmm_in_place(addend, rows, matrix) -> torch.Tensor:
        return addend.add_(bmm(rows, matrix))

    monkeypatch.setattr(torch, "bmm", bmm)
    monkeypatch.setattr(torch, "baddbmm", baddbmm)
    monkeypatch.setattr(torch.Tensor, "baddbmm_", baddbmm_in_place)
    attention_kernel.cache_clear()
    yield
    attention_kernel.cache_clear()


def one_by_one_and_chunked() -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Two layers over random hidden states, position by position and in chunks."""
    decoder = random_decoder(config_with(("full", "sliding"), window_len=100), 0, 2)
    hidden = random_hidden(NUM_POSITIONS)
    chunked = [run_in_chunks(decoder, hidden, lengths) for lengths in CHUNKINGS]
    return run_in_chunks(decoder, hidden, [1]), chunked


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("shape", DEFAULT_HEAD_SHAPES)
def test_the_attention_of_this_host_keeps_its_bits(shape, num_threads, two_threads) -> None:
    torch.set_num_threads(num_threads)
    assert list(differing_calls(attention_kernel().attend, *shape)) == []
    assert torch.get_num_threads() == num_threads, "the probe puts the threads back"


def test_the_probe_catches_a_planted_kernel(planted) -> None:
    assert list(differing_calls(attention, *SHAPE)) != []
    assert list(differing_calls(attention_by_position, *SHAPE)) == []
    assert probe_attention((SHAPE,)).attend is attention_by_position


def test_every_probed_call_is_compared(monkeypatch) -> None:
    """Catches a probe that skips lengths: each one, planted alone, must be named."""
    expected = [
        (start + max(40 - length, 0), length)
        for start, lengths in PROBED_CALLS.items()
        for length in lengths
        if length != 40  # the reference itself
    ]
    assert {1, 2, 9, 39, 96, 256} <= {length for _, length in expected}
    for plant in expected:
        calls = iter(_as_called(plant))
        monkeypatch.setattr(module, "_calls", lambda *ignored, calls=calls: next(calls))
        assert list(differing_calls(attention, *SHAPE)) == [plant]


def _as_called(plant: tuple[int, int]) -> list[Callable[[int, int], torch.Tensor]]:
    """Make a call that gives positions as their outputs, but for one of them in the plant."""

    def call(start: int, num_new: int) -> torch.Tensor:
        outputs = torch.arange(start, start + num_new).float().unsqueeze(1)
        outputs[0] += (start, num_new) == plant
        return outputs

    return [call]


def test_the_probe_compares_threads(two_threads) -> None:
    def by_threads(*call) -> torch.Tensor:
        return attention(*call) + torch.get_num_threads()

    found = list(differing_calls(by_threads, *SHAPE))
    assert found == [(start, 40) for start in PROBED_CALLS]
    assert next(differing_calls(by_threads, *SHAPE)) == found[0]
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert list(differing_calls(by_threads, *SHAPE)) == []


def test_a_planted_kernel_changes_no_bit_of_a_decoder(planted) -> None:
    """The fall-back is taken, and without it there would be something to mend."""
    whole, chunked = one_by_one_and_chunked()
    assert all(torch.equal(hidden, whole) for hidden in chunked)


def test_without_the_fall_back_a_planted_kernel_shows(planted, monkeypatch) -> None:
    """Catches plants that the test above would pass with any attention."""
    monkeypatch.setattr(module, "attention_by_position", attention)
    whole, chunked = one_by_one_and_chunked()
    assert not all(torch.equal(hidden, whole) for hidden in chunked)


@pytest.mark.parametrize("heads", [(3, 1), (4, 4), (8, 2), (14, 2)])
@pytest.mark.parametrize("limits", [NO_LIMITS, CacheLimits(60)])
def test_the_fall_back_is_exact_and_right(heads, limits, monkeypatch) -> None:
    """Windows, trims and heads of all kinds: the bits of single steps, the values of a softmax."""
    monkeypatch.setattr(windowed_models, "attention", attention_by_position)
    text = RandomAttention.draw(config_with(("full", "sliding"), 40, heads=heads), 300)
    stepped = text.one_by_one(300, limits)
    for chunk in (2, 9, 300):
        cache, masks = text.new_cache(limits), text.new_masks()
        pieces = [
            text.run(cache, masks, start, min(chunk, 300 - start), padding_len=1)
            for start in range(0, 300, chunk)
        ]
        assert torch.equal(torch.cat(pieces, dim=1), stepped)
    for position in (0, 1, 39, 127, 128, 299):
        expected = text.dense(position, limits).float()
        torch.testing.assert_close(stepped[:, position], expected, atol=1e-5, rtol=1e-5)


def test_the_fall_back_takes_keys_without_a_mask() -> None:
    """Beyond 4096 keys the first segment has none."""
    generator = torch.Generator().manual_seed(3)
    queries = torch.randn(5, 6, 16, generator=generator)
    segments = [torch.randn(4, num_keys, 16, generator=generator) for num_keys in (256, 128)]
    mask = torch.zeros(num_query_rows(15, 2), 128)
    mask[:, 100:] = float("-inf")
    found = attention_by_position(queries, segments, [None, mask], 0.25)
    expected = attention(queries, segments, [None, mask], 0.25)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_process_probes_once(monkeypatch) -> None:
    probed = []
    monkeypatch.setattr(
        module, "probe_attention", lambda shapes: (probed.append(shapes), attention)[1]
    )
    attention_kernel.cache_clear()
    for _ in range(3):
        attention_kernel()
    attention_kernel.cache_clear()
    assert probed == [DEFAULT_HEAD_SHAPES]


@pytest.mark.parametrize("weights", KERNELS)
def test_kernels_name_their_attention(weights) -> None:
    name = kernel_for(weights).name
    assert name == f"{KERNELS[weights]().name}+attention-floor4" or "by-position" in name
    assert weights_of_kernel(name) == weights


def test_a_stage_reports_the_fall_back(planted) -> None:
    """Catches a stage that computes with one attention and names another."""
    decoder = random_decoder(config_with(("full",)), 0, 1)
    executor = DecoderExecutor(decoder, "digest")
    assert executor.kernel == kernel_for("f32").name
    assert executor.kernel.endswith("+attention-by-position")
