"""Keys are private, signatures bind type and bytes, and key files are read strictly."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError, ReceiptError
from engine.trust.identity import (
    Identity,
    PublicIdentity,
    load_public_keys,
    longhaul_home,
    pre_authentication_encoding,
)

TYPE = "longhaul-receipt/1"


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    return Identity.load_or_create(tmp_path / "keys" / "harness.key")


def test_key_is_created_private(tmp_path: Path) -> None:
    """Catches a private key that others can read, even for a moment under a wide umask."""
    before = os.umask(0)
    try:
        path = tmp_path / "home" / "keys" / "harness.key"
        Identity.load_or_create(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {entry.name for entry in path.parent.iterdir()} == {"harness.key", "harness.pub"}


def test_second_call_loads_the_same_key(tmp_path: Path) -> None:
    """Catches a key that is replaced: older receipts would lose their signer."""
    path = tmp_path / "harness.key"
    first, second = Identity.load_or_create(path), Identity.load_or_create(path)
    assert first.public == second.public
    path.with_suffix(".pub").unlink()
    Identity.load_or_create(path)
    assert PublicIdentity.from_text(path.with_suffix(".pub").read_text(), "") == first.public


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610, 0o601])
def test_key_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    """Catches a check that looks at one permission bit only."""
    path = tmp_path / "harness.key"
    Identity.load_or_create(path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"{mode:04o}.*chmod 600"):
        Identity.load_or_create(path)


def write_private(path: Path, pem: bytes) -> None:
    path.write_bytes(pem)
    path.chmod(0o600)


def test_files_that_are_no_key_are_refused(tmp_path: Path) -> None:
    """Catches an overwrite, or another algorithm's key taken for ours."""
    path = tmp_path / "harness.key"
    write_private(path, b"not a key")
    with pytest.raises(ConfigError, match="not a private key"):
        Identity.load_or_create(path)
    pem = generate_private_key(SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_private(path, pem)
    with pytest.raises(ConfigError, match="not an Ed25519 key"):
        Identity.load_or_create(path)
    assert path.read_bytes() == pem


def test_key_with_a_passphrase_is_refused(tmp_path: Path) -> None:
    """Catches a `TypeError` of the library that reaches the user as a bug."""
    path = tmp_path / "harness.key"
    pem = generate_private_key(SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    write_private(path, pem)
    with pytest.raises(ConfigError):
        Identity.load_or_create(path)


@given(body=st.binary(max_size=200), other=st.binary(max_size=200))
def test_signature_covers_the_exact_bytes(body: bytes, other: bytes) -> None:
    """Catches a signature over a digest of something else, or over nothing."""
    identity = Identity(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
    signature = identity.sign(TYPE, body)
    identity.public.verify(TYPE, body, signature)
    if other != body:
        with pytest.raises(ReceiptError):
            identity.public.verify(TYPE, other, signature)


def test_every_altered_bit_is_found(identity: Identity) -> None:
    """Catches a verifier that skips a part of body or signature."""
    body = b'{"a":1}'
    signature = identity.sign(TYPE, body)
    for at in range(len(body) * 8):
        altered = bytearray(body)
        altered[at // 8] ^= 1 << at % 8
        with pytest.raises(ReceiptError, match=identity.key_id):
            identity.public.verify(TYPE, bytes(altered), signature)
    for at in range(len(signature)):
        altered = bytearray(signature)
        altered[at] ^= 1
        with pytest.raises(ReceiptError):
            identity.public.verify(TYPE, body, bytes(altered))
    for wrong_size in (b"", signature[:-1], signature + b"\0"):
        with pytest.raises(ReceiptError):
            identity.public.verify(TYPE, body, wrong_size)


def test_wrong_key_and_wrong_type(identity: Identity, tmp_path: Path) -> None:
    """Catches a plan's signature that passes for a receipt's, and any key that will do."""
    body, signature = b"{}", identity.sign(TYPE, b"{}")
    with pytest.raises(ReceiptError):
        identity.public.verify("longhaul-plan/1", body, signature)
    with pytest.raises(ReceiptError):
        Identity.load_or_create(tmp_path / "other.key").public.verify(TYPE, body, signature)


def test_encoding_is_that_of_dsse_and_injective() -> None:
    """Catches a plain concatenation, where bytes could move from the type into the body."""
    encoded = pre_authentication_encoding("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert pre_authentication_encoding("é", b"") == b"DSSEv1 2 \xc3\xa9 0 "
    assert pre_authentication_encoding("a", b"1 b") != pre_authentication_encoding("a 3 1", b"b")


def test_public_text_round_trip(identity: Identity) -> None:
    """Catches a key file that does not read back as the same key."""
    text = identity.public.to_text()
    assert text.startswith("ed25519 ") and text.endswith("\n")
    assert PublicIdentity.from_text(text, "x") == identity.public
    assert len(identity.key_id) == 16 and set(identity.key_id) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ed25519",
        "rsa " + base64.b64encode(bytes(32)).decode(),
        "ed25519 " + base64.b64encode(bytes(31)).decode(),
        "ed25519 " + base64.b64encode(bytes(33)).decode(),
        "ed25519 !!!!",
        "ed25519 é",
        "ed25519 " + base64.b64encode(bytes(32)).decode() + " extra",
    ],
)
def test_bad_key_texts_are_refused_by_name(text: str) -> None:
    """Catches a lenient parser, and a message that does not say which file."""
    with pytest.raises(ReceiptError, match=r"some/file\.pub"):
        PublicIdentity.from_text(text, "some/file.pub")


def test_load_public_keys(identity: Identity, tmp_path: Path) -> None:
    """Catches folders that hide each other, and a damaged key file passed over in silence."""
    other = Identity.load_or_create(tmp_path / "more" / "second.key")
    keys = load_public_keys(tmp_path / "keys", tmp_path / "more", tmp_path / "absent")
    assert keys == {identity.key_id: identity.public, other.key_id: other.public}
    (tmp_path / "more" / "bad.pub").write_text("ed25519 ?")
    with pytest.raises(ReceiptError, match=r"bad\.pub"):
        load_public_keys(tmp_path / "more")


def test_key_file_named_after_another_key_is_refused(identity: Identity, tmp_path: Path) -> None:
    """Catches what `load_public_keys` promises: a name that is a key id must be its own."""
    folder = tmp_path / "named"
    folder.mkdir()
    (folder / f"{identity.key_id}.pub").write_text(identity.public.to_text())
    assert load_public_keys(folder) == {identity.key_id: identity.public}
    (folder / f"{'0' * 16}.pub").write_text(identity.public.to_text())
    with pytest.raises(ReceiptError, match="0000000000000000"):
        load_public_keys(folder)


def test_key_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    """Catches a `UnicodeDecodeError` instead of the file's name."""
    (tmp_path / "bad.pub").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ReceiptError, match=r"bad\.pub"):
        load_public_keys(tmp_path)


def test_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Catches keys that land in a folder the user did not choose."""
    monkeypatch.setenv("LONGHAUL_HOME", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "b"))
    assert longhaul_home() == tmp_path / "a"
    monkeypatch.delenv("LONGHAUL_HOME")
    assert longhaul_home() == tmp_path / "b" / "longhaul"
