"""4-bit weights: the file's own codes, rows that ignore their company, logits near float32's."""

from __future__ import annotations

from itertools import pairwise

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import ConfigError, ModelError
from engine.model import linear as linear_module
from engine.model import linear_int4
from engine.model.decoder import Decoder
from engine.model.linear import (
    DEFAULT_PROBE_SHAPES,
    PackedF32,
    int4_kernel,
    kernel_for,
    linear,
    linear_add,
    linear_kernel,
    pack,
    weights_of_kernel,
)
from engine.model.linear_int4 import (
    GROUP_LEN,
    PackedInt4,
    differing_int4_counts,
    pack_int4,
    probe_int4,
    quantise,
    threads_change_bits,
)
from engine.model.row_invariance import LinearKernel
from engine.model.weights import ModelFiles, load_layers

SHORT_LEN = 130  # crosses the first key block
MAX_KL, MIN_SAME_TOP = 2e-3, 0.95  # from f32 over 130 positions of text; 2e-4 and 0.99 were seen


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def run_in_chunks(stages: list[Decoder], ids: torch.Tensor, lens: list[int]) -> torch.Tensor:
    """Hidden states of all ids, fed in chunks, the lengths taken in turn."""
    caches = [stage.new_cache() for stage in stages]
    pieces, start = [], 0
    while start < len(ids):
        hidden = stages[0].embed(ids[start : start + lens[len(pieces) % len(lens)]])
        for stage, cache in zip(stages, caches, strict=True):
            hidden = stage.forward(hidden, start, cache)
        pieces.append(hidden)
        start += len(hidden)
    return torch.cat(pieces)


@pytest.fixture(scope="module")
def int4_decoder(files: ModelFiles) -> Decoder:
    return Decoder.load(files, 0, files.config.num_layers, "int4")


@pytest.fixture(scope="module")
def short_int4_decoder(files: ModelFiles) -> Decoder:
    return Decoder.load(files, 0, 2, "int4")


@pytest.fixture(scope="module")
def one_by_one(short_int4_decoder: Decoder, passage_ids: torch.Tensor) -> torch.Tensor:
    return run_in_chunks([short_int4_decoder], passage_ids[:300], [1])


@settings(max_examples=10, deadline=None)
@given(lens=st.lists(st.integers(1, 64), min_size=1, max_size=12))
def test_random_chunkings_are_exact(short_int4_decoder, passage_ids, one_by_one, lens) -> None:
    chunked = run_in_chunks([short_int4_decoder], passage_ids[:300], lens)
    assert torch.equal(chunked, one_by_one)


def test_threads_change_no_bit(short_int4_decoder, passage_ids, one_by_one, two_threads) -> None:
    chunked = run_in_chunks([short_int4_decoder], passage_ids[:300], [9, 1, 200])
    assert torch.equal(chunked, one_by_one)


