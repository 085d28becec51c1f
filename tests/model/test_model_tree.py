"""Trees: every node has the bits of its path fed as a chain, leaves nothing, and is a tree at all.

Mutations that were tried and are caught here: positions by row; runs not cut, or at the root alone;
no truncation behind a tree; taps a layer off; `>` for `>=` in the count of nodes; a parent off the
path let through; no check before the layers run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.defaults import TREE_NODES_MAX
from engine.errors import JobError
from engine.model.attention import attention, attention_by_position
from engine.model.attention_kernel import Attend, attention_kernel
from engine.model.decoder import Decoder
from engine.model.kv_cache import KVCache
from engine.model.sampling import SamplingParams, sample_ids
from engine.model.span import NO_LIMITS, PASS_LEN_MAX, CacheLimits
from engine.model.tree import (
    answered_positions,
    check_root,
    check_tree,
    followed,
    reach_of,
    row_offsets,
    runs_of,
)
from engine.model.weights import ModelFiles, prepare_model
from tests.model.tiny_models import CASES, INT4_CASES, VOCAB, WINDOW, make_peer, write_gguf
from tests.model.tree_shapes import depth_first_orders, leaves, path_to, trees
from tests.model.windowed_models import config_with, random_decoder, random_hidden

# the fast one is held against chains where this host settled on it: elsewhere it has other bits
KERNELS = {"the host's": attention_kernel().attend, "by position": attention_by_position}
# name -> weights; full and sliding layers, dense and experts, 4-bit products
MODELS = {"llama": "f32", "gemma3": "f32", "qwen3moe": "f32", "int4-llama": "int4"}
IDS = torch.randint(3, VOCAB, (500,), generator=torch.Generator().manual_seed(9))
SAMPLED = SamplingParams(temperature=0.9, top_k=60, top_p=0.98, seed=77)


@dataclass(frozen=True)
class Frame:
    """A tree behind a history and a trunk, all of random ids."""

    history_len: int
    trunk_len: int
    parents: tuple[int, ...]

    @property
    def ids(self) -> torch.Tensor:
        return IDS[self.history_len :][: self.trunk_len + len(self.parents)]

    @property
    def trunk_end(self) -> int:
        return self.history_len + self.trunk_len

    def path_ids(self, node: int) -> torch.Tensor:
        nodes = [IDS[self.trunk_end + idx] for idx in path_to(self.parents, node)]
        return torch.stack(nodes) if nodes else IDS[:0]

    def chain_to(self, node: int) -> torch.Tensor:
        """All ids from position 0 to a node."""
        return torch.cat([IDS[: self.trunk_end], self.path_ids(node)])


FRAMES = st.builds(Frame, st.integers(0, 140), st.integers(1, 12), trees())


class Ring:
    """A model split into stages, each with a cache."""

    def __init__(self, stages: Sequence[Decoder], limits: CacheLimits = NO_LIMITS) -> None:
        self.stages = stages
        self.caches = [stage.new_cache(limits) for stage in stages]

    def logits(self, ids: torch.Tensor, start: int, parents: Sequence[int] = ()) -> torch.Tensor:
        hidden = self.stages[0].embed(ids)
        for stage, cache in zip(self.stages, self.caches, strict=True):
            hidden = stage.forward(hidden, start, cache, parents)
        return self.stages[-1].logits(hidden)


class Split:
    """One model's layers, in every split that tests ask for."""

    def __init__(self, files: ModelFiles, weights: str) -> None:
        self.files, self.weights = files, weights
        self._loaded: dict[tuple[int, int], Decoder] = {}

    def stages(
        self,
        cuts: Sequence[int] = (),
        attend: Attend = attention_by_position,
        row_floor: int = 1,  # how far calls are padded; products pad for themselves below it
    ) -> list[Decoder]:
        num_layers = self.files.config.num_layers
        bounds = [0, *sorted({1 + cut % (num_layers - 1) for cut in cuts}), num_layers]
        made = []
        for span in pairwise(bounds):
            if span not in self._loaded:
                self._loaded[span] = Decoder.load(self.files, *span, self.weights)
            decoder = self._loaded[span]
            decoder._attend = attend
            decoder._row_floor = row_floor
            made.append(decoder)
        return made


