"""The levers that a stage acts on, checked before the first frame.

Guarantees: a value that this stage does not know fails the job; none is ignored. Must never know
frames.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ConfigError, JobError
from engine.model.sampling import SamplingParams
from engine.numeric import NUMERIC_CONFIGS
from engine.transport.hidden_wire import WIRES
from engine.transport.keep_warm import check_interval
from engine.transport.message import REPLIES, Levers


@dataclass(frozen=True, slots=True)
class AppliedLevers:
    """What they come to here.

    Attributes:
        wire: of hidden states, by name.
        tap_layers: of the whole model, ascending.
        tap_wire: of taps, by name.
    """

    wire: str
    replies_logits: bool
    sampling: SamplingParams
    keepwarm_ms: int
    tap_layers: tuple[int, ...]
    tap_wire: str


def apply_levers(levers: Levers, held_weights: str, num_layers: int | None) -> AppliedLevers:
    """Check them all.

    Args:
        held_weights: what this stage's matrices are kept in.
        num_layers: of the model, which the last stage alone knows; None on any other.

    Raises:
        JobError: a value that this stage does not know, or weights that it does not hold.
    """
    wire = _wire_of(levers.numeric_config, held_weights)
    if levers.reply not in REPLIES:
        raise JobError("reply", f"{levers.reply!r} is not known; valid: {', '.join(REPLIES)}")
    asked = levers.sampling
    try:
        sampling = SamplingParams.parse(asked.temperature, asked.top_k, asked.top_p, asked.seed)
    except ConfigError as error:
        raise JobError("sampling", str(error)) from error
    try:
        check_interval(levers.keepwarm_ms)
    except ConfigError as error:
        raise JobError("keepwarm_ms", str(error)) from error
    _check_taps(levers, num_layers)
    return AppliedLevers(
        wire,
        levers.reply == "logits",
        sampling,
        levers.keepwarm_ms,
        levers.tap_layers,
        levers.tap_wire,
    )


def _check_taps(levers: Levers, num_layers: int | None) -> None:
    layers = levers.tap_layers
    if list(layers) != sorted(set(layers)) or any(layer < 0 for layer in layers):
        raise JobError("tap_layers", f"{list(layers)}: must be ascending, each once, from 0 on")
    if num_layers is not None and layers and layers[-1] >= num_layers:
        raise JobError("tap_layers", f"{layers[-1]} is not a layer; the model has {num_layers}")
    if levers.tap_wire not in WIRES:
        raise JobError("tap_wire", f"{levers.tap_wire!r} is not known; valid: {', '.join(WIRES)}")


def _wire_of(name: str, held: str) -> str:
    if name not in NUMERIC_CONFIGS:
        valid = ", ".join(NUMERIC_CONFIGS)
        raise JobError("numeric_config", f"{name!r} is not supported; valid: {valid}")
    config = NUMERIC_CONFIGS[name]
    if config.weights != held:
        detail = (
            f"{name!r} computes with {config.weights} weights, this stage holds {held} ones; "
            f"bring up a ring of {config.weights} weights for it"
        )
        raise JobError("numeric_config", detail)
    return config.wire
