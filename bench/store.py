"""An experiment's folder: plan, receipts, log.

Layout: `plan.json`, `receipts/<job_idx>.json`, each with its `.sig.json`, and `log.jsonl`.
Guarantees: a receipt is written once and never again; a plan is never overwritten; a receipt
without a signature (a kill between two writes) is no receipt, and its job runs again.
"""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import json
import os
import re
from pathlib import Path

from bench.receipt import (
    RECEIPT_ID_LEN,
    canonical_bytes,
    load_signed,
    receipt_id,
    signature_path,
    write_signed,
)
from bench.schema import Plan, Receipt
from engine.errors import ConfigError, ReceiptError
from engine.trust.identity import Identity

JOB_IDX_DIGITS = 4
_RECEIPT_NAME = re.compile(r"[0-9]{4,}\.json")
_STAGING_NAME = re.compile(r"\.(plan|[0-9]{4,})(\.sig)?\.json\.[0-9]+")  # of bench.receipt


def now_rfc3339() -> str:
    """Wall-clock time in UTC, milliseconds."""
    now = datetime.datetime.now(datetime.UTC)
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class ExperimentStore:
    """One experiment's folder, written by this process.

    Args:
        identity: signs everything.
    """

    def __init__(self, folder: Path, identity: Identity) -> None:
        self.folder = folder
        self._identity = identity
        self._keys = {identity.key_id: identity.public}
        self._lock: int | None = None  # descriptor of the locked folder

    @property
    def plan_path(self) -> Path:
        return self.folder / "plan.json"

    def receipt_path(self, job_idx: int) -> Path:
        """Where a job's receipt belongs."""
        return self.folder / "receipts" / f"{job_idx:0{JOB_IDX_DIGITS}d}.json"

    def has_plan(self) -> bool:
        """Was a plan promised here? One without a signature was not."""
        return self.plan_path.exists() and signature_path(self.plan_path).exists()

    def lock(self) -> None:
        """Take the folder for this process, until it ends.

        Raises:
            ConfigError: another run is writing to it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigError(f"another run is writing to {self.folder}; wait for it") from None
        self._lock = descriptor

    def unlock(self) -> None:
        """Give the folder free; the end of the process does, too."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def check_free(self) -> None:
        """Raise `ConfigError` unless the folder may become an experiment's: absent or empty."""
        if self.folder.exists() and any(
            path.name != "receipts" or any(path.iterdir()) for path in self.folder.iterdir()
        ):
            raise ConfigError(f"{self.folder} is not empty; choose another --out")

    def open_plan(self, plan: Plan) -> tuple[Plan, str]:
        """Promise this plan, or go on with the one that was promised here.

        Returns:
            The plan in force and its digest.
        """
        if not self.has_plan():
            return plan, self.write_plan(plan)
        self.clean()
        self.repair_log()
        self.log("resume")
        return self.load_plan()

    def write_plan(self, plan: Plan) -> str:
        """Sign and write the plan; returns its digest.

        Raises:
            ConfigError: the folder already holds something.
        """
        self.check_free()
        canonical_bytes(plan)  # what cannot be written leaves no folder behind
        (self.folder / "receipts").mkdir(parents=True, exist_ok=True)
        digest = write_signed(self.plan_path, plan, self._identity)
        self.log("plan", plan_digest=digest)
        return digest

    def load_plan(self) -> tuple[Plan, str]:
        """The plan and its digest.

        Raises:
            ReceiptError: it is damaged or was signed by another key.
        """
        plan, body = load_signed(self.plan_path, Plan, self._keys)
        return plan, hashlib.sha256(body).hexdigest()

    def write_receipt(self, receipt: Receipt) -> str:
        """Sign and write one receipt; returns its id."""
        path = self.receipt_path(receipt.position.job_idx)
        if signature_path(path).exists():
            raise ReceiptError(f"{path}: is written already; a receipt is never changed")
        digest = write_signed(path, receipt, self._identity)
        receipt_name = digest[:RECEIPT_ID_LEN]
        self.log(
            "job",
            job_idx=receipt.position.job_idx,
            receipt_id=receipt_name,
            status=receipt.status,
        )
        return receipt_name

    def clean(self) -> None:
        """Remove what a killed run left half-written; only signed receipts are finished ones.

        Only in a folder with a plan, and only files that this class writes.
        """
        if not self.has_plan():
            return
        receipts = self.folder / "receipts"
        for path in [*self.folder.iterdir(), *receipts.iterdir()]:
            if _STAGING_NAME.fullmatch(path.name):
                path.unlink()
        for path in receipts.iterdir():
            if _RECEIPT_NAME.fullmatch(path.name) and not signature_path(path).exists():
                path.unlink()

    def repair_log(self) -> None:
        """Log the plan or receipt that was killed between its signature and its log line."""
        entries = self._read_log()
        if not any(entry["event"] == "plan" for entry in entries):
            self.log("plan", plan_digest=self.load_plan()[1])
        logged = {entry.get("job_idx") for entry in entries}
        for job_idx, (receipt, name) in sorted(self.load_receipts().items()):
            if job_idx not in logged:
                self.log("job", job_idx=job_idx, receipt_id=name, status=receipt.status)

    def _read_log(self) -> list[dict[str, object]]:
        """Whole lines of the log; a line torn by a kill is cut off the file."""
        path = self.folder / "log.jsonl"
        text = path.read_text() if path.exists() else ""
        whole, _, torn = text.rpartition("\n")
        if torn:
            path.write_text(whole + "\n" if whole else "")
        try:
            return [{"event": "", **json.loads(line)} for line in whole.splitlines()]
        except (ValueError, TypeError) as error:
            raise ReceiptError(f"{path}: a line is damaged: {error}") from error

    def load_receipts(self) -> dict[int, tuple[Receipt, str]]:
        """Finished jobs: job_idx → (receipt, id).

        Raises:
            ReceiptError: a signed receipt is damaged.
        """
        found: dict[int, tuple[Receipt, str]] = {}
        for path in sorted((self.folder / "receipts").iterdir()):
            if not _RECEIPT_NAME.fullmatch(path.name):
                continue
            receipt, body = load_signed(path, Receipt, self._keys)
            if self.receipt_path(receipt.position.job_idx) != path:
                raise ReceiptError(f"{path}: holds job {receipt.position.job_idx}")
            found[receipt.position.job_idx] = (receipt, receipt_id(body))
        return found

    def log(self, event: str, **facts: str | int | list[list[int]]) -> None:
        """Append one line to the log."""
        line = json.dumps({"event": event, "at": now_rfc3339(), **facts}, sort_keys=True)
        with (self.folder / "log.jsonl").open("a") as file:
            file.write(line + "\n")
