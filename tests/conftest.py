"""Settings that every test shares.

Guarantees: property tests draw the same examples on every machine and never fail for slowness.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "longhaul",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("longhaul")
