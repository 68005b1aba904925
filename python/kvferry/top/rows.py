"""From two snapshots to what is shown: no terminal here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .scrape import Snapshot

BREAKERS = ("closed", "probed", "open")


class EngineRow(NamedTuple):
    url: str
    engine: str
    trouble: str
    loads_per_s: float | None
    failures_per_s: float | None
    bytes_per_s: float | None
    load_ms: float | None
    recomputed_per_s: float | None
    loads_open: float
    leases: float
    leases_per_s: float | None
    expired: float
    quarantined: float


class PeerRow(NamedTuple):
    url: str
    engine: str
    peer: str
    links: list[tuple[str, int, bool]]
    """(name, breaker, is up), the worst over the engine's nodes."""
    reads: float
    loads_per_s: float | None
    bytes_per_s: float | None
    failures: float
    last_failure: str
    last_failure_age_s: float


class FailureRow(NamedTuple):
    url: str
    engine: str
    reason: str
    count: float
    per_s: float | None
    recomputed_tokens: float


class Pair(NamedTuple):
    """One URL now and before; `before` is None at first, and after it did not answer."""

    now: Snapshot
    before: Snapshot | None

    def increase(self, name: str, **labels: str) -> float | None:
        """None where there is nothing to compare with, or the engine has been restarted in between."""
        if self.before is None:
            return None
        increase = self.now.total(name, **labels) - self.before.total(name, **labels)
        return increase if increase >= 0 else None

    def rate(self, name: str, **labels: str) -> float | None:
        increase = self.increase(name, **labels)
        if increase is None or self.before is None or self.now.at <= self.before.at:
            return None
        return increase / (self.now.at - self.before.at)


def pair(now: Snapshot, before: Snapshot | None) -> Pair:
    return Pair(now, before if before is not None and not before.trouble else None)


def engines(pairs: list[Pair]) -> Iterator[EngineRow]:
    for both in pairs:
        if both.now.trouble:
            yield EngineRow(both.now.url, "", both.now.trouble, *[None] * 5, 0, 0, None, 0, 0)
        for engine in engines_of(both.now):
            yield engine_row(both, engine)


def engines_of(snapshot: Snapshot) -> list[str]:
    return sorted({sample.labels.get("engine", "") for sample in snapshot.samples})


def engine_row(both: Pair, engine: str) -> EngineRow:
    loads = both.increase("load_seconds_count", engine=engine)
    seconds = both.increase("load_seconds_sum", engine=engine)
    return EngineRow(
        url=both.now.url, engine=engine, trouble="",
        loads_per_s=both.rate("loads_total", engine=engine),
        failures_per_s=both.rate("load_failures_total", engine=engine),
        bytes_per_s=both.rate("loaded_bytes_total", engine=engine),
        load_ms=1000 * seconds / loads if loads and seconds is not None else None,
        recomputed_per_s=both.rate("recomputed_tokens_total", engine=engine),
        loads_open=both.now.total("loads_open", engine=engine),
        leases=both.now.total("leases", engine=engine),
        leases_per_s=both.rate("leases_published_total", engine=engine),
        expired=both.now.total("leases_ended_total", engine=engine, cause="expired"),
        quarantined=both.now.total("blocks_quarantined", engine=engine))


def peers(pairs: list[Pair]) -> list[PeerRow]:
    """Those in trouble first."""
    rows = [peer_row(both, engine, peer) for both in pairs for engine in engines_of(both.now)
            for (peer,) in both.now.by("peer_breaker", "peer", engine=engine)]
    return sorted(rows, key=lambda row: (-max(breaker for _, breaker, _ in row.links), row.url, row.engine, row.peer))


def peer_row(both: Pair, engine: str, peer: str) -> PeerRow:
    labels = {"engine": engine, "peer": peer}
    links: dict[str, tuple[int, bool]] = {}
    ups = both.now.by("peer_up", "link", "node", **labels)
    for (link, node), breaker in both.now.by("peer_breaker", "link", "node", **labels).items():
        old = links.get(link, (0, False))
        links[link] = (max(old[0], min(max(int(breaker), 0), 2)), old[1] or ups.get((link, node), 0) > 0)
    failures = both.now.by("peer_last_failure_timestamp_seconds", "reason", **labels)
    at, reason = max(((at, reason) for (reason,), at in failures.items()), default=(0.0, ""))
    return PeerRow(
        url=both.now.url, engine=engine, peer=peer,
        links=[(name, *links[name]) for name in sorted(links)],
        reads=both.now.total("peer_reads_in_flight", **labels),
        loads_per_s=both.rate("peer_loads_total", **labels),
        bytes_per_s=both.rate("peer_loaded_bytes_total", **labels),
        failures=both.now.total("peer_load_failures_total", **labels),
        last_failure=reason, last_failure_age_s=max(both.now.at - at, 0.0) if reason else 0.0)


def failures(pairs: list[Pair]) -> list[FailureRow]:
    """The most frequent first."""
    rows = [FailureRow(both.now.url, engine, reason, count,
                       both.rate("load_failures_total", engine=engine, reason=reason),
                       both.now.total("recomputed_tokens_total", engine=engine, reason=reason))
            for both in pairs for engine in engines_of(both.now)
            for (reason,), count in both.now.by("load_failures_total", "reason", engine=engine).items() if count]
    return sorted(rows, key=lambda row: (-row.count, row.reason, row.url))
