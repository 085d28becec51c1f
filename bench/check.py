"""`python -m bench check DIR`: does a folder hold what it promised?

An experiment's folder has a `plan.json`; a study's folder has records named by 16 hex digits.

Guarantees: every contradiction is found and named by file, rule and detail; nothing stops at the
first one. It shares none of the harness's code but the schema and the verifier of attestations.
Must never change a file.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from bench.attested import attestation_faults
from bench.check_files import CheckedFolder, Finding, receipt_file
from bench.check_plan import check_plan
from bench.check_rules import check_position, check_receipt
from bench.check_study import check_study, holds_records
from bench.schema import Plan, Receipt
from engine.errors import ReceiptError
from engine.trust.identity import PublicIdentity, load_public_keys, longhaul_home

REPOSITORY = Path(__file__).resolve().parent.parent
# Worth telling, but no contradiction: the source digest binds, the commit only informs, and a
# shallow clone or one's own working tree does not make receipts wrong.
NOTE_RULES = ("commit",)


@dataclass(slots=True)
class Inspection:
    """One pass over one folder."""

    files: CheckedFolder
    receipts: dict[int, Receipt] = field(default_factory=dict)  # by file name
    receipt_ids: dict[int, str] = field(default_factory=dict)

    def add(self, file: str, rule: str, detail: str) -> None:
        self.files.add(file, rule, detail)

    @property
    def findings(self) -> list[Finding]:
        return self.files.findings

    @property
    def failed(self) -> list[str]:
        """Jobs that failed: receipts like any other, worth a line in the summary."""
        return [
            f"{job_idx:04d} {receipt.failure.code if receipt.failure else 'no reason recorded'}"
            for job_idx, receipt in sorted(self.receipts.items())
            if receipt.status == "failed"
        ]

    def run(self, repo_root: Path | None) -> None:
        """Check everything."""
        self.files.check_names()
        plan, plan_body = self.files.read_signed("plan.json", Plan)
        plan_digest = hashlib.sha256(plan_body).hexdigest()
        for job_idx in self.files.job_files():
            receipt, body = self.files.read_signed(receipt_file(job_idx), Receipt)
            self.receipt_ids[job_idx] = hashlib.sha256(body).hexdigest()[:16]
            if receipt is not None:
                self.receipts[job_idx] = receipt
                for rule, detail in check_receipt(receipt):
                    self.add(receipt_file(job_idx), rule, detail)
        self._check_duplicates()
        self._check_log(plan_digest)
        if plan is None:
            return
        for rule, detail in check_plan(plan):
            self.add("plan.json", rule, detail)
        self._check_commit(plan, repo_root)
        for job_idx, receipt in self.receipts.items():
            for rule, detail in check_position(plan, plan_digest, receipt, job_idx):
                self.add(receipt_file(job_idx), rule, detail)
        for row in plan.jobs:
            if row.job_idx not in self.receipt_ids:
                self.add(receipt_file(row.job_idx), "missing", "planned, but there is no receipt")
        self._check_lossless()
        for job_idx, detail in attestation_faults(self.receipts, self.files.keys):
            self.add(receipt_file(job_idx), "attestation", detail)

    # -- receipts together -----------------------------------------------------------------------

    def _check_duplicates(self) -> None:
        nonces: dict[str, int] = {}
        for job_idx, receipt in self.receipts.items():
            first = nonces.setdefault(receipt.job_nonce, job_idx)
            if first != job_idx:
                detail = f"the same job (nonce) as {first:04d}.json"
                self.add(receipt_file(job_idx), "duplicate", detail)

    def _check_log(self, plan_digest: str) -> None:
        logged: list[int] = []
        for line_number, entry in self.files.read_log("job"):
            where, job_idx = f"line {line_number}", entry.get("job_idx")
            if not isinstance(job_idx, int) or job_idx not in self.receipt_ids:
                self.add("log.jsonl", "log", f"{where}: job {job_idx!r} has no receipt")
                continue
            logged.append(job_idx)
            said, true = entry.get("receipt_id"), self.receipt_ids[job_idx]
            if said != true:
                detail = f"{where}: job {job_idx} was logged as receipt {said}; the file is {true}"
                self.add("log.jsonl", "log", detail)
            receipt, status = self.receipts.get(job_idx), entry.get("status")
            if receipt is not None and receipt.status != status:
                self.add("log.jsonl", "log", f"{where}: job {job_idx} was logged as {status!r}")
        for job_idx, times in Counter(logged).items():
            if times > 1:
                self.add("log.jsonl", "log", f"job {job_idx} is logged {times} times")
        if any(after < before for before, after in pairwise(logged)):
            self.add("log.jsonl", "log", "jobs ran in another order than planned")
        for job_idx in sorted(self.receipt_ids.keys() - set(logged)):
            self.add(receipt_file(job_idx), "log", "its job is not in log.jsonl")
        for line_number, entry in self.files.read_log("plan"):
            if entry.get("plan_digest") != plan_digest:
                self.add("log.jsonl", "log", f"line {line_number}: another plan was promised")

    def _check_commit(self, plan: Plan, repo_root: Path | None) -> None:
        build = plan.build
        if build.dirty is not False:
            state = "dirty" if build.dirty else "not recorded as clean"
            self.add("plan.json", "commit", f"the working tree was {state}")
        if build.commit is None:
            self.add("plan.json", "commit", "no commit is recorded")
        elif repo_root is not None and not _commit_is_known(build.commit, repo_root):
            self.add("plan.json", "commit", f"{build.commit} is no commit of {repo_root.name}")

    def _check_lossless(self) -> None:
        references = {
            (receipt.position.block_idx, receipt.requested.numeric_config): job_idx
            for job_idx, receipt in self.receipts.items()
            if receipt.position.role == "reference" and receipt.text_stands
        }
        for job_idx, receipt in self.receipts.items():
            if not receipt.text_stands or receipt.position.role == "warmup":
                continue
            place = (receipt.position.block_idx, receipt.requested.numeric_config)
            for detail in self._judge(receipt, references.get(place)):
                self.add(receipt_file(job_idx), "lossless", detail)

    def _judge(self, receipt: Receipt, reference_idx: int | None) -> list[str]:
        found = receipt.lossless
        said = (found.verdict, found.reference_id, found.first_difference)
        if receipt.position.role == "reference":
            true = ("reference", None, None)
        elif reference_idx is None:
            true = ("not_compared", None, None)
        else:
            reference = self.receipts[reference_idx]
            ours, theirs = receipt.output_ids, reference.output_ids
            difference = _first_difference(ours, theirs)
            verdict = "identical" if difference is None else "different"
            true = (verdict, self.receipt_ids[reference_idx], difference)
            if receipt.prompt_ids != reference.prompt_ids:
                return [f"its prompt is not that of its reference {reference_idx:04d}.json"]
        details = [] if said == true else [f"says {said}; the receipts say {true}"]
        if true[0] == "different":
            details.append(f"output differs from {reference_idx:04d}.json at {true[2]}")
        return details


def check_experiment(
    folder: Path, keys: Mapping[str, PublicIdentity], repo_root: Path | None = None
) -> list[Finding]:
    """Every contradiction in an experiment's folder.

    Args:
        keys: trusted signers, by key id.
        repo_root: repository whose history must hold the plan's commit; None skips that.
    """
    inspection = Inspection(CheckedFolder(folder, keys))
    inspection.run(repo_root)
    return inspection.findings


def main(args: list[str]) -> int:
    """Entry point of `python -m bench check`; 1 if there is a finding that is no note."""
    parser = argparse.ArgumentParser(prog="python -m bench check", description=__doc__)
    parser.add_argument("folder", type=Path, help="an experiment's, or a study's records")
    parser.add_argument("--keys", type=Path, action="append", help="folder of trusted *.pub files")
    options = parser.parse_args(args)
    if not options.folder.is_dir():
        raise ReceiptError(f"{options.folder}: no such folder; name one that holds a plan.json")
    key_folders = options.keys or [REPOSITORY / "receipts" / "keys", longhaul_home() / "keys"]
    files = CheckedFolder(options.folder, load_public_keys(*key_folders))
    if holds_records(options.folder):
        num_records = check_study(files)
        return _report(files.findings, f"{num_records} records")
    inspection = Inspection(files)
    inspection.run(REPOSITORY if (REPOSITORY / ".git").exists() else None)
    counted = f"{len(inspection.receipt_ids)} receipts"
    return _report(inspection.findings, counted, inspection.failed)


def _report(findings: list[Finding], counted: str, failed: Sequence[str] = ()) -> int:
    """Print findings, failed jobs and the last line; 1 if there is a finding that is no note."""
    notes = [finding for finding in findings if finding.rule in NOTE_RULES]
    for finding in findings:
        print(f"note: {finding}" if finding in notes else finding)
    if failed:
        print(f"{len(failed)} failed jobs: {', '.join(failed)}")
    num_findings = len(findings) - len(notes)
    told = f", {len(notes)} notes" if notes else ""
    print(f"{counted}, {num_findings} findings{told}")
    return 1 if num_findings else 0


def _first_difference(ours: list[int], theirs: list[int]) -> int | None:
    if ours == theirs:
        return None
    same = (left == right for left, right in zip(ours, theirs, strict=False))
    return next((idx for idx, equal in enumerate(same) if not equal), min(len(ours), len(theirs)))


def _commit_is_known(commit: str, repo_root: Path) -> bool:
    git = shutil.which("git")
    if git is None or not re.fullmatch("[0-9a-f]{40,64}", commit):
        return git is None
    asked = [git, "-C", str(repo_root), "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0
