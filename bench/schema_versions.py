"""Which fields belong to which version of the schema.

Guarantees: a document either holds every field of its version and none of another, or each stray or
missing one is named. Must never know how a document is read, signed or judged.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import msgspec

from bench.schema import Plan, Receipt


def version_of(document: Receipt | Plan) -> int:
    """The number behind the slash of its schema."""
    return int(document.schema.rpartition("/")[2])


def version_defects(document: Receipt | Plan) -> Iterator[str]:
    """Fields that a document has and its version has not, or the other way round."""
    is_first = version_of(document) == 1
    for where, record in _records(document, "$"):
        for name in later_fields(type(record)):
            if (getattr(record, name) is msgspec.UNSET) != is_first:
                fault = "is no field" if is_first else "is missing: a field"
                yield f"{where}.{name} {fault} of {document.schema}"


@functools.cache
def later_fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Fields of a struct that came with version 2."""
    fields = msgspec.structs.fields(kind)
    return tuple(field.name for field in fields if field.default is msgspec.UNSET)


def _records(value: object, where: str) -> Iterator[tuple[str, msgspec.Struct]]:
    """Every struct in a document, with its path."""
    if isinstance(value, msgspec.Struct):
        yield where, value
        for name in value.__struct_fields__:
            yield from _records(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _records(item, f"{where}.{key}")
    elif isinstance(value, list):
        for idx, item in enumerate(value):
            yield from _records(item, f"{where}[{idx}]")