@pytest.mark.parametrize("num_stages", [2, 3, 30])
def test_any_split_gives_the_unsplit_bits(files, int4_decoder, passage_ids, num_stages) -> None:
    num_layers = files.config.num_layers
    bounds = [num_layers * idx // num_stages for idx in range(num_stages + 1)]
    stages = [Decoder.load(files, *span, "int4") for span in pairwise(bounds)]
    split = stages[-1].logits(run_in_chunks(stages, passage_ids[:40], [20, 1, 9, 10]))
    whole = int4_decoder.logits(run_in_chunks([int4_decoder], passage_ids[:40], [40]))
    assert torch.equal(split, whole)


def test_logits_are_near_those_of_float32(decoder, int4_decoder, passage_ids) -> None:
    """Catches weights that are packed in another order than the kernel reads them."""
    ids = passage_ids[:SHORT_LEN]
    exact, coarse = (
        one.logits(run_in_chunks([one], ids, [64])).log_softmax(-1)
        for one in (decoder, int4_decoder)
    )
    divergence = (exact.exp() * (exact - coarse)).sum(-1).mean()
    assert 0 < divergence < MAX_KL
    assert (exact.argmax(-1) == coarse.argmax(-1)).float().mean() >= MIN_SAME_TOP


def test_codes_scales_and_minima_are_the_file_s(files: ModelFiles) -> None:
    """Catches blocks of the model's own file that are rounded a second time."""
    reader = gguf.GGUFReader(files.source_path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    layer = load_layers(files, 0, 1, False, False).layers[0]
    for name, weight in (("ffn_down", layer.down), ("attn_v", layer.value)):
        tensor = tensors[f"blk.0.{name}.weight"]
        assert tensor.tensor_type == gguf.GGMLQuantizationType.Q4_1
        blocks = np.asarray(tensor.data).reshape(-1, 4 + GROUP_LEN // 2)
        terms = torch.from_numpy(blocks[:, :4].copy().view(np.float16).astype(np.float32))
        nibbles = torch.from_numpy(np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 1))
        codes, scales, minima = quantise(weight)
        assert torch.equal(codes.reshape(-1, GROUP_LEN), nibbles.int())
        assert torch.equal(scales.flatten(), terms[:, 0])
        assert torch.equal(minima.flatten(), terms[:, 1])


def restored(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What codes, scales and minima say, and each weight's step."""
    codes, scales, minima = quantise(weight)
    assert 0 <= int(codes.min()) <= int(codes.max()) <= 15
    steps, least = (part.repeat_interleave(GROUP_LEN, 1) for part in (scales, minima))
    return codes * steps + least, steps


@settings(max_examples=40, deadline=None)
@given(
    used=st.lists(st.integers(0, 15), min_size=1, max_size=6, unique=True),
    scale=st.floats(2**-10, 1.0, width=16),
    minimum=st.floats(-8.0, 8.0, width=16),
)
def test_any_block_of_16_equidistant_values_is_kept(used, scale, minimum) -> None:
    """Catches a block that uses few of its codes, on which 16 values from end to end miss some."""
    generator = torch.Generator().manual_seed(1)
    picked = torch.randint(len(used), (3, GROUP_LEN), generator=generator)
    codes = torch.tensor(used)[picked]
    codes[0] = torch.arange(GROUP_LEN) % 16  # the tensor is one of 4 bits
    weight = codes * scale + minimum
    near = restored(weight.float())[0]
    torch.testing.assert_close(near, weight.float(), atol=2**-10 * scale, rtol=1e-6)


def test_blocks_of_q4_0_are_kept() -> None:
    """Catches a block whose values lie unevenly about zero, as symmetric ones do."""
    raw = gguf.quants.quantize(normal(64, 256).numpy(), gguf.GGMLQuantizationType.Q4_0)
    weight = torch.from_numpy(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q4_0))
    near, steps = restored(weight)
    assert ((near - weight).abs() <= 2**-10 * steps).all()


def test_other_weights_are_rounded_to_the_nearest() -> None:
    weight = normal(16, 64)
    weight[0, :GROUP_LEN] = 0.3  # equal weights have no step
    near, steps = restored(weight)
    assert ((near - weight).abs() <= 0.5001 * steps).all()
    assert torch.equal(near[0, :GROUP_LEN], weight[0, :GROUP_LEN])


def test_products_are_those_of_the_rounded_weights() -> None:
    weight, rows, addend = normal(48, 96), normal(7, 96, seed=1), normal(7, 48, seed=2)
    packed = pack(weight, int4_kernel())
    assert isinstance(packed, PackedInt4)
    expected = rows.bfloat16().float() @ restored(weight)[0].T
    with torch.inference_mode():
        product = linear(rows, packed)
        assert product.dtype == torch.float32
        # scale, zero and result have 8 bits each
        torch.testing.assert_close(product, expected, atol=0.15, rtol=2**-7)
        assert torch.equal(linear_add(rows, packed, addend), product + addend)


@pytest.mark.parametrize(("num_out", "num_in"), [(24, 64), (32, 48)])
def test_what_the_kernel_cannot_multiply_stays_float32(num_out: int, num_in: int) -> None:
    assert isinstance(pack(normal(num_out, num_in), int4_kernel()), PackedF32)


def test_the_head_stays_float32(files: ModelFiles) -> None:
    last = Decoder.load(files, files.config.num_layers - 1, files.config.num_layers, "int4")
    assert isinstance(last._head, PackedF32)
    assert isinstance(last._layers[0].query_key_value, PackedInt4)


def test_kernels_are_named_apart(files: ModelFiles) -> None:
    """Catches receipts that cannot tell 4-bit weights from float32 ones."""
    names = {weights: Decoder.load(files, 0, 0, weights).kernel.name for weights in ("f32", "int4")}
    assert names["int4"].startswith("int4-bf16-") and names["f32"] in names["int4"]
    assert all(weights_of_kernel(name) == weights for weights, name in names.items())
    with pytest.raises(ConfigError, match=r"'int3'.*f32, int4"):
        kernel_for("int3")


def test_the_kernel_is_invariant_here(two_threads) -> None:
    kernel = int4_kernel()
    for shape in DEFAULT_PROBE_SHAPES:
        assert not threads_change_bits(*shape)
        if kernel.block_rows == 0:
            assert all(count < kernel.row_floor for count in differing_int4_counts(*shape))
    assert torch.get_num_threads() == 2, "the probe puts the threads back"


def test_the_probe_sees_rows_and_threads_that_matter(monkeypatch, two_threads) -> None:
    """Catches a probe that finds nothing, or that looks at one number of threads only."""
    honest = linear_int4.product_int4

    def by_rows(rows: torch.Tensor, packed: PackedInt4) -> torch.Tensor:
        return honest(rows, packed) + (len(rows) == 40)

    def by_threads(rows: torch.Tensor, packed: PackedInt4) -> torch.Tensor:
        return honest(rows, packed) + (len(rows) == 40) * (torch.get_num_threads() == 1)

    for product in (by_rows, by_threads):
        monkeypatch.setattr(linear_int4, "product_int4", product)
        assert differing_int4_counts(32, 64) == (40,)
    assert not threads_change_bits(32, 64)
    monkeypatch.setattr(
        linear_int4, "product_int4", lambda rows, packed: rows + torch.get_num_threads()
    )
    assert threads_change_bits(32, 64)


def test_the_probe_falls_back_to_blocks_or_refuses(monkeypatch) -> None:
    f32 = LinearKernel("f32-x", 4, 0)
    monkeypatch.setattr(linear_int4, "differing_int4_counts", lambda *shape: (1, 40))
    kernel = probe_int4(((32, 32),), f32)
    assert (kernel.name, kernel.row_floor) == ("int4-bf16-blocked16+f32-x", 1)
    assert kernel.block_rows == 16 and kernel.f32 is f32
    monkeypatch.setattr(linear_int4, "differing_int4_counts", lambda *shape: (1, 7))
    assert probe_int4(((32, 32),), f32).row_floor == 8
    monkeypatch.setattr(linear_int4, "threads_change_bits", lambda *shape: True)
    with pytest.raises(ModelError, match="use the numeric configuration f32"):
        probe_int4(((32, 32),), f32)


def test_blocks_are_exact_and_right(monkeypatch) -> None:
    weight, rows = normal(48, 96), normal(70, 96, seed=1)
    blocked, counts, product = pack_int4(weight, 16), set(), linear_int4._product
    spied = lambda block, *rest: (counts.add(len(block)), product(block, *rest))[1]  # noqa: E731
    monkeypatch.setattr(linear_int4, "_product", spied)
    with torch.inference_mode():
        whole = linear(rows, blocked)
        for count in range(1, 70):
            assert torch.equal(linear(rows[:count], blocked), whole[:count])
        assert counts == {16}, "every call of the kernel has one shape"
        torch.testing.assert_close(whole, linear(rows, pack_int4(weight, 0)), atol=0.1, rtol=0.02)


def test_a_float32_matrix_is_multiplied_by_no_fewer_rows_than_its_floor(monkeypatch) -> None:
    """Catches one row, enough for 4-bit products, that reaches a product which needs more."""
    counts = []

    def spied(product):
        return lambda rows, *rest: (counts.append(len(rows)), product(rows, *rest))[1]

    kernel = linear_int4.Int4Kernel("int4-x", 1, 0, LinearKernel("f32-x", 4, 0))
    packed, rows, addend = pack(normal(24, 48), kernel), normal(9, 48), normal(9, 24, seed=1)
    with torch.inference_mode():
        products = linear(rows, packed), linear_add(rows, packed, addend)
        for name in ("_pointwise", "_binary"):
            monkeypatch.setattr(linear_module, name, spied(getattr(linear_module, name)))
        for count in (0, 1, 3, 4, 5):
            assert torch.equal(linear(rows[:count], packed), products[0][:count])
            added = linear_add(rows[:count], packed, addend[:count])
            assert torch.equal(added, products[1][:count])
    assert counts == [4, 4, 4, 4, 4, 4, 4, 4, 5, 5]


def test_a_blocked_kernel_packs_blocked_weights() -> None:
    kernel = linear_int4.Int4Kernel("int4-x", 1, 16, linear_kernel())
    packed = pack(normal(32, 32), kernel)
    assert isinstance(packed, PackedInt4) and packed.block_rows == 16
