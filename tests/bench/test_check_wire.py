"""Noops of a receipt against the lever that asked for them."""

from __future__ import annotations

import msgspec
import pytest

from bench.check_wire import check_wire
from bench.schema import Receipt
from tests.bench.receipt_builder import make_plan, make_receipt

PLAN = make_plan()


def with_noops(keepwarm_ms: int, noops: int) -> Receipt:
    receipt = make_receipt(PLAN, "0" * 64, PLAN.jobs[0], None)
    config = msgspec.structs.replace(receipt.requested, keepwarm_ms=keepwarm_ms)
    first, *others = receipt.counters.hops
    hops = [msgspec.structs.replace(first, noops=noops), *others]
    counters = msgspec.structs.replace(receipt.counters, hops=hops)
    return msgspec.structs.replace(receipt, requested=config, observed=config, counters=counters)


@pytest.mark.parametrize("keepwarm_ms", [0, 20])
def test_a_sender_has_no_more_noops_than_its_silence_allows(keepwarm_ms: int) -> None:
    """Catches noops nobody asked for, and more of them than the job is long."""
    end_ns = with_noops(0, 0).timing.end_ns
    most = 1 + end_ns // (keepwarm_ms * 1_000_000) if keepwarm_ms else 0
    assert list(check_wire(with_noops(keepwarm_ms, most))) == []
    ((rule, detail),) = check_wire(with_noops(keepwarm_ms, most + 1))
    assert rule == "wire" and f"coordinator sent {most + 1} noops" in detail
