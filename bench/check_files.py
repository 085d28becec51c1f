"""Signed files as `bench check` reads them: names, exact bytes, signatures, the log.

Guarantees: reads with none of the harness's code but the schema, so that a harness that is wrong
does not vouch for itself; a damaged document is still parsed, so that one defect does not hide
another. Must never know what a receipt means, nor change a file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, get_args

import msgspec
import rfc8785

from bench.schema import (
    STUDY_SCHEMA,
    Plan,
    PlanSchema,
    Receipt,
    ReceiptSchema,
    Signature,
    Study,
)
from engine.errors import ReceiptError
from engine.trust.identity import PublicIdentity

TOP_LEVEL = ("plan.json", "plan.sig.json", "log.jsonl")
RECEIPT_NAME = re.compile(r"(\d{4,})(\.sig)?\.json", re.ASCII)
SCHEMAS = {  # what a document of this kind may be signed as
    Plan: get_args(PlanSchema),
    Receipt: get_args(ReceiptSchema),
    Study: (STUDY_SCHEMA,),
}
DocumentT = TypeVar("DocumentT", Plan, Receipt, Study)
AnyT = TypeVar("AnyT", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Finding:
    """One contradiction."""

    file: str  # relative to the checked folder
    rule: str
    detail: str

    def __str__(self) -> str:
        return f"{self.file}: {self.rule}: {self.detail}"


@dataclass(slots=True)
class CheckedFolder:
    """An experiment's or a study's folder, and what was found wrong with it so far."""

    folder: Path
    keys: Mapping[str, PublicIdentity]
    findings: list[Finding] = field(default_factory=list)

    def add(self, file: str, rule: str, detail: str) -> None:
        self.findings.append(Finding(file, rule, detail))

    def read_log(self, event: str) -> list[tuple[int, dict]]:
        """Lines of one kind with their numbers; lines that are no events are findings."""
        path = self.folder / "log.jsonl"
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        entries = []
        for line_number, line in enumerate(text.splitlines(), start=1):
            try:
                entry = json.loads(line)
                if entry["event"] == event:
                    entries.append((line_number, entry))
            except (ValueError, KeyError, TypeError) as error:
                self.add("log.jsonl", "log", f"line {line_number}: not an event: {error!r}")
        return entries

    def check_names(self) -> None:
        """Every file of an experiment belongs here, and none is missing but for receipts."""
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            parts = path.relative_to(self.folder).parts
            if path.is_dir():
                allowed = name == "receipts"
            elif len(parts) == 1:
                allowed = name in TOP_LEVEL
            else:
                match = RECEIPT_NAME.fullmatch(parts[-1])
                allowed = len(parts) == 2 and parts[0] == "receipts" and match is not None
                signed = path.with_name(f"{match[1]}.json") if match and match[2] else path
                if allowed and not signed.is_file():
                    self.add(name, "foreign", "signs a receipt that is not there")
            if not allowed:
                self.add(name, "foreign", "does not belong in an experiment's folder")
        for name in TOP_LEVEL:
            if name != "plan.sig.json" and not (self.folder / name).is_file():
                self.add(name, "missing", "every experiment has one")

    def job_files(self) -> list[int]:
        """Jobs that have a receipt, by file name."""
        found = set()
        for path in sorted((self.folder / "receipts").glob("*.json")):
            match = RECEIPT_NAME.fullmatch(path.name)
            if match and not match[2]:
                found.add(int(match[1]))
                if path.name != f"{int(match[1]):04d}.json":
                    self.add(f"receipts/{path.name}", "misplaced", "zero-pad the job to 4 digits")
        return sorted(idx for idx in found if (self.folder / receipt_file(idx)).is_file())

    def read_signed(self, name: str, kind: type[DocumentT]) -> tuple[DocumentT | None, bytes]:
        """Check a document's signature and form; the document is None if it does not parse."""
        path = self.folder / name
        if not path.is_file():
            return None, b""
        body = path.read_bytes()
        signed_as = self._check_signature(name, body, SCHEMAS[kind])
        document = self._parse(name, body, kind)
        if document is not None and signed_as not in (None, document.schema):
            self.add(name, "signature", f"is a {document.schema}, signed as {signed_as!r}")
        return document, body

    def _check_signature(self, name: str, body: bytes, schemas: Sequence[str]) -> str | None:
        """Returns what the document was signed as, if its signature says so."""
        signature_name = name.removesuffix(".json") + ".sig.json"
        if not (self.folder / signature_name).is_file():
            self.add(name, "signature", "unsigned")
            return None
        signature_body = (self.folder / signature_name).read_bytes()
        signature = self._parse(signature_name, signature_body, Signature)
        if signature is None:
            return None
        if signature.type not in schemas:
            wanted = " or ".join(schemas)
            self.add(signature_name, "signature", f"signs a {signature.type!r}, not a {wanted}")
            return None
        if signature.sha256 != hashlib.sha256(body).hexdigest():
            self.add(name, "signature", "its bytes are not the ones that were signed")
        if signature.key_id not in self.keys:
            self.add(name, "signature", f"signed by unknown key {signature.key_id}")
            return signature.type
        try:
            raw = base64.b64decode(signature.signature, validate=True)
            self.keys[signature.key_id].verify(signature.type, body, raw)
        except (ValueError, ReceiptError) as error:
            self.add(name, "signature", str(error))
        return signature.type

    def _parse(self, name: str, body: bytes, kind: type[AnyT]) -> AnyT | None:
        floats: list[str] = []
        try:
            tree = json.loads(
                body,
                object_pairs_hook=_unique_keys,
                parse_float=lambda text: floats.append(text) or 0,
                parse_constant=lambda text: floats.append(text) or 0,
            )
        except (ValueError, RecursionError) as error:
            self.add(name, "schema", f"not strict JSON: {error}")
            return None
        if floats:
            self.add(name, "float", f"holds {', '.join(floats[:3])}: only integers are allowed")
        try:
            if not floats and rfc8785.dumps(tree) != body:
                self.add(name, "canonical", "its bytes are not in canonical form (RFC 8785)")
        except (rfc8785.CanonicalizationError, RecursionError) as error:
            self.add(name, "canonical", str(error))
        try:
            return msgspec.convert(tree, kind, strict=True)
        except msgspec.ValidationError as error:
            self.add(name, "schema", str(error))
            return None


def receipt_file(job_idx: int) -> str:
    """Name of a job's receipt in the experiment's folder."""
    return f"receipts/{job_idx:04d}.json"


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ValueError(f"a key twice among {[key for key, _ in pairs][:8]}")
    return tree
