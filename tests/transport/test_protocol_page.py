"""docs/protocol.md says what the code does: every vector both ways, every row of every table.

A vector that differs is printed as the page should have it.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
import types
import typing
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from engine.errors import FrameRejected, HandshakeError, RemoteProtocolError
from engine.model.linear import KERNELS
from engine.numeric import NUMERIC_CONFIGS
from engine.transport.connection import Connection, Received
from engine.transport.frame import HEADER_LEN, Kind
from engine.transport.handshake import PROLOGUE_LABEL, Established
from engine.transport.hidden_wire import MAX_SCALE, MIN_SCALE, WIRES, pack_states, unpack_states
from engine.transport.message import (
    KIND_OF,
    PROTOCOL_VERSION,
    AnyMessage,
    Hello,
    HelloAck,
    Levers,
    Message,
    Sampling,
    StageSpan,
    Welcome,
)
from engine.transport.noise import OVERHEAD_LEN, PROTOCOL_NAME, Side
from engine.transport.roles import ROLES
from engine.transport.seal import SUITES, AeadSuite
from engine.transport.tensor import DTYPES, TensorMeta, storage_view
from tests.transport import protocol_vectors as made
from tests.transport.connected_pairs import bits

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
# Modules whose every public number the page must quote, but for these.
QUOTED_MODULES = (
    *("frame", "codec", "tensor", "hidden_wire", "message", "credentials", "refusal", "noise"),
    *("seal", "introduce", "link", "outbox", "probe", "frame_queue"),
)
NOT_FOR_PEERS = {
    *("noise.TAG_LEN", "noise.MAX_MESSAGE_LEN", "noise.NUM_MESSAGES"),  # Noise's own
    *("hidden_wire.MIN_SCALE", "hidden_wire.MAX_SCALE"),  # in section 4
    *("outbox.MAX_BATCH", "codec.MAX_REASON_LEN", "hidden_wire.MAX_NAMES_LEN"),
}
DEADLINES = {
    *("defaults.REPLY_TIMEOUT_S", "defaults.PREFILL_TIMEOUT_S"),
    *("defaults.DEPTH_MAX", "defaults.DRAFT_LEN_MAX", "defaults.TREE_NODES_MAX"),
}
ARRAYS, LENIENT = {StageSpan, TensorMeta}, {Hello, HelloAck}
STRUCTS: list[type[msgspec.Struct]] = [*KIND_OF, Sampling, Levers, StageSpan, TensorMeta]
AEADS = {"chacha20-poly1305": ChaCha20Poly1305, "aes-256-gcm": AESGCM}


def read_blocks(text: str) -> dict[str, made.Vectors]:
    """The page's vectors, by block and name."""
    blocks: dict[str, made.Vectors] = {}
    for title, body in re.findall(r"^```vectors (.+?)\n(.*?)^```$", text, re.M | re.S):
        joined = re.sub(r"\n +", " ", body)
        rows = [line.split(" ", 1) for line in joined.splitlines()]
        blocks[title] = {name: bytes.fromhex(digits) for name, digits in rows}
        assert len(blocks[title]) == len(rows), f"a name twice in {title}"
    return blocks


def rows_of(*heads: str) -> list[list[str]]:
    """The cells of the one table with these heads."""
    pattern = r"^\| " + r" \| ".join(map(re.escape, heads)) + r" \|\n\|[-|]+\|\n((?:\|.*\n)+)"
    (body,) = re.findall(pattern, TEXT, re.M)
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in body.splitlines()]
    assert all(len(row) == len(heads) for row in rows), heads
    return rows


PAGE, EXPECTED = read_blocks(TEXT), made.expected()


def differences(page: dict[str, made.Vectors]) -> list[str]:
    """Blocks that are not what the code makes, as they should stand."""
    found = [
        made.shown(block, EXPECTED[block])
        for block in EXPECTED
        if page.get(block) != EXPECTED[block]
    ]
    return found + [f"no such block: {block}" for block in page if block not in EXPECTED]


# -- vectors -------------------------------------------------------------------------------------


