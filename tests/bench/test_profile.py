"""Link profiles: what a file may say, and that the links of a loop add up."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.wan.profile import PROFILES_DIR, load_profile, profile_names
from engine.defaults import PROFILE
from engine.errors import ConfigError

LOOPS_MS = {
    "loopback": 0,
    "lan": 1,
    "metro": 10,
    "residential": 60,
    "eu-ring": 105,
    "stalling": 105,
    "jittery": 150,
    "wan-275": 275,
    "wan-275-bbr": 275,
    "wan-275-cubic": 275,
}
LISTED = {"transatlantic": 98}  # of unequal links, made for four stages
# As receipts know them: a file that is edited must not pass for the profile that was measured.
DIGESTS = {
    "loopback": "2f4b54c5",
    "wan-275": "b8356c8d",
}


def write_profile(folder: Path, body: str, name: str = "made") -> Path:
    path = folder / f"{name}.toml"
    path.write_text(f'name = "made"\ndescription = "made for a test"\n{body}')
    return path


def test_the_shipped_profiles_have_the_promised_loops() -> None:
    assert profile_names() == sorted([*LOOPS_MS, *LISTED])
    for name, loop_ms in LISTED.items():
        links = load_profile(name).links(4)
        assert sum(shape.one_way_ns for shape in links) == loop_ms * 1_000_000
        assert len({shape.one_way_ns for shape in links}) > 1
    for name, loop_ms in LOOPS_MS.items():
        profile = load_profile(name)
        assert profile.loop_ns == loop_ms * 1_000_000
        assert profile.needs_relay == (name != "loopback")


def test_shipped_profiles_say_where_their_numbers_come_from() -> None:
    for name in profile_names():
        assert load_profile(name).provenance.endswith("."), name


def test_committed_digests_are_still_those_of_the_files() -> None:
    """Catches a profile changed under receipts that name it."""
    for name, digest in DIGESTS.items():
        assert load_profile(name).digest.startswith(digest), name


def test_slow_uploads_and_jitter_are_on_every_link() -> None:
    assert {s.rate_bytes_per_s for s in load_profile("residential").links(4)} == {2_500_000}
    links = load_profile("jittery").links(4)
    assert {(s.jitter_ns, s.jitter_distribution) for s in links} == {(5_000_000, "exponential")}


def test_the_default_profile_is_the_one_in_defaults() -> None:
    assert load_profile().name == PROFILE


@given(st.sampled_from(sorted(LOOPS_MS)), st.integers(1, 40))
def test_links_add_up_to_the_loop_and_share_it_evenly(name: str, num_stages: int) -> None:
    profile = load_profile(name)
    links = profile.links(num_stages)
    assert len(links) == num_stages + 1
    assert sum(shape.one_way_ns for shape in links) == profile.loop_ns
    assert max(s.one_way_ns for s in links) - min(s.one_way_ns for s in links) <= 1


def test_links_are_named_in_ring_order() -> None:
    names = [shape.name for shape in load_profile("metro").links(3)]
    assert names == ["coordinator->0", "0->1", "1->2", "2->coordinator"]


def test_a_ring_without_stages_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1 stage"):
        load_profile("lan").links(0)


def test_an_unknown_name_lists_every_valid_one() -> None:
    with pytest.raises(ConfigError) as caught:
        load_profile("moon")
    assert all(name in str(caught.value) for name in ("moon", *LOOPS_MS))


def test_an_unknown_key_names_the_file_and_the_allowed_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_profile(write_profile(tmp_path, "loop_ms = 3\nlop_ms = 4\n"))
    for part in ("made.toml", "lop_ms", "loop_ms", "jitter_distribution", "rate_mbit"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        "loop_ms = -1\n",
        "loop_ms = 1e9\n",
        "loop_ms = nan\n",
        'loop_ms = "3"\n',
        "loop_ms = 3\nrate_mbit = -5\n",
        'loop_ms = 3\njitter_ms = 1\njitter_distribution = "gaussian"\n',
        "loop_ms = 3\njitter_ms = 1\n",
        'loop_ms = 3\njitter_distribution = "uniform"\n',
        "",
        "loop_ms = 3\n[[link]]\none_way_ms = 1\n[[link]]\none_way_ms = 1\n",
        "[[link]]\none_way_ms = 1\n",
        "[[link]]\none_way_ms = 1\n[[link]]\none_way = 1\n",
        "rate_mbit = 3\n[[link]]\none_way_ms = 1\n[[link]]\none_way_ms = 1\n",
        "loop_ms = 3\nstall_ms = 5\n",
        "loop_ms = 3\nstall_every_ms = 5\n",
        "stall_ms = 5\nstall_every_ms = 5\n[[link]]\none_way_ms = 1\n[[link]]\none_way_ms = 1\n",
        "loop_ms = \n",
    ],
)
def test_bad_values_are_refused_with_the_file_name(tmp_path: Path, body: str) -> None:
    with pytest.raises(ConfigError, match=r"made\.toml"):
        load_profile(write_profile(tmp_path, body))


def test_a_name_that_differs_from_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="other"):
        load_profile(write_profile(tmp_path, "loop_ms = 3\n", name="other"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml"):
        load_profile(tmp_path / "gone.toml")


def test_listed_links_keep_their_own_values_and_fix_the_number_of_stages(tmp_path: Path) -> None:
    profile = load_profile(
        write_profile(
            tmp_path,
            "[[link]]\none_way_ms = 1.5\nrate_mbit = 8\n"
            '[[link]]\none_way_ms = 40\njitter_ms = 0.5\njitter_distribution = "uniform"\n'
            "[[link]]\none_way_ms = 0\n",
        )
    )
    links = profile.links(2)
    assert [shape.one_way_ns for shape in links] == [1_500_000, 40_000_000, 0]
    assert [shape.rate_bytes_per_s for shape in links] == [1_000_000, 0, 0]
    assert [shape.jitter_ns for shape in links] == [0, 500_000, 0]
    assert [shape.name for shape in links] == ["coordinator->0", "0->1", "1->coordinator"]
    assert profile.needs_relay
    with pytest.raises(ConfigError, match="lists 3 links"):
        profile.links(3)


def test_the_digest_follows_the_links_and_not_the_prose(tmp_path: Path) -> None:
    digests = {load_profile(name).digest for name in profile_names()}
    assert len(digests) == len(profile_names())
    plain = load_profile(write_profile(tmp_path, "loop_ms = 3\n")).digest
    assert load_profile(write_profile(tmp_path, "loop_ms = 3.0\nrate_mbit = 0\n")).digest == plain
    assert load_profile(write_profile(tmp_path, "loop_ms = 3\nrate_mbit = 1\n")).digest != plain
    reworded = (PROFILES_DIR / "lan.toml").read_text().replace("building", "house")
    (tmp_path / "lan.toml").write_text(reworded)
    assert load_profile(tmp_path / "lan.toml").digest == load_profile("lan").digest
