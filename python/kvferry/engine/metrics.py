"""The nodes' numbers on their way to an engine's /metrics, as kvferry_* or vllm:kvferry_*, and to its log.

A node's Meter says what has changed since the last step; the engine merges the ranks' Data and hands each step's to one of
its API servers. So counters travel as increases, and gauges as values with the name of their node: the server
that shows a gauge last is right, and no server needs the others' numbers.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvferry import _kvferry
from kvferry.metric_table import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    PEER_COUNTERS,
    PEER_GAUGES,
    PER_LINK,
    PREFIX,
    Metric,
    bounds_of,
    divisor_of,
)

if TYPE_CHECKING:
    from kvferry import Node
    from kvferry._kvferry import Number

REASON_OF = {"ranks_lost": "rank_lost"}  # numbers that come without a reason and are counted under one

OUTCOMES = frozenset(("loads_done", "loads_failed"))
"""Without one of these no distribution has changed, which is cheaper to see: a Meter reads in every step."""

PEER_LABELS_MAX = 256  # peers of one engine that have a label of their own; what others do counts under OTHER
OTHER = "other"
PEERS_REMEMBERED_MAX = 4096
"""Peers whose counters a Meter remembers after they have gone, lest it count twice what a peer that comes back did."""

Counts = dict[str, dict[str, int]]
"""Increase by name and reason."""


def add_counts(to: Counts, more: Counts) -> None:
    for name, reasons in more.items():
        known = to.setdefault(name, {})
        for reason, increase in reasons.items():
            known[reason] = known.get(reason, 0) + increase


Data = dict[str, Any]
"""What has changed, as plain data:

counters    {name: {reason: increase}}
gauges      {name: {node: value}}
histograms  {name: {bucket: [count, sum]}}, increases
peers       {address: {"counters": {name: {reason: increase}}, "gauges": {name: {node: {link: value}}}, "failures": {reason: time}}}
gone        {node: [address]}: that it lists no more
"""


def no_data() -> Data:
    return {"counters": {}, "gauges": {}, "histograms": {}, "peers": {}, "gone": {}}


def peer_of(data: Data, address: str) -> dict[str, Any]:
    return data["peers"].setdefault(address, {"counters": {}, "gauges": {}, "failures": {}})


def merge_data(into: Data, other: Data) -> None:
    add_counts(into["counters"], other["counters"])
    for name, values in other["gauges"].items():
        into["gauges"].setdefault(name, {}).update(values)
    for name, buckets in other["histograms"].items():
        known = into["histograms"].setdefault(name, {})
        for bucket, (count, total) in buckets.items():
            old = known.get(bucket, (0, 0))
            known[bucket] = [old[0] + count, old[1] + total]
    for address, increases in other["peers"].items():
        peer = peer_of(into, address)
        add_counts(peer["counters"], increases["counters"])
        for name, nodes in increases["gauges"].items():
            peer["gauges"].setdefault(name, {}).update(nodes)
        for reason, at in increases["failures"].items():
            peer["failures"][reason] = max(at, peer["failures"].get(reason, 0.0))
    for node, addresses in other["gone"].items():
        into["gone"].setdefault(node, []).extend(addresses)


class Counters:
    """What the scheduler side decides by itself, until the next Data."""

    def __init__(self) -> None:
        self._counts: Counts = {}

    def add(self, name: str, reason: str) -> None:
        add_counts(self._counts, {name: {reason: 1}})

    def take(self) -> Counts:
        counts, self._counts = self._counts, {}
        return counts


class Meter:
    """Reads one node's numbers and says what is new."""

    def __init__(self, node: Node, name: str, counters: Counters | None = None, gauges: dict[str, int] | None = None,
                 per_block: dict[str, float] | None = None) -> None:
        """`gauges` are the engine's own; `per_block` are those that are so much for each block under lease."""
        self._node = node
        self._counters = counters or Counters()
        self._name = name
        self._per_block = per_block or {}
        self._own: dict[str, float] = {}  # the engine's own
        self._gauges: dict[str, float] = {}  # of these: what nobody has read
        for gauge, value in (gauges or {}).items():
            self.set_gauge(gauge, value)
        self._seen: dict[tuple[str, str], int] = {}
        self._buckets: dict[tuple[str, int], tuple[int, int]] = {}
        self._peer_counters: dict[int, dict[tuple[str, str], int]] = {}  # by the peer's id, latest seen last
        self._peer_gauges: dict[str, dict[tuple[str, str], int]] = {}  # by address: the peers that are listed

    def set_gauge(self, name: str, value: float) -> None:
        if self._own.get(name, 0) != value:
            self._own[name] = self._gauges[name] = value

    def read(self) -> Data | None:
        """What has changed since the last read; None if nothing has."""
        data = no_data()
        self._read_numbers(data)
        add_counts(data["counters"], self._counters.take())
        if "loads_done" in data["counters"]:
            data["gauges"]["last_load"] = {self._name: time.time()}
        if not OUTCOMES.isdisjoint(data["counters"]):
            self._read_histograms(data)
        self._read_peers(data)
        return data if any(data.values()) else None

    def _read_numbers(self, data: Data) -> None:
        for name, value in self._gauges.items():
            data["gauges"][name] = {self._name: value}
        self._gauges = {}
        for name, reason, value, is_gauge in self._node.stats():
            old = self._seen.get((name, reason), 0)
            if value == old:
                continue
            self._seen[name, reason] = value
            if is_gauge:
                data["gauges"].setdefault(name, {})[self._name] = value
                if name == "lease_blocks":
                    data["gauges"].update({own: {self._name: round(value * each)} for own, each in self._per_block.items()})
            else:
                data["counters"].setdefault(name, {})[reason] = value - old

    def _read_histograms(self, data: Data) -> None:
        for name, buckets in self._node.histograms():
            for i, (_, count, total) in enumerate(buckets):
                old = self._buckets.get((name, i), (0, 0))
                if count != old[0]:
                    self._buckets[name, i] = (count, total)
                    data["histograms"].setdefault(name, {})[str(i)] = [count - old[0], total - old[1]]

    def _read_peers(self, data: Data) -> None:
        listed: dict[str, dict[tuple[str, str], int]] = {}
        for peer in self._node.peers():
            gauges = {(number.name, ""): number.value for number in peer.numbers if number.is_gauge}
            for link in peer.links:
                gauges["breaker", link.name] = link.breaker
                gauges["up", link.name] = int(link.is_up)
            # An address may be that of several lives of a process: the latest used comes first.
            listed.setdefault(peer.address, gauges)
            if self._count(data, peer.id, peer.address, peer.numbers) and peer.failure:
                peer_of(data, peer.address)["failures"][peer.failure] = time.time() - peer.failure_age_ms / 1000
        gone = [address for address in self._peer_gauges if address not in listed]
        for address in gone:
            self._show(data, address, dict.fromkeys(self._peer_gauges[address], 0))
        if gone:
            data["gone"][self._name] = gone
        for address, gauges in listed.items():
            self._show(data, address, gauges)
        self._peer_gauges = listed

    def _count(self, data: Data, id_: int, address: str, numbers: list[Number]) -> bool:
        """Whether a failure is among what is new."""
        seen = self._peer_counters.pop(id_, {})
        failed = False
        for name, reason, value, is_gauge in numbers:
            old = seen.get((name, reason), 0)
            if is_gauge or value == old:
                continue
            seen[name, reason] = value
            add_counts(peer_of(data, address)["counters"], {name: {reason: value - old}})
            failed = failed or name in ("loads_failed", "connection_failures")
        self._peer_counters[id_] = seen
        if len(self._peer_counters) > PEERS_REMEMBERED_MAX:
            del self._peer_counters[next(iter(self._peer_counters))]
        return failed

    def _show(self, data: Data, address: str, gauges: dict[tuple[str, str], int]) -> None:
        """All links of a gauge, if one has changed: the merged Data hold a node's links as one value."""
        known = self._peer_gauges.get(address, {})
        changed = {name for (name, link), value in gauges.items() if known.get((name, link)) != value}
        for name in changed:
            peer_of(data, address)["gauges"].setdefault(name, {})[self._name] = {
                link: value for (other, link), value in gauges.items() if other == name}


