"""What a network does to a load, between hosts that are really apart."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest
from network import NoDevice
from sites import BLOCKS, FAILS_BY_S, SLACK_S, SLOW_CHUNKS, STALL_S, Pair, Site, is_whole

MakeSite = Callable[..., Site]
KILL_S = 0.05
HEAVY_S = 1.5
Record = Callable[[str, object], None]


@pytest.fixture
def pair(site: MakeSite, transport: str) -> Pair:
    return Pair(site("P", "D"), transport)


def report(record: Record, **measured: float) -> None:
    for name, seconds in measured.items():
        record(name, round(seconds, 3))
        print(f"{name} {seconds:.3f} s")


def stalls(pair: Pair, fault: Callable[[], object]) -> float:
    """A load under which the network fails; after how long that is known."""
    load, detected_s = pair.during_a_load(fault)
    assert (load.action, load.reason) == ("recompute", "transfer_stalled")
    assert STALL_S / 2 < detected_s < STALL_S + SLACK_S
    return detected_s


def recovers(pair: Pair, record: Record, detected_s: float) -> None:
    pair.network.unlimit("D")
    healed_s = pair.until_it_works()
    pair.expect_nothing_left()
    report(record, detected=detected_s, healed=healed_s)


# ---- a load and a partition ----

@pytest.mark.parametrize("cuts, family", [([("P", "D"), ("D", "P")], 4), ([("P", "D")], 4), ([("D", "P")], 6)],
                         ids=["both-ways", "to-the-consumer", "to-the-producer-IPv6"])
def test_a_partition(site: MakeSite, transport: str, cuts: list[tuple[str, str]], family: int,
                     record_property: Record) -> None:
    pair = Pair(site("P", "D"), transport, family)
    detected_s = stalls(pair, lambda: [pair.network.cut(*cut) for cut in cuts])
    again = pair.load()
    assert again.action == "recompute" and again.seconds < FAILS_BY_S, again
    pair.network.heal()
    recovers(pair, record_property, detected_s)


def test_a_host_that_was_away(pair: Pair, record_property: Record) -> None:
    detected_s = stalls(pair, lambda: pair.network.unplug("P"))
    pair.network.plug("P")
    recovers(pair, record_property, detected_s)


# ---- a bad network ----

def test_some_loss(site: MakeSite, transport: str, record_property: Record) -> None:
    """TCP's own matter."""
    pair = Pair(site("P", "D"), transport, stall_timeout_ms="1000")
    pair.network.lose("P", "D", 20)
    pair.network.lose("D", "P", 20)
    loads = [pair.load() for _ in range(5)]
    assert all(is_whole(load) for load in loads), loads
    pair.network.heal()
    pair.expect_nothing_left()
    report(record_property, slowest=max(load.seconds for load in loads))


def test_heavy_loss(site: MakeSite, transport: str, record_property: Record) -> None:
    """So much that connections starve: each load is whole, or says that it is not, by its deadline."""
    pair = Pair(site("P", "D"), transport, load_timeout_ms=str(int(HEAVY_S * 1000)))
    pair.network.lose("P", "D", 350)
    pair.network.lose("D", "P", 350)
    end = time.monotonic() + HEAVY_S / 2
    loads = []
    while time.monotonic() < end:
        loads.append(pair.load())
        assert is_whole(loads[-1]) or loads[-1].action == "recompute"
        assert loads[-1].seconds < HEAVY_S + SLACK_S
    pair.network.heal()
    healed_s = pair.until_it_works()
    pair.expect_nothing_left()
    report(record_property, slowest=max(load.seconds for load in loads), healed=healed_s)


def test_a_slow_network(site: MakeSite, transport: str, record_property: Record) -> None:
    """A load that takes longer than the stall timeout, and a lease's life, has not stalled."""
    pair = Pair(site("P", "D"), transport, lease_ttl_ms="1000")
    pair.network.limit("D", 50)
    load = pair.load()
    assert is_whole(load), load
    assert load.seconds > 1.2
    pair.network.unlimit("D")
    pair.expect_nothing_left()
    report(record_property, took=load.seconds)


def test_delay_and_reordering(site: MakeSite, transport: str, record_property: Record) -> None:
    made = site("P", "D")
    try:
        made.network.relay("P", "D", delay_ms=10, jitter_ms=8)
    except NoDevice as error:
        pytest.skip(f"hosts: the relay needs a TUN device: {error}")
    p, d = (made.engine(name, transport, listen=made.network.relayed(index), env={"UCX_NET_DEVICES": f"relay{index}"})
            for index, name in enumerate(("P", "D")))
    loads = []
    for _ in range(3):
        offer = p.offer(8)
        loads.append(d.load(offer))
        assert p.ask("ended", lease=offer.lease) == "completed"
    assert all(is_whole(load, 8) for load in loads), loads
    assert all(load.seconds > 0.02 for load in loads)
    report(record_property, slowest=max(load.seconds for load in loads))


# ---- a bad peer, elsewhere ----

def test_a_killed_producer(pair: Pair, transport: str, record_property: Record) -> None:
    load, detected_s = pair.during_a_load(lambda: pair.p.signal(signal.SIGKILL), mbit=500, queue_ms=10)
    assert (load.action, load.reason) == ("recompute", "peer_down")
    assert detected_s < KILL_S
    pair.p = pair.site.engine("P", transport)
    pair.network.unlimit("D")
    assert is_whole(pair.load())
    report(record_property, detected=detected_s)


def test_a_stopped_producer(pair: Pair, record_property: Record) -> None:
    detected_s = stalls(pair, lambda: pair.p.signal(signal.SIGSTOP))
    pair.p.signal(signal.SIGCONT)
    recovers(pair, record_property, detected_s)


def test_blocks_with_another_owner(site: MakeSite, transport: str) -> None:
    """The fence judges, across the network as well: what was read before counts, what comes after never does."""
    pair = Pair(site("P", "D"), transport, **SLOW_CHUNKS)
    load, _ = pair.during_a_load(lambda: pair.p.ask("overwrite", lease=pair.leases[-1], seed=1000), mbit=80)
    assert (load.action, load.reason) == ("recompute", "lease_expired")
    assert 3 <= load.keep < BLOCKS


def test_blocks_with_another_owner_behind_a_partition(pair: Pair) -> None:
    """Tickets of before then are worth nothing afterwards, though the consumer was told of nothing."""
    offer = pair.p.offer(BLOCKS)
    pair.network.cut("P", "D")
    pair.network.cut("D", "P")
    pair.p.ask("overwrite", lease=offer.lease, seed=1000)
    pair.network.heal()
    load = pair.d.load(offer)
    assert (load.action, load.reason, load.keep) == ("recompute", "lease_expired", 0)
