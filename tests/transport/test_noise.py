"""The Noise machine against an independent implementation, published vectors and a hostile wire."""

from __future__ import annotations

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given, settings
from hypothesis import strategies as st
from noise.connection import Keypair, NoiseConnection

from engine.errors import HandshakeError, LocalProtocolError
from engine.transport.noise import (
    MAX_MESSAGE_LEN,
    OVERHEAD_LEN,
    PROTOCOL_NAME,
    CipherState,
    NoiseXXpsk3,
    Side,
)

# The values for this protocol name among the vectors of the cacophony library:
# github.com/plizonczyk/noiseprotocol, tests/vectors/cacophony.txt.
VECTOR_PROLOGUE = "4a6f686e2047616c74"
VECTOR_PSK = "54686973206973206d7920417573747269616e20706572737065637469766521"
VECTOR_STATIC = {
    Side.INITIATOR: "e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1",
    Side.RESPONDER: "4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893",
}
VECTOR_EPHEMERAL = {
    Side.INITIATOR: "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a",
    Side.RESPONDER: "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b",
}
VECTOR_HASH = "a477edf6a131bbdb54707f6ea30eab6cd935d9b560f0e5fd1f053a95a99669fb"
# (payload, message): three of the handshake, then one back, one forth, one back.
VECTOR_MESSAGES = (
    (
        "4c756477696720766f6e204d69736573",
        "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944c9f5ff0e8079630cb7e270c2"
        "0bbf480821b77a384a645c71a2fd9b3db1c16a5f",
    ),
    (
        "4d757272617920526f746862617264",
        "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843b123def17f71e6ae8e57e0e1"
        "dec5949c5f7415c6f33517398747d821a06dc23ad430aa1fd7381d46195c378a819fd574425462cbb2d4ca33"
        "9e738a0b7001dc91423fbf55a99af0c6f1df21012ceb2f",
    ),
    (
        "462e20412e20486179656b",
        "52187316111b118d4c060364f7b975dc0809b2590779aff2d63113c564f11744493384db7bf32d5ae6686df6"
        "ab06d508d2e07caaf1d6afc010b978735fc78900e71ae1d314130d042e729a",
    ),
    ("4361726c204d656e676572", "eaedc672d4c21e0e2955758756fb98f194c4e90d5deb5b6cf30b27"),
    (
        "4a65616e2d426170746973746520536179",
        "522d543c5fe799d09a3d9da7ff54d0dc03c8af1dc7751d2ff708339d2290943e98",
    ),
    (
        "457567656e2042f6686d20766f6e2042617765726b",
        "7d4e2c3873eef6a213b04e72f9df60a91666072d3544c5d96c34a09e2329b5030bee796741",
    ),
)

PSK, PROLOGUE = bytes(range(32)), b"both agree on this"
STATIC = {Side.INITIATOR: b"\x11" * 32, Side.RESPONDER: b"\x22" * 32}
OTHER = {Side.INITIATOR: Side.RESPONDER, Side.RESPONDER: Side.INITIATOR}
# Every u coordinate whose multiples are all zero, in canonical and non-canonical form.
FIELD = 2**255 - 19
LOW_ORDER = [
    value.to_bytes(32, "little")
    for value in (
        0,
        1,
        FIELD - 1,
        FIELD,
        FIELD + 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
        2**255,  # the top bit is ignored
    )
]


