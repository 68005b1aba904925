"""The line about transfers in vLLM's log: what an operator wants to see of the last interval."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvferry import _kvferry


def summary(data: dict[str, Any]) -> dict[str, int | float]:
    """Of Stats' data. `loads` always comes, the others where there is something to say."""
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
    return any(value == _kvferry.BREAKER_OPEN for paths in peer["gauges"].get("breaker", {}).values()
               for value in paths.values())
