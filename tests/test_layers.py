"""The rooms of DESIGN section 3, read off the syntax trees of every module.

Catches an import that turns one-way knowledge into a knot, a socket or a clock in a sans-IO module,
a second file that signs, and modules, functions or names beyond the rules of style.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
ROOMS = ("engine", "bench", "analysis", "tests")
MODULE_LINES, TEST_LINES, FUNCTION_LINES = 300, 500, 50
BANNED_NAMES = {"utils", "helpers", "common", "data", "info", "res", "tmp", "mgr"}
IO_MODULES = {
    "asyncio",
    "datetime",
    "multiprocessing",
    "os",
    "queue",
    "random",
    "secrets",
    "select",
    "selectors",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "time",
}
SANS_IO = {
    *(
        f"engine.transport.{name}"
        for name in (
            "frame",
            "tensor",
            "message",
            "codec",
            "hidden_wire",
            "taps",
            "roles",
            "seal",
            "noise",
            "credentials",
            "refusal",
            "handshake",
            "connection",
        )
    ),
    *(
        f"engine.coordinator.{name}"
        for name in (
            "rounds",
            "stream",
            "committed_text",
            "tree_rounds",
            "flight",
            "records",
            "draft_requests",
            "policy",
            "policies",
            "planner",
            "survival",
            "ring_cost",
            "train_times",
        )
    ),
    *(
        f"engine.draft.{name}"
        for name in ("drafter", "degrade", "ngram", "ready", "filled", "tree", "hybrid", "eagle")
    ),
    "engine.coordinator.router",
    "engine.model.tree",
}
TORCH_FREE = (
    "engine.coordinator.rounds",
    "engine.coordinator.stream",
    "engine.coordinator.tree_rounds",
    "engine.coordinator.flight",
    "engine.coordinator.policies",
    "bench.ring_model",
    "engine.model.tree",
)
SOCKET_OWNER = "engine.transport.link"
SIGNING = {
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "cryptography.hazmat.primitives.asymmetric.ed448",
    "cryptography.hazmat.primitives.asymmetric.rsa",
    "cryptography.hazmat.primitives.asymmetric.ec",
    "nacl",
}
SIGNER = "engine.trust.identity"
# room -> what of this repository it must never import
FORBIDDEN = {
    "engine": ("bench", "analysis", "tests"),
    "engine.transport": (
        "engine.model",
        "engine.stage",
        "engine.draft",
        "engine.coordinator",
        "engine.cluster",
        "engine.trust",
    ),
    "engine.model": (
        "engine.transport",
        "engine.stage",
        "engine.draft",
        "engine.coordinator",
        "engine.cluster",
        "engine.trust",
    ),
    "engine.draft": ("engine.coordinator", "engine.stage", "engine.cluster"),
    "engine.trust": ("engine.coordinator", "engine.stage", "engine.cluster"),
    "engine.errors": ("engine",),
    "engine.defaults": ("engine",),
    "bench": ("analysis", "tests"),
    "analysis": ("tests",),
}
# Entry points join rooms: the one module of a lower room and what it may see of a higher one.
ENTRY_POINTS = {"engine.__main__": ("bench.wan", "bench.attested")}
# room -> all that it may import of another room
ALLOWED = {
    "analysis": {
        "bench": (
            "bench.receipt",
            "bench.schema",
            "bench.ring_model",
            "bench.ring_fit",
            "bench.overlap",
        ),
        "engine": ("engine.errors", "engine.trust.identity", "engine.trust.attestation"),
    },
    "bench.receipt": {"engine": ("engine.errors", "engine.trust.identity")},
    "bench.schema": {"engine": ()},
    "bench.schema_levers": {"engine": ()},
    "bench.schema_links": {"engine": ()},
    "bench.ring_model": {"engine": ("engine.errors",)},
    "bench.ring_fit": {"engine": ("engine.errors",)},
    "bench.overlap": {"engine": ("engine.errors",)},
}


def inside(module: str, room: str) -> bool:
    """Whether a dotted name is a room or stands in it."""
    return module == room or module.startswith(f"{room}.")


def imports_of(source: str) -> Iterator[str]:
    """Every imported dotted name, wherever it stands; `from a import b` gives `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = "." * node.level + (node.module or "")
            yield from (f"{prefix}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else None
            called = node.func.id if isinstance(node.func, ast.Name) else called
            if called in ("__import__", "import_module"):
                yield f".{called}"


def layer_violations(module: str, source: str) -> list[str]:
    """Imports that the rooms do not allow."""
    found = []
    for name in imports_of(source):
        top = name.split(".")[0]
        if not top:
            found.append(f"{name}: relative or computed imports hide the room")
        for room, banned in FORBIDDEN.items():
            if any(inside(name, seen) for seen in ENTRY_POINTS.get(module, ())):
                continue
            if inside(module, room) and any(inside(name, other) for other in banned):
                found.append(f"{name}: {room} must not know it")
        for room, allowed in ALLOWED.items():
            known = allowed.get(top, (name,))
            if inside(module, room) and not any(inside(name, one) for one in known):
                found.append(f"{name}: {room} may import only {known} of {top}")
        if module in SANS_IO and top in IO_MODULES:
            found.append(f"{name}: {module} is sans-IO")
        if module in TORCH_FREE and top in ("torch", "numpy"):
            found.append(f"{name}: {module} knows no tensors")
        if inside(module, "engine") and top in ("socket", "ssl") and module != SOCKET_OWNER:
            found.append(f"{name}: only {SOCKET_OWNER} opens sockets")
        if any(inside(name, signing) for signing in SIGNING) and module != SIGNER:
            found.append(f"{name}: only {SIGNER} signs")
    return found


def length_violations(source: str, limit: int = MODULE_LINES) -> list[str]:
    """A module or function that is too long."""
    num_lines = len(source.splitlines())
    found = [f"{num_lines} lines; allowed: {limit}"] if num_lines > limit else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > FUNCTION_LINES:
                found.append(f"{node.name}: {size} lines; allowed: {FUNCTION_LINES}")
    return found


def defined_names(source: str) -> Iterator[str]:
    """Names that a module gives to things."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.arg():
                yield node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr
            case ast.alias(asname=str(asname)):
                yield asname


def name_violations(module: str, source: str) -> list[str]:
    """Banned words as a file's, folder's or thing's name."""
    names = [*module.split("."), *defined_names(source)]
    found = {name for name in names if name.strip("_").lower() in BANNED_NAMES}
    words = {word for part in module.split(".") for word in part.split("_")}
    return sorted(found | (words & BANNED_NAMES))


def all_modules() -> list[str]:
    """Every module of the repository, dotted."""
    paths = [path for room in ROOMS for path in sorted((REPOSITORY / room).rglob("*.py"))]
    relative = [path.relative_to(REPOSITORY).with_suffix("") for path in paths]
    return [".".join(path.parts) for path in relative if "__pycache__" not in path.parts]


def source_of(module: str) -> str:
    return (REPOSITORY / Path(*module.split("."))).with_suffix(".py").read_text(encoding="utf-8")


MODULES = all_modules()


@pytest.mark.parametrize("module", [name for name in MODULES if not inside(name, "tests")])
def test_rooms(module: str) -> None:
    """Catches an import against the one-way rule."""
    assert layer_violations(module, source_of(module)) == []


@pytest.mark.parametrize("module", MODULES)
def test_sizes(module: str) -> None:
    """Catches a module or function too long to be read in one go."""
    limit = TEST_LINES if inside(module, "tests") else MODULE_LINES
    assert length_violations(source_of(module), limit) == []


@pytest.mark.parametrize("module", MODULES)
def test_names(module: str) -> None:
    """Catches a name that says nothing."""
    assert name_violations(module, source_of(module)) == []


def test_the_walk_finds_the_modules() -> None:
    """Catches a walk that looks at nothing, and sans-IO names that were renamed away."""
    assert {"engine.coordinator.rounds", "bench.receipt", "tests.test_layers"} <= set(MODULES)
    missing = SANS_IO - set(MODULES)
    assert not missing


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("engine.transport.tensor", "import engine.model.config"),
        ("engine.transport.tensor", "from engine.model import linear"),
        ("engine.transport.tensor", "from engine import model"),
        ("engine.model.decoder", "def f():\n    from engine.transport.frame import Kind"),
        ("engine.model.decoder", "import socket"),
        ("engine.stage.service", "from socket import create_connection"),
        ("engine.coordinator.rounds", "import time"),
        ("engine.coordinator.rounds", "from time import monotonic_ns"),
        ("engine.coordinator.rounds", "import torch"),
        ("engine.coordinator.policy", "import random as dice"),
        ("engine.transport.connection", "import os.path"),
        ("engine.transport.frame", "if TYPE_CHECKING:\n    import threading"),
        ("engine.stage.executor", "from bench.schema import Receipt"),
        ("engine.cluster.launch", "import analysis"),
        ("engine.errors", "from engine import defaults"),
        ("engine.draft.ngram", "from engine.coordinator.records import Frame"),
        ("engine.trust.verify", "from cryptography.hazmat.primitives.asymmetric import ed25519"),
        (
            "bench.receipt",
            "from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey",
        ),
        ("bench.receipt", "from engine.transport.frame import Kind"),
        ("bench.schema", "from engine.errors import ReceiptError"),
        ("bench.run", "import analysis.load"),
        ("analysis.load", "from bench.run import main"),
        ("analysis.load", "from engine.coordinator.rounds import RoundMachine"),
        ("analysis.load", "from engine.trust import verify"),
        ("engine.model.weights", "from . import config"),
        ("engine.model.weights", "from ..transport import frame"),
        ("engine.model.weights", "import importlib\nimportlib.import_module('engine.transport')"),
        ("bench.run", "__import__('analysis')"),
    ],
)
def test_planted_imports_are_caught(module: str, source: str) -> None:
    """Catches a checker that lets everything pass."""
    assert layer_violations(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("engine.transport.link", "import socket\nimport time"),
        ("engine.transport.handshake", "from cryptography.hazmat.primitives import hashes"),
        ("engine.trust.identity", "import cryptography.hazmat.primitives.asymmetric.ed25519"),
        ("engine.coordinator.session", "from engine.transport.link import Link\nimport time"),
        ("bench.run", "from engine.coordinator.generate import generate"),
        ("analysis.load", "from bench.receipt import load_signed\nimport pandas"),
        ("analysis.load", "from engine.trust.identity import load_public_keys"),
        ("engine.draft.eagle", "from engine.model.linear import linear\nimport torch"),
    ],
)
def test_honest_imports_pass(module: str, source: str) -> None:
    """Catches a checker that refuses what DESIGN section 3 allows."""
    assert layer_violations(module, source) == []


def test_planted_lengths_and_names_are_caught() -> None:
    """Catches limits off by one and names that slip through by case, scope or place."""
    assert length_violations("x = 1\n" * 300) == []
    assert length_violations("x = 1\n" * 301) == ["301 lines; allowed: 300"]
    body = "def long():\n" + "    pass\n" * 49
    assert length_violations(body) == []
    assert length_violations(body + "    pass\n") == ["long: 51 lines; allowed: 50"]
    assert length_violations("class A:\n    async " + body.replace("\n", "\n    ") + "    pass\n")
    assert name_violations("engine.stage.utils", "") == ["utils"]
    assert name_violations("bench.wan_helpers", "") == ["helpers"]
    for planted in (
        "data = 1",
        "def f(info): ...",
        "class Mgr: ...",
        "for tmp in (): ...",
        "import os as res",
        "self.data = 2",
        "with a as common: ...",
        "_data: int = 3",
        "[data for data in ()]",
    ):
        assert name_violations("engine.x", planted), planted
    assert name_violations("engine.x", "received_data = metadata = 1\nview.data()") == []