class Prometheus:
    """One API server's metrics of some engines."""

    def __init__(self, counter: Callable[..., Any], gauge: Callable[..., Any], histogram: Callable[..., Any],
                 labels: list[str], engines: dict[int, list[object]], prefix: str = PREFIX) -> None:
        """Classes like prometheus_client's; the engine's own labels, and their values by engine; what names begin with."""
        self._prefix = prefix
        self._labels = labels
        self._engines = engines
        latest = {"multiprocess_mode": "mostrecent"}
        self._counters = self._make(COUNTERS, counter)
        self._gauges = self._make(GAUGES, gauge, **latest)
        self._histograms = {stat: made for metric in HISTOGRAMS for stat, made in
                            self._make((metric,), histogram, buckets=bounds_of(metric)).items()}
        self._peer_counters = self._make(PEER_COUNTERS, counter)
        self._peer_gauges = self._make(PEER_GAUGES, gauge, **latest)
        self._peers: dict[tuple[int, str], Peer] = {}
        # The files of several API servers keep each label that ever was: what goes cannot be taken out.
        self._removes = "PROMETHEUS_MULTIPROC_DIR" not in os.environ

    def _make(self, metrics: tuple[Metric, ...], kind: Callable[..., Any],
              **arguments: Any) -> dict[str, tuple[Metric, Any]]:
        """By the library's numbers."""
        made = {}
        for metric in metrics:
            prom = kind(name=self._prefix + metric.name, documentation=metric.help,
                        labelnames=[*self._labels, *metric.labels], **arguments)
            if not metric.labels:
                for values in self._engines.values():
                    prom.labels(*values)
            made.update(dict.fromkeys(metric.stats, (metric, prom)))
        return made

    def observe(self, data: Data, engine_idx: int = 0) -> None:
        """Numbers that it does not know come from an engine with a newer library."""
        engine = self._engines[engine_idx]
        for name, reasons in data["counters"].items():
            if name in self._counters:
                metric, prom = self._counters[name]
                for reason, increase in reasons.items():
                    label = [REASON_OF.get(name, reason)] if metric.labels else []
                    prom.labels(*engine, *label).inc(increase / divisor_of(name))
        for name, nodes in data["gauges"].items():
            if name in self._gauges:
                for node, value in nodes.items():
                    self._gauges[name][1].labels(*engine, node).set(value)
        for name, buckets in data["histograms"].items():
            if name in self._histograms:
                child = self._histograms[name][1].labels(*engine)
                for count, total in buckets.values():
                    # The mean of a bucket's values lies in that bucket.
                    for _ in range(count):
                        child.observe(total / count / divisor_of(name))
        for address, increases in data["peers"].items():
            self._observe_peer(engine_idx, address, increases)
        for node, addresses in data["gone"].items():
            for address in addresses:
                self._forget(engine_idx, node, address)

    def _observe_peer(self, engine_idx: int, address: str, increases: dict[str, Any]) -> None:
        known = (engine_idx, address) in self._peers
        if not known and sum(index == engine_idx for index, _ in self._peers) >= PEER_LABELS_MAX:
            address = OTHER
        peer = self._peers.setdefault((engine_idx, address), Peer())
        engine = self._engines[engine_idx]
        for name, reasons in increases["counters"].items():
            if name in self._peer_counters:
                metric, prom = self._peer_counters[name]
                for reason, increase in reasons.items():
                    label = [reason] if "reason" in metric.labels else []
                    peer.child(prom, [*engine, address, *label]).inc(increase)
        if address == OTHER:
            return  # of many peers there is no one state
        gauges = [(name, node, link, value) for name, nodes in increases["gauges"].items() for node, links in nodes.items()
                  for link, value in links.items()]
        for name, node, link, value in gauges:
            peer.nodes.add(node)
            if name in self._peer_gauges:
                metric, prom = self._peer_gauges[name]
                label = [node, link, link] if metric.labels == PER_LINK else [node]
                peer.child(prom, [*engine, address, *label]).set(value)
        for reason, at in increases["failures"].items():
            peer.child(self._peer_gauges["last_failure"][1], [*engine, address, reason]).set(at)

    def _forget(self, engine_idx: int, node: str, address: str) -> None:
        """A peer that no node lists any more takes its labels with it."""
        peer = self._peers.get((engine_idx, address))
        if peer is None:
            return
        peer.nodes.discard(node)
        if not peer.nodes and self._removes:
            peer.remove()
            del self._peers[engine_idx, address]


