"""Key files are private, whole, strictly read and never replaced."""

from __future__ import annotations

import multiprocessing
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from engine.cluster.node_keys import (
    create_cluster_secret,
    load_cluster_secret,
    load_or_create_static_key,
    new_static_key,
)
from engine.errors import ConfigError
from engine.trust.private_file import create_private_file, read_private_file

LINE = b"0123456789abcdefABCDEF" + b"5" * 42
LOADERS = [load_cluster_secret, load_or_create_static_key]


def write_private(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("create", [create_cluster_secret, load_or_create_static_key])
def test_files_are_created_private(tmp_path: Path, create: Callable[[Path], object]) -> None:
    """Catches a file that others can read under a wide umask, and a staging file left behind."""
    path = tmp_path / "home" / "keys" / "key"
    before = os.umask(0)
    try:
        create(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_cluster_secret_round_trip(tmp_path: Path) -> None:
    """Catches a secret that is not random, or not what the file says."""
    first, second = (create_cluster_secret(tmp_path / name) for name in "ab")
    assert first != second and len(first) == len(second) == 32
    assert load_cluster_secret(tmp_path / "a") == first
    assert (tmp_path / "a").read_bytes() == first.hex().encode() + b"\n"


def test_cluster_secret_is_never_replaced(tmp_path: Path) -> None:
    """Catches a second ring that locks the first one's nodes out."""
    path = tmp_path / "secret"
    secret = create_cluster_secret(path)
    with pytest.raises(ConfigError, match="secret exists"):
        create_cluster_secret(path)
    assert load_cluster_secret(path) == secret
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_secret_made_by_hand_is_accepted(tmp_path: Path, ending: bytes) -> None:
    """Catches a parser that only takes our own writing."""
    path = write_private(tmp_path / "secret", LINE + ending)
    assert load_cluster_secret(path) == bytes.fromhex(LINE.decode())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        LINE[:-1],
        LINE + b"0",
        LINE[:-1] + b"g",
        LINE + b"\n\n",
        LINE + b"\r\n",
        LINE + b" ",
        b" " + LINE,
        LINE + b"\n" + LINE,
        b"0x" + LINE,
        "é".encode() * 32,
        b"\xff" * 64,
        bytes(32),
        b"x25519 " + LINE.lower() + b"\n",
    ],
)
def test_what_is_no_secret_is_refused(tmp_path: Path, content: bytes) -> None:
    """Catches a short, long or other file hashed or cut into a weak secret."""
    path = write_private(tmp_path / "secret", content)
    with pytest.raises(ConfigError, match=r"secret: .*exactly one line of 64 hex.*openssl rand"):
        load_cluster_secret(path)


def test_missing_secret_says_how_to_make_one(tmp_path: Path) -> None:
    """Catches a secret that is made up on one host where it had to be copied."""
    path = tmp_path / "my secret"
    with pytest.raises(ConfigError, match=r"no cluster secret there.*copy.*rand -hex 32 > '.*'\)$"):
        load_cluster_secret(path)
    assert not path.exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610, 0o601, 0o777])
@pytest.mark.parametrize("load", LOADERS)
def test_files_that_others_can_use_are_refused(
    tmp_path: Path, mode: int, load: Callable[[Path], object]
) -> None:
    """Catches a check that looks at one permission bit only."""
    path = write_private(tmp_path / "key", LINE)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"{mode:04o}.*chmod 600"):
        load(path)


@pytest.mark.parametrize("load", LOADERS)
def test_files_of_other_users_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Callable[[Path], object]
) -> None:
    """Catches a key that another user put there and knows."""
    path = write_private(tmp_path / "key", LINE)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match=f"belongs to user {owner}.*chown {owner + 1}"):
        load(path)


