"""Hostile inputs from honest ones, by edits that know frames and MessagePack.

Guarantees: a seed gives the same inputs every time; an input is at most `MAX_INPUT_LEN` long. The
edits are those that a careless or clever peer makes: bits flipped, pieces cut, doubled or taken
from another frame, lengths and kinds changed, fields renamed, dropped and given other types. Must
never know what is done with its inputs.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bench.studies.fuzz_delivery import LENGTH, LIMIT_LEN, MAX_INPUT_LEN
from engine.transport.frame import HEADER_LEN

MAX_EDITS = 4
HEADER_SIZE = struct.Struct(">I")  # of the MessagePack header, in front of it
LENGTHS = (0, 1, 8, 16, 17, LIMIT_LEN, LIMIT_LEN + 1, 2**32 - 1, 2**40, 2**63, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**31,
    2**63,
    2**64 - 1,
    -(2**63),
    0.5,
    float("nan"),
    "",
    "x" * 80,
    "\x1b[31m\n",
    b"",
    b"\0" * 48,
    [],
    {},
    [[[[]]]],
    {"a": 1},
    msgspec.msgpack.Ext(1, b"x"),
)
NAMES = (
    "job",
    "noise",
    "node_id",
    "refused",
    "hidden",
    "hidden.scale",
    "f32",
    "e4m3",
    "bool",
    "",
    "\x1b[2J",
)
Edit = Callable[["Mutator", bytearray], None]


class Mutator:
    """Makes inputs.

    Args:
        seeds: honest inputs.
        control_len: bytes in front of their frames: a variant, then sizes of pieces.
        frames: honest frames of every kind, to put in between.
    """

    def __init__(
        self,
        rng: random.Random,
        seeds: Sequence[bytes],
        control_len: int,
        frames: Sequence[bytes],
    ) -> None:
        self.rng = rng
        self.frames = frames
        self.control_len = control_len
        self._seeds = seeds

    def next(self) -> bytes:
        """The next input; an edit may find nothing to change, so now and then it is honest."""
        given = bytearray(self.rng.choice(self._seeds))
        for idx in range(1, self.control_len):
            given[idx] = self.rng.randrange(64)
        for _ in range(self.rng.randrange(1, MAX_EDITS + 1)):
            self.rng.choice(EDITS)(self, given)
        return bytes(given[:MAX_INPUT_LEN])

    def place(self, given: bytearray) -> int:
        """An index into the input, or its end."""
        return self.rng.randrange(len(given) + 1)

    def frame_starts(self, given: bytearray) -> list[int]:
        """Where frames begin, as far as the lengths can be followed."""
        starts, at = [], self.control_len
        while at + HEADER_LEN <= len(given):
            starts.append(at)
            at += HEADER_LEN + LENGTH.unpack_from(given, at + 1)[0]
        return starts

    def a_frame(self, given: bytearray) -> tuple[int, int] | None:
        """Start and end of one of the frames; None: there is none."""
        starts = self.frame_starts(given)
        if not starts:
            return None
        start = self.rng.choice(starts)
        end = start + HEADER_LEN + LENGTH.unpack_from(given, start + 1)[0]
        return start, min(end, len(given))

    def other(self) -> bytes:
        """Somebody else's bytes."""
        return self.rng.choice(self.rng.choice((self._seeds, self.frames)))


def _flip_bit(mutator: Mutator, given: bytearray) -> None:
    if given:
        given[mutator.rng.randrange(len(given))] ^= 1 << mutator.rng.randrange(8)


def _set_byte(mutator: Mutator, given: bytearray) -> None:
    if given:
        given[mutator.rng.randrange(len(given))] = mutator.rng.randrange(256)


def _cut_out(mutator: Mutator, given: bytearray) -> None:
    at = mutator.place(given)
    del given[at : at + mutator.rng.randrange(1, 20)]


def _truncate(mutator: Mutator, given: bytearray) -> None:
    del given[mutator.place(given) :]


def _insert(mutator: Mutator, given: bytearray) -> None:
    at = mutator.place(given)
    given[at:at] = mutator.rng.randbytes(mutator.rng.randrange(1, 20))


