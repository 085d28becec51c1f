"""Test only: the vectors of docs/protocol.md as the code makes them, and how the page shows them.

Guarantees: nothing here is random; what is secret is derived from words that the page names.
"""

from __future__ import annotations

import dataclasses
import hashlib

import msgspec
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from engine.transport.connection import Connection
from engine.transport.frame import Kind
from engine.transport.handshake import CallerHandshake, Credentials, ListenerHandshake, prologue
from engine.transport.hidden_wire import pack_states, unpack_states
from engine.transport.message import (
    AnyMessage,
    Hello,
    Levers,
    Probe,
    Reply,
    Reset,
    Sampling,
    StageSpan,
    Verify,
)
from engine.transport.noise import NoiseXXpsk3, Side
from engine.transport.seal import SUITES, AeadSuite, Cipher, FrameOpener, FrameSealer, FrameSuite
from engine.transport.taps import pack_taps
from engine.transport.tensor import storage_view

Vectors = dict[str, bytes]
Tensors = dict[str, torch.Tensor]

CLUSTER, CALLER, LISTENER, ROLE, SUITE = (
    "cluster-a",
    "stage-0",
    "stage-1",
    "input",
    "chacha20-poly1305",
)
CLUSTER_SECRET = SEAL_SECRET = bytes(range(32))
NEXT_VERSION = {"protocol_version": 99, "node_id": CALLER, "compression": ["zstd", 3]}
AEAD_SUITES = [suite for suite in SUITES.values() if isinstance(suite, AeadSuite)]
REKEY_FRAMES = 2  # tiny, so that the third frame has the next key
SEALED = tuple(Probe(seq=seq) for seq in (1, 2, 3))
LINE_LEN = 118

STATES = torch.tensor(
    [[1.0, -2.5, 0.1], [float("inf"), 1.0, -0.0], [float("nan"), 448.0, 3 * 2.0**-10]]
)
SPANS = (StageSpan(queue_ns=1000, compute_ns=70000, span_ns=71000),)
LEVERS = Levers(
    policy="two-state",
    policy_params={"high": 16, "up": 6},
    draft_len=8,
    depth=4,
    drafter="ngram",
    min_match_len=3,
    prefill_chunk=256,
    max_new_tokens=128,
    numeric_config="f32",
    sampling=Sampling(),
    reply="ids",
    attestation=False,
    keepwarm_ms=0,
    drafter_params={"nodes": 16},
    tap_layers=(2, 15, 27),
    tap_wire="fp8",
)
ONWARD = Verify(job=7, epoch=1, start=300, positions_len=3, answer_from=300, spans=SPANS)
# Plain frames: name -> what they carry.
PLAIN_FRAMES: dict[str, tuple[AnyMessage, Tensors]] = {
    "reset": (Reset(job=7, nonce="5f", levers=LEVERS), {}),
    "verify-ids": (
        Verify(
            job=7, epoch=1, start=300, positions_len=3, answer_from=300, ids=(5, 49151, 1000000)
        ),
        {},
    ),
    "verify-f32": (ONWARD, pack_states({"hidden": STATES}, "f32")),
    "verify-fp8": (ONWARD, pack_states({"hidden": STATES}, "fp8")),
    "verify-tree": (
        Verify(
            job=7,
            epoch=1,
            start=300,
            positions_len=5,
            answer_from=301,
            ids=(5, 6, 7, 8, 9),
            parents=(-1, 0, -1),
        ),
        {},
    ),
    "verify-taps": (
        ONWARD,
        {**pack_states({"hidden": STATES}, "f32"), **pack_taps({2: STATES}, "fp8")},
    ),
    "reply": (
        Reply(
            job=7,
            epoch=1,
            start=300,
            ids=(49151, 1000000, 0),
            spans=(*SPANS, StageSpan(queue_ns=0, compute_ns=2**32, span_ns=2**32)),
        ),
        {},
    ),
}


def private_of(words: str) -> bytes:
    return hashlib.sha256(words.encode()).digest()


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def bound() -> bytes:
    return prologue(CLUSTER, SUITE, ROLE, CALLER, LISTENER)


def machine(side: Side) -> NoiseXXpsk3:
    who = "caller" if side is Side.INITIATOR else "listener"
    static, ephemeral = private_of(f"{who} static"), private_of(f"{who} ephemeral")
    return NoiseXXpsk3(side, static, CLUSTER_SECRET, bound(), ephemeral)


def _credentials(node_id: str, who: str) -> Credentials:
    keys = {CALLER: private_of("caller static"), LISTENER: private_of("listener static")}
    return Credentials(
        node_id=node_id,
        cluster_id=CLUSTER,
        suite=SUITE,
        callers={ROLE: CALLER} if node_id == LISTENER else {},
        static_private=private_of(f"{who} static"),
        cluster_secret=CLUSTER_SECRET,
        peer_keys={name: public_of(key) for name, key in keys.items()},
    )


