"""What stops a notebook whose parameter was misspelt, before it imports anything that takes time.

Guarantees: a name that was injected and is no parameter raises, with the valid ones. Must never
know what a parameter means.
"""

from __future__ import annotations

from collections.abc import Iterable, Set


def refuse_unknown(names: Iterable[str], known: Set[str], parameters: Set[str]) -> None:
    """Insist that nothing but parameters was added to a notebook's names.

    Args:
        names: of the notebook, now.
        known: of the notebook, before its parameters.
        parameters: that it has.

    Raises:
        NameError: names what was added, and what is valid.
    """
    public = {name for name in names if not name.startswith("_")}
    unknown = public - known - parameters - {refuse_unknown.__name__}
    if unknown:
        raise NameError(f"unknown parameters {sorted(unknown)}; valid: {sorted(parameters)}")
