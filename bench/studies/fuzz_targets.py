"""What is fuzzed: functions of bytes, each with honest inputs to start from.

Guarantees: a target returns how its input ended (a count's name) or raises: `PropertyBrokenError`,
or whatever error the transport let out. A target keeps nothing from one input to the next. Must
never know who makes the inputs.

An input is three control bytes and a stream of frames; for `states`, a description of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from bench.studies.fuzz_delivery import (
    CONTROL_LEN,
    LENGTH,
    LIMIT_LEN,
    MAX_INPUT_LEN,
    Reader,
    bits,
    deliver_every_way,
    deliver_whole,
    end_name,
    require,
)
from bench.studies.fuzz_handshakes import CallerEnd, HonestHandshake, ListenerEnd
from bench.studies.fuzz_seeds import honest_frames, honest_messages
from engine.errors import FrameRejected, LonghaulError, RemoteProtocolError
from engine.transport.codec import decode_payload, encode_message_frame
from engine.transport.connection import Connection, Received
from engine.transport.frame import HEADER_LEN, Kind
from engine.transport.hidden_wire import MAX_SCALE, WIRES, unpack_states
from engine.transport.seal import SUITES, AeadSuite, FrameSuite
from engine.transport.tensor import DTYPES

PEER, DIRECTION = "writer", "writer -> reader"
TO_READER, TO_WRITER = bytes(range(32)), bytes(range(32, 64))  # secrets
REKEY_FRAMES = 2  # of the variants that change keys within a stream
# How an input may end: messages came out, it ended within a frame, or the peer was refused.
ENDS = ("accepted", "incomplete", "RemoteProtocolError", "HandshakeError", "FrameRejected")
KINDS = tuple(Kind)
NAMES = ("hidden", "hidden.scale", "tap", "tap.scale", ".scale", "")
CONTROL = bytes(CONTROL_LEN)


@dataclass(frozen=True, slots=True)
class Target:
    """One thing to fuzz.

    Args:
        run: takes one input; returns the name of its end.
        seeds: honest inputs.
        control_len: bytes in front of the frames.
    """

    run: Callable[[bytes], str]
    seeds: tuple[bytes, ...]
    control_len: int = CONTROL_LEN

    def end_of(self, given: bytes) -> str:
        """Run one input; returns one of `ENDS`."""
        end = self.run(given)
        require(end in ENDS, f"receiving ended in {end}; allowed: {', '.join(ENDS)}")
        return end


def payload_target() -> Target:
    """A payload of each kind; what decodes also encodes, and to the same again."""

    def run(given: bytes) -> str:
        stream = given[CONTROL_LEN:MAX_INPUT_LEN]
        kind = KINDS[(stream[0] - 1) % len(KINDS)] if stream else Kind.NOOP
        payload = bytearray(stream[HEADER_LEN:])
        try:
            message, tensors = decode_payload(kind, memoryview(payload))
        except RemoteProtocolError as error:
            return end_name(error)
        first = bits(Received(message, tensors, HEADER_LEN + len(payload)))
        again_kind, buffer, payload_len = encode_message_frame(message, tensors)
        again = decode_payload(again_kind, memoryview(buffer)[HEADER_LEN:][:payload_len])
        require(
            (kind, first) == (again_kind, bits(Received(*again, HEADER_LEN + payload_len))),
            "what was decoded reads otherwise when it is sent on",
        )
        return "accepted"

    return Target(run, tuple(CONTROL + frame for frame in honest_frames()))


def plain_target() -> Target:
    """A connection without protection."""

    def run(given: bytes) -> str:
        control, stream = _split(given)
        outcome = deliver_every_way(_plain_reader, control, stream)
        # Who has no keys cannot know that a frame is forged.
        require(not isinstance(outcome.error, FrameRejected), "a plain frame called forged")
        return outcome.name

    frames = honest_frames()
    seeds = [CONTROL + frame for frame in frames]
    return Target(run, (*seeds, bytes((0, 3, 40)) + b"".join(frames[:3])))


def sealed_target() -> Target:
    """Altered honest frames under every suite, before and after a change of keys.

    The suite's frames are known, so the end of every stream is: honest frames come out up to the
    first altered byte, and the frame that holds it is refused as forged once it is whole.
    """
    suites = _protected_suites()
    streams = [_sealed_stream(suite) for suite in suites]

    def run(given: bytes) -> str:
        control, stream = _split(given)
        idx = control[0] % len(suites)
        outcome = deliver_every_way(lambda: _end(suites[idx]), control, stream)
        num_honest, error = _forgery_verdict(streams[idx], stream)
        came_out, expected_out = (len(outcome.seen), type(outcome.error)), (num_honest, error)
        require(
            came_out == expected_out,
            f"messages and error of an altered stream: {came_out}, expected {expected_out}",
        )
        if isinstance(outcome.error, FrameRejected):
            named = (outcome.error.peer, outcome.error.direction)
            require(named == (PEER, DIRECTION), f"a forged frame is laid to {named}")
        return outcome.name

    seeds = (bytes((idx, 5, 90)) + b"".join(frames) for idx, frames in enumerate(streams))
    return Target(run, tuple(seeds))


def authenticated_target() -> Target:
    """A peer that holds the keys and seals what it must not send: as on a plain connection."""
    suites = _protected_suites()

    def run(given: bytes) -> str:
        control, stream = _split(given)
        suite = suites[control[0] % len(suites)]
        writer = Connection()
        writer.protect(suite, TO_READER, TO_WRITER)
        sealed, plain = bytearray(), bytearray()
        for raw_kind, payload in _frames_within(stream):
            sealed += writer.send_payload(raw_kind, payload)
            plain += bytes((raw_kind,)) + LENGTH.pack(len(payload)) + payload
        outcome = deliver_every_way(lambda: _end(suite), control, bytes(sealed))
        expected = deliver_whole(_plain_reader(), bytes(plain))
        require(
            (outcome.seen, type(outcome.error)) == (expected.seen, type(expected.error)),
            f"sealed it ends in {outcome.name}, plain in {expected.name}",
        )
        return outcome.name

    return Target(run, tuple(CONTROL + frame for frame in honest_frames()))


def listener_target() -> Target:
    """A stranger that calls."""
    return _handshake_target(ListenerEnd, lambda honest: honest.to_listener)


def caller_target() -> Target:
    """A stranger that answers our call."""
    return _handshake_target(CallerEnd, lambda honest: honest.to_caller)


def states_target() -> Target:
    """Tensors of any dtype, shape, name and bits taken for hidden states."""
    wires, dtypes = tuple(WIRES), tuple(DTYPES)

    def run(given: bytes) -> str:
        wire = wires[given[0] % len(wires)] if given else wires[0]
        tensors = dict(_described_tensors(given[1:MAX_INPUT_LEN]))
        try:
            states = unpack_states(tensors, wire)
        except RemoteProtocolError as error:
            return end_name(error)
        for name, tensor in states.items():
            form = (tensor.dtype, tuple(tensor.shape)) == (torch.float32, tensors[name].shape)
            require(form and tensor.dim() == 2, f"states {name!r} came out in another form")
            if wire == "fp8":
                require(not bool(tensor.isinf().any()), f"states {name!r} hold an infinity")
        return "accepted" if states else "incomplete"

    f32, e4m3, u8 = (dtypes.index(name) for name in ("f32", "e4m3", "u8"))
    one_f32 = bytes((0, f32, 2, 2, 2)) + torch.tensor([1.0, 2.0, 3.0, 4.0]).numpy().tobytes()
    values = bytes((0, e4m3, 2, 2, 3)) + bytes((0x38, 0xB8, 0, 1, 0x7E, 0x08))
    scales = bytes((1, f32, 1, 2)) + torch.tensor([0.5, MAX_SCALE]).numpy().tobytes()
    other = bytes((2, u8, 2, 1, 1, 9))
    descriptions = (one_f32, values + scales, values + scales + other, one_f32 + other)
    seeds = (bytes((idx,)) + part for idx in range(len(wires)) for part in descriptions)
    return Target(run, tuple(seeds), control_len=1)


TARGETS: Mapping[str, Callable[[], Target]] = {
    "payload": payload_target,
    "plain": plain_target,
    "sealed": sealed_target,
    "authenticated": authenticated_target,
    "listener": listener_target,
    "caller": caller_target,
    "states": states_target,
}


def _handshake_target(
    make_end: Callable[[str, HonestHandshake], ListenerEnd | CallerEnd],
    heard_by_end: Callable[[HonestHandshake], bytes],
) -> Target:
    """One end of a handshake, under every suite."""
    handshakes = [HonestHandshake.of(suite) for suite in SUITES]

    def run(given: bytes) -> str:
        control, stream = _split(given)
        honest = handshakes[control[0] % len(handshakes)]
        return deliver_every_way(lambda: make_end(honest.suite, honest), control, stream).name

    seeds = (bytes((idx, 7, 60)) + heard_by_end(honest) for idx, honest in enumerate(handshakes))
    return Target(run, tuple(seeds))


def _split(given: bytes) -> tuple[bytes, bytes]:
    """Control bytes and stream; what is missing is zero."""
    return given[:CONTROL_LEN].ljust(CONTROL_LEN, b"\0"), given[CONTROL_LEN:MAX_INPUT_LEN]


def _protected_suites() -> list[AeadSuite]:
    suites = [suite for suite in SUITES.values() if isinstance(suite, AeadSuite)]
    return suites + [replace(suite, rekey_frames=REKEY_FRAMES) for suite in suites]


def _plain_reader() -> Reader:
    return Reader(Connection(max_payload_len=LIMIT_LEN))


def _end(suite: FrameSuite) -> Reader:
    connection = Connection(PEER, DIRECTION, LIMIT_LEN)
    connection.protect(suite, TO_WRITER, TO_READER)
    return Reader(connection)


def _sealed_stream(suite: FrameSuite) -> list[bytes]:
    writer = Connection()
    writer.protect(suite, TO_READER, TO_WRITER)
    messages = honest_messages()
    chosen = messages[:2] + messages[-4:-2] + messages[-6:-4]  # with tensors and without
    return [bytes(writer.send(message, tensors)) for message, tensors in chosen]


def _forgery_verdict(
    honest: list[bytes], stream: bytes
) -> tuple[int, type[LonghaulError] | type[None]]:
    """How many honest frames a stream begins with, and what the one behind them deserves."""
    num_honest = at = 0
    while num_honest < len(honest) and stream.startswith(honest[num_honest], at):
        at += len(honest[num_honest])
        num_honest += 1
    rest = stream[at:]
    if len(rest) < HEADER_LEN:
        return num_honest, type(None)
    (announced,) = LENGTH.unpack(rest[HEADER_LEN - LENGTH.size : HEADER_LEN])
    if announced > LIMIT_LEN:
        return num_honest, RemoteProtocolError
    return num_honest, FrameRejected if len(rest) >= HEADER_LEN + announced else type(None)


def _frames_within(stream: bytes) -> Iterator[tuple[int, bytes]]:
    """Cut a stream into frames; an announced length beyond its end means the rest."""
    at = 0
    while at + HEADER_LEN <= len(stream):
        raw_kind = stream[at]
        (announced,) = LENGTH.unpack(stream[at + 1 : at + HEADER_LEN])
        at += HEADER_LEN
        payload = stream[at : at + announced]
        at += len(payload)
        yield raw_kind, payload


def _described_tensors(given: bytes) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors as bytes describe them: name, dtype, dimensions, content; what is missing is zero."""
    dtypes, at = tuple(DTYPES.values()), 0
    while at < len(given):
        name_idx, dtype_idx, num_dims = given[at : at + 3].ljust(3, b"\0")
        shape = [size % 5 for size in given[at + 3 :][: num_dims % 5]]
        at += 3 + len(shape)
        dtype = dtypes[dtype_idx % len(dtypes)]
        tensor = torch.zeros(shape, dtype=dtype)
        content = bytearray(given[at : at + tensor.nbytes].ljust(tensor.nbytes, b"\0"))
        at += len(content)
        if content and dtype is not torch.bool:  # a bool has come through `decode_payload`
            tensor = torch.frombuffer(content, dtype=dtype).reshape(shape)
        yield NAMES[name_idx % len(NAMES)], tensor
