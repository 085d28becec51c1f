"""Chooses the folder a run writes to: one to go on in, or a new one.

Guarantees: a folder is taken by one run at a time (a lock that ends with the process); a folder
that holds anything else is never touched.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from bench.schema import Plan
from bench.store import ExperimentStore
from engine.cluster.launch import CHECKOUT_DIR
from engine.errors import ConfigError, ReceiptError
from engine.trust.identity import Identity

OUT_ROOT = CHECKOUT_DIR / "build" / "receipts"


def differing_field(old: Plan, new: Plan) -> str:
    """Name the first field in which two plans differ; empty if none.

    The time does not count, nor do commit and dirty flag: the source digest binds.
    """
    for name in new.__struct_fields__:
        ours, theirs = getattr(old, name), getattr(new, name)
        if name == "build":
            theirs = msgspec.structs.replace(theirs, commit=ours.commit, dirty=ours.dirty)
        if name != "created" and ours != theirs:
            return name
    return ""


def choose_store(plan: Plan, identity: Identity, out: Path | None, name: str) -> ExperimentStore:
    """The folder for this plan, locked.

    Args:
        out: the caller's folder; None takes the first free or unfinished `name-<n>` below
            `OUT_ROOT`.

    Raises:
        ConfigError: the caller's folder holds another run, or a run is writing to it.
        ReceiptError: the caller's folder holds a plan that does not verify.
    """
    if out is not None:
        return _named_store(ExperimentStore(out, identity), plan)
    suffix = 0
    while True:
        suffix += 1
        store = ExperimentStore(OUT_ROOT / f"{name}-{suffix}", identity)
        if not store.folder.exists():
            store.lock()
            return store
        if _goes_on(store, plan):
            return store


def _named_store(store: ExperimentStore, plan: Plan) -> ExperimentStore:
    if store.has_plan():
        differing = differing_field(store.load_plan()[0], plan)
        if differing:
            raise ConfigError(
                f"{store.folder} holds a run that differs in {differing!r}; to go on with it use "
                "the same options and build, or choose another --out"
            )
    else:
        store.check_free()
    store.lock()
    return store


def _goes_on(store: ExperimentStore, plan: Plan) -> bool:
    """Is this folder the unfinished run of the same plan, and nobody's now? Lock it then."""
    if not store.has_plan():
        return False
    try:
        if differing_field(store.load_plan()[0], plan):
            return False
        store.lock()
        store.clean()
        return len(store.load_receipts()) < len(plan.jobs)
    except (ReceiptError, ConfigError):  # another key's or schema's, damaged, or being written
        return False
