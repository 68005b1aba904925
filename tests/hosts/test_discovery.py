"""Engines find each other by tickets alone: none is configured with another's address."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from remote import Refused, Remote
from sites import Site, is_whole

MakeSite = Callable[..., Site]
BLOCKS = 4


def load(p: Remote, d: Remote) -> None:
    offer = p.offer(BLOCKS)
    assert is_whole(d.load(offer), BLOCKS)
    assert p.ask("ended", lease=offer.lease) == "completed"


def listening(engine: Remote) -> set[str]:
    """Where anything does on the engine's host: for control connections, and for data."""
    engine.wait()
    return {line.split()[3].rpartition(":")[0] for line in engine.host.run("ss", "-Hltn").splitlines()}


def hosts_of(d: Remote) -> list[str]:
    """Of its peers, without ports."""
    return [address.rpartition(":")[0] for address in d.ask("peers")]


def test_several_producers_and_consumers(site: MakeSite, transport: str) -> None:
    made = site("P1", "P2", "P3", "D1", "D2")
    consumers = [made.engine("D1", transport), made.engine("D2", transport, family=6)]
    producers = [made.engine("P1", transport), made.engine("P2", transport, family=6), made.engine("P3", transport)]
    addresses = [made.network.address("P1"), made.network.address("P2", family=6), made.network.address("P3")]
    for d in consumers:
        assert hosts_of(d) == []
        for p in producers:
            load(p, d)
        assert hosts_of(d) == sorted(addresses)
    made.network.add("P4")
    made.network.join("P4")
    load(made.engine("P4", transport), consumers[0])  # it was not there when they started
    assert made.network.address("P4") in hosts_of(consumers[0])
    producers[0].close()
    load(made.engine("P1", transport), consumers[0])  # another one at its address
    assert all(d.ask("left") == {} for d in consumers)


# {v4} and {v6} stand for the addresses of the second interface.
@pytest.mark.parametrize("listen, advertise", [
    ("{v4}", ""), ("{v6}", ""), ("0.0.0.0", "{v4}"), ("[::]", "{v6}"), ("[::]", "{v4}"),
])
def test_a_host_with_two_interfaces(site: MakeSite, listen: str, advertise: str) -> None:
    """The ticket names the address that the producer was told to use, and everything goes there: the other interface is
    not plugged in."""
    made = site("P", "D")
    made.network.join("P")
    v4, v6 = (made.network.address("P", family, interface=1) for family in (4, 6))
    made.network.unplug("P", interface=0)
    p = made.engine("P", listen=listen.format(v4=v4, v6=v6), advertise=advertise.format(v4=v4, v6=v6))
    d = made.engine("D")
    load(p, d)
    assert hosts_of(d) == [v6 if "{v6}" in listen + advertise else v4]


@pytest.mark.parametrize("listen, advertise", [("0.0.0.0", ""), ("[::]", ""), ("0.0.0.0", "0.0.0.0"), ("10.77.1.1", "[::]")])
def test_a_ticket_without_an_address(site: MakeSite, listen: str, advertise: str) -> None:
    """A producer whose tickets nobody could follow does not start."""
    made = site("P")
    with pytest.raises(Refused, match="names no address that others can connect to"):
        made.engine("P", listen=listen, advertise=advertise).wait()


# ---- engines that were not told where to listen ----

ROUTES = {4: "route delete default", 6: "route delete ::/0"}


def leave(made: Site, name: str, families: tuple[int, ...]) -> None:
    """Default routes of these families alone."""
    made.network.hosts[name].ip(*(line for family, line in ROUTES.items() if family not in families))


@pytest.mark.parametrize("of_p, of_d, reached", [((4, 6), (4, 6), 4), ((4, 6), (4,), 4), ((4, 6), (6,), 6), ((4,), (4, 6), 4),
                                                 ((6,), (4, 6), 6), ((4,), (4,), 4), ((6,), (6,), 6)])
def test_the_addresses_of_the_default_routes(site: MakeSite, of_p: tuple[int, ...], of_d: tuple[int, ...], reached: int) -> None:
    """They find each other all the same, over a family that both have a route of, as one peer. What an engine listens on is
    one address of each family that has a route, and no other."""
    made = site("P", "D")
    made.network.join("P")
    for name, families in (("P", of_p), ("D", of_d)):
        leave(made, name, families)
    p, d = (made.engine(name, listen=None) for name in ("P", "D"))
    load(p, d)
    assert hosts_of(d) == [made.network.address("P", reached)]
    for engine, name, families in ((p, "P", of_p), (d, "D", of_d)):
        assert listening(engine) == {made.network.address(name, family) for family in families}


def test_a_family_on_which_packets_are_lost(site: MakeSite) -> None:
    """D has a route, and nobody answers: it goes on over the other one, and stays there."""
    made = site("P", "D")
    made.network.cut("D", "P", family=4)
    p, d = (made.engine(name, listen=None) for name in ("P", "D"))
    for _ in range(2):
        load(p, d)
    assert hosts_of(d) == [made.network.address("P", 6)]


def test_a_host_without_a_default_route(site: MakeSite) -> None:
    made = site("P")
    made.network.hosts["P"].ip("route delete default", "route delete ::/0")
    assert listening(made.engine("P", listen=None)) == {"127.0.0.1"}


@pytest.mark.parametrize("env, expected", [
    ({"VLLM_NIXL_SIDE_CHANNEL_HOST": "fd77:2::1"}, {"[fd77:2::1]"}),
    ({"VLLM_NIXL_SIDE_CHANNEL_HOST": "0.0.0.0"}, {"10.77.1.1", "[fd77:1::1]"}),
    ({"KVFERRY_LISTEN": "eth1", "VLLM_NIXL_SIDE_CHANNEL_HOST": "10.77.1.1"}, {"10.77.2.1"}),
    ({"KVFERRY_LISTEN": "fd77:1::/64"}, {"[fd77:1::1]"}),
])
def test_what_the_environment_says(site: MakeSite, env: dict[str, str], expected: set[str]) -> None:
    made = site("P")
    made.network.join("P")
    assert listening(made.engine("P", listen=None, env=env)) == expected


def test_a_network_with_two_addresses(site: MakeSite) -> None:
    made = site("P")
    made.network.join("P")
    with pytest.raises(Refused, match=r"10\.77\.1\.1 \(eth0\), 10\.77\.2\.1 \(eth1\); KVFERRY_LISTEN says so"):
        made.engine("P", listen=None, env={"KVFERRY_LISTEN": "10.77.0.0/16"}).wait()


def test_without_a_key_nothing_leads_off_loopback(site: MakeSite) -> None:
    made = site("P", "D")
    untold = made.engine("P", listen=None, key_file=None, env={"VLLM_NIXL_SIDE_CHANNEL_HOST": "10.77.1.1"})
    assert listening(untold) == {"127.0.0.1"}
    with pytest.raises(Refused, match="needs a shared key"):
        made.engine("D", listen=None, key_file=None, env={"KVFERRY_LISTEN": "10.77.2.1"}).wait()
