"""Does this process round as everything here assumes, on every thread that computes?

A library that is loaded, or whoever starts a thread, may leave the processor rounding another way.
Every sum is then off by a little, always to the same side, and states by some 4e-5 of their length:
nothing fails, and no two processes agree any more. Guarantees: what passes rounds to the nearest
number, on all of torch's threads. Never knows models.
"""

from __future__ import annotations

import torch

_NUM_ELEMENTS = 1 << 17  # enough for every thread to get a share


def rounds_to_nearest() -> bool:
    """Add to one what is too little to count: half of a quarter of the next number's distance.

    Rounding up, the first sum is not one; rounding down or towards zero, the second one is not.
    """
    ones = torch.ones(_NUM_ELEMENTS)
    return bool(((ones + 2.0**-25) == 1.0).all()) and bool(((ones - 2.0**-26) == 1.0).all())
