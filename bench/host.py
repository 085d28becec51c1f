"""Facts about this host and this checkout, as typed keys for a receipt.

Guarantees: no host name, no network address, no path leaves this file; equal sources and equal
installed packages have equal digests on every machine.
Must never know: jobs, rings, models; imports no torch.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import secrets
import subprocess
import time
from pathlib import Path

import msgspec
import psutil

from bench.schema import Build
from engine.errors import ConfigError
from engine.source import engine_source_digest
from engine.trust.identity import longhaul_home

CHECKOUT_DIR = Path(__file__).resolve().parent.parent
SOURCE_ROOMS = ("engine", "bench")
SOURCE_SUFFIXES = (".py", ".toml", ".txt")
KEY_PACKAGES = ("cryptography", "gguf", "msgspec", "numpy", "rfc8785", "safetensors", "tokenizers")
SALT_BYTES = 32
HOST_ID_LEN = 16  # hex digits: enough to tell hosts apart, meaningless without the salt
GIT_TIMEOUT_S = 30.0


class HostFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a reader needs to judge a time measured here.

    Attributes:
        num_cores: logical cores this process may run on.
        load_average: of the last minute, two decimals, as a string (receipts hold no floats).
        packages: versions of the packages that touch tensors, bytes or signatures.
    """

    host_id: str
    cpu_model: str
    num_cores: int
    memory_bytes: int
    kernel: str
    python: str
    torch: str | None
    packages: dict[str, str]
    clock_resolution_ns: int
    load_average: str


class SourceState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which code runs: the digest binds, the commit informs; None without git."""

    source_digest: str
    git_commit: str | None
    is_dirty: bool | None


def host_facts() -> HostFacts:
    """Collect the facts; the load is the one at the time of the call."""
    versions = _installed_versions()
    return HostFacts(
        host_id=host_id(),
        cpu_model=_cpu_model(),
        num_cores=len(psutil.Process().cpu_affinity())
        if hasattr(psutil.Process, "cpu_affinity")
        else psutil.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        kernel=f"{platform.system()} {platform.release()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        torch=versions.get("torch"),
        packages={name: versions[name] for name in KEY_PACKAGES if name in versions},
        clock_resolution_ns=max(1, round(time.get_clock_info("monotonic").resolution * 1e9)),
        load_average=f"{psutil.getloadavg()[0]:.2f}",
    )


def flat_host_facts() -> dict[str, str | int | None]:
    """The facts as a receipt holds them: one level, a package under `package.<name>`."""
    facts = msgspec.to_builtins(host_facts())
    packages = facts.pop("packages")
    return {**facts, **{f"package.{name}": version for name, version in packages.items()}}


def build_facts(checkout_dir: Path = CHECKOUT_DIR) -> Build:
    """What runs here: commit, sources, environment."""
    state = source_state(checkout_dir)
    return Build(
        commit=state.git_commit,
        dirty=state.is_dirty,
        source_digest=state.source_digest,
        engine_digest=engine_source_digest(),
        environment_digest=environment_digest(),
    )


def host_id() -> str:
    """Return a stable name for this host that says nothing about it.

    A random salt is made on first use. The machine's own id is hashed in, so that two hosts with
    one home directory between them are told apart.

    Raises:
        ConfigError: the home is not writable, or its salt is not ours.
    """
    salt_path = longhaul_home() / "host_salt"
    try:
        salt_path.parent.mkdir(parents=True, exist_ok=True)
        if not salt_path.exists():
            # Written aside and linked, so that two first runs at once agree on one salt and
            # nobody reads half of it.
            fresh_path = salt_path.with_name(f"host_salt.{secrets.token_hex(8)}")
            fresh_path.touch(mode=0o600)
            fresh_path.write_text(secrets.token_hex(SALT_BYTES) + "\n")
            try:
                os.link(fresh_path, salt_path)
            except FileExistsError:
                pass  # another run was first; its salt holds
            finally:
                fresh_path.unlink()
        salt = salt_path.read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"cannot keep the host's salt: {error.strerror}; set LONGHAUL_HOME to a writable folder"
        ) from error
    if not re.fullmatch(rf"[0-9a-f]{{{2 * SALT_BYTES}}}", salt):
        raise ConfigError("host_salt in LONGHAUL_HOME is damaged; delete it to get a new host id")
    return hashlib.sha256(f"{salt}/{_machine_id()}".encode()).hexdigest()[:HOST_ID_LEN]


def source_state(checkout_dir: Path = CHECKOUT_DIR) -> SourceState:
    """Collect the source digest, the commit and the dirty flag of a checkout."""
    return SourceState(
        source_digest=source_digest(checkout_dir),
        git_commit=git_commit(checkout_dir),
        is_dirty=git_is_dirty(checkout_dir),
    )


def source_digest(checkout_dir: Path = CHECKOUT_DIR) -> str:
    """SHA-256 over the sorted `path sha256` lines of the code, cells, profiles and prompts."""
    lines = sorted(
        f"{path.relative_to(checkout_dir).as_posix()} "
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for room in SOURCE_ROOMS
        for path in (checkout_dir / room).rglob("*")
        if path.suffix in SOURCE_SUFFIXES and path.is_file()
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def git_commit(checkout_dir: Path = CHECKOUT_DIR) -> str | None:
    """Return the commit checked out, as 40 hex digits; None without git or a commit."""
    answer = _git(checkout_dir, "rev-parse", "--verify", "HEAD")
    return None if answer is None else answer.strip()


def git_is_dirty(checkout_dir: Path = CHECKOUT_DIR) -> bool | None:
    """True when tracked files differ from the commit or untracked ones exist; None without git."""
    answer = _git(checkout_dir, "status", "--porcelain")
    return None if answer is None else bool(answer.strip())


def environment_digest() -> str:
    """SHA-256 over the sorted `name==version` lines of every installed distribution."""
    lines = sorted(f"{name}=={version}\n" for name, version in _installed_versions().items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _installed_versions() -> dict[str, str]:
    """Map normalised names (PEP 503) to versions; the first on the path wins, as at import."""
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        versions.setdefault(name, distribution.version)
    return versions


def _cpu_model() -> str:
    # Linux names the processor only here; elsewhere the platform module does.
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _machine_id() -> str:
    machine_id = Path("/etc/machine-id")
    return machine_id.read_text().strip() if machine_id.is_file() else ""


def _git(checkout_dir: Path, *arguments: str) -> str | None:
    try:
        ended = subprocess.run(
            ["git", "-C", str(checkout_dir), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        return None  # git is not installed: the digest still binds
    return ended.stdout if ended.returncode == 0 else None
