"""Both ends of the handshake: who gets in, who does not, and what each side is told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import HandshakeError, LocalProtocolError
from engine.transport.handshake import ListenerHandshake, Progress, prologue
from engine.transport.message import (
    PROTOCOL_VERSION,
    AnyMessage,
    Hello,
    HelloAck,
    HelloFinish,
    Noop,
    Welcome,
)
from engine.transport.noise import NoiseXXpsk3, Side
from engine.transport.refusal import MAX_REFUSAL_LEN
from tests.transport.drawn_messages import MESSAGES
from tests.transport.two_ends import (
    NODES,
    PROTECTED,
    PUBLIC,
    SUITES,
    caller,
    credentials,
    exchange,
    private_of,
)


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize(("role", "who"), [("input", "stage-0"), ("control", "coordinator")])
def test_whole_exchange(suite: str, role: str, who: str) -> None:
    """Catches secrets that do not fit together, and a peer known by another name than its own."""
    outcome = exchange(
        caller(credentials(who, suite), role), ListenerHandshake(credentials(suite=suite))
    )
    assert not outcome.failures and outcome.finished == {"caller", "listener"}
    ours, theirs = outcome.established["caller"], outcome.established["listener"]
    assert (ours.peer, ours.role, ours.suite) == ("stage-1", role, suite)
    assert (theirs.peer, theirs.role, theirs.suite) == (who, role, suite)
    secrets = (ours.send_secret, ours.receive_secret)
    assert secrets == (theirs.receive_secret, theirs.send_secret)
    if suite == "plain":
        assert [type(one) for one in outcome.sent] == [Hello, HelloAck, Welcome]
        assert secrets == (b"", b"")
    else:
        assert [type(one) for one in outcome.sent] == [Hello, HelloAck, HelloFinish, Welcome]
        assert [len(one) for one in secrets] == [32, 32] and secrets[0] != secrets[1]


def test_keys_change_when_the_order_says() -> None:
    """Catches a last message sent under keys that the peer does not have yet."""
    calling, listening = caller(), ListenerHandshake(credentials())
    hello = calling.start()
    ack = listening.on_message(hello.send)
    assert ack.established is None and ack.send_sealed is None
    finish = calling.on_message(ack.send)
    assert isinstance(finish.send, HelloFinish) and finish.established is not None
    assert not finish.finished  # until Welcome proves that the listener has the keys
    welcome = listening.on_message(finish.send)
    assert welcome.send is None and welcome.send_sealed == Welcome()
    assert calling.on_message(welcome.send_sealed) == Progress(finished=True)


def test_two_sessions_share_no_secret() -> None:
    """Catches ephemeral keys that are kept from one handshake to the next."""
    first, second = (exchange(caller(), ListenerHandshake(credentials())) for _ in range(2))
    for end in ("caller", "listener"):
        assert first.established[end].send_secret != second.established[end].send_secret


OTHER = PROTOCOL_VERSION + 1
# what is altered in Hello, and the words that both ends must be told
REFUSALS = [
    (
        {"protocol_version": OTHER},
        ["stage-0", f"version {OTHER}", "stage-1", f"speaks {PROTOCOL_VERSION}", "same release"],
    ),
    ({"cluster_id": "cluster-b"}, ["stage-0", "'cluster-b'", "stage-1", "'cluster-a'", "plan"]),
    ({"suite": "plain"}, ["stage-0", "'plain'", "stage-1", f"'{PROTECTED}'", "same suite"]),
    ({"suite": "aes-256-gcm"}, ["stage-0", "'aes-256-gcm'", "stage-1", f"'{PROTECTED}'"]),
    ({"to_node_id": "stage-2"}, ["stage-0", "'stage-2'", "this is stage-1", "address"]),
    ({"role": "return"}, ["stage-1", "stage-0", "'return'", "control, input"]),
    ({"role": "control"}, ["only coordinator may call stage-1 as 'control'", "not stage-0"]),
    ({"node_id": "stage-2"}, ["only stage-0 may call stage-1 as 'input'", "not stage-2"]),
    ({"node_id": "x" * 65}, ["more than 64 characters", "stage-1", "x" * 64 + "…"]),
    ({"role": "input" * 20}, ["more than 64 characters"]),
    ({"noise": b""}, ["message 1 of 3", "0 bytes instead of 48", "altered"]),
    ({"noise": bytes(48)}, ["message 1 of 3", "does not authenticate", "altered"]),
    ({"noise": bytes(49)}, ["message 1 of 3", "49 bytes instead of 48", "altered"]),
]


@pytest.mark.parametrize(("changed", "words"), REFUSALS)
def test_refusals_of_hello(changed: dict[str, Any], words: list[str]) -> None:
    """Catches a check that is missing, or an error that tells one side only."""

    def alter(message: AnyMessage) -> AnyMessage:
        return msgspec.structs.replace(message, **changed) if type(message) is Hello else message

    outcome = exchange(caller(), ListenerHandshake(credentials()), alter)
    assert [type(one) for one in outcome.sent] == [Hello, HelloAck]
    assert set(outcome.failures) == {"caller", "listener"} and not outcome.established
    for said in outcome.failures.values():
        assert "-> stage-1 (" in said
        for word in words:
            assert word in said, (word, said)
    assert "stage-0 -> stage-1 (input): stage-1 refused: " in outcome.failures["caller"]
    assert outcome.failures["caller"].endswith(outcome.sent[1].refused)
    assert len(outcome.sent[1].refused) < MAX_REFUSAL_LEN


def test_order_of_the_checks() -> None:
    """Catches a reason that hides the first thing to repair: everything wrong, mended in order."""
    wrong = {
        "protocol_version": OTHER,
        "cluster_id": "cluster-b",
        "suite": "plain",
        "to_node_id": "stage-2",
        "role": "return",
        "node_id": "stage-2",
        "noise": b"",
    }
    right = msgspec.structs.asdict(caller().start().send)
    expected = ["version", "cluster", "suite", "looks for", "roles: ", "may call", "Noise"]
    for name, word in zip(list(wrong), expected, strict=True):
        said = str(ListenerHandshake(credentials()).on_message(Hello(**(right | wrong))).failure)
        assert word in said, (name, said)
        del wrong[name]


def test_plain_listener_refuses_a_protected_caller() -> None:
    """Catches a plain node that talks to whoever comes, and a caller that falls back to plain."""
    outcome = exchange(caller(), ListenerHandshake(credentials(suite="plain")))
    for said in outcome.failures.values():
        assert f"stage-0 asks for suite '{PROTECTED}', stage-1 runs 'plain'" in said
    assert set(outcome.failures) == {"caller", "listener"} and not outcome.established


def test_stripped_noise_is_no_way_into_plain() -> None:
    """Catches a caller that takes an answer without keys for a plain ring."""
    calling = caller()
    calling.start()
    progress = calling.on_message(HelloAck(protocol_version=PROTOCOL_VERSION, node_id="stage-1"))
    assert "0 bytes instead of 96" in str(progress.failure) and progress.established is None
    plain = caller(credentials("stage-0", "plain"))
    ack = HelloAck(protocol_version=PROTOCOL_VERSION, node_id="stage-1", noise=bytes(96))
    plain.start()
    assert "96 bytes instead of 0" in str(plain.on_message(ack).failure)


def test_version_of_the_listener_is_learnt() -> None:
    """Catches a caller that learns from a newer listener only that it was refused."""
    calling = caller()
    calling.start()
    ack = HelloAck(protocol_version=OTHER, node_id="stage-1", refused="other words")
    said = str(calling.on_message(ack).failure)
    assert f"stage-0 speaks protocol version {PROTOCOL_VERSION}, stage-1 speaks {OTHER}" in said


def test_another_node_answers() -> None:
    """Catches a caller that takes whoever sits at the address for the one it looked for."""
    calling = caller()
    calling.start()
    ack = HelloAck(protocol_version=PROTOCOL_VERSION, node_id="stage-2", noise=bytes(96))
    said = str(calling.on_message(ack).failure)
    assert "stage-0 -> stage-1 (input): stage-2 answered stage-0 instead" in said


def test_caller_with_an_unplanned_key() -> None:
    """Catches a node of the cluster that passes for another one: it proves a key, not its own."""
    impostor = credentials("stage-0", static_private=private_of("stage-2"))
    outcome = exchange(caller(impostor), ListenerHandshake(credentials()))
    assert set(outcome.failures) == {"caller", "listener"} and not outcome.finished
    sealed = outcome.sent[-1]
    assert isinstance(sealed, Welcome)
    for said in (*outcome.failures.values(), sealed.refused):
        for word in (
            f"the key of stage-0 begins with {PUBLIC['stage-2'].hex()[:16]}",
            f"the plan of stage-1 says {PUBLIC['stage-0'].hex()[:16]}",
        ):
            assert word in said


def test_listener_with_an_unplanned_key() -> None:
    """Catches a caller that shows its own key to a listener that is not the planned one."""
    impostor = credentials("stage-1", static_private=private_of("stage-2"))
    outcome = exchange(caller(), ListenerHandshake(impostor))
    assert set(outcome.failures) == {"caller"} and not outcome.established
    assert [type(one) for one in outcome.sent] == [Hello, HelloAck]
    assert f"the key of stage-1 begins with {PUBLIC['stage-2'].hex()[:16]}" in str(outcome.failures)
    assert f"plan of stage-0 says {PUBLIC['stage-1'].hex()[:16]}" in str(outcome.failures)


def test_another_cluster_secret() -> None:
    """Catches a secret that is not needed, and an error that does not name it."""
    outcome = exchange(
        caller(credentials("stage-0", cluster_secret=bytes(32))), ListenerHandshake(credentials())
    )
    assert set(outcome.failures) == {"listener"} and not outcome.finished
    assert "listener" not in outcome.established
    for word in ("stage-0 -> stage-1 (input)", "different cluster secrets", "sha256sum"):
        assert word in outcome.failures["listener"]


def test_closed_connections_are_explained() -> None:
    """Catches a caller with the wrong secret that only learns of a closed connection."""
    calling, listening = caller(), ListenerHandshake(credentials())
    assert "unnamed peer -> stage-1: " in str(ListenerHandshake(credentials()).on_close())
    hello = calling.start().send
    other = caller()
    other.start()
    assert "stage-0 -> stage-1 (input): " in str(other.on_close())
    ack = listening.on_message(hello).send
    calling.on_message(ack)
    assert "different cluster secrets" in str(calling.on_close())
    assert "does not accept this node's key" in str(listening.on_close())
    for ended in (calling, listening, other):
        with pytest.raises(LocalProtocolError, match="over"):
            ended.on_message(Noop())


def altered(value: Any, draw: st.DrawFn) -> Any:
    """Another value of the same type."""
    if isinstance(value, bytes) and value and draw(st.booleans()):
        flipped = bytearray(value)
        flipped[draw(st.integers(0, len(value) - 1))] ^= 1 << draw(st.integers(0, 7))
        return bytes(flipped)
    kinds = {
        int: st.integers(-(2**63), 2**64 - 1),
        str: st.text(max_size=80) | st.sampled_from([*NODES, *SUITES, "input", "control"]),
        bytes: st.binary(max_size=120),
    }
    return draw(kinds[type(value)].filter(lambda other: other != value))


@settings(max_examples=500)
@given(st.data())
def test_any_field_altered_in_flight(draws: st.DataObject) -> None:
    """Catches a field that is neither checked nor bound into the key exchange."""
    target = draws.draw(st.sampled_from([Hello, HelloAck, HelloFinish]))
    name = draws.draw(st.sampled_from(target.__struct_fields__))

    def alter(message: AnyMessage) -> AnyMessage:
        if type(message) is not target:
            return message
        value = altered(getattr(message, name), draws.draw)
        return msgspec.structs.replace(message, **{name: value})

    outcome = exchange(caller(), ListenerHandshake(credentials()), alter)
    assert outcome.failures and not outcome.finished


HELLOS = st.builds(
    Hello,
    protocol_version=st.just(PROTOCOL_VERSION),
    cluster_id=st.just("cluster-a"),
    node_id=st.sampled_from(NODES),
    to_node_id=st.just("stage-1"),
    role=st.sampled_from(["input", "control"]),
    suite=st.just(PROTECTED),
    noise=st.binary(min_size=48, max_size=48) | st.binary(max_size=100),
)


@settings(max_examples=300)
@given(messages=st.lists(MESSAGES | HELLOS, max_size=4))
def test_messages_of_a_stranger(messages: list[AnyMessage]) -> None:
    """Catches any other exception, and a stranger who gets through by luck."""
    calling, waiting = caller(), ListenerHandshake(credentials())
    calling.start()
    waiting.on_message(caller().start().send)
    for handshake in (calling, waiting, ListenerHandshake(credentials())):
        for message in messages:
            progress = handshake.on_message(message)
            assert progress.established is None and not progress.finished
            if progress.failure is not None:
                said = str(progress.failure)
                assert isinstance(progress.failure, HandshakeError)
                assert len(said) < 1200 and said.isprintable()
                break


@pytest.mark.parametrize("num_messages", range(4))
def test_every_other_message_in_every_state(num_messages: int) -> None:
    """Catches a state that takes a message out of order."""
    expected = (Hello, HelloAck, HelloFinish, Welcome)[num_messages]
    for sample in (
        Hello(protocol_version=PROTOCOL_VERSION),
        HelloAck(protocol_version=PROTOCOL_VERSION),
        HelloFinish(noise=b""),
        Welcome(),
        Noop(),
    ):
        if type(sample) is expected:
            continue
        calling, listening = caller(), ListenerHandshake(credentials())
        ends, step = (listening, calling, listening, calling), calling.start()
        for end in ends[:num_messages]:
            step = end.on_message(step.send)
        said = str(ends[num_messages].on_message(sample).failure)
        assert f"{type(sample).__name__} came to" in said
        assert f"waiting for {expected.__name__}" in said


def test_replayed_messages_of_another_session() -> None:
    """Catches a recording that opens a session, or continues one."""
    recorded = exchange(caller(), ListenerHandshake(credentials())).sent
    listening = ListenerHandshake(credentials())
    assert listening.on_message(recorded[0]).failure is None  # anybody may say hello
    assert "different cluster secrets" in str(listening.on_message(recorded[2]).failure)
    calling = caller()
    calling.start()
    assert "belongs to another session" in str(calling.on_message(recorded[1]).failure)


def test_payloads_inside_noise_messages_are_refused() -> None:
    """Catches bytes that a stranger makes us keep: our messages carry none."""
    bound = prologue("cluster-a", PROTECTED, "input", "stage-0", "stage-1")
    noise = NoiseXXpsk3(Side.INITIATOR, private_of("stage-0"), bytes(range(32)), bound)
    hello = msgspec.structs.replace(caller().start().send, noise=noise.write_message(b"more"))
    said = str(ListenerHandshake(credentials()).on_message(hello).failure)
    assert "52 bytes instead of 48" in said


def test_refusals_of_a_stranger_are_shown_bounded_and_printable() -> None:
    """Catches terminal control codes and pages of text in our log."""
    calling = caller()
    calling.start()
    ack = HelloAck(
        protocol_version=PROTOCOL_VERSION, node_id="\x1b[2J\u202e" * 50, refused="\n\x07é" * 9999
    )
    said = str(calling.on_message(ack).failure)
    assert said.isprintable() and len(said) < 1000 and "??é" in said and "…" in said
    calling, listening = caller(), ListenerHandshake(credentials())
    calling.on_message(listening.on_message(calling.start().send).send)
    said = str(calling.on_message(Welcome(refused="\n\x07é" * 9999)).failure)
    assert said.isprintable() and len(said) < 1000 and "stage-1 refused: ??é" in said


def test_prologue_fields_cannot_move() -> None:
    """Catches a plain concatenation, where a letter may change its field."""
    assert prologue("ab", "c", "d", "e", "f") != prologue("a", "bc", "d", "e", "f")
    assert prologue("a", "b", "c", "d", "e") == b"".join(
        len(part).to_bytes(4, "big") + part
        for part in (b"longhaul handshake", str(PROTOCOL_VERSION).encode(), *b"a b c d e".split())
    )


@pytest.mark.parametrize("field", range(5))
def test_prologue_binds_every_field(field: int) -> None:
    """Catches a field that both ends check but do not bind."""
    fields = ["cluster-a", PROTECTED, "input", "stage-0", "stage-1"]
    hello = caller().start().send
    for changed in (fields, [*fields[:field], "other", *fields[field + 1 :]]):
        bound = prologue(*changed)
        noise = NoiseXXpsk3(Side.INITIATOR, private_of("stage-0"), bytes(range(32)), bound)
        sent = msgspec.structs.replace(hello, noise=noise.write_message())
        failure = ListenerHandshake(credentials()).on_message(sent).failure
        assert (failure is None) == (changed is fields)


def test_misuse_is_ours_to_mend() -> None:
    """Catches a handshake that can be run twice, or before it has begun."""
    calling = caller()
    with pytest.raises(LocalProtocolError, match="not begun"):
        calling.on_message(HelloAck(protocol_version=PROTOCOL_VERSION))
    calling.start()
    with pytest.raises(LocalProtocolError, match="cannot start"):
        calling.start()
    listening = ListenerHandshake(credentials())
    assert listening.on_message(Noop()).failure is not None
    calling, welcoming = caller(), ListenerHandshake(credentials())
    assert exchange(calling, welcoming).finished == {"caller", "listener"}
    for ended, message in ((listening, Noop()), (calling, Welcome()), (welcoming, Noop())):
        with pytest.raises(LocalProtocolError, match="over"):
            ended.on_message(message)
