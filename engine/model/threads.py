"""How many threads compute, and how they wait.

Guarantees: one place decides both. Waiting must be settled in the environment before the process
starts, because OpenMP reads it once, on load. Never knows what is computed.
"""

from __future__ import annotations

import torch

# Iterations an idle worker spins before it sleeps. A layer is a dozen parallel regions a few
# microseconds apart: sleeping between them costs up to 40 us each (half of a decode step), while
# spinning longer than such a gap takes the core from the other stages of this host.
SPIN_COUNT = 1000


def openmp_env(num_threads: int) -> dict[str, str]:
    """Return the environment a computing process must be started with.

    Args:
        num_threads: compute threads of that process.
    """
    return {
        "OMP_NUM_THREADS": str(num_threads),
        "MKL_NUM_THREADS": str(num_threads),
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": str(SPIN_COUNT),  # libgomp lets this refine the policy above
    }


def set_threads(num_threads: int) -> None:
    """Set the compute threads of this process; results do not depend on the number."""
    torch.set_num_threads(num_threads)
