"""Profile fields that only packets have: read by netns, refused by the relay."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.wan.emulator import RelayedLinks
from bench.wan.profile import load_profile
from engine.errors import ConfigError

PACKETS = 'queue_bytes = 9000\nloss_ppm = 5\nreorder_ppm = 7\ncongestion_control = "reno"\n'
# Of version 1 receipts: a field that is at rest must not change the digest of an older profile.
COMMITTED_WAN_275 = "b8356c8daf2a0ff1764d6ab980e825179b3740a3e3ea63c9b6d965a2e3bdb6a7"


def write_profile(folder: Path, body: str) -> Path:
    path = folder / "made.toml"
    path.write_text(f'name = "made"\ndescription = "made for a test"\n{body}')
    return path


def test_a_loops_fields_reach_every_link(tmp_path: Path) -> None:
    profile = load_profile(write_profile(tmp_path, f"loop_ms = 3\nrate_mbit = 8\n{PACKETS}"))
    for shape in profile.links(2):
        assert (shape.queue_bytes, shape.loss_ppm, shape.reorder_ppm) == (9000, 5, 7)
        assert shape.congestion_control == "reno"
        assert shape.packet_fields == [
            "queue_bytes",
            "loss_ppm",
            "reorder_ppm",
            "congestion_control",
        ]


def test_a_listed_link_keeps_its_own_fields(tmp_path: Path) -> None:
    body = "[[link]]\none_way_ms = 0\nloss_ppm = 9\n[[link]]\none_way_ms = 0\n"
    profile = load_profile(write_profile(tmp_path, body))
    lossy, plain = profile.links(1)
    assert (lossy.loss_ppm, plain.loss_ppm) == (9, 0)
    assert not lossy.is_transparent and plain.is_transparent and profile.needs_relay


@pytest.mark.parametrize(
    "body",
    [
        "loop_ms = 3\nqueue_bytes = 9000\n",
        "loop_ms = 3\nloss_ppm = 1000001\n",
        "loop_ms = 3\nreorder_ppm = -1\n",
        "loop_ms = 3\nloss_ppm = 0.5\n",
        'loop_ms = 3\ncongestion_control = "vegas"\n',
        "loss_ppm = 3\n[[link]]\none_way_ms = 1\n[[link]]\none_way_ms = 1\n",
    ],
)
def test_bad_values_are_refused_with_the_file_name(tmp_path: Path, body: str) -> None:
    with pytest.raises(ConfigError, match=r"made\.toml"):
        load_profile(write_profile(tmp_path, body))


def test_the_digest_follows_the_fields_and_older_profiles_keep_theirs(tmp_path: Path) -> None:
    assert load_profile("wan-275").digest == COMMITTED_WAN_275
    plain = load_profile(write_profile(tmp_path, "loop_ms = 3\n")).digest
    for line in PACKETS.splitlines():
        body = f"loop_ms = 3\nrate_mbit = {8 if 'queue' in line else 0}\n"
        without = load_profile(write_profile(tmp_path, body)).digest
        assert load_profile(write_profile(tmp_path, f"{body}{line}\n")).digest != without
    at_rest = 'loop_ms = 3\nqueue_bytes = 0\nloss_ppm = 0\ncongestion_control = ""\n'
    assert load_profile(write_profile(tmp_path, at_rest)).digest == plain


def test_a_relay_refuses_what_it_cannot_do_and_names_it(tmp_path: Path) -> None:
    profile = load_profile(write_profile(tmp_path, "loop_ms = 3\nloss_ppm = 5\n"))
    with pytest.raises(ConfigError, match=r"coordinator->0: .* has no loss_ppm; use"):
        RelayedLinks(profile, seed=1).places(2)
    assert len(RelayedLinks(load_profile("lan"), seed=1).places(2)) == 2
