"""Small random decoders with windows, their attention alone, and the dense answer in float64."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from engine.model.attention import attention
from engine.model.config import ModelConfig, Rope
from engine.model.decoder import Decoder
from engine.model.kv_cache import KVCache
from engine.model.masks import Masks
from engine.model.span import NO_LIMITS, PINNED_LEN, CacheLimits
from engine.model.weights import LayerWeights, StageWeights

HIDDEN_SIZE = 48


def config_with(
    layer_kinds: Sequence[str],
    window_len: int | None = None,
    context_len: int = 1024,
    heads: tuple[int, int] = (3, 1),
) -> ModelConfig:
    """Describe a small llama; three query heads per key head leave a rest in every row count."""
    rope = Rope(10000.0)
    return ModelConfig(
        architecture="llama",
        num_layers=len(layer_kinds),
        hidden_size=HIDDEN_SIZE,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=16,
        intermediate_size=64,
        vocab_size=50,
        rms_eps=1e-5,
        rope=rope,
        sliding_rope=rope,
        attention_scale=0.25,
        context_len=context_len,
        bos_id=None,
        eos_ids=(0,),
        tied_head=False,
        sliding_window=window_len if "sliding" in layer_kinds else None,
        layer_kinds=tuple(layer_kinds),
    )


def random_decoder(config: ModelConfig, layer_start: int, layer_end: int) -> Decoder:
    """Make layers whose weights depend on their index alone, so that splits agree."""
    decoder = Decoder(config, layer_start, layer_end)
    layers = tuple(_random_layer(config, idx) for idx in range(layer_start, layer_end))
    decoder._take(StageWeights(layers, None, None, None))
    return decoder


def _random_layer(config: ModelConfig, layer_idx: int) -> LayerWeights:
    generator = torch.Generator().manual_seed(layer_idx)

    def matrix(num_out: int, num_in: int) -> torch.Tensor:
        return torch.randn(num_out, num_in, generator=generator) * 2 / num_in**0.5

    hidden, width = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return LayerWeights(
        attention_norm=torch.ones(hidden),
        query=matrix(query, hidden),
        key=matrix(key, hidden),
        value=matrix(key, hidden),
        attention_output=matrix(hidden, query),
        mlp_norm=torch.ones(hidden),
        gate=matrix(width, hidden),
        up=matrix(width, hidden),
        down=matrix(hidden, width),
    )


def random_hidden(num_positions: int, seed: int = 7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_positions, HIDDEN_SIZE, generator=generator)


def run_in_chunks(
    decoder: Decoder,
    hidden: torch.Tensor,
    chunk_lens: Sequence[int],
    limits: CacheLimits = NO_LIMITS,
) -> torch.Tensor:
    """Feed positions in chunks, the lengths taken in turn."""
    cache = decoder.new_cache(limits)
    pieces: list[torch.Tensor] = []
    start = turn = 0
    while start < len(hidden):
        chunk = hidden[start : start + chunk_lens[turn % len(chunk_lens)]]
        pieces.append(decoder.forward(chunk, start, cache))
        start, turn = start + len(chunk), turn + 1
    return torch.cat(pieces)


def visible_keys(position: int, window_len: int | None, max_kv_size: int | None) -> Iterable[int]:
    """The rule in its plainest form."""
    for key in range(position + 1):
        in_window = window_len is None or position - key < window_len
        kept = max_kv_size is None or key < PINNED_LEN or position - key < max_kv_size - PINNED_LEN
        if in_window and kept:
            yield key


@dataclass(frozen=True, slots=True)
class RandomAttention:
    """Attention of every layer of a config over random queries, keys and values.

    Attributes:
        config: kinds, window and shapes.
        queries: [L, S, N, D].
        keys_values: [L, S, 2 G, D].
    """

    config: ModelConfig
    queries: torch.Tensor
    keys_values: torch.Tensor

    @classmethod
    def draw(cls, config: ModelConfig, num_positions: int) -> RandomAttention:
        generator = torch.Generator().manual_seed(11)
        shape = (config.num_layers, num_positions)

        def heads(num_heads: int) -> torch.Tensor:
            return torch.randn(*shape, num_heads, config.head_dim, generator=generator)

        return cls(config, heads(config.num_heads) * 2, heads(2 * config.num_kv_heads))

    def new_cache(self, limits: CacheLimits = NO_LIMITS) -> KVCache:
        return KVCache(self.config, 0, self.config.num_layers, limits)

    def new_masks(self) -> Masks:
        return Masks(self.config.num_heads, self.config.num_kv_heads)

    @torch.inference_mode()
    def run(
        self, cache: KVCache, masks: Masks, start: int, num_new: int, padding_len: int = 0
    ) -> torch.Tensor:
        """Run a frame as a decoder does.

        Shapes:
            return: [L, T, N D]
        """
        passes = []
        for span in cache.begin(start, num_new):
            layers = []
            for layer_idx, kind in enumerate(self.config.layer_kinds):
                view, end = span.views[kind], span.start + span.num_new
                cache.write(layer_idx, view, self.keys_values[layer_idx, span.start : end])
                queries = self.queries[layer_idx, span.start : end]
                queries = torch.nn.functional.pad(queries, (0, 0, 0, 0, 0, padding_len))
                mixed = attention(
                    queries,
                    cache.read(layer_idx, view),
                    masks.of(span, view, span.num_new + padding_len),
                    self.config.attention_scale,
                )
                assert mixed.isfinite().all()
                layers.append(mixed[: span.num_new])
            passes.append(torch.stack(layers))
        return torch.cat(passes, dim=1) if passes else self.queries[:, :0].flatten(2)

    def one_by_one(self, num_positions: int, limits: CacheLimits = NO_LIMITS) -> torch.Tensor:
        """Autoregressive decoding, what every other way must equal bit for bit."""
        cache, masks = self.new_cache(limits), self.new_masks()
        steps = [self.run(cache, masks, position, 1) for position in range(num_positions)]
        return torch.cat(steps, dim=1)

    def dense(self, position: int, limits: CacheLimits = NO_LIMITS) -> torch.Tensor:
        """Softmax over the visible keys in float64, without blocks, caches or masks.

        Shapes:
            return: [L, N D]
        """
        config, layers = self.config, []
        for layer_idx, kind in enumerate(config.layer_kinds):
            window_len = config.sliding_window if kind == "sliding" else None
            seen = list(visible_keys(position, window_len, limits.max_kv_size))
            rows = self.keys_values[layer_idx, seen].double()
            keys, values = rows.split(config.num_kv_heads, dim=1)
            repeats = config.num_heads // config.num_kv_heads
            keys, values = (part.repeat_interleave(repeats, 1) for part in (keys, values))
            query = self.queries[layer_idx, position].double()
            probs = torch.softmax((keys * query).sum(-1) * config.attention_scale, dim=0)
            layers.append((probs.unsqueeze(-1) * values).sum(0).flatten())
        return torch.stack(layers)
