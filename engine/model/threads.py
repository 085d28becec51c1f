"""How many threads compute, and how they wait.

Guarantees: one place decides both. Waiting must be settled in the environment before the process
starts, because OpenMP reads it once, on load. Never knows what is computed.
"""

from __future__ import annotations

# Iterations an idle worker spins before it sleeps. A layer is a dozen parallel regions a few
# microseconds apart, and sleeping between them costs more than the gap; but spinning on a core that
# another process needs stalls both (docs/decisions/0001). Where stages share cores, give each one
# thread: it waits for nobody.
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
    import torch  # a launcher that only wants `openmp_env` must not load OpenMP itself

    torch.set_num_threads(num_threads)
