"""One fault, tried on a running stack, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from . import metrics
from .client import Reply
from .faults import Fault
from .progress import say
from .rig import RECOMPUTED, Rig

FAILURES = "kvferry_load_failures_total"
DIALS = "kvferry_peer_dials_total"
LOADED = "vllm:external_prefix_cache_hits_total"
LOADED_BLOCKS = "kvferry_loaded_blocks_total"


@dataclass(frozen=True)
class Outcome:
    fault: Fault
    connector: str
    reply: Reply | None
    same_tokens: bool | None
    recomputed: int
    reasons: dict[str, int]
    loaded: int
    loaded_blocks: int
    """That kvferry's fence has confirmed."""
    dials: int
    probe: Reply
    blocks_back_s: float | None

    @property
    def good(self) -> bool:
        """Right tokens, by a load where there can be one, or a client that left; D alive; every block back."""
        right = self.reply is None or bool(self.same_tokens)
        if self.fault.loads and (self.recomputed or not self.loaded_blocks):
            return False
        return right and self.probe.ok and self.blocks_back_s is not None


def grown(before: metrics.Samples, after: metrics.Samples, name: str) -> int:
    return int(metrics.total(after, name) - metrics.total(before, name))


def new_by(label: str, before: metrics.Samples, after: metrics.Samples, name: str) -> dict[str, int]:
    """What has grown of each, of those that have."""
    old, new = (metrics.by_label(samples, name, label) for samples in (before, after))
    return {value: int(count - old.get(value, 0)) for value, count in new.items() if count > old.get(value, 0)}


def new_failures(before: metrics.Samples, after: metrics.Samples) -> dict[str, int]:
    return new_by("reason", before, after, FAILURES)


def blocks_back(rig: Rig) -> float | None:
    """Seconds until no block is in use on either engine; None, and both started anew, if some stay in use."""
    try:
        return rig.stack.wait_idle()
    except TimeoutError as late:
        say(f"  {late}; starting both engines anew")
        for engine in rig.stack.engines:
            rig.stack.restart(engine)
        return None


def run(rig: Rig, fault: Fault) -> Outcome:
    expected = rig.expected(fault.asks(rig))
    rig.settle()
    before = rig.counters()
    try:
        reply = fault.inject(rig)
        probe = rig.probe()
    finally:
        fault.undo(rig)
    back_s = blocks_back(rig)
    after = rig.counters()
    return Outcome(
        fault, rig.connector, reply,
        same_tokens=reply.tokens == expected if reply is not None and reply.ok else None,
        recomputed=grown(before, after, RECOMPUTED),
        loaded=grown(before, after, LOADED),
        loaded_blocks=grown(before, after, LOADED_BLOCKS),
        dials=grown(before, after, DIALS),
        reasons=new_failures(before, after), probe=probe, blocks_back_s=back_s)
