"""A short run of every fuzz target, and the planted defects that show it is no empty exercise."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidTag

from bench.studies import fuzz, fuzz_engines
from bench.studies.fuzz_engines import FuzzFailureError, run_guided, run_random
from bench.studies.fuzz_targets import ENDS, TARGETS
from bench.study_record import load_study
from engine.errors import ConfigError, FrameRejected, HandshakeError, RemoteProtocolError
from engine.transport import codec, connection, handshake, hidden_wire, noise, refusal, seal
from engine.transport.connection import Connection, Received
from engine.transport.frame import Kind, unpack_header
from engine.transport.message import AnyMessage

NUM_INPUTS = 2500  # per target; several times what the planted defects below need
MANY_ENDS = {  # ends that a target must reach, or its inputs stop at the door
    "payload": {"accepted", "RemoteProtocolError"},
    "plain": {"accepted", "incomplete", "RemoteProtocolError"},
    "sealed": {"accepted", "incomplete", "RemoteProtocolError", "FrameRejected"},
    "authenticated": {"accepted", "incomplete", "RemoteProtocolError"},
    "listener": set(ENDS),
    "caller": set(ENDS),
    "states": {"accepted", "RemoteProtocolError"},
}
Plant = Callable[[pytest.MonkeyPatch], None]

needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris is not installed"
)


@pytest.mark.parametrize("target", TARGETS)
def test_short_run(target: str) -> None:
    """Catches any other error than the protocol's own, and every bound of `fuzz_delivery`."""
    result = run_random(target, NUM_INPUTS, seed=1)
    assert result.num_inputs == NUM_INPUTS
    assert MANY_ENDS[target] <= set(result.ends)


@pytest.mark.parametrize("target", TARGETS)
def test_honest_inputs_are_accepted(target: str) -> None:
    """Catches seeds that an honest peer's reader refuses: edits of them would test nothing."""
    fuzzed = TARGETS[target]()
    ends = [fuzzed.end_of(seed) for seed in fuzzed.seeds]
    if target == "states":  # each description is right on one wire at most
        assert ends.count("accepted") == 2
    else:
        assert set(ends) == {"accepted"}


def test_same_seed_same_run() -> None:
    """Catches a run that nobody can repeat."""
    ends = [run_random("plain", 200, seed).ends for seed in (7, 7, 8)]
    assert ends[0] == ends[1] != ends[2]


def a_decoder_with_a_missing_kind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(codec, "_message_decoders", {})


def a_length_limit_that_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(connection, "unpack_header", lambda header, limit: unpack_header(header, 2**20))


def a_connection_that_outlives_its_errors(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Connection, "_check_alive", lambda self: None)


def a_frame_lost_behind_another(patch: pytest.MonkeyPatch) -> None:
    every = Connection.receive_data

    def only_the_first(self: Connection, chunk: bytes) -> object:
        yield from list(every(self, chunk))[:1]

    patch.setattr(Connection, "receive_data", only_the_first)


def an_opener_that_lets_a_flipped_bit_pass(patch: pytest.MonkeyPatch) -> None:
    def open_(self: seal.AeadOpener, header: memoryview, payload_and_tag: memoryview) -> memoryview:
        tag_len = self.tag_len
        if len(payload_and_tag) < tag_len:
            raise seal.SealBrokenError("no tag")
        cipher, nonce = self._next(len(payload_and_tag))
        payload = payload_and_tag[: len(payload_and_tag) - tag_len]
        try:
            cipher.decrypt_into(nonce, payload_and_tag, header, payload)
        except InvalidTag:
            keystream = bytearray(len(payload_and_tag))  # a stream cipher without its tag
            cipher.encrypt_into(nonce, bytes(len(payload)), header, keystream)
            for idx in range(len(payload)):
                payload[idx] = payload_and_tag[idx] ^ keystream[idx]
        return payload

    patch.setattr(seal.AeadOpener, "open", open_)


def a_kind_that_is_not_bound(patch: pytest.MonkeyPatch) -> None:
    for cls, name in ((seal.AeadSealer, "seal"), (seal.AeadOpener, "open")):
        real = getattr(cls, name)
        patch.setattr(
            cls,
            name,
            lambda self, header, body, real=real: real(self, memoryview(header)[1:], body),
        )


def a_replay_that_opens(patch: pytest.MonkeyPatch) -> None:
    real = seal.AeadOpener.open

    def open_again(self: seal.AeadOpener, header: memoryview, body: memoryview) -> memoryview:
        held = bytes(body)
        try:
            return real(self, header, body)
        except seal.SealBrokenError:
            body[:] = held
            self._counter = max(self._counter - 2, 0)  # the frame before
            return real(self, header, body)

    patch.setattr(seal.AeadOpener, "open", open_again)