def test_every_vector_is_what_the_code_makes() -> None:
    """Catches any change of the wire that the page does not tell."""
    assert not (wrong := differences(PAGE)), "should be:\n\n" + "\n\n".join(wrong)


def test_every_byte_of_every_vector_counts() -> None:
    """Catches a vector that is parsed and never compared."""
    for block, vectors in PAGE.items():
        for name, value in vectors.items():
            for idx in range(len(value)):
                altered = bytearray(value)
                altered[idx] ^= 1
                assert differences({**PAGE, block: {**vectors, name: bytes(altered)}}), (name, idx)


def test_a_missing_and_an_unknown_block_are_seen() -> None:
    """Catches a page that lost its vectors, or has some that nobody checks."""
    assert differences({})
    assert differences({**PAGE, "more": {}}) == ["no such block: more"]


def one_frame(wire: bytes) -> Received:
    """What a plain reader makes of one whole frame."""
    (received,) = Connection().receive_data(wire)
    return received


def plain_bits(wire: bytes) -> object:
    try:
        return bits(one_frame(wire))
    except (RemoteProtocolError, ValueError):  # refused, or not one whole frame
        return None


PLAIN = {**PAGE["messages"], **PAGE["handshake"]}
FRAMES = [*made.PLAIN_FRAMES, "hello", "hello-ack", "hello-finish"]


