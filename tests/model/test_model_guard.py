"""One linear for all weights, one attention: no other file of the room may multiply matrices."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import engine.model

ROOM = Path(engine.model.__file__).parent
ALLOWED = {"linear.py", "linear_int4.py", "attention.py"}
PRODUCTS = frozenset(
    {
        "linear",
        "Linear",
        "bmm",
        "mm",
        "matmul",
        "addmm",
        "addbmm",
        "baddbmm",
        "baddbmm_",
        "einsum",
        "tensordot",
        "dot",
        "inner",
        "mv",
        "scaled_dot_product_attention",
        "_linear_pointwise",
        "_weight_int4pack_mm_for_cpu",
        "bilinear",
        "chain_matmul",
        "multi_dot",
        "vdot",
    }
)


def products_in(source: str) -> list[str]:
    """Return every matrix product in a file; `linear` itself may be imported from linear.py."""
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "engine.model.linear"
        for alias in node.names
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
            found.append(f"line {node.lineno}: @")
        if isinstance(node, ast.Attribute) and node.attr in PRODUCTS:
            found.append(f"line {node.lineno}: .{node.attr}")
        if isinstance(node, ast.Name) and node.id in PRODUCTS - imported:
            found.append(f"line {node.lineno}: {node.id}")
    return found


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: path.name)
def test_products_live_in_three_files(path) -> None:
    if path.name not in ALLOWED:
        assert products_in(path.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "rows @ weight",
        "rows @= weight",
        "functional.linear(rows, weight)",
        "torch.nn.Linear(1, 2)",
        "functional.scaled_dot_product_attention(q, k, v)",
        "torch.ops.mkldnn._linear_pointwise(rows)",
        "torch.ops.aten._weight_int4pack_mm_for_cpu(rows)",
        "rows.matmul(weight)",
        "from torch.nn.functional import linear\nlinear(rows, weight)",
    ],
)
def test_the_guard_sees(line) -> None:
    assert products_in(line)


def test_the_room_opens_no_socket_and_knows_no_other_room() -> None:
    allowed = {"errors", "defaults", "model"}
    for path in ROOM.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name != "socket", path.name
                if name.startswith("engine."):
                    assert name.split(".")[1] in allowed, f"{path.name} imports {name}"