def public_of(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def machine(side: Side, psk: bytes = PSK, prologue: bytes = PROLOGUE) -> NoiseXXpsk3:
    return NoiseXXpsk3(side, STATIC[side], psk, prologue)


class Peer:
    """The other implementation in the clothes of ours."""

    def __init__(self, side: Side, psk: bytes = PSK, prologue: bytes = PROLOGUE) -> None:
        self.connection = NoiseConnection.from_name(PROTOCOL_NAME)
        self.connection.set_psks(psk)
        self.connection.set_prologue(prologue)
        self.connection.set_keypair_from_private_bytes(Keypair.STATIC, STATIC[side])
        if side is Side.INITIATOR:
            self.connection.set_as_initiator()
        else:
            self.connection.set_as_responder()
        self.connection.start_handshake()

    def write_message(self, payload: bytes = b"") -> bytes:
        return bytes(self.connection.write_message(payload))

    def read_message(self, message: bytes) -> bytes:
        return bytes(self.connection.read_message(message))


def sides(ours: Side, payloads: tuple[bytes, ...]) -> tuple[NoiseXXpsk3, Peer]:
    """One whole handshake between the two implementations."""
    us, them = machine(ours), Peer(OTHER[ours])
    writer, reader = (us, them) if ours is Side.INITIATOR else (them, us)
    for payload in payloads:
        assert reader.read_message(writer.write_message(payload)) == payload
        writer, reader = reader, writer
    return us, them


def up_to(num_messages: int) -> tuple[NoiseXXpsk3, NoiseXXpsk3]:
    """Two of ours after some messages: (next writer, next reader)."""
    writer, reader = machine(Side.INITIATOR), machine(Side.RESPONDER)
    for _ in range(num_messages):
        reader.read_message(writer.write_message())
        writer, reader = reader, writer
    return writer, reader


@pytest.mark.parametrize("ours", list(Side))
@settings(max_examples=60)
@given(payloads=st.tuples(*[st.binary(max_size=300)] * 3))
def test_both_roles_against_the_other_implementation(
    ours: Side, payloads: tuple[bytes, ...]
) -> None:
    """Catches whatever only our own two halves agree on: order, labels, nonces, the psk token."""
    us, them = sides(ours, payloads)
    assert us.finished and them.connection.handshake_finished
    assert us.handshake_hash == them.connection.get_handshake_hash()
    assert us.remote_static == public_of(STATIC[OTHER[ours]])
    send, receive = us.split()
    sent = ChaCha20Poly1305(send).encrypt(bytes(12), b"forth", b"")
    assert them.connection.decrypt(sent) == b"forth"
    answer = them.connection.encrypt(b"back")
    assert ChaCha20Poly1305(receive).decrypt(bytes(12), answer, b"") == b"back"


@pytest.mark.parametrize("message_idx", range(3))
@pytest.mark.parametrize("ours", list(Side))
def test_largest_message(ours: Side, message_idx: int) -> None:
    """Catches a limit off by one, and overheads that are not the real ones."""
    payloads = [b""] * 3
    payloads[message_idx] = bytes(MAX_MESSAGE_LEN - OVERHEAD_LEN[message_idx])
    sides(ours, tuple(payloads))
    writer, reader = up_to(message_idx)
    with pytest.raises(LocalProtocolError, match="too long"):
        writer.write_message(payloads[message_idx] + b"\0")
    with pytest.raises(HandshakeError, match="65536 bytes; allowed"):
        reader.read_message(bytes(MAX_MESSAGE_LEN + 1))


def test_published_vector() -> None:
    """Catches a mistake that the other implementation shares with us."""
    initiator, responder = (
        NoiseXXpsk3(
            side,
            bytes.fromhex(VECTOR_STATIC[side]),
            bytes.fromhex(VECTOR_PSK),
            bytes.fromhex(VECTOR_PROLOGUE),
            bytes.fromhex(VECTOR_EPHEMERAL[side]),
        )
        for side in Side
    )
    writer, reader = initiator, responder
    for payload, message in VECTOR_MESSAGES[:3]:
        assert writer.write_message(bytes.fromhex(payload)).hex() == message
        assert reader.read_message(bytes.fromhex(message)).hex() == payload
        writer, reader = reader, writer
    assert initiator.handshake_hash == responder.handshake_hash
    assert initiator.handshake_hash.hex() == VECTOR_HASH
    forth, back = initiator.split()
    assert responder.split() == (back, forth)
    nonces = (bytes(12), bytes(12), bytes(4) + b"\1" + bytes(7))
    for key, nonce, (payload, message) in zip(
        (back, forth, back), nonces, VECTOR_MESSAGES[3:], strict=True
    ):
        sealed = ChaCha20Poly1305(key).encrypt(nonce, bytes.fromhex(payload), b"")
        assert sealed.hex() == message


@pytest.mark.parametrize("message_idx", range(3))
def test_every_flipped_bit_is_refused(message_idx: int) -> None:
    """Catches a byte that is not covered, also the bit of a key that X25519 ignores."""
    length = len(up_to(message_idx)[0].write_message())
    assert length == OVERHEAD_LEN[message_idx]
    for bit_idx in range(length * 8):
        writer, reader = up_to(message_idx)
        altered = bytearray(writer.write_message())
        altered[bit_idx // 8] ^= 1 << bit_idx % 8
        with pytest.raises(HandshakeError):
            reader.read_message(bytes(altered))


@pytest.mark.parametrize("message_idx", range(3))
@pytest.mark.parametrize("payload", [b"", b"payload"])
def test_every_other_length_is_refused(message_idx: int, payload: bytes) -> None:
    """Catches slices that pass over what is missing, and bytes that ride along."""
    length = OVERHEAD_LEN[message_idx] + len(payload)
    for other_len in [*range(length), length + 1, length + 16]:
        writer, reader = up_to(message_idx)
        message = writer.write_message(payload)
        assert len(message) == length
        with pytest.raises(HandshakeError):
            reader.read_message(message[:other_len].ljust(other_len, b"\0"))


def test_short_message_is_refused_for_its_length() -> None:
    """Catches a short message that is cut up and only fails for its tag."""
    for message_idx, overhead_len in enumerate(OVERHEAD_LEN):
        with pytest.raises(HandshakeError, match=f"allowed: {overhead_len}"):
            up_to(message_idx)[1].read_message(bytes(overhead_len - 1))


def sealed_ephemeral(public: bytes, prologue: bytes = PROLOGUE) -> bytes:
    """A first message around any ephemeral key: anybody can make one."""
    peer = Peer(Side.INITIATOR, prologue=prologue)
    state = peer.connection.noise_protocol.handshake_state
    state.symmetric_state.mix_hash(public)
    state.symmetric_state.mix_key(public)
    return public + state.symmetric_state.encrypt_and_hash(b"")


def test_sealed_ephemeral_is_a_first_message() -> None:
    """Catches a test below that passes for another reason: an honest key goes through."""
    responder = machine(Side.RESPONDER)
    responder.read_message(sealed_ephemeral(public_of(b"\x33" * 32)))
    assert len(responder.write_message()) == OVERHEAD_LEN[1]


@pytest.mark.parametrize("public", LOW_ORDER)
def test_low_order_keys_of_an_initiator(public: bytes) -> None:
    """Catches a shared secret that everybody knows."""
    responder = machine(Side.RESPONDER)
    responder.read_message(sealed_ephemeral(public))
    with pytest.raises(HandshakeError, match="low order"):
        responder.write_message()
    with pytest.raises(LocalProtocolError):
        responder.write_message()


@pytest.mark.parametrize("public", LOW_ORDER)
def test_low_order_keys_of_a_responder(public: bytes) -> None:
    """Catches the same on the reading side."""
    initiator = machine(Side.INITIATOR)
    initiator.write_message()
    with pytest.raises(HandshakeError, match="low order"):
        initiator.read_message(public + bytes(OVERHEAD_LEN[1] - 32))


@pytest.mark.parametrize(
    ("ours", "theirs", "failing_idx"),
    [
        ({"psk": bytes(32)}, {}, 2),
        ({}, {"prologue": b""}, 0),
        ({"prologue": PROLOGUE + b"\0"}, {}, 0),
    ],
)
def test_psk_and_prologue_are_bound(
    ours: dict[str, bytes], theirs: dict[str, bytes], failing_idx: int
) -> None:
    """Catches a psk or prologue that is mixed in on one side of the ocean only."""
    writer, reader = machine(Side.INITIATOR, **ours), machine(Side.RESPONDER, **theirs)
    for _ in range(failing_idx):
        reader.read_message(writer.write_message())
        writer, reader = reader, writer
    with pytest.raises(HandshakeError, match="does not authenticate"):
        reader.read_message(writer.write_message())
    assert not reader.finished


def test_messages_of_another_session_are_refused() -> None:
    """Catches a session that a recording of another one can continue."""
    for message_idx in (1, 2):
        stranger, _ = up_to(message_idx)
        _, reader = up_to(message_idx)
        with pytest.raises(HandshakeError):
            reader.read_message(stranger.write_message())


@pytest.mark.parametrize("num_messages", range(4))
def test_out_of_turn(num_messages: int) -> None:
    """Catches a machine that can be driven in another order than the pattern's."""
    writer, reader = up_to(num_messages)
    with pytest.raises(LocalProtocolError, match="not our turn"):
        reader.write_message()
    with pytest.raises(HandshakeError, match="due"):
        writer.read_message(bytes(48))
    with pytest.raises(LocalProtocolError):  # and that was the end of it
        _ = writer.remote_static
    if num_messages == 3:
        writer, reader = up_to(num_messages)
        with pytest.raises(LocalProtocolError, match="not our turn"):
            writer.write_message()
        with pytest.raises(HandshakeError, match="due"):
            reader.read_message(bytes(48))


def test_replayed_message_is_refused() -> None:
    """Catches a machine that takes the same message twice."""
    writer, reader = up_to(0)
    message = writer.write_message()
    reader.read_message(message)
    with pytest.raises(HandshakeError, match="due"):
        reader.read_message(message)


@pytest.mark.parametrize("message_idx", range(3))
def test_nothing_works_after_a_failure(message_idx: int) -> None:
    """Catches a second guess at a message, and keys of a handshake that failed."""
    writer, reader = up_to(message_idx)
    message = writer.write_message()
    with pytest.raises(HandshakeError):
        reader.read_message(message[:-1] + bytes([message[-1] ^ 1]))
    with pytest.raises(HandshakeError, match="due"):
        reader.read_message(message)
    for use in (
        reader.write_message,
        reader.split,
        lambda: reader.handshake_hash,
        lambda: reader.remote_static,
    ):
        with pytest.raises(LocalProtocolError):
            use()
    assert not reader.finished


def test_results_only_when_they_are_proven() -> None:
    """Catches keys handed out early: each side knows the other's key at its own time."""
    known = {0: (), 1: (), 2: (Side.INITIATOR,), 3: tuple(Side)}
    for num_messages, who in known.items():
        pair = up_to(num_messages)
        initiator, responder = pair if num_messages % 2 == 0 else pair[::-1]
        for side, one in ((Side.INITIATOR, initiator), (Side.RESPONDER, responder)):
            if side in who:
                assert one.remote_static == public_of(STATIC[OTHER[side]])
            else:
                with pytest.raises(LocalProtocolError, match="static"):
                    _ = one.remote_static
            if num_messages < 3:
                for use in (one.split, lambda one=one: one.handshake_hash):
                    with pytest.raises(LocalProtocolError, match="not finished"):
                        use()


def test_ephemeral_keys_are_fresh() -> None:
    """Catches an ephemeral key that is kept."""
    assert up_to(0)[0].write_message() != up_to(0)[0].write_message()


@pytest.mark.parametrize("name", ["static_private", "psk", "ephemeral_private"])
@pytest.mark.parametrize("length", [0, 31, 33])
def test_keys_of_another_length(name: str, length: int) -> None:
    """Catches a key that is padded, cut or missing."""
    keys = {"static_private": bytes(32), "psk": PSK, "ephemeral_private": b"\x44" * 32}
    with pytest.raises(LocalProtocolError, match=f"{length} bytes"):
        NoiseXXpsk3(Side.INITIATOR, prologue=b"", **(keys | {name: bytes(length)}))


def test_nothing_is_encrypted_without_a_key() -> None:
    """Catches the specification's pass-through, which would send a static key in the clear."""
    with pytest.raises(LocalProtocolError):
        CipherState().encrypt_with_ad(b"", b"static key")
    with pytest.raises(LocalProtocolError):
        CipherState().decrypt_with_ad(b"", b"static key" + bytes(16))


def test_the_other_implementation_refuses_our_wrong_psk() -> None:
    """Catches a psk that our responder alone would notice."""
    us, them = machine(Side.INITIATOR, psk=bytes(32)), Peer(Side.RESPONDER)
    them.read_message(us.write_message())
    us.read_message(them.write_message())
    with pytest.raises(InvalidTag):
        them.read_message(us.write_message())