@dataclass
class Peer:
    """A peer's label: which nodes list it, and its series."""

    nodes: set[str] = field(default_factory=set)
    series: set[tuple[Any, tuple[Any, ...]]] = field(default_factory=set)

    def child(self, prom: Any, values: list[Any]) -> Any:
        self.series.add((prom, tuple(values)))
        return prom.labels(*values)

    def remove(self) -> None:
        for prom, values in self.series:
            if hasattr(prom, "remove"):  # Ray's metrics keep what they have
                prom.remove(*values)


# ---- in the log ----

def summary(data: Data) -> dict[str, int | float]:
    """The line about transfers in the engine's log: what an operator wants to see of the last interval. `loads` always
    comes, the others where there is something to say."""
    def count(name: str, reason: str | None = None) -> int:
        reasons = data["counters"].get(name, {})
        return sum(reasons.values()) if reason is None else reasons.get(reason, 0)

    failed: Counter[str] = Counter()
    for name in ("loads_failed", "tickets_refused", "requests_lost"):
        failed.update(data["counters"].get(name, {}))
    line: dict[str, int | float] = {"loads": count("loads_done")}
    optional: dict[str, int | float] = {
        "loaded MB": round(count("bytes_loaded") / 1e6, 1),
        "mean load ms": mean_ms(data["histograms"].get("load_ns", {})),
        **{f"failed {reason}": number for reason, number in failed.items()},
        "lost ranks": count("ranks_lost"),
        "recomputed requests": count("verdicts", "recompute"),
        "recomputed tokens": count("recomputed_tokens"),
        "failed requests": count("verdicts", "fail"),
        "cancelled requests": count("requests_cancelled"),
        "retries": count("load_retries"),
        "stalls": count("load_stalls"),
        "refused by breakers": count("breaker_refusals"),
        "leases published": count("leases_published"),
        "leases expired": count("leases_ended", "expired"),
        "leases abandoned": count("leases_ended", "abandoned"),
        "quarantined blocks": sum(data["gauges"].get("blocks_quarantined", {}).values()),
        "peers with an open breaker": sum(is_open(peer) for peer in data["peers"].values()),
    }
    line.update({name: value for name, value in optional.items() if value})
    return line


def mean_ms(buckets: dict[str, list[int]]) -> float:
    loads = sum(count for count, _ in buckets.values())
    return round(sum(total for _, total in buckets.values()) / loads / 1e6, 1) if loads else 0.0


def is_open(peer: dict[str, Any]) -> bool:
    return any(value == _kvferry.BREAKER_OPEN for links in peer["gauges"].get("breaker", {}).values()
               for value in links.values())
