"""Where things stand on the page, and how the page names files.

Guarantees: an anchor is a valid id and the fragment that leads to it; a link is relative to the
page, so that it works from disk wherever the checkout lies. Must never know what stands there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

SAFE_IN_FRAGMENT = "/:=,+"  # beside letters, digits and _ . - ~


def anchor(kind: str, name: str) -> str:
    """The id of a thing: `number=planner:all.planner.over.ar.ratio`.

    A browser compares an id with the fragment as it is written first, so that the escaped form
    serves as both, and no id has a space.
    """
    return f"{kind}={quote(name, safe=SAFE_IN_FRAGMENT)}"


@dataclass(frozen=True, slots=True)
class Links:
    """Files as a page in `folder` names them."""

    folder: Path
    repository: Path

    def to(self, path: Path) -> str:
        """A relative link."""
        return quote(Path(os.path.relpath(path.resolve(), self.folder.resolve())).as_posix())

    def name(self, path: Path) -> str:
        """The path as commands that run in the repository's root take it."""
        return path.relative_to(self.repository).as_posix()