def a_decoder_that_quotes_the_peer_as_it_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(codec, "shown", lambda text, limit: text)


def an_authenticated_kind_that_is_guessed(patch: pytest.MonkeyPatch) -> None:
    real = connection.interpret_kind

    def guess(raw_kind: int, authenticated: bool = False) -> object:
        return real(raw_kind % 16 + 1 if authenticated and raw_kind > 16 else raw_kind)

    patch.setattr(connection, "interpret_kind", guess)


def a_caller_that_is_not_asked_who_it_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(handshake, "hello_problem", lambda own, hello: "")


def a_caller_in_a_role_that_is_not_its_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(refusal, "_role_problem", lambda own, hello, caller: "")


def an_answer_that_need_not_authenticate(patch: pytest.MonkeyPatch) -> None:
    real = noise.CipherState.decrypt_with_ad

    def careless(self: noise.CipherState, associated: bytes, ciphertext: bytes) -> bytes:
        try:
            return real(self, associated, ciphertext)
        except HandshakeError:
            if len(ciphertext) > noise.TAG_LEN:
                raise
            return b""  # an empty payload: nothing but its tag to check

    patch.setattr(noise.CipherState, "decrypt_with_ad", careless)


def an_answerer_that_need_not_be_the_one_called(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(handshake, "ack_problem", lambda own, listener, ack: "")


def a_reason_that_a_stranger_writes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(refusal, "shown", lambda text, limit=0: text)


def a_buffer_longer_than_announced(patch: pytest.MonkeyPatch) -> None:
    def longer(header: bytearray, limit: int) -> tuple[int, int]:
        raw_kind, payload_len = unpack_header(header, limit)
        return raw_kind, payload_len + 1

    patch.setattr(connection, "unpack_header", longer)


def a_frame_whose_header_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        connection, "Received", lambda message, named, size: Received(message, named, size - 9)
    )


def a_plain_frame_called_forged(patch: pytest.MonkeyPatch) -> None:
    def decode(kind: Kind, payload: memoryview) -> object:
        try:
            return codec.decode_payload(kind, payload)
        except RemoteProtocolError:
            raise FrameRejected("", "") from None

    patch.setattr(connection, "decode_payload", decode)


def a_forged_frame_laid_to_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(connection, "FrameRejected", lambda peer, direction: FrameRejected("", direction))


def a_tensor_renamed_on_its_way(patch: pytest.MonkeyPatch) -> None:
    describe = codec.describe
    patch.setattr(codec, "describe", lambda name, tensor: describe(f"{name}'", tensor))


def a_handshake_that_tries_again(patch: pytest.MonkeyPatch) -> None:
    real = handshake.ListenerHandshake.on_message

    def on_message(self: handshake.ListenerHandshake, message: AnyMessage) -> object:
        state = self._state
        progress = real(self, message)
        if progress.failure is not None:
            self._state = state
        return progress

    patch.setattr(handshake.ListenerHandshake, "on_message", on_message)


def a_refusal_too_long_to_read(patch: pytest.MonkeyPatch) -> None:
    real = handshake.ListenerHandshake._ack
    patch.setattr(
        handshake.ListenerHandshake,
        "_ack",
        lambda self, refused="", noise=b"": real(self, refused * 99, noise),
    )


def a_scale_that_overflows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(hidden_wire, "MAX_SCALE", float("inf"))


