"""Layer plans: which stage holds which layers. Pure arithmetic."""

from __future__ import annotations

from engine.errors import ConfigError


def even_plan(num_layers: int, num_stages: int) -> list[tuple[int, int]]:
    """Split layers into contiguous ranges whose sizes differ by at most one.

    The last stages get the smaller ranges, since the last one also has the head.

    Returns:
        `(layer_start, layer_end)` by stage.

    Raises:
        ConfigError: a stage would get no layer.
    """
    if not 1 <= num_stages <= num_layers:
        raise ConfigError(f"{num_stages} stages; allowed: 1..{num_layers} for {num_layers} layers")
    base, rest = divmod(num_layers, num_stages)
    plan: list[tuple[int, int]] = []
    layer_start = 0
    for stage_idx in range(num_stages):
        layer_end = layer_start + base + (stage_idx < rest)
        plan.append((layer_start, layer_end))
        layer_start = layer_end
    return plan
