"""From what engines have counted to a line for each step: no network here."""

from __future__ import annotations

import ipaddress
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvferry.top.scrape import Sample, Snapshot

from . import table
from .table import OF_VLLM, Step

TOLERATED = 0.05
"""The share of prompts, tickets or loads that may go another way in a step that is well."""
OK, LESS, FAIL, UNKNOWN = "ok", "less", "FAIL", "?"
"""LESS: nothing fails, and less is loaded than one may think."""


class Line(NamedTuple):
    level: str
    step: Step
    text: str
    remedy: str = ""
    reason: str = ""

    def text_of(self) -> str:
        tail = f": {self.remedy}" if self.remedy else ""
        return f"{self.level:4}  {table.STEPS.index(self.step) + 1} {self.step.name:7} {self.text}{tail}"


# ---- who is who ----

class Engine(NamedTuple):
    """One engine: what it shows now, and what of it is to be judged."""

    now: Snapshot
    counted: Snapshot

    @property
    def is_p(self) -> bool:
        return self.now.total("leases_published_total") + self.now.total("no_tickets_total") > 0

    @property
    def is_d(self) -> bool:
        return sum(map(self.now.total, ("requests_total", "not_loaded_total", "load_failures_total"))) > 0


def since(now: Snapshot, before: Snapshot) -> Snapshot:
    """What has been counted in between; gauges are as they are now. A counter that is less than before has begun anew."""
    old = {(sample.name, *sorted(sample.labels.items())): sample.value for sample in before.samples}

    def less_old(sample: Sample) -> Sample:
        was = old.get((sample.name, *sorted(sample.labels.items())), 0.0)
        counts = sample.name.endswith(("_total", "_sum", "_count", "_bucket")) and was <= sample.value
        return sample._replace(value=sample.value - was) if counts else sample
    return Snapshot(now.url, now.at, [less_old(sample) for sample in now.samples])


def engines_of(now: Snapshot, before: Snapshot | None) -> list[Engine]:
    """One of each URL, but of Ray's one for each replica."""
    counted = now if before is None or before.trouble else since(now, before)

    def of(snapshot: Snapshot, replica: str) -> Snapshot:
        return Snapshot(snapshot.url, snapshot.at, [one for one in snapshot.samples if one.labels.get("ReplicaId", "") == replica])
    return [Engine(of(now, replica), of(counted, replica))
            for replica in sorted({sample.labels.get("ReplicaId", "") for sample in now.samples})]


@dataclass
class Side:
    """The engines of one side, together."""

    engines: list[Engine] = field(default_factory=list)

    def total(self, name: str, **labels: str) -> float:
        return sum(engine.counted.total(name, **labels) for engine in self.engines)

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """The most frequent first."""
        sums: dict[str, float] = {}
        for engine in self.engines:
            for (value,), count in engine.counted.by(name, label, **labels).items():
                sums[value] = sums.get(value, 0.0) + count
        return dict(sorted(((value, count) for value, count in sums.items() if count), key=lambda item: (-item[1], item[0])))

    def once(self, name: str) -> float:
        """What each rank counts, as if one did."""
        return sum(engine.counted.total(name) / ranks_of(engine.now) for engine in self.engines)

    def has(self, name: str) -> bool:
        return any(sample.name == name for engine in self.engines for sample in engine.now.samples)


def ranks_of(snapshot: Snapshot) -> int:
    nodes = {sample.labels.get("node", "") for sample in snapshot.samples}
    return max(1, sum(node.startswith("rank ") for node in nodes))


class Sides(NamedTuple):
    p: Side
    d: Side


def sides_of(engines: Sequence[Engine]) -> Sides:
    """An engine that nobody has asked for a ticket, or brought one, is of the side that the others are not of. If all are idle, none is."""
    p, d = [one for one in engines if one.is_p], [one for one in engines if one.is_d]
    if bool(p) != bool(d):
        (d if p else p).extend(one for one in engines if not one.is_p and not one.is_d)
    return Sides(Side(p), Side(d))


# ---- numbers in words ----

def number(value: float) -> str:
    return f"{value:,.0f}"


def many(value: float, noun: str) -> str:
    return f"{number(value)} {noun}{'' if round(value) == 1 else 's'}"


def listed(counts: dict[str, float]) -> str:
    return ", ".join(f"{name} {number(count)}" for name, count in counts.items())


def share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def remedy_of(step: Step, reason: str) -> str:
    cause = step.causes.get(reason)
    return cause.remedy if cause else f"kvferry explain {reason}"