@pytest.fixture(scope="module", params=MODELS)
def split(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Split:
    case = {**CASES, **INT4_CASES}[request.param]
    folder = tmp_path_factory.mktemp("tree")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGHAUL_CACHE", str(folder / "cache"))
        files = prepare_model(write_gguf(make_peer(case), case, folder / "tiny.gguf"))
    return Split(files, MODELS[request.param])


def stored_rows(cache: KVCache) -> list[torch.Tensor]:
    """Every layer's rows that the next query's view has, of all kinds."""
    (span,) = list(cache.begin(cache.kv_len, 1))
    rows = [
        part.clone()
        for layer_idx, (store, _) in enumerate(cache._places)
        for kind, view in span.views.items()
        if store is cache._stores[kind]
        for part in cache.read(layer_idx, view)
    ]
    cache.truncate(span.start)
    return rows


@settings(max_examples=25, deadline=None)
@given(
    frame=FRAMES,
    cuts=st.lists(st.integers(0, 5), max_size=2),
    kernel=st.sampled_from(sorted(KERNELS)),
    row_floor=st.sampled_from([1, 8]),
    draw=st.data(),
)
def test_a_node_has_the_bits_of_its_path(
    split: Split, frame: Frame, cuts: list[int], kernel: str, row_floor: int, draw: st.DataObject
) -> None:
    """Catches keys of siblings in a path, positions by row, padding that is a node, nodes left."""
    stages = split.stages(cuts, KERNELS[kernel], row_floor)
    ring, twin = Ring(stages), Ring(stages)
    for each in (ring, twin):
        if frame.history_len:
            each.logits(IDS[: frame.history_len], 0)
    logits = ring.logits(frame.ids, frame.history_len, frame.parents)
    chains = {}
    for leaf in leaves(frame.parents):
        chains[leaf] = Ring(stages).logits(frame.chain_to(leaf), 0)
        trunk_rows = [*range(frame.trunk_len)]
        node_rows = [frame.trunk_len + idx for idx in path_to(frame.parents, leaf)]
        own = logits[trunk_rows + node_rows]
        assert torch.equal(own, chains[leaf][frame.history_len :])
    # nothing is left of the nodes: the cache is that of the trunk alone
    twin.logits(frame.ids[: frame.trunk_len], frame.history_len)
    for cache, other in zip(ring.caches, twin.caches, strict=True):
        assert cache.kv_len == other.kv_len == frame.trunk_end
        for row, expected in zip(stored_rows(cache), stored_rows(other), strict=True):
            assert torch.equal(row, expected)
    # the path that was right, sent anew, is a chain like any other
    leaf = draw.draw(st.sampled_from(leaves(frame.parents)))
    if leaf >= 0:
        again = ring.logits(frame.path_ids(leaf), frame.trunk_end)
        assert torch.equal(again, chains[leaf][frame.trunk_end :])


@settings(max_examples=15, deadline=None)
@given(frame=FRAMES)
def test_every_attention_is_called_as_for_chains(split: Split, frame: Frame) -> None:
    """Any attention whatever, fed the runs as chains: calls of the same shapes over the same keys.

    So the fast one is held to the bit on hosts, too, where chunks of other lengths have other bits.
    """
    stages = split.stages([1], attention)
    ring, runs = Ring(stages), Ring(stages)
    if frame.history_len:
        for each in (ring, runs):
            each.logits(IDS[: frame.history_len], 0)
    start, ids = frame.history_len, frame.ids
    logits = ring.logits(ids, start, frame.parents)
    for run in runs_of(frame.parents, len(ids)):
        rows = slice(run.first_row, run.first_row + run.num_rows)
        assert torch.equal(runs.logits(ids[rows], start + run.offset), logits[rows])


@pytest.mark.parametrize("limits", [NO_LIMITS, CacheLimits(max_kv_size=20)])
@settings(max_examples=8, deadline=None)
@given(
    parents=trees(min_size=1),
    trunk_len=st.integers(1, 9),
    history_len=st.sampled_from([1, 17, 120, 250, 380]),
)
def test_windows_and_trims_hold_in_trees(
    limits: CacheLimits, parents: tuple[int, ...], trunk_len: int, history_len: int
) -> None:
    """Catches room that is made by run, which would drop an ancestor's keys, or by row."""
    config = config_with(["full", "sliding"], WINDOW, 1024)
    decoder = random_decoder(config, 0, 2)
    hidden = random_hidden(history_len + trunk_len + len(parents))
    cache = decoder.new_cache(limits)
    decoder.forward(hidden[:history_len], 0, cache)
    made = decoder.forward(hidden[history_len:], history_len, cache, parents)
    trunk_end = history_len + trunk_len
    for leaf in leaves(parents):
        path = path_to(parents, leaf)
        chain = torch.cat([hidden[:trunk_end], hidden[trunk_end:][path]])
        expected = decoder.forward(chain, 0, decoder.new_cache(limits))
        assert torch.equal(made[trunk_len:][path], expected[trunk_end:])
    again = decoder.forward(hidden[trunk_end:][path], trunk_end, cache)
    assert torch.equal(again, expected[trunk_end:])


def test_a_long_window_drops_no_ancestor() -> None:
    """A store at its bound: the last tree's frame moves rows to the front."""
    decoder = random_decoder(config_with(["sliding"], WINDOW, 2048), 0, 1)
    cache = decoder.new_cache()
    hidden = random_hidden(1900)
    parents = (-1, 0, 1, 0, 3, -1, 5)
    expected = decoder.forward(hidden, 0, decoder.new_cache())
    for start in range(0, 1800, 9):  # trees all the way: trunk of 2, then nodes
        made = decoder.forward(hidden[start : start + 9], start, cache, parents)
        assert torch.equal(made[:5], expected[start : start + 5])  # trunk, then nodes 0, 1, 2
        decoder.forward(hidden[start + 2 : start + 9], start + 2, cache)


def test_tokens_of_nodes_are_those_of_chains(split: Split) -> None:
    """Catches noise that is keyed by a node's row and not by its position."""
    stages = split.stages()
    frame = Frame(20, 3, (-1, 0, 1, 0, -1, 4))
    logits = Ring(stages).logits(torch.cat([IDS[:20], frame.ids]), 0, frame.parents)[20:]
    positions = answered_positions(frame.parents, 20, 9, frame.trunk_end - 1)
    ids = sample_ids(logits[2:], positions, SAMPLED)
    for node in range(-1, 6):
        chain = Ring(stages).logits(frame.chain_to(node), 0)
        expected = sample_ids(chain, range(1, len(chain) + 1), SAMPLED)
        assert ids[node + 1] == expected[-1]
    by_row = sample_ids(logits[2:], range(23, 30), SAMPLED)
    assert by_row != ids, "the example tells positions from rows"


def test_taps_are_the_outputs_of_their_layers(split: Split) -> None:
    """Catches a tap that is a layer off, or that a later layer writes over."""
    (whole,) = split.stages()
    num_layers = split.files.config.num_layers
    frame = Frame(0, 4, (-1, 0, -1))
    hidden = whole.embed(frame.ids)
    passed = whole.run(hidden, 0, whole.new_cache(), frame.parents, range(num_layers + 5))
    assert sorted(passed.taps) == list(range(num_layers))
    assert torch.equal(passed.hidden, whole.forward(hidden, 0, whole.new_cache(), frame.parents))
    rows = hidden
    for layer in range(num_layers):
        own = Decoder.load(split.files, layer, layer + 1, split.weights)
        own._attend = whole._attend
        rows = own.forward(rows, 0, own.new_cache(), frame.parents)
        assert torch.equal(passed.taps[layer], rows)
    assert torch.equal(passed.taps[num_layers - 1], passed.hidden)


def test_taps_of_a_frame_of_several_passes_are_whole() -> None:
    """Catches taps of the last pass alone."""
    decoder = random_decoder(config_with(["full", "full"]), 0, 2)
    hidden = random_hidden(600)
    passed = decoder.run(hidden, 0, decoder.new_cache(), (), [0])
    first = random_decoder(config_with(["full", "full"]), 0, 1)
    assert torch.equal(passed.taps[0], first.forward(hidden, 0, first.new_cache()))


# -- what is no tree ------------------------------------------------------------------------------


def refused(check: object) -> bool:
    try:
        check()  # type: ignore[operator]
    except JobError as error:
        assert error.code == "bad_tree", error
        assert error.detail
        return True
    return False


@pytest.mark.parametrize("num", range(6))
def test_exactly_the_trees_in_depth_first_order_pass(num: int) -> None:
    """Catches a parent that is later, off the path, or no index; and a tree that is refused."""
    good = set(depth_first_orders(num))
    assert len(good) == (1, 1, 2, 5, 14, 42)[num]
    for parents in product(range(-2, 6), repeat=num):
        assert refused(lambda p=parents: check_tree(p, num + 1)) == (parents not in good), parents


def test_bounds_of_trees() -> None:
    chain = tuple(range(-1, TREE_NODES_MAX))
    assert not refused(lambda: check_tree(chain[:-1], TREE_NODES_MAX + 1))
    assert refused(lambda: check_tree(chain, TREE_NODES_MAX + 2)), "one node too many"
    assert refused(lambda: check_tree((-1, 0), 2)), "no row for the root"
    assert not refused(lambda: check_tree((-1, 0), 3))
    assert not refused(lambda: check_tree((), 0)), "no tree, no root"
    for answer_from in (100, 101, 103, 104):
        assert refused(lambda at=answer_from: check_root((-1, 0), 100, 5, at))
    assert not refused(lambda: check_root((-1, 0), 100, 5, 102))
    assert not refused(lambda: check_root((), 100, 5, 103)), "a chain is answered from anywhere"


def test_a_tree_must_fit_one_pass_and_a_refusal_changes_nothing() -> None:
    decoder = random_decoder(config_with(["full"]), 0, 1)
    cache, hidden = decoder.new_cache(), random_hidden(PASS_LEN_MAX + 1)
    decoder.forward(hidden[:7], 0, cache)
    for rows, parents in ((PASS_LEN_MAX + 1, (-1,)), (4, (-1, 1)), (2, (-1, 0))):
        assert refused(lambda n=rows, p=parents: decoder.forward(hidden[:n], 3, cache, p))
        assert cache.kv_len == 7
    decoder.forward(hidden[:PASS_LEN_MAX], 3, cache, (-1,))
    assert cache.kv_len == 3 + PASS_LEN_MAX - 1


def test_a_tree_needs_room_for_its_depth_only() -> None:
    """Catches a context that is counted in rows: siblings share a position."""
    decoder = random_decoder(config_with(["full"], context_len=256), 0, 1)
    cache, hidden = decoder.new_cache(), random_hidden(256)
    decoder.forward(hidden[:254], 0, cache)
    decoder.forward(hidden[:9], 254, cache, (-1,) * 8)
    assert cache.kv_len == 255
    with pytest.raises(JobError, match="context of 256"):
        decoder.forward(hidden[:3], 254, cache, (-1, 0))


@given(parents=trees(max_size=20), trunk_len=st.integers(1, 5))
def test_runs_tile_the_rows_in_order(parents: tuple[int, ...], trunk_len: int) -> None:
    num_rows = trunk_len + len(parents)
    runs, offsets = runs_of(parents, num_rows), row_offsets(parents, num_rows)
    tiled = [(run.first_row + idx, run.offset + idx) for run in runs for idx in range(run.num_rows)]
    assert tiled == list(enumerate(offsets))
    depths = [len(path_to(parents, node)) for node in range(len(parents))]
    assert offsets == [*range(trunk_len), *(trunk_len - 1 + depth for depth in depths)]
    assert reach_of(runs) == max(offsets) + 1
    for before, after in pairwise(runs):  # a run that could have gone on is no run
        assert after.offset != before.offset + before.num_rows or parents[
            after.first_row - trunk_len
        ] != (after.first_row - trunk_len - 1)


def test_answers_are_followed_from_the_root() -> None:
    """Catches a walk by row, into a sibling's child or past the first wrong node."""
    parents, node_ids = (-1, 0, 1, 0, -1, 4), (5, 6, 7, 8, 9, 6)
    assert followed(parents, node_ids, (5, 8, 0, 0, 6, 0, 0)) == [0, 3]
    assert followed(parents, node_ids, (9, 6, 7, 7, 8, 6, 1)) == [4, 5]
    assert followed(parents, node_ids, (1, 6, 7, 7, 8, 6, 1)) == []
    assert followed((), (), (3,)) == []
