"""What a ring needs in which namespace, as values: no privileges, no devices."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.wan import netns_netem
from bench.wan.netns_topology import MAX_HOSTS, NUM_NETWORKS, Topology, ring_topology
from bench.wan.profile import LinkShape, link_names, load_profile
from engine.errors import ConfigError

MEASUREMENTS = ip_network("198.18.0.0/15")  # RFC 2544


def ring_of(*one_way_ms: int, ring_idx: int = 0, **fields: object) -> Topology:
    names = link_names(len(one_way_ms) - 1)
    shapes = [
        LinkShape(name=name, one_way_ns=ms * 10**6, **fields)  # type: ignore[arg-type]
        for name, ms in zip(names, one_way_ms, strict=True)
    ]
    return ring_topology(shapes, ring_idx)


def way(topology: Topology, source_idx: int, sink_idx: int) -> list[int]:
    """Cables that a packet crosses when every host sends it on by its own routes."""
    cables = []
    here = source_idx
    while here != sink_idx:
        cables.append(topology.first_cable(here, sink_idx))
        here = topology.cables[cables[-1]].other_end(here)
        assert len(cables) <= topology.num_hosts, "packets go round in circles"
    return cables


@given(st.integers(2, 12))
def test_each_link_of_the_ring_is_a_cable_of_its_own_with_the_same_numbers_both_ways(
    num_stages: int,
) -> None:
    shapes = load_profile("wan-275").links(num_stages)
    topology = ring_topology(shapes, 0)
    assert [cable.forth for cable in topology.cables] == shapes
    assert all(cable.back == cable.forth for cable in topology.cables)
    assert [(cable.near_idx, cable.far_idx) for cable in topology.cables] == [
        *pairwise(range(num_stages + 1)),
        (num_stages, 0),
    ]


def test_with_one_stage_both_links_share_the_cable_each_its_own_way() -> None:
    topology = ring_of(3, 8)
    (cable,) = topology.cables
    assert (cable.forth.name, cable.back.name) == ("coordinator->0", "0->coordinator")


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=9))
def test_routes_lead_there_the_shorter_way_round_and_back_the_same_way(delays: list[int]) -> None:
    topology = ring_of(*delays)
    hosts = range(topology.num_hosts)
    for source_idx in hosts:
        for sink_idx in hosts:
            if source_idx == sink_idx:
                continue
            cables = way(topology, source_idx, sink_idx)
            assert cables == way(topology, sink_idx, source_idx)[::-1]
            delay_ms = sum(delays[idx] for idx in cables)
            is_neighbour = bool(
                set(topology.cables_of(source_idx)) & set(topology.cables_of(sink_idx))
            )
            if is_neighbour:
                assert len(cables) == 1
            else:
                assert delay_ms <= sum(delays) - delay_ms


def test_neighbours_keep_their_own_cable_even_if_the_way_round_were_shorter() -> None:
    assert way(ring_of(100, 1, 1, 1), 0, 1) == [0]


def test_only_rings_with_hosts_that_are_no_neighbours_forward() -> None:
    assert [ring_of(*[1] * num_hosts).forwards for num_hosts in (2, 3, 4)] == [False, False, True]


@given(st.integers(0, NUM_NETWORKS - 1), st.integers(1, 8))
def test_addresses_and_names_are_unique_and_fit(ring_idx: int, num_stages: int) -> None:
    topology = ring_topology(load_profile("lan").links(num_stages), ring_idx)
    addresses = [topology.address(idx) for idx in range(topology.num_hosts)]
    assert len(set(addresses)) == topology.num_hosts
    assert all(ip_address(each) in MEASUREMENTS for each in addresses)
    names = [topology.device(idx) for idx in range(len(topology.cables))]
    assert len(set(names)) == len(names) and all(len(name) <= 15 for name in names)
    other = ring_topology(load_profile("lan").links(num_stages), (ring_idx + 1) % NUM_NETWORKS)
    assert not {other.address(0), other.device(0)} & {*addresses, *names}


def test_rings_that_cannot_be_addressed_are_refused() -> None:
    shapes = load_profile("lan").links(1)
    for wrong in (-1, NUM_NETWORKS):
        with pytest.raises(ConfigError, match="allowed: 0 to"):
            ring_topology(shapes, wrong)
    with pytest.raises(ConfigError, match="allowed: 1 to"):
        ring_topology(load_profile("lan").links(MAX_HOSTS), 0)


def test_a_hosts_commands_name_the_run_and_leave_the_coordinators_loopback_alone() -> None:
    topology = ring_of(1, 2, 3, ring_idx=7, congestion_control="bbr")
    assert topology.host_commands(1, "lhaul-token") == [
        "link set dev lo up",
        "link set dev lhaul7c0 mtu 1500 txqueuelen 10000 alias lhaul-token up",
        "address add 198.19.7.2/32 dev lhaul7c0",
        "link set dev lhaul7c1 mtu 1500 txqueuelen 10000 alias lhaul-token up",
        "address add 198.19.7.2/32 dev lhaul7c1",
        "route add 198.19.7.1/32 dev lhaul7c0 src 198.19.7.2 congctl bbr",
        "route add 198.19.7.3/32 dev lhaul7c1 src 198.19.7.2 congctl bbr",
    ]
    assert not any(" lo " in line for line in topology.host_commands(0, "lhaul-token"))
    assert not any("congctl" in line for line in ring_of(1, 2, 3).host_commands(0, "t"))


def test_a_host_further_away_is_routed_over_the_next_one() -> None:
    """By address, since the kernel's own cables ask for the next hop's hardware address."""
    assert ring_of(1, 1, 2, 2).host_commands(0, "t")[-3:] == [
        "route add 198.19.0.2/32 dev lhaul0c0 src 198.19.0.1",
        "route add 198.19.0.3/32 via 198.19.0.2 onlink dev lhaul0c0 src 198.19.0.1",
        "route add 198.19.0.4/32 dev lhaul0c3 src 198.19.0.1",
    ]


def test_netem_gets_each_hosts_outgoing_direction() -> None:
    shapes = [
        LinkShape(name="coordinator->0", one_way_ns=2_500_000),
        LinkShape(name="0->coordinator", one_way_ns=1, rate_bytes_per_s=1_000_000),
    ]
    topology = ring_topology(shapes, 0)
    assert netns_netem.shape_commands(topology, 0) == [
        "qdisc replace dev lhaul0c0 root netem limit 1000000 delay 2500us"
    ]
    assert netns_netem.shape_commands(topology, 1) == [
        "qdisc replace dev lhaul0c0 root netem limit 1000000 delay 0.001us rate 8000000bit"
    ]
    assert netns_netem.veth_command(topology, 0, "/proc/9/fd/5") == (
        "link add name lhaul0c0 gso_max_segs 1 type veth "
        "peer name lhaul0c0 netns /proc/9/fd/5 gso_max_segs 1"
    )


def test_netems_limit_holds_the_queue_and_what_travels() -> None:
    """25 MB/s for 20 ms are 500,000 bytes under way: 334 packets; 100,000 more may wait."""
    shape = LinkShape(
        name="a", one_way_ns=20_000_000, rate_bytes_per_s=25_000_000, queue_bytes=100_000
    )
    assert netns_netem.netem_options(shape) == "limit 400 delay 20000us rate 200000000bit"


@pytest.mark.parametrize(
    ("fields", "is_taken"),
    [
        ({}, True),
        ({"rate_bytes_per_s": 10**6, "queue_bytes": 10**5, "congestion_control": "bbr"}, True),
        ({"jitter_ns": 1, "jitter_distribution": "uniform"}, False),
        ({"loss_ppm": 1}, False),
        ({"reorder_ppm": 1}, False),
    ],
)
def test_netem_takes_only_links_on_which_nothing_is_drawn(
    fields: dict[str, object], is_taken: bool
) -> None:
    assert netns_netem.takes(ring_of(1, 1, **fields)) is is_taken


def test_a_transparent_link_needs_no_netem() -> None:
    assert netns_netem.shape_commands(ring_of(0, 0, 0), 1) == []
    assert netns_netem.probe_command()[-3:] == ["netem", "delay", "1us"]
