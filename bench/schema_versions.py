"""Which fields belong to which version of the schema.

Guarantees: a document either holds every field of its version and none of another, or each stray or
missing one is named. Must never know how a document is read, signed or judged.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import msgspec

from bench.schema import (
    CellRow,
    FrameRow,
    HopRow,
    Plan,
    Receipt,
    RingConfig,
    StageObserved,
    Timing,
)
from bench.schema_levers import JobConfig
from bench.schema_links import LinkRow

VERSIONS = (1, 2, 3, 4, 5, 6, 7)
# Fields that came with a version; every other one that may be missing came with version 2.
_SINCE: Mapping[int, Mapping[type[msgspec.Struct], tuple[str, ...]]] = {
    3: {
        FrameRow: ("frontier", "draft_ns"),
        RingConfig: ("max_kv_size",),
        StageObserved: ("max_kv_size",),
        Timing: ("prepare_ns",),
        HopRow: ("codec_ns", "seal_ns"),
        CellRow: ("group",),
    },
    4: {
        LinkRow: (
            "jitter_distribution",
            "queue_bytes",
            "loss_ppm",
            "reorder_ppm",
            "congestion_control",
        ),
        Receipt: ("link_test",),
        RingConfig: ("links",),
    },
    5: {
        Receipt: ("attested",),
        RingConfig: ("signers",),
        Plan: ("stopping",),
        HopRow: ("noops",),
    },
    6: {
        LinkRow: ("stall_ns", "stall_every_ns"),
    },
    7: {
        JobConfig: ("drafter_params", "tap_layers", "tap_wire"),
        FrameRow: ("parents", "node_ids"),
        Receipt: ("degraded",),
    },
}
SOURCES_SINCE_3 = ("filler", "oracle")  # of a frame's drafts


def version_of(document: Receipt | Plan) -> int:
    """The number behind the slash of its schema."""
    return int(document.schema.rpartition("/")[2])


def version_defects(document: Receipt | Plan) -> Iterator[str]:
    """Fields that a document has and its version has not, or the other way round."""
    version = version_of(document)
    for where, record in _records(document, "$"):
        for name, since in later_fields(type(record)).items():
            is_missing = getattr(record, name) is msgspec.UNSET
            if is_missing != (version < since):
                fault = "is missing: a field" if is_missing else "is no field"
                yield f"{where}.{name} {fault} of {document.schema}"
        if version < 3 and isinstance(record, FrameRow) and record.source in SOURCES_SINCE_3:
            yield f"{where}.source {record.source!r} is none of {document.schema}"


@functools.cache
def later_fields(kind: type[msgspec.Struct]) -> dict[str, int]:
    """Fields of a struct that version 1 has not, with the version that they came with."""
    fields = msgspec.structs.fields(kind)
    optional = [field.name for field in fields if field.default is msgspec.UNSET]
    since = {name: version for version, added in _SINCE.items() for name in added.get(kind, ())}
    return {name: since.get(name, 2) for name in optional}


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
