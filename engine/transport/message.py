"""Typed messages and the kinds of frame they travel in.

Guarantees: one strict struct per kind; the two tables at the end are inverse to each other.
Sans-IO. Must never know sockets or the model.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine.transport.frame import Kind

PROTOCOL_VERSION = 5
REPLIES = ("ids", "logits")  # what the last stage may be asked to answer with


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every message header."""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """First frame of a connection, in the clear: who calls whom, as what (docs/protocol.md).

    Lenient where every other message is strict, so that a peer of any version is understood as far
    as its version number, and both versions can be named.
    """

    protocol_version: int
    cluster_id: str = ""
    node_id: str = ""  # the caller: "coordinator" or "stage-<idx>"
    to_node_id: str = ""  # whom it wants to reach
    role: str = ""  # "input" | "control" | "return"
    suite: str = ""  # of the frames after the handshake; "plain" must be asked for by name
    noise: bytes = b""  # first Noise message; empty if plain


class HelloAck(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `Hello`: who listens here. `refused` is empty, or says why. Lenient too."""

    protocol_version: int
    node_id: str = ""
    refused: str = ""
    noise: bytes = b""  # second Noise message; empty if plain or refused


class HelloFinish(Message, frozen=True, kw_only=True):
    """The caller's last handshake message; everything after it is sealed."""

    noise: bytes


class Welcome(Message, frozen=True, kw_only=True):
    """First frame in the negotiated suite, listener → caller: proof that both hold the keys."""

    refused: str = ""  # empty, or why the authenticated caller may not have this link


class Sampling(Message, frozen=True, kw_only=True):
    """How the last stage chooses tokens; decimals as text, so that every echo is exact."""

    temperature: str = "0"  # "0": greedy
    top_k: int = 0  # 0: no limit
    top_p: str = "1"
    seed: str = "0000000000000000"  # hex; keys the noise of each position


class Levers(Message, frozen=True, kw_only=True):
    """Every job lever, carried by `reset` and echoed by every stage (DESIGN section 13)."""

    policy: str
    policy_params: dict[str, int]
    draft_len: int
    depth: int
    drafter: str
    drafter_params: dict[str, int]
    min_match_len: int
    prefill_chunk: int
    max_new_tokens: int
    numeric_config: str
    sampling: Sampling
    reply: str  # "ids" | "logits": what the last stage answers with
    attestation: bool
    keepwarm_ms: int
    tap_layers: tuple[int, ...]  # whose outputs ride along to the coordinator; (): none
    tap_wire: str  # what taps travel in, a wire of hidden states


class Reset(Message, frozen=True, kw_only=True):
    """Open a job: every stage clears its caches, applies the levers and passes it on."""

    job: int  # another one than the last job's
    nonce: str
    levers: Levers


class StageSpan(Message, frozen=True, kw_only=True, array_like=True):
    """What one stage spent on one frame; durations, since clocks of hosts do not compare."""

    queue_ns: int
    compute_ns: int
    span_ns: int


class Verify(Message, frozen=True, kw_only=True):
    """Consecutive positions to run through the layers.

    The first stage gets `ids`, later ones the tensor "hidden" [T, H]. The last stage answers
    positions `answer_from + 1 …`; a chunk with `answer_from` past its end is answered with no ids.
    A tree: the last `len(parents)` rows are nodes, each after its parent, -1 being the row before
    the first node, the root; a node's position is the root's plus its depth.
    """

    job: int
    epoch: int
    start: int
    positions_len: int
    answer_from: int
    ids: tuple[int, ...] | None = None
    spans: tuple[StageSpan, ...] = ()
    parents: tuple[int, ...] = ()


class Reply(Message, frozen=True, kw_only=True):
    """The target's tokens: `ids[j]` for position `answer_from + j + 1`; a tree: root, then nodes.

    Taps are tensors "tap.<layer>", one row a position of the frame.
    """

    job: int
    epoch: int
    start: int
    ids: tuple[int, ...]
    spans: tuple[StageSpan, ...]


class Attest(Message, frozen=True, kw_only=True):
    """Close a job behind its last frame: the applied frames, empty when attestation is off."""

    job: int
    epoch: int
    frames: tuple[tuple[int, int], ...] = ()


class Noop(Message, frozen=True, kw_only=True):
    """Keep-warm filler: never forwarded, answered, attested or timed."""


class Probe(Message, frozen=True, kw_only=True):
    """Round-trip probe of one link, outside jobs only; may carry a tensor "payload" of u8."""

    seq: int


class ProbeAck(Message, frozen=True, kw_only=True):
    seq: int


class ProbeOrder(Message, frozen=True, kw_only=True):
    """Coordinator → stage, control link: probe your forward link."""

    count: int  # round trips of an empty probe, and of one with a payload
    payload_bytes: int
    idle_ms: int  # silence before the last payload


class ProbeReport(Message, frozen=True, kw_only=True):
    """Stage → coordinator, control link: round trips as its sending end saw them."""

    rtt_ns: tuple[int, ...]  # empty probes
    payload_rtt_ns: tuple[int, ...]  # probes with the payload, back to back
    idle_payload_rtt_ns: int  # one more after the silence


class ResetAck(Message, frozen=True, kw_only=True):
    """Stage → coordinator: what this stage observed."""

    job: int
    stage_idx: int
    layer_start: int
    layer_end: int
    levers: Levers
    model_digest: str
    source_digest: str
    kernel: str
    num_threads: int
    max_kv_size: int  # keys a query may see; 0: all


class Statement(Message, frozen=True, kw_only=True):
    """Stage → coordinator at the end of a job: the drain barrier and its counters."""

    job: int
    stage_idx: int
    frames_sent: int  # verify or reply frames this stage wrote in the job
    bytes_sent: int  # of those frames, header and tag included
    stale_dropped: int
    stale_computed: int
    pending_frames: int  # frames of the job still queued here: always 0
    uncorrelated: int  # messages this stage dropped because nobody was entitled to send them
    codec_ns: int  # packing and unpacking messages on its ring links, during the job
    seal_ns: int  # sealing and opening frames there
    noops_sent: int  # on its forward link, to keep it warm
    signed: str = ""  # signed statement, when attestation is on


class Challenge(Message, frozen=True, kw_only=True):
    """Coordinator → stage after an attested job: show what you received, sketch what you sent."""

    job: int
    seed: bytes  # the job's nonce commits to it (engine.trust.challenge)
    num_frames: int  # how many frames the seed draws


class EvidenceReport(Message, frozen=True, kw_only=True):
    """Stage → coordinator, with tensors "received" u8 [bytes] and "sketches" f32 [T, signs]."""

    job: int
    stage_idx: int
    received_lens: tuple[int, ...]  # bytes of each attested frame, in the statement's order
    sketched: tuple[tuple[int, int, int], ...]  # epoch, start, rows of each drawn frame
    refused: str = ""  # empty, or why there is none


class JobErrorReport(Message, frozen=True, kw_only=True):
    """Stage → coordinator: this job failed here, the stage lives."""

    job: int
    stage_idx: int
    code: str
    detail: str


AnyMessage = Message | Hello | HelloAck

KIND_OF: Mapping[type[AnyMessage], Kind] = {
    Hello: Kind.HELLO,
    HelloAck: Kind.HELLO_ACK,
    HelloFinish: Kind.HELLO_FINISH,
    Welcome: Kind.WELCOME,
    Reset: Kind.RESET,
    Verify: Kind.VERIFY,
    Reply: Kind.REPLY,
    Attest: Kind.ATTEST,
    Noop: Kind.NOOP,
    Probe: Kind.PROBE,
    ProbeAck: Kind.PROBE_ACK,
    ResetAck: Kind.RESET_ACK,
    Statement: Kind.STATEMENT,
    JobErrorReport: Kind.JOB_ERROR,
    ProbeOrder: Kind.PROBE_ORDER,
    ProbeReport: Kind.PROBE_REPORT,
    Challenge: Kind.CHALLENGE,
    EvidenceReport: Kind.EVIDENCE_REPORT,
}
TYPE_OF: Mapping[Kind, type[AnyMessage]] = {kind: cls for cls, kind in KIND_OF.items()}
