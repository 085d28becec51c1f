"""Recorded texts out of an experiment's receipts, for replays.

Guarantees: signatures are checked; one text a prompt, of a reference job that ended well. Must
never know policies, nor what a ring costs (`bench.ring_fit`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.receipt import load_signed, receipt_id
from bench.schema import Plan, Receipt
from engine.errors import ReceiptError
from engine.trust.identity import PublicIdentity


@dataclass(frozen=True, slots=True)
class Trace:
    """A prompt and the target's own continuation, as a receipt recorded them."""

    cell: str
    group: str
    kind: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    max_new_tokens: int
    ended_by_eos: bool
    receipt_id: str

    @property
    def eos_ids(self) -> frozenset[int]:
        """The id that ended output, if one did."""
        return frozenset(self.output_ids[-1:]) if self.ended_by_eos else frozenset()


@dataclass(frozen=True, slots=True)
class Recorded:
    """An experiment's plan and receipts, ids beside them."""

    plan: Plan
    receipts: tuple[tuple[str, Receipt], ...]

    def traces(self, numeric_config: str = "f32") -> list[Trace]:
        """One a prompt, in the plan's order."""
        rows = {cell.name: cell for cell in self.plan.cells}
        found: dict[str, Trace] = {}
        for identifier, receipt in self.receipts:
            is_reference = receipt.position.role == "reference" and receipt.status == "ok"
            cell = rows[receipt.position.cell]
            if not is_reference or receipt.requested.numeric_config != numeric_config:
                continue
            if receipt.finish_reason not in ("eos", "length") or cell.name in found:
                continue
            found[cell.name] = Trace(
                cell=cell.name,
                group=cell.group if isinstance(cell.group, str) else cell.name,
                kind=cell.kind,
                prompt_ids=tuple(receipt.prompt_ids),
                output_ids=tuple(receipt.output_ids),
                max_new_tokens=receipt.requested.max_new_tokens,
                ended_by_eos=receipt.finish_reason == "eos",
                receipt_id=identifier,
            )
        return [found[cell.name] for cell in self.plan.cells if cell.name in found]


def load_recorded(folder: Path, keys: dict[str, PublicIdentity]) -> Recorded:
    """Read an experiment.

    Raises:
        ReceiptError: a file is missing, damaged or signed by nobody known.
    """
    plan, _ = load_signed(folder / "plan.json", Plan, keys)
    receipts = []
    for path in sorted((folder / "receipts").glob("[0-9]*.json")):
        if not path.name.endswith(".sig.json"):
            receipt, body = load_signed(path, Receipt, keys)
            receipts.append((receipt_id(body), receipt))
    if not receipts:
        raise ReceiptError(f"{folder}: holds no receipts")
    return Recorded(plan, tuple(receipts))
