"""One published claim beside what the public receipts say of it.

Guarantees: a number in a finding is written through `Finding.say`, so the sentence and the named
number are one value, rounded once; a verdict is one of three words. Must never know which claims
there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from analysis.named_number import NamedNumber, named
from analysis.public.files import PublicReceipts

SUPPORTED = "supported"  # the files show it
NOT_SUPPORTED = "not supported"  # the files show otherwise
NOT_TESTABLE = "not testable"  # nothing in the files decides it
VERDICTS = (SUPPORTED, NOT_SUPPORTED, NOT_TESTABLE)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim in our words, the finding, and the numbers in the finding by name."""

    key: str
    claim: str
    finding: str
    verdict: str
    files: tuple[str, ...]
    numbers: dict[str, NamedNumber]


ClaimMaker = Callable[[PublicReceipts], Claim]


@dataclass(frozen=True, slots=True)
class Finding:
    """Numbers of one claim as they are written into its sentence."""

    key: str
    public: PublicReceipts
    files: tuple[str, ...]
    numbers: dict[str, NamedNumber] = field(default_factory=dict)

    def say(self, name: str, value: float, decimals: int, unit: str, formula: str) -> str:
        """Name a number; returns it as the sentence prints it, a minus as a minus sign.

        Raises:
            KeyError: the claim has a number of this name already.
        """
        full = f"audit.{self.key}.{name}"
        if full in self.numbers:
            raise KeyError(f"{full} is said twice")
        self.numbers[full] = named(value, decimals, unit, formula, self.public.ids(*self.files))
        return self.numbers[full].value.replace("-", "−")

    def count(self, name: str, value: int, unit: str, formula: str) -> str:
        """Name a count."""
        return self.say(name, value, 0, unit, formula)

    def claim(self, claim: str, finding: str, verdict: str) -> Claim:
        """The finished row."""
        return Claim(self.key, claim, finding, verdict, self.files, self.numbers)


def judged(holds: bool) -> str:
    """The verdict on a claim that the files decide."""
    return SUPPORTED if holds else NOT_SUPPORTED
