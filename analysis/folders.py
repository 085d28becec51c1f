"""Where an experiment's files lie, and where its products go.

Guarantees: paths do not hang on the current folder; products of one's own receipts never land among
the committed ones; a folder with a file that is no part of an experiment is refused by its name.
Must never know what a document says.
"""

from __future__ import annotations

from pathlib import Path

from bench.receipt import signature_path
from engine.errors import ReceiptError
from engine.trust.identity import longhaul_home

REPOSITORY = Path(__file__).resolve().parent.parent
COMMITTED = REPOSITORY / "receipts"
DEFAULT_EXPERIMENT = "decode"  # its products stand at the top, the others' in folders of their own
RECEIPTS_FOLDER = "receipts"
TOP_LEVEL = ("plan.json", "plan.sig.json", "log.jsonl", RECEIPTS_FOLDER)
SIGNATURE_ENDING = ".sig.json"


def committed_experiments() -> list[str]:
    """Names of the committed experiments, the default one first."""
    names = {plan.parent.name for plan in COMMITTED.glob("*/plan.json")}
    return sorted(names, key=lambda name: (name != DEFAULT_EXPERIMENT, name))


def product_folder(kind: str, receipts_dir: str, experiment: str, out: Path | None = None) -> Path:
    """Where products go: into `paper/` for committed experiments, else into ignored `build/`.

    Args:
        kind: such as "tables".
        receipts_dir: what the user named; empty: committed experiments, which share `kind`, the
            default one at its top.
        experiment: name of the committed experiment.
        out: what to use instead of `paper/` or `build/`.
    """
    if receipts_dir:
        return out or REPOSITORY / "build" / kind
    top = out or REPOSITORY / "paper" / kind
    return top if experiment == DEFAULT_EXPERIMENT else top / experiment


def default_key_folders() -> tuple[Path, ...]:
    """The repository's public keys, then this user's own."""
    return (COMMITTED / "keys", longhaul_home() / "keys")


def refuse_foreign_files(folder: Path) -> None:
    """Insist that a folder holds one experiment and nothing else.

    Raises:
        ReceiptError: names the file that is missing or does not belong.
    """
    if not (folder / "plan.json").is_file():
        raise ReceiptError(f"{folder / 'plan.json'}: missing; {folder} is no experiment's folder")
    for path in sorted(folder.iterdir()):
        if path.name not in TOP_LEVEL or path.is_dir() != (path.name == RECEIPTS_FOLDER):
            raise ReceiptError(f"{path}: foreign; allowed here: {', '.join(TOP_LEVEL)}")
    receipts_folder = folder / RECEIPTS_FOLDER
    if not receipts_folder.is_dir():
        raise ReceiptError(f"{receipts_folder}: missing; it holds one receipt per job")
    for path in sorted(receipts_folder.iterdir()):
        stem = path.name.removesuffix(SIGNATURE_ENDING).removesuffix(".json")
        if not stem.isascii() or not stem.isdigit() or stem != f"{int(stem):04d}":
            raise ReceiptError(f"{path}: foreign; receipts are named by job, such as 0007.json")
        document = path.with_name(f"{stem}.json")
        if path.name not in (document.name, signature_path(document).name):
            raise ReceiptError(f"{path}: foreign; receipts are named by job, such as 0007.json")
        if not document.is_file():
            raise ReceiptError(f"{path}: signs {document.name}, which is missing")