def calling() -> CallerHandshake:
    own = _credentials(CALLER, "caller")
    return CallerHandshake(own, ROLE, LISTENER, private_of("caller ephemeral"))


def listening() -> ListenerHandshake:
    own = _credentials(LISTENER, "listener")
    return ListenerHandshake(own, private_of("listener ephemeral"))


class RecordedKeys:
    """A suite that rekeys early and remembers the keys that it was given."""

    def __init__(self, suite: AeadSuite) -> None:
        self.keys: list[bytes] = []
        self._make = suite.cipher
        self.suite: FrameSuite = dataclasses.replace(
            suite, rekey_frames=REKEY_FRAMES, cipher=self._cipher
        )

    def _cipher(self, key: bytes) -> Cipher:
        self.keys.append(key)
        return self._make(key)

    def sealer(self) -> FrameSealer:
        return self.suite.sealer(SEAL_SECRET)

    def opener(self) -> FrameOpener:
        return self.suite.opener(SEAL_SECRET)


def key_vectors() -> Vectors:
    made = {"cluster-secret": CLUSTER_SECRET}
    for name in ("caller static", "listener static", "caller ephemeral", "listener ephemeral"):
        made[f"{name.replace(' ', '-')}-private"] = private_of(name)
        made[f"{name.replace(' ', '-')}-public"] = public_of(private_of(name))
    return made


def noise_vectors() -> Vectors:
    made = {"prologue": bound()}
    initiator, responder = machine(Side.INITIATOR), machine(Side.RESPONDER)
    writer, reader = initiator, responder
    for number in (1, 2, 3):
        made[f"noise-{number}"] = writer.write_message()
        reader.read_message(made[f"noise-{number}"])
        writer, reader = reader, writer
    made["handshake-hash"] = initiator.handshake_hash
    made["secret-caller-to-listener"], made["secret-listener-to-caller"] = initiator.split()
    return made


def handshake_vectors() -> Vectors:
    """The frames of one handshake, each made from the peer's answer to the one before."""
    caller, listener, made = calling(), listening(), {}
    listener_link = Connection()
    hello = caller.start().send
    assert isinstance(hello, Hello)
    made["hello"] = bytes(Connection().send(hello))
    ack = listener.on_message(hello).send
    assert ack is not None
    made["hello-ack"] = bytes(listener_link.send(ack))
    finish = caller.on_message(ack).send
    assert finish is not None
    made["hello-finish"] = bytes(Connection().send(finish))
    last = listener.on_message(finish)
    assert last.established is not None and last.send_sealed is not None and last.finished
    established = last.established
    listener_link.protect(SUITES[SUITE], established.send_secret, established.receive_secret)
    made["welcome"] = bytes(listener_link.send(last.send_sealed))
    # No struct of this version can say it: the header is encoded by hand.
    header = msgspec.msgpack.encode([NEXT_VERSION, []])
    payload = len(header).to_bytes(4, "big") + header
    made["hello-of-version-99"] = bytes(Connection().send_payload(Kind.HELLO, payload))
    return made


def message_vectors() -> Vectors:
    made = {name: bytes(Connection().send(*carried)) for name, carried in PLAIN_FRAMES.items()}
    back = unpack_states(PLAIN_FRAMES["verify-fp8"][1], "fp8")["hidden"]
    back[back.isnan()] = float("nan")  # one NaN on the page, whatever a processor makes of them
    made["states-back-from-fp8"] = bytes(storage_view(back))
    return made


def seal_vectors(suite: AeadSuite) -> Vectors:
    recorded = RecordedKeys(suite)
    link = Connection()
    link.protect(recorded.suite, SEAL_SECRET, bytes(32))
    sent_keys = recorded.keys[:1]  # the second belongs to the other direction
    frames = [bytes(link.send(message)) for message in SEALED]
    sent_keys += recorded.keys[2:]
    label = f"longhaul next {suite.name}".encode()
    next_chain = HKDF(SHA256(), 32, None, label).derive(SEAL_SECRET)
    return {
        "key": sent_keys[0],
        "frame-0": frames[0],
        "frame-1": frames[1],
        "next-chain": next_chain,
        "next-key": sent_keys[1],
        "frame-2": frames[2],
    }


def expected() -> dict[str, Vectors]:
    """Every block of the page, in order."""
    return {
        "keys": key_vectors(),
        "noise": noise_vectors(),
        "handshake": handshake_vectors(),
        "messages": message_vectors(),
        **{f"seal {suite.name}": seal_vectors(suite) for suite in AEAD_SUITES},
    }


def shown(block: str, vectors: Vectors) -> str:
    """A block as it stands on the page."""
    lines = [f"```vectors {block}"]
    for name, value in vectors.items():
        text, room = value.hex(), (LINE_LEN - 2) // 2 * 2
        if len(name) + 1 + len(text) <= LINE_LEN:
            lines.append(f"{name} {text}")
            continue
        lines.append(name)
        lines += [f"  {text[at : at + room]}" for at in range(0, len(text), room)]
    return "\n".join([*lines, "```"])
