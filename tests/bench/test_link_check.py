"""Measured links against profiles: what is wrong is named, what cannot be judged is not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.link_check import EARLY_NS, link_faults
from bench.schema import LinkRow
from bench.wan.profile import LinkShape, load_profile, profile_names

NS_PER_MS = 1_000_000


def measured(shape: LinkShape, extra_ns: int = 0, **fields: object) -> LinkRow:
    """A link that takes so much longer than its delay, there and back."""
    rtt_ns = 2 * shape.one_way_ns + shape.jitter_ns + extra_ns
    payload_ns = rtt_ns
    if shape.rate_bytes_per_s:
        payload_ns += 120_000 * 1_000_000_000 // shape.rate_bytes_per_s
    row = LinkRow(
        name=shape.name,
        one_way_ns=shape.one_way_ns,
        jitter_ns=shape.jitter_ns,
        rate_bytes_per_s=shape.rate_bytes_per_s,
        rtt_ns=[rtt_ns] * 5,
        payload_bytes=120_000,
        payload_rtt_ns=[payload_ns] * 5,
        idle_payload_rtt_ns=payload_ns,
    )
    return msgspec.structs.replace(row, **fields)


@pytest.mark.parametrize("name", profile_names())
def test_links_as_asked_for_are_sound(name: str) -> None:
    profile = load_profile(name)
    assert not link_faults(profile, [measured(s) for s in profile.links(4)])
    a_bit_late = [measured(s, extra_ns=2 * NS_PER_MS) for s in profile.links(4)]
    assert not link_faults(profile, a_bit_late)


@given(st.sampled_from(["wan-275", "eu-ring", "transatlantic"]), st.integers(0, 4), st.booleans())
def test_the_wrong_link_is_named(name: str, idx: int, is_late: bool) -> None:
    """Catches a delay that is missing, or too long, on any one link."""
    profile = load_profile(name)
    rows = [measured(shape) for shape in profile.links(4)]
    extra = profile.tolerance_ns + 1 if is_late else -EARLY_NS - 1
    rows[idx] = measured(profile.links(4)[idx], extra_ns=extra)
    (fault,) = link_faults(profile, rows)
    assert fault.startswith(f"{rows[idx].name}: a round trip takes ")
    assert "the profile allows" in fault


def test_one_slow_probe_of_five_is_no_fault() -> None:
    profile = load_profile("wan-275")
    rows = [measured(shape) for shape in profile.links(4)]
    late = [*rows[2].rtt_ns[1:], 10**12]
    rows[2] = msgspec.structs.replace(rows[2], rtt_ns=late)
    assert not link_faults(profile, rows)


def test_a_rate_that_is_not_there_is_found() -> None:
    """Catches an upload limit that the emulator forgot."""
    profile = load_profile("residential")
    rows = [measured(shape) for shape in profile.links(4)]
    quick = msgspec.structs.replace(rows[1], payload_rtt_ns=rows[1].rtt_ns)
    (fault,) = link_faults(profile, [rows[0], quick, *rows[2:]])
    assert fault.startswith("0->1: 120000 bytes go round in 24.0 ms; at the profile's rate")
    unmeasured = msgspec.structs.replace(
        rows[1], payload_bytes=msgspec.UNSET, payload_rtt_ns=msgspec.UNSET
    )
    assert not link_faults(profile, [rows[0], unmeasured, *rows[2:]])


def test_tolerance_is_the_profiles_own(tmp_path: Path) -> None:
    path = tmp_path / "made.toml"
    path.write_text(
        'name = "made"\ndescription = "made"\ntolerance_ms = 1.5\n'
        "[[link]]\none_way_ms = 3\n[[link]]\none_way_ms = 4\n"
    )
    profile = load_profile(path)
    rows = [measured(shape, extra_ns=2 * NS_PER_MS) for shape in profile.links(1)]
    assert len(link_faults(profile, rows)) == 2
    path.write_text(path.read_text().replace("1.5", "2.5"))
    assert not link_faults(load_profile(path), rows)
    assert load_profile(path).digest == profile.digest, "how strict one is changes no link"