def _splice(mutator: Mutator, given: bytearray) -> None:
    """From somewhere on, go on in the middle of another input."""
    other = mutator.other()
    given[mutator.place(given) :] = other[mutator.rng.randrange(len(other) + 1) :]


def _set_number(mutator: Mutator, given: bytearray) -> None:
    at = mutator.place(given)
    given[at : at + LENGTH.size] = LENGTH.pack(mutator.rng.choice(LENGTHS))


def _change_kind(mutator: Mutator, given: bytearray) -> None:
    if span := mutator.a_frame(given):
        given[span[0]] = mutator.rng.randrange(mutator.rng.choice((20, 256)))


def _change_length(mutator: Mutator, given: bytearray) -> None:
    if span := mutator.a_frame(given):
        (length,) = LENGTH.unpack_from(given, span[0] + 1)
        near = max(length + mutator.rng.choice((-1, 1)), 0)
        LENGTH.pack_into(given, span[0] + 1, mutator.rng.choice((near, *LENGTHS)) % 2**64)


def _repeat_frame(mutator: Mutator, given: bytearray) -> None:
    if span := mutator.a_frame(given):
        at = mutator.rng.choice(mutator.frame_starts(given))
        given[at:at] = given[span[0] : span[1]]


def _drop_frame(mutator: Mutator, given: bytearray) -> None:
    if span := mutator.a_frame(given):
        del given[span[0] : span[1]]


def _insert_frame(mutator: Mutator, given: bytearray) -> None:
    starts = mutator.frame_starts(given) or [min(mutator.control_len, len(given))]
    at = mutator.rng.choice(starts)
    given[at:at] = mutator.rng.choice(mutator.frames)


def _change_header_size(mutator: Mutator, given: bytearray) -> None:
    span = mutator.a_frame(given)
    if span and span[1] - span[0] >= HEADER_LEN + HEADER_SIZE.size:
        HEADER_SIZE.pack_into(given, span[0] + HEADER_LEN, mutator.rng.choice(LENGTHS) % 2**32)


def _change_message(mutator: Mutator, given: bytearray) -> None:
    """Change a value, name or tensor in a frame's header; every length is right again after it."""
    span = mutator.a_frame(given)
    if span is None:
        return
    payload = bytes(given[span[0] + HEADER_LEN : span[1]])
    header_len = int.from_bytes(payload[: HEADER_SIZE.size], "big")
    blob = payload[HEADER_SIZE.size + header_len :]
    try:
        tree = msgspec.msgpack.decode(payload[HEADER_SIZE.size : HEADER_SIZE.size + header_len])
    except (msgspec.DecodeError, UnicodeDecodeError):  # sealed, or broken by an edit before this
        return
    header = msgspec.msgpack.encode(_changed(tree, mutator.rng))
    payload = HEADER_SIZE.pack(len(header)) + header + blob
    given[span[0] + 1 : span[1]] = LENGTH.pack(len(payload)) + payload


def _changed(node: Any, rng: random.Random) -> Any:
    """The same tree with one thing in it changed."""
    if isinstance(node, dict) and node and rng.random() < 0.9:
        name = rng.choice(list(node))
        changed = dict(node)
        match rng.randrange(8):
            case 0:
                del changed[name]
            case 1:
                changed[rng.choice(NAMES)] = changed.pop(name)
            case 2:
                changed[rng.choice(NAMES)] = rng.choice(VALUES)
            case _:
                changed[name] = _changed(changed[name], rng)
        return changed
    if isinstance(node, list) and node and rng.random() < 0.9:
        idx = rng.randrange(len(node))
        match rng.randrange(8):
            case 0:
                return node[:idx] + node[idx + 1 :]
            case 1:
                return node[: idx + 1] + node[idx:]
            case 2:
                return node[::-1]
            case _:
                return [*node[:idx], _changed(node[idx], rng), *node[idx + 1 :]]
    return rng.choice((*VALUES, *NAMES))


EDITS: tuple[Edit, ...] = (
    _flip_bit,
    _set_byte,
    _cut_out,
    _truncate,
    _insert,
    _splice,
    _set_number,
    _change_kind,
    _change_length,
    _repeat_frame,
    _drop_frame,
    _insert_frame,
    _change_header_size,
    _change_message,
    _change_message,
    _change_message,
)
