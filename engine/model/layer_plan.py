"""Whether the layer ranges of several stages make up a model.

Guarantees: a plan that passes embeds once, has the head once and computes every layer once, in
order. Pure arithmetic: never knows files, hosts or sockets.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import ConfigError


def check_layer_plan(plan: Sequence[tuple[int, int]], num_layers: int) -> None:
    """Refuse a plan that is not a partition of `[0, num_layers)` in order.

    Args:
        plan: `(layer_start, layer_end)` by stage.
        num_layers: L, from the model's config.

    Raises:
        ConfigError: naming the stage and what is wrong with its range.
    """
    expected = 0
    for stage_idx, (layer_start, layer_end) in enumerate(plan):
        where = f"stage {stage_idx} has layers [{layer_start}, {layer_end})"
        if layer_end <= layer_start:
            raise ConfigError(f"{where}, which is none; give every stage a layer or fewer stages")
        if layer_start > expected:
            what = "no stage embeds" if expected == 0 else "layers between are skipped"
            raise ConfigError(f"{where}, but {expected} comes next: {what}; start it there")
        if layer_start < expected:
            raise ConfigError(
                f"{where}, but the stages before reach {expected}: ranges overlap; start it there"
            )
        expected = layer_end
    if expected != num_layers:
        raise ConfigError(
            f"the last stage ends at layer {expected}, the model at {num_layers}: the head belongs "
            f"to the stage that ends there; end it at {num_layers}"
        )
