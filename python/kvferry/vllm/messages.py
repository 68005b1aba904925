"""What the scheduler side and the workers tell each other, once in every engine step."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from kvferry import _kvferry

from .adapters import Adapter, Content

Publication = tuple[bytes, bytes, int, tuple[bytes, ...]]
"""As Node.lease_publish() takes it; `user` is the lease's id."""

Load = tuple[int, str, bytes, int, int, tuple[bytes, ...]]
"""As Node.load_start() takes it; `user` is the number of positions."""


@dataclass
class Orders(KVConnectorMetadata):
    """Scheduler side to every worker. What is ended or aborted comes before the step's memory work."""

    end: list[bytes] = field(default_factory=list)
    abort: list[int] = field(default_factory=list)
    publish: list[Publication] = field(default_factory=list)
    load: list[Load] = field(default_factory=list)
    lease_adapters: dict[int, Content] = field(default_factory=dict)
    load_adapters: dict[int, Content] = field(default_factory=dict)
    """By lease, and by request: what the rank must have in memory to publish, or to load."""
    last_words: list[str] = field(default_factory=list)
    """vLLM's ids of requests that have ended, and that it keeps until every rank has said so."""
    answer: bool = False
    """The scheduler side waits for something: answer even if there is no news."""


@dataclass
class Ending:
    """Scheduler side to every worker, between steps: to be ended now, and confirmed."""

    leases: dict[int, bytes] = field(default_factory=dict)
    loads: list[int] = field(default_factory=list)


@dataclass
class News(KVConnectorWorkerMetadata):
    """Workers to the scheduler side. Sets of ranks are bit masks, so that merging is idempotent."""

    reports: dict[int, bytes] = field(default_factory=dict)
    """By request: what the ranks found."""
    quiet: dict[int, int] = field(default_factory=dict)
    """By request: the ranks on which nothing writes to its blocks any more."""
    ended: dict[int, int] = field(default_factory=dict)
    """By lease: the ranks that have ended it."""
    unpublished: set[int] = field(default_factory=set)
    """Leases that some rank could not publish."""
    stuck: set[int] = field(default_factory=set)
    """Requests whose load does not become quiet on some rank."""
    refused: set[int] = field(default_factory=set)
    """Requests that some rank does not load, since it has another adapter."""
    adapters: dict[int, dict[int, Adapter]] = field(default_factory=dict)
    """By rank and vLLM's id: those that have changed."""

    def is_empty(self) -> bool:
        """Not __bool__: vLLM drops what is false, and an empty answer is an answer."""
        return not (self.reports or self.quiet or self.ended or self.unpublished or self.stuck or self.refused
                    or self.adapters)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> News:
        assert isinstance(other, News)
        merged = News(dict(self.reports), dict(self.quiet), dict(self.ended), self.unpublished | other.unpublished,
                      self.stuck | other.stuck, self.refused | other.refused, self.adapters | other.adapters)
        for request_id, report in other.reports.items():
            mine = merged.reports.get(request_id)
            merged.reports[request_id] = report if mine is None else _kvferry.report_merge(mine, report)
        for mine_masks, masks in ((merged.quiet, other.quiet), (merged.ended, other.ended)):
            for key, mask in masks.items():
                mine_masks[key] = mine_masks.get(key, 0) | mask
        return merged