@pytest.mark.parametrize("name", FRAMES)
def test_plain_frames_decode(name: str) -> None:
    """Catches a reader that takes the page's bytes for anything else, or does not see a bit."""
    wire = PLAIN[name]
    whole = plain_bits(wire)
    assert whole is not None
    if name in made.PLAIN_FRAMES:
        message, tensors = made.PLAIN_FRAMES[name]
        assert whole == bits(Received(message, tensors, len(wire)))
    if name == "hello-ack":
        return  # lenient: the altered name of its empty field is one that it does not know
    for bit_idx in range(len(wire) * 8):
        altered = bytearray(wire)
        altered[bit_idx // 8] ^= 1 << bit_idx % 8
        assert plain_bits(bytes(altered)) != whole, bit_idx


@pytest.mark.parametrize("wire_name", sorted(WIRES))
def test_states_come_back(wire_name: str) -> None:
    """Catches a wire whose reader does other arithmetic than the page."""
    back = unpack_states(one_frame(PLAIN[f"verify-{wire_name}"]).tensors, wire_name)["hidden"]
    back[back.isnan()] = float("nan")
    want = PLAIN["states-back-from-fp8"] if wire_name == "fp8" else bytes(storage_view(made.STATES))
    assert bytes(storage_view(back)) == want


def test_noise_reads_the_page() -> None:
    """Catches a machine that agrees with itself only: each side is fed the page's messages."""
    page = PAGE["noise"]
    caller, listener = made.machine(Side.INITIATOR), made.machine(Side.RESPONDER)
    assert caller.write_message() == page["noise-1"]
    assert listener.read_message(page["noise-1"]) == b""
    assert listener.write_message() == page["noise-2"]
    assert caller.read_message(page["noise-2"]) == b""
    assert caller.write_message() == page["noise-3"]
    assert listener.read_message(page["noise-3"]) == b""
    forth, back = page["secret-caller-to-listener"], page["secret-listener-to-caller"]
    assert (caller.split(), listener.split()) == ((forth, back), (back, forth))
    assert caller.handshake_hash == listener.handshake_hash == page["handshake-hash"]
    assert caller.remote_static == PAGE["keys"]["listener-static-public"]
    assert listener.remote_static == PAGE["keys"]["caller-static-public"]


def test_the_handshake_reads_the_page() -> None:
    """Catches state machines that send or take other frames than the page's, at either end."""
    page = PAGE["handshake"]
    listener, caller = made.listening(), made.calling()
    ack = listener.on_message(one_frame(page["hello"]).message).send
    last = listener.on_message(one_frame(page["hello-finish"]).message)
    caller.start()
    finish = caller.on_message(one_frame(page["hello-ack"]).message)
    assert [ack, finish.send] == [
        one_frame(page[name]).message for name in ("hello-ack", "hello-finish")
    ]
    keys = (PAGE["noise"]["secret-caller-to-listener"], PAGE["noise"]["secret-listener-to-caller"])
    assert finish.established == Established(made.LISTENER, made.ROLE, made.SUITE, *keys)
    assert last.established == Established(made.CALLER, made.ROLE, made.SUITE, *keys[::-1])
    link = Connection()
    link.protect(SUITES[made.SUITE], *keys)
    (welcome,) = link.receive_data(page["welcome"])
    assert welcome.message == Welcome()
    assert caller.on_message(welcome.message).finished and last.finished


def test_another_version_is_understood_and_refused() -> None:
    """Catches a release that answers a newer one with silence or garbage."""
    hello = one_frame(PAGE["handshake"]["hello-of-version-99"]).message
    assert hello == Hello(protocol_version=99, node_id=made.CALLER)
    progress = made.listening().on_message(hello)
    assert isinstance(progress.failure, HandshakeError)
    assert isinstance(progress.send, HelloAck)
    assert progress.send.protocol_version == PROTOCOL_VERSION
    assert "version 99" in progress.send.refused and str(PROTOCOL_VERSION) in progress.send.refused


def opened(suite: AeadSuite, frames: list[bytes]) -> list[AnyMessage]:
    link = Connection()
    link.protect(made.RecordedKeys(suite).suite, bytes(32), made.SEAL_SECRET)
    return [received.message for frame in frames for received in link.receive_data(frame)]


@pytest.mark.parametrize("suite", made.AEAD_SUITES, ids=lambda suite: suite.name)
def test_sealed_frames_open(suite: AeadSuite) -> None:
    """Catches an opener that rekeys at another frame, and a byte that is not covered."""
    page = PAGE[f"seal {suite.name}"]
    frames = [page[f"frame-{idx}"] for idx in range(3)]
    assert opened(suite, frames) == list(made.SEALED)
    for frame_idx, frame in enumerate(frames):
        for idx in [0, *range(HEADER_LEN, len(frame))]:  # the length is not a matter of the seal
            altered = bytearray(frame)
            altered[idx] ^= 1
            with pytest.raises(FrameRejected):
                opened(suite, [*frames[:frame_idx], bytes(altered)])


@pytest.mark.parametrize("suite", sorted(AEADS))
def test_sealed_frames_open_by_the_page_alone(suite: str) -> None:
    """Catches a key schedule or nonce that section 7 describes wrongly; our code is not used."""
    page = PAGE[f"seal {suite}"]

    def derived(chain: bytes, purpose: str) -> bytes:
        label = f"longhaul {purpose} {suite}".encode()
        return HKDF(SHA256(), 32, None, label).derive(chain)

    secret = bytes(range(32))
    assert page["key"] == derived(secret, "key")
    assert page["next-chain"] == derived(secret, "next")
    assert page["next-key"] == derived(page["next-chain"], "key")
    for counter, (key, seq) in enumerate((("key", 1), ("key", 2), ("next-key", 3))):
        frame = page[f"frame-{counter}"]
        nonce = bytes(4) + counter.to_bytes(8, "big")
        payload = AEADS[suite](page[key]).decrypt(nonce, frame[9:], frame[:9])
        assert int.from_bytes(frame[1:9], "big") == len(frame) - 9
        assert payload[4:] == msgspec.msgpack.encode([{"seq": seq}, []])
        assert frame[0] == Kind.PROBE and payload[:4] == (len(payload) - 4).to_bytes(4, "big")


def test_fp8_by_the_page_alone() -> None:
    """Catches arithmetic that section 4 describes wrongly: numpy and a table of e4m3 stand in."""
    generator = torch.Generator().manual_seed(5)
    exponents = torch.randint(-44, 38, (300, 1), generator=generator)
    states = (torch.randn(300, 16, generator=generator).double() * 10.0**exponents).float()
    states = torch.cat([states, torch.zeros(1, 16)])
    rows, f32 = states.numpy(), np.float32
    amax = np.minimum(np.abs(rows), np.finfo(f32).max).max(axis=1)
    scale = np.clip(amax / f32(448), f32(2.0**-126), np.uint32(0x7B124924).view(f32))
    quotient = np.clip(rows / scale[:, None], f32(-448), f32(448)).astype(np.float64)
    magnitudes = [
        (mantissa / 8 + (exponent > 0)) * 2.0 ** (max(exponent, 1) - 7)
        for exponent in range(16)
        for mantissa in range(8)
    ][:127]
    distances = np.abs(np.abs(quotient)[..., None] - np.array(magnitudes))
    near = distances == distances.min(axis=-1, keepdims=True)  # two of them in a tie: the even one
    even = near & (np.arange(127) % 2 == 0)
    codes = np.where(near.sum(axis=-1) == 2, even.argmax(axis=-1), near.argmax(axis=-1))
    codes = codes + 128 * np.signbit(quotient)
    packed = pack_states({"x": states}, "fp8")
    assert (packed["x.scale"].numpy() == scale).all()
    assert (packed["x"].view(torch.uint8).numpy() == codes).all()


# -- tables --------------------------------------------------------------------------------------


def notation(hint: object) -> str:
    """An annotation in the page's words."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("nil" if one is type(None) else notation(one) for one in args)
    if origin is tuple:
        return f"[{', '.join(notation(one) for one in args if one is not Ellipsis)}]"
    if origin is dict:
        return f"{{{notation(args[0])}: {notation(args[1])}}}"
    assert isinstance(hint, type)
    return "bin" if hint is bytes else hint.__name__


def if_missing(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "refused"
    default = field.default
    if default == b"":
        return "empty"
    texts = {None: "nil", (): "[]"}
    return f"`{texts[default] if default in texts else msgspec.json.encode(default).decode()}`"


def test_every_kind_and_every_field_of_every_message() -> None:
    """Catches a field, type, default, order or kind number that the page does not have."""
    on_page: dict[str, list[tuple[str, str, str]]] = {}
    kinds: dict[int, str] = {}
    name = ""
    for first, fields, kind, missing, _ in rows_of(
        "message", "field", "type", "if missing", "meaning"
    ):
        if first:
            ((number, name),) = re.findall(r"^(\d*) ?`(\w+)`$", first)
            on_page[name] = []
            if number:
                kinds[int(number)] = name
        named = fields.split(", ")
        if fields == "–":
            assert (kind, missing) == ("", "")
            continue
        on_page[name] += [(field, kind, missing) for field in named]
    in_code = {
        struct.__name__: [
            (field.encode_name, notation(field.type), if_missing(field))
            for field in msgspec.structs.fields(struct)
        ]
        for struct in STRUCTS
    }
    assert on_page == in_code
    assert kinds == {int(kind): struct.__name__ for struct, kind in KIND_OF.items()}
    assert set(kinds) == set(map(int, Kind))


def test_arrays_and_lenient_messages_are_the_ones_named() -> None:
    """Catches another struct that travels as an array, or takes unknown fields."""
    structs = [*STRUCTS, *Message.__subclasses__()]
    assert {one for one in structs if one.__struct_config__.array_like} == ARRAYS
    assert {one for one in structs if not one.__struct_config__.forbid_unknown_fields} == LENIENT
    assert "`StageSpan` and `TensorMeta` are\n  **arrays**" in TEXT
    assert "`Hello` and `HelloAck` are lenient" in TEXT


def test_dtypes_suites_and_wires() -> None:
    """Catches one that is new, gone or of another size."""
    dtypes = [(name, int(size)) for name, size, _ in rows_of("dtype", "bytes", "element")]
    assert dtypes == [(name, dtype.itemsize) for name, dtype in DTYPES.items()]
    suites = rows_of("suite", "tag bytes", "key bytes", "cipher")
    assert [(name, int(tag), int(key)) for name, tag, key, _ in suites] == [
        (suite.name, suite.tag_len, suite.key_len if isinstance(suite, AeadSuite) else 0)
        for suite in SUITES.values()
    ]
    assert [name for name, _ in rows_of("wire", "tensors of states `X`")] == list(WIRES)


def test_numeric_configurations() -> None:
    """Catches one that is new or stands for something else, or one without its wire or kernel."""
    assert rows_of("numeric configuration", "weights", "wire") == [
        [name, config.weights, config.wire] for name, config in NUMERIC_CONFIGS.items()
    ]
    assert {config.wire for config in NUMERIC_CONFIGS.values()} == set(WIRES)
    assert {config.weights for config in NUMERIC_CONFIGS.values()} == set(KERNELS)


def test_roles() -> None:
    """Catches a message that one end may send and the page does not allow, or the reverse."""
    rows = rows_of("role", "caller → listener", "caller sends", "listener sends")
    assert {row[0]: [re.findall(r"`(\w+)`", cell) for cell in row[2:]] for row in rows} == {
        name: [
            [message.__name__ for message in side]
            for side in (role.caller_sends, role.listener_sends)
        ]
        for name, role in ROLES.items()
    }


def module_named(name: str) -> types.ModuleType:
    (path,) = (ROOT / "engine").rglob(f"{name}.py")  # names in the table are unambiguous
    return importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def constant(dotted: str) -> float:
    """The value of `module.NAME`."""
    module_name, name = dotted.split(".")
    value = getattr(module_named(module_name), name)
    assert isinstance(value, int | float), dotted
    return value


def own_numbers(module_name: str) -> set[str]:
    """The public numbers that a module defines itself."""
    module = module_named(module_name)
    tree = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
    targets = [
        target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
    ]
    names = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return {
        f"{module_name}.{name}"
        for name in names
        if not name.startswith("_") and isinstance(getattr(module, name), int | float)
    }


def test_limits() -> None:
    """Catches a limit or deadline that was changed in the code only."""
    rows = rows_of("limit", "value", "name in the code")
    on_page = {name.strip("`"): float(value) for _, value, name in rows}
    assert len(on_page) == len(rows)
    assert on_page == {name: float(constant(name)) for name in on_page}
    exact = {name.strip("`"): value for _, value, name in rows}
    assert int(exact["seal.MAX_FRAMES"]) == constant("seal.MAX_FRAMES")  # no float holds it
    cited = set(re.findall(r"`(\w+\.[A-Z_0-9]+)`", TEXT))
    assert cited <= set(on_page), "cited without a row"
    due = DEADLINES.union(*map(own_numbers, QUOTED_MODULES)) - NOT_FOR_PEERS
    assert set(on_page) == due


def literal_codes(folder: Path) -> set[str]:
    """First arguments of everything under a folder that makes or passes on a job error."""
    codes = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and node.args):
                continue
            made_by = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            first = node.args[0]
            if made_by in ("JobError", "_report", "_fail_ring") and isinstance(first, ast.Constant):
                codes.add(first.value)
    return codes


def test_job_error_codes() -> None:
    """Catches a code that the page does not explain, or explains at the wrong end."""
    by_end: dict[str, set[str]] = {"stage": set(), "coordinator": set()}
    for code, ends, _ in rows_of("code", "by", "meaning"):
        for end in ends.split(", "):
            by_end[end].add(code)
    engine = ROOT / "engine"
    assert by_end["stage"] == literal_codes(engine / "stage") | literal_codes(engine / "model")
    assert by_end["coordinator"] == literal_codes(engine / "coordinator")


def test_numbers_and_names_in_the_prose() -> None:
    """Catches prose that names another version, protocol, label, length or bound than the code."""
    for text in (
        f"Protocol version: **{PROTOCOL_VERSION}**.",
        f"`{PROTOCOL_NAME.decode()}`",
        f"`{PROLOGUE_LABEL}`, the protocol\nversion in decimal digits",
        "the messages have {}, {} and {} bytes".format(*OVERHEAD_LEN),
        f"clamped to [2⁻¹²⁶, {np.float32(MAX_SCALE).view(np.uint32):#010x}]",
    ):
        assert text in TEXT, text
    assert MIN_SCALE == 2.0**-126 and float(np.float32(MAX_SCALE)) == MAX_SCALE
    assert dataclasses.asdict(SUITES["plain"])["protected"] is False
