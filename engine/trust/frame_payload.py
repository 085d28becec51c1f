"""Verify frames as they were received, read again by whoever checks them.

Guarantees: what cannot be read is a `RemoteProtocolError`; taps are left out, since they only ever
change drafts. Must never know sockets or layers.
"""

from __future__ import annotations

import torch

from engine.errors import RemoteProtocolError
from engine.transport.codec import decode_payload
from engine.transport.frame import Kind
from engine.transport.hidden_wire import unpack_states
from engine.transport.message import Verify
from engine.transport.taps import split_taps
from engine.trust.attestation import FrameKey


def key_of(payload: bytes) -> FrameKey:
    """Which frame of its job it is."""
    return (verify := verify_of(payload)[0]).epoch, verify.start


def verify_of(payload: bytes) -> tuple[Verify, dict[str, torch.Tensor]]:
    """The message and its tensors."""
    message, tensors = decode_payload(Kind.VERIFY, memoryview(bytearray(payload)))
    assert isinstance(message, Verify), "the kind says so"
    return message, tensors


def states_of(payload: bytes, wire: str) -> tuple[Verify, torch.Tensor]:
    """A frame between stages, and the states that it carries. Shapes: [T, H].

    Raises:
        RemoteProtocolError: it is none.
    """
    verify, tensors = verify_of(payload)
    states = unpack_states(split_taps(tensors)[0], wire).get("hidden")
    if states is None:
        raise RemoteProtocolError("a frame between stages has no hidden states")
    return verify, states