@pytest.mark.parametrize(
    ("target", "plant", "symptom"),
    [
        ("payload", a_decoder_with_a_missing_kind, "KeyError"),
        ("payload", a_decoder_that_quotes_the_peer_as_it_is, "unprintable"),
        ("plain", a_decoder_that_quotes_the_peer_as_it_is, "unprintable"),
        ("plain", a_length_limit_that_is_not_kept, "unasked"),
        ("plain", a_connection_that_outlives_its_errors, "lives on"),
        ("plain", a_frame_lost_behind_another, "one chunk"),
        ("sealed", an_opener_that_lets_a_flipped_bit_pass, "altered stream"),
        ("sealed", a_kind_that_is_not_bound, "altered stream"),
        ("sealed", a_replay_that_opens, "altered stream"),
        ("authenticated", an_authenticated_kind_that_is_guessed, "sealed it ends"),
        ("listener", a_caller_that_is_not_asked_who_it_is, "took "),
        ("listener", a_caller_in_a_role_that_is_not_its_own, "took .* for"),
        ("listener", an_answer_that_need_not_authenticate, "altered messages"),
        ("caller", an_answer_that_need_not_authenticate, "altered messages"),
        ("caller", an_answerer_that_need_not_be_the_one_called, "altered messages"),
        ("caller", a_reason_that_a_stranger_writes, "unprintable"),
        ("plain", a_buffer_longer_than_announced, "are due"),
        ("plain", a_frame_whose_header_is_not_counted, "miscounted|larger"),
        ("plain", a_plain_frame_called_forged, "forged"),
        ("sealed", a_forged_frame_laid_to_nobody, "laid to"),
        ("payload", a_tensor_renamed_on_its_way, "reads otherwise"),
        ("listener", a_handshake_that_tries_again, "goes on"),
        ("listener", a_refusal_too_long_to_read, "may not read"),
        ("states", a_scale_that_overflows, "infinity"),
    ],
)
def test_planted_defects_are_found(
    target: str, plant: Plant, symptom: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches fuzzing that would also pass over a transport with this defect."""
    plant(monkeypatch)
    with pytest.raises(FuzzFailureError, match=symptom) as caught:
        run_random(target, NUM_INPUTS, seed=1)
    assert caught.value.given is not None
    monkeypatch.undo()
    assert TARGETS[target]().end_of(caught.value.given) in ENDS


def test_failures_are_kept_and_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a failure that leaves no input behind, or hides the targets after it."""
    monkeypatch.setattr(fuzz, "FAILURES_DIR", tmp_path)
    monkeypatch.setattr(codec, "_message_decoders", {})
    words = ["--inputs", "50", "--record", str(tmp_path / "studies")]
    assert fuzz.main([*words, "--targets", "payload", "states"]) == 1
    shown = capsys.readouterr()
    assert "FAILED payload: KeyError" in shown.err and "states: 50 inputs" in shown.out
    assert not (tmp_path / "studies").exists()
    (kept,) = tmp_path.glob("payload-*.hex")
    again = ["--targets", "payload", "--replay", str(kept)]
    with pytest.raises(KeyError):
        fuzz.main(again)
    monkeypatch.undo()
    assert fuzz.main(again) == 0


def test_recorded_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches rows that a study record cannot hold, or that count other inputs than were run."""
    monkeypatch.setenv("LONGHAUL_HOME", str(tmp_path / "home"))
    words = ["--inputs", "40", "--targets", "payload", "states"]
    assert fuzz.main(words) == 0
    assert list(tmp_path.iterdir()) == [], "nothing is written unasked"
    capsys.readouterr()
    assert fuzz.main([*words, "--record", str(tmp_path / "studies")]) == 0
    *_, written, last_line = capsys.readouterr().out.splitlines()
    assert Path(written).parent == tmp_path / "studies" / "transport-fuzz"
    study = load_study(Path(written), "transport-fuzz", ("target", "inputs", *ENDS))
    assert [row["target"] for row in study.rows] == ["payload", "states"]
    for row in study.rows:
        assert row["inputs"] == 40 == sum(row[end] for end in ENDS)
    assert study.settings["engine"] == "random"
    assert json.loads(last_line) == study.rows


@pytest.mark.parametrize(
    "words",
    [
        ["--inputs", "0"],
        ["--replay", "missing.hex", "--targets", "plain"],
        ["--replay", "missing.hex"],
    ],
)
def test_wrong_words_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Catches a run of nothing that counts as a pass."""
    assert fuzz.main(words) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_guided_without_atheris(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches an optional package that is needed after all, or is missed in silence."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="atheris"):
        run_guided("payload", 10, seed=1)


@needs_atheris
def test_guided_run() -> None:
    """Catches a process that ends early, or transport code that was not instrumented."""
    result = run_guided("payload", 300, seed=1)
    assert result.num_inputs == 300
    assert result.coverage[0] > 10


@needs_atheris
def test_guided_failure_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a crash of the process that counts as a run, and an input that is lost with it."""
    monkeypatch.setattr(fuzz_engines, "GUIDED_MODULE", "tests.transport.planted_fuzz_guided")
    with pytest.raises(FuzzFailureError, match="KeyError") as caught:
        run_guided("payload", 300, seed=1)
    assert caught.value.given is not None


def test_a_process_that_never_begins_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a silent pass when the process ends with status 0 and has fuzzed nothing."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(fuzz_engines, "GUIDED_MODULE", "this")
    with pytest.raises(FuzzFailureError, match="status 0") as caught:
        run_guided("payload", 10, seed=1)
    assert caught.value.given is None
