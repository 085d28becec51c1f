"""What a link is for, and which messages each of its ends may send.

Guarantees: one table decides; a message that the sender is not entitled to is never acted on. The
caller is the end that dialled. Sans-IO. Must never know sockets, jobs or the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.transport.message import (
    AnyMessage,
    Attest,
    Challenge,
    EvidenceReport,
    JobErrorReport,
    Noop,
    Probe,
    ProbeAck,
    ProbeOrder,
    ProbeReport,
    Reply,
    Reset,
    ResetAck,
    Statement,
    Verify,
)

MessageTypes = tuple[type[AnyMessage], ...]


@dataclass(frozen=True, slots=True)
class Role:
    """One use of a connection."""

    caller_sends: MessageTypes
    listener_sends: MessageTypes


ROLES: Mapping[str, Role] = {
    # Predecessor (or coordinator) → stage: the ring's forward links.
    "input": Role((Reset, Verify, Attest, Probe, Noop), (ProbeAck,)),
    # Coordinator ↔ every stage: orders one way, reports the other.
    "control": Role(
        (ProbeOrder, Challenge),
        (ResetAck, Statement, JobErrorReport, ProbeReport, EvidenceReport),
    ),
    # Dialled by the coordinator, used by the last stage: the ring's return link.
    "return": Role((ProbeAck,), (Reply, Probe, Noop)),
}
