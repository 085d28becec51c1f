"""The JSON Schema of every version of every signed document, from the structs.

    python -m bench.json_schema

writes `receipts/schema/receipt-v1.json` and so on (receipts, plans, signatures of a version) and
`study-v1.json`. Guarantees: a schema holds the fields of its version and no other, all required.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench import schema
from bench.schema import FrameRow, Plan, Receipt, Signature, Study
from bench.schema_versions import SOURCES_SINCE_3, VERSIONS, later_fields

SCHEMA_DIR = Path(__file__).resolve().parent.parent / "receipts" / "schema"
REF = "#/$defs/"


def json_schemas() -> dict[str, bytes]:
    """Every schema file: name → content."""
    documents = {
        f"receipt-v{version}.json": _schema_of(
            (Receipt, Plan, Signature), f"Longhaul receipts, version {version}", version
        )
        for version in VERSIONS
    }
    study = _schema_of((Study, Signature), "Longhaul studies, version 1", 1)
    return {**documents, "study-v1.json": study}


def main() -> None:
    """Write every schema file."""
    for name, body in json_schemas().items():
        (SCHEMA_DIR / name).write_bytes(body)


def _schema_of(kinds: Sequence[type[msgspec.Struct]], title: str, version: int) -> bytes:
    _, components = msgspec.json.schema_components(kinds, ref_template=REF + "{name}")
    for name, definition in components.items():
        _fit(definition, getattr(schema, name), version)
    roots = [{"$ref": REF + kind.__name__} for kind in kinds]
    tree = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "oneOf": roots,
        "$defs": {name: components[name] for name in _named_in(roots, components)},
    }
    return msgspec.json.format(msgspec.json.encode(tree, order="sorted"), indent=2) + b"\n"


def _fit(definition: dict[str, Any], kind: type[msgspec.Struct], version: int) -> None:
    """Make one struct's definition that of one version."""
    for name, since in later_fields(kind).items():
        if version < since:
            del definition["properties"][name]
        else:
            definition["required"].append(name)
    definition.get("required", []).sort()
    if kind is FrameRow and version < 3:
        source = definition["properties"]["source"]
        source["enum"] = [name for name in source["enum"] if name not in SOURCES_SINCE_3]
    naming = definition["properties"].get("schema")
    if naming is not None and len(naming["enum"]) > 1:
        naming["enum"] = [name for name in naming["enum"] if name.endswith(f"/{version}")]
        naming["default"] = naming["enum"][0]


def _named_in(tree: object, components: dict[str, Any]) -> set[str]:
    """Definitions that a part of a schema refers to, directly or not."""
    if isinstance(tree, list):
        return set().union(*(_named_in(item, components) for item in tree))
    if not isinstance(tree, dict):
        return set()
    if "$ref" in tree:
        name = tree["$ref"].removeprefix(REF)
        return {name} | _named_in(components[name], components)
    return _named_in(list(tree.values()), components)


if __name__ == "__main__":
    main()