# ---- a step each ----

def judge(step: Step, failures: dict[str, float], whole: float, text: str) -> Line:
    """Fails if more than the tolerated share goes another way, by the most frequent reason."""
    tail = f"; {listed(failures)}" if failures else ""
    if share(sum(failures.values()), whole) > TOLERATED:
        reason = next(iter(failures))
        return Line(FAIL, step, text + tail, remedy_of(step, reason), reason)
    return Line(OK, step, text + tail)


def unknown(step: Step, why: str) -> Line:
    return Line(UNKNOWN, step, why)


def stopped(step: Step, side: Side, who: str) -> Line | None:
    if not side.total("transfers_stopped"):
        return None
    return Line(FAIL, step, f"transfers_stopped: {who} has stopped all transfers after an internal error", remedy_of(step, "transfers_stopped"))


def without_p(step: Step) -> Line:
    return unknown(step, "P is missing: name the URL of the engine that prefills, too")


def without_d(step: Step, more: str = "") -> Line:
    return unknown(step, "D is missing: name the URL of the engine that decodes, too" + more)


def tickets(p: Side, d: Side) -> Line:
    step, given, refused = table.TICKETS, p.once("leases_published_total"), p.by("no_tickets_total", "reason")
    if not p.engines:
        return without_p(step)
    if line := stopped(step, p, "P"):
        return line
    if not given and not refused:
        return Line(FAIL, step, "not_asked: P has been asked for no ticket", remedy_of(step, "not_asked"))
    return judge(step, refused, given + sum(refused.values()), f"P has given {many(given, 'ticket')}")


def brought(d: Side) -> float:
    return d.total("requests_total") + sum(refused(d).values()) + d.total("not_loaded_total")


def refused(d: Side) -> dict[str, float]:
    return {reason: count for reason, count in d.by("load_failures_total", "reason").items() if reason in table.TICKET.causes}


def router(p: Side, d: Side) -> Line:
    step, given, seen = table.ROUTER, p.once("leases_published_total"), brought(d)
    expired = p.total("leases_ended_total", cause="expired")
    if not d.engines:
        return without_d(step, f"; at P {many(expired, 'lease')} of {number(p.total('leases_published_total'))} ran out unread")
    if not p.engines:
        return Line(OK, step, f"D has seen {many(seen, 'ticket')}") if seen else without_p(step)
    text = f"D has seen {number(seen)} of P's {many(given, 'ticket')}"
    lost = given - seen - p.total("leases_untaken")
    if given and (seen == 0 or (share(lost, given) > TOLERATED and expired > 0)):
        return Line(FAIL, step, f"not_brought: {text}", remedy_of(step, "not_brought"))
    return Line(OK, step, text)


def ticket(p: Side, d: Side) -> Line:
    return judge(table.TICKET, refused(d), brought(d), f"D has taken {many(d.total('requests_total'), 'ticket')}")


def use(p: Side, d: Side) -> Line:
    unused = d.by("not_loaded_total", "reason")
    return stopped(table.USE, d, "D") or judge(table.USE, unused, brought(d), f"D has left {many(sum(unused.values()), 'ticket')} unused")


def load(p: Side, d: Side) -> Line:
    step, arrived = table.LOAD, d.total("loads_total")
    failed = {reason: count for reason, count in d.by("load_failures_total", "reason").items() if reason not in table.TICKET.causes}
    open_now = d.total("requests_open")
    waiting = f", {many(open_now, 'request')} not over yet" if open_now and not failed else ""
    line = judge(step, failed, arrived + sum(failed.values()), f"{many(arrived, 'load')} arrived{waiting}")
    if line.level != FAIL:
        return line
    reason = next(iter(failed))
    peers = d.by("peer_load_failures_total", "peer", reason=reason)
    peer = next(iter(peers), "")
    if reason in ("peer_down", "peer_restarted") and is_elsewhere(peer, p, d):
        line = line._replace(text=f"{line.text} (loopback)", remedy=remedy_of(step, "loopback"))
    at = f" at {peer}" if peer else ""
    return line._replace(text=line.text + at, remedy=line.remedy.replace("PEER", peer or "HOST:PORT of P"))


def is_elsewhere(peer: str, p: Side, d: Side) -> bool:
    """A peer of a loopback address, though P and D are named by two hosts."""
    def host(engine: Engine) -> str:
        return urllib.parse.urlsplit(engine.now.url).hostname or ""
    try:
        is_loopback = ipaddress.ip_address(peer.rpartition(":")[0].strip("[]")).is_loopback
    except ValueError:
        return False
    return is_loopback and bool({host(engine) for engine in p.engines} ^ {host(engine) for engine in d.engines})


