"""Host facts and source digests: stable, complete, and silent about the place."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench import host
from engine.errors import ConfigError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGHAUL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def write_checkout(root: Path) -> Path:
    for name in ("engine/a.py", "bench/cells/b.toml", "bench/prompts/c.txt", "docs/d.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def test_facts_are_complete_and_hold_no_float() -> None:
    facts = host.host_facts()
    assert facts.num_cores >= 1
    assert facts.memory_bytes > 1 << 28
    assert facts.clock_resolution_ns >= 1
    assert facts.python.endswith(platform.python_version())
    assert facts.packages["msgspec"] == msgspec.__version__
    assert len(facts.load_average.partition(".")[2]) == 2
    assert not any(isinstance(value, float) for value in msgspec.to_builtins(facts).values())


def test_facts_name_neither_the_host_nor_a_path(home: Path) -> None:
    text = msgspec.json.encode(host.host_facts()).decode()
    assert str(home) not in text
    assert str(Path.home()) + "/" not in text
    if len(platform.node()) > 3:
        assert platform.node() not in text


def test_the_host_id_is_stable_within_a_home_and_new_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = host.host_id()
    assert host.host_id() == first
    assert len(first) == host.HOST_ID_LEN
    monkeypatch.setenv("LONGHAUL_HOME", str(tmp_path / "elsewhere"))
    assert host.host_id() != first


def test_the_salt_is_private_and_alone(home: Path) -> None:
    host.host_id()
    assert [path.name for path in home.iterdir()] == ["host_salt"]
    assert (home / "host_salt").stat().st_mode & 0o077 == 0


def test_a_damaged_salt_is_refused(home: Path) -> None:
    home.mkdir()
    (home / "host_salt").write_text("not a salt")
    with pytest.raises(ConfigError, match="host_salt"):
        host.host_id()


def test_a_home_that_is_a_file_is_refused(home: Path) -> None:
    home.write_text("")
    with pytest.raises(ConfigError, match="LONGHAUL_HOME"):
        host.host_id()


def test_the_source_digest_is_the_same_wherever_the_checkout_lies(tmp_path: Path) -> None:
    one, two = write_checkout(tmp_path / "one"), write_checkout(tmp_path / "two")
    (two / "engine" / "notes.md").write_text("not source")
    (two / "docs" / "d.py").write_text("another room")
    assert host.source_digest(one) == host.source_digest(two)


@pytest.mark.parametrize("name", ["engine/a.py", "bench/cells/b.toml", "bench/prompts/c.txt"])
def test_the_source_digest_follows_content_names_and_presence(tmp_path: Path, name: str) -> None:
    root = write_checkout(tmp_path)
    digests = [host.source_digest(root)]
    (root / name).write_text("changed")
    digests.append(host.source_digest(root))
    (root / name).rename((root / name).with_stem("renamed"))
    digests.append(host.source_digest(root))
    (root / name).with_stem("renamed").unlink()
    digests.append(host.source_digest(root))
    assert len(set(digests)) == 4


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_git_reports_the_commit_and_whether_it_is_dirty(tmp_path: Path) -> None:
    root = write_checkout(tmp_path / "checkout")

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(root), *who, *arguments], check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    state = host.source_state(root)
    assert state.git_commit is not None and len(state.git_commit) == 40
    assert state.is_dirty is False
    (root / "engine" / "new.py").write_text("")
    assert host.source_state(root).is_dirty is True


def test_without_git_the_commit_is_none_and_the_digest_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    state = host.source_state(write_checkout(tmp_path / "checkout"))
    assert (state.git_commit, state.is_dirty) == (None, None)
    assert len(state.source_digest) == 64


def test_the_environment_digest_follows_the_installed_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = host.environment_digest()
    assert host.environment_digest() == before
    versions = host._installed_versions()
    monkeypatch.setattr(host, "_installed_versions", lambda: {**versions, "msgspec": "0"})
    assert host.environment_digest() != before


def test_importing_host_facts_imports_no_torch() -> None:
    code = "import sys, bench.host, bench.wan.relay; sys.exit('torch' in sys.modules)"
    root = host.CHECKOUT_DIR
    environment = {**os.environ, "PYTHONPATH": str(root)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0