@pytest.mark.parametrize("load", LOADERS)
def test_what_is_no_file_is_refused(tmp_path: Path, load: Callable[[Path], object]) -> None:
    """Catches an `OSError` that reaches the user as a bug, and a pipe that is waited on."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match=r"pipe.*regular file"):
        load(tmp_path / "pipe")
    (tmp_path / "folder").mkdir(mode=0o700)
    with pytest.raises(ConfigError, match=r"folder.*regular file"):
        load(tmp_path / "folder")


def test_unreadable_path_is_named(tmp_path: Path) -> None:
    """Catches a bare `OSError` for a file that went away or may not be opened."""
    with pytest.raises(ConfigError, match=r"gone: the key cannot be read: No such file"):
        read_private_file(tmp_path / "gone", "key")


def test_new_static_keys_are_pairs() -> None:
    """Catches a public key that belongs to another private one."""
    (private, public), (other_private, other_public) = new_static_key(), new_static_key()
    assert len(private) == len(public) == 32
    forth = X25519PrivateKey.from_private_bytes(private).exchange(
        X25519PublicKey.from_public_bytes(other_public)
    )
    back = X25519PrivateKey.from_private_bytes(other_private).exchange(
        X25519PublicKey.from_public_bytes(public)
    )
    assert forth == back and private != other_private


def test_second_call_loads_the_same_static_key(tmp_path: Path) -> None:
    """Catches a key that is replaced: the plan would refuse the node."""
    path = tmp_path / "static.key"
    first, second = load_or_create_static_key(path), load_or_create_static_key(path)
    assert first == second
    assert load_or_create_static_key(tmp_path / "other.key") != first
    private, public = first
    expected = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    assert public == expected


@pytest.mark.parametrize(
    "content",
    [
        b"",
        LINE + b"\n",  # a cluster secret
        b"x25519 " + LINE.lower(),
        b"x25519 " + LINE.lower() + b"\n\n",
        b"x25519  " + LINE.lower() + b"\n",
        b"x25519 " + LINE[:-1].lower() + b"\n",
        b"ed25519 " + LINE.lower() + b"\n",
    ],
)
def test_what_is_no_static_key_is_refused(tmp_path: Path, content: bytes) -> None:
    """Catches the cluster secret, or half a key, taken for a node's key; and an overwrite."""
    path = write_private(tmp_path / "static.key", content)
    with pytest.raises(ConfigError, match=r"static\.key: a static key is one line 'x25519"):
        load_or_create_static_key(path)
    assert path.read_bytes() == content


def create_at_once(path: Path, start: object, found: object) -> None:
    start.wait()
    found.put(load_or_create_static_key(path))


def test_processes_that_race_end_with_one_key(tmp_path: Path) -> None:
    """Catches two processes of a node that each go on with a key of their own."""
    context = multiprocessing.get_context("spawn")
    start, found = context.Event(), context.Queue()
    path = tmp_path / "static.key"
    racers = [
        context.Process(target=create_at_once, args=(path, start, found), daemon=True)
        for _ in range(4)
    ]
    for racer in racers:
        racer.start()
    start.set()
    keys = {found.get(timeout=60) for _ in racers}
    for racer in racers:
        racer.join()
    assert keys == {load_or_create_static_key(path)}


def test_loser_of_a_race_takes_the_winners_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches the race above for certain: the winner's file appears after our look."""
    path = tmp_path / "static.key"
    winner = load_or_create_static_key(path)
    monkeypatch.setattr(os.path, "exists", lambda _: False)
    assert load_or_create_static_key(path) == winner
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("create", [create_cluster_secret, load_or_create_static_key])
def test_place_that_cannot_be_written_is_named(
    tmp_path: Path, create: Callable[[Path], object]
) -> None:
    """Catches a file in the folder's place that is taken for a key that exists."""
    (tmp_path / "keys").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"keys/key cannot be written"):
        create(tmp_path / "keys" / "key")


def test_private_file_keeps_what_is_there(tmp_path: Path) -> None:
    """Catches a replacement, and a staging file that survives a failure."""
    path = tmp_path / "key"
    create_private_file(path, b"first")
    with pytest.raises(FileExistsError):
        create_private_file(path, b"second")
    assert read_private_file(path, "key") == b"first"
    assert list(tmp_path.iterdir()) == [path]