def all_of_it(p: Side, d: Side) -> Line:
    step, failed = table.ALL, policy_fails(d)
    missing = [f"vllm:{name}" for name in OF_VLLM.values() if not d.has(f"vllm:{name}")]
    text, ours, loaded = tokens_of(d)
    if failed and share(failed, d.total("verdicts_total")) > TOLERATED:
        return Line(FAIL, step, f"policy_fail: {many(failed, 'request')} of {number(d.total('verdicts_total'))} ended with an error",
                    remedy_of(step, "policy_fail"))
    block, prompt = block_tokens(d), share(d.total("vllm:" + OF_VLLM["tokens"]), d.total("vllm:" + OF_VLLM["prompts"]))
    if 0 < prompt < block:
        return Line(LESS, step, f"short_prompts: a prompt has {number(prompt)} tokens on average, a block {number(block)}; {text}",
                    remedy_of(step, "short_prompts"))
    if ours > loaded:
        return Line(LESS, step, f"own_cache: {text}", remedy_of(step, "own_cache"))
    if not d.has("vllm:" + OF_VLLM["by_source"]):
        return unknown(step, f"D's page has no {', '.join(missing)}, which say how many tokens were loaded")
    return Line(OK, step, text + (f"; prompts are not compared with a block: D's page has no {', '.join(missing)}" if missing else ""))


def policy_fails(d: Side) -> float:
    return d.total("verdicts_total", action="fail")


def block_tokens(d: Side) -> float:
    sizes = [sample.labels.get("block_size", "") for engine in d.engines for sample in engine.now.samples
             if sample.name == "vllm:" + OF_VLLM["cache"]]
    return max((float(size) for size in sizes if size.isdigit()), default=0.0)


def tokens_of(d: Side) -> tuple[str, float, float]:
    """In words, from D's own cache, and loaded."""
    name = "vllm:" + OF_VLLM["by_source"]
    ours, loaded = d.total(name, source="local_cache_hit"), d.total(name, source="external_kv_transfer")
    prompt = d.total(name)
    return (f"of D's {many(prompt, 'prompt token')} {number(loaded)} were loaded ({100 * share(loaded, prompt):.0f} %), {number(ours)} were in "
            f"its own cache, {number(prompt - ours - loaded)} were computed there", ours, loaded)


D_STEPS: tuple[tuple[Step, Callable[[Side, Side], Line]], ...] = (
    (table.TICKET, ticket), (table.USE, use), (table.LOAD, load), (table.ALL, all_of_it))


def lines(sides: Sides) -> list[Line]:
    """One for each step, in their order."""
    p, d = sides.p, sides.d
    if not p.engines and not d.engines:
        return [Line(FAIL, table.TICKETS, "not_asked: none of these engines has been asked for a ticket, or been given one",
                     remedy_of(table.TICKETS, "not_asked")), *(unknown(step, "nothing to judge yet") for step in table.STEPS[1:])]
    made = [tickets(p, d), router(p, d)]
    for step, of in D_STEPS:
        if not d.engines:
            made.append(without_d(step))
        elif not brought(d):
            made.append(unknown(step, "nothing to judge: D has seen no ticket"))
        else:
            made.append(of(p, d))
    return [with_errors(line, policy_fails(d)) for line in made]


def with_errors(line: Line, failed: float) -> Line:
    """What a failing ticket or load has cost its client is said beside it."""
    if line.level != FAIL or line.step not in (table.TICKET, table.LOAD) or not failed:
        return line
    return line._replace(text=f"{line.text}; policy fail: {many(failed, 'request')} ended with an error")


def verdict(made: list[Line]) -> Line:
    """The first line: the first step that fails, or else the one in which less is loaded, or that all is well. Leases that nobody fetches,
    or that D cannot end, fill P's room: then that is the cause, and not the room."""
    failing = [line for line in made if line.level == FAIL]
    causes = [line for line in failing if line.step not in (table.TICKETS, table.ALL)]
    if causes and failing[0].reason == "no_lease":
        return causes[0]
    if found := failing or [line for line in made if line.level == LESS]:
        return found[0]
    said = "; ".join(line.text for line in made if line.step in (table.LOAD, table.ALL) and line.level == OK)
    return Line(OK, table.ALL, f"no step fails: {said or 'see what is missing below'}")
