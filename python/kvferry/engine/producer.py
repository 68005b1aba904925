"""The scheduler side of handing a prompt over. It reserves a lease in the step of the prompt's last tokens, and makes the
ticket when the request finishes. It keeps the blocks until every rank has ended the lease."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvferry import Publication, _kvferry

from .boundary import INTERNAL_ERROR
from .messages import RankReport, StepOrders, count_positions, log_left_out
from .metrics import Counters

if TYPE_CHECKING:
    from kvferry import Node

PAUSED, WEIGHTS_CHANGED, LEASE_ENDED = "paused", "weights_changed", "lease_ended"
PREEMPTED, ABORTED = "preempted", "aborted"
"""Why there is no ticket, beside NotCarried and the library's statuses."""
FREES_WITHIN_S = 1.0  # how long an engine waits for the blocks of leases, at a stretch, before it preempts


@dataclass
class Lease:
    id: int
    lease: bytes
    prompt: bytes
    blocks: tuple[bytes, ...]
    key: str  # the engine's id of its request
    ended: bool = False  # on some rank
    ending: bool = False  # the ranks have been told to end it
    is_known: bool = True  # to the ranks, or soon: its publication is among a step's orders
    made_s: float = field(default_factory=time.time)
    held: list[Any] = field(default_factory=list)
    """Blocks that the lease references, too: those that leave windows, and all once the request has finished. Other
    users of them have their own references."""


class Producer:
    def __init__(self, node: Node, counters: Counters, pool_blocks: int, wait_s: float) -> None:
        """`wait_s`: how long a prompt waits for its lease before it is computed."""
        self._node = node
        self._counters = counters
        self._pool_blocks = pool_blocks
        self._wanted: dict[str, Any] = {}  # requests that another engine will decode
        self._leases: dict[int, Lease] = {}
        self._by_request: dict[str, Lease] = {}
        self._end: list[bytes] = []
        self._later: dict[str, tuple[Publication, Any]] = {}  # by request: to be published when it has finished
        self._finished: list[tuple[Publication, Any]] = []  # of those
        self._wait_s = wait_s
        self._waits_until: dict[str, float] = {}
        self._reserved: dict[str, tuple[bytes, int]] = {}
        """By request that is not computed yet: the lease that it will have, if prompts wait for theirs."""
        self._short_since: float | None = None  # in each step since then the engine has lacked blocks
        self._short = False
        self._refused = False  # a lease, for want of room, since the last step
        self.paused = False  # the engine waits for work to end: no new leases
        self.drains = False  # the engine ends, and takes no more requests
        self.is_woken = False  # the engine steps, be it idle, when a rank has something to say
        self.has_news = False  # some rank has, since the last step

    # ---- what an engine's adapter does ----

    def hold(self, lease: Lease, request: Any, sliding: bool) -> None:
        """Has the lease reference the blocks of those groups that slide, or of those that do not."""
        raise NotImplementedError

    def free_blocks(self, blocks: list[Any]) -> None:
        """The lease's references."""
        raise NotImplementedError

    # ---- what the engine's scheduler says ----

    @property
    def has_leases(self) -> bool:
        return bool(self._leases)

    @property
    def leases(self) -> int:
        """That some rank has not ended. Any thread may ask."""
        return len(self._leases)

    @property
    def oldest_lease_s(self) -> float:
        """When the oldest lease that is out was given; 0: there is none."""
        return next((lease.made_s for lease in self._leases.values()), 0)

    @property
    def busy(self) -> bool:
        if self.drains or not self.is_woken:
            return self.has_leases
        return bool(self._end or self._finished or self.has_news)

    def waits_for_lease(self, key: str, blocks: Callable[[], int | None]) -> bool:
        """Whether a request is not to be computed yet, since leases leave no room for its own of so many blocks (None: it
        will have none). Asked often."""
        if self._wait_s == 0 or key not in self._wanted or key in self._reserved:
            return False
        wanted = blocks()
        if wanted is None:
            return False
        until = self._waits_until.setdefault(key, time.monotonic() + self._wait_s)
        status, lease, lease_id = self._reserve(self._node.lease_reserve, wanted)
        if lease is not None:
            self._reserved[key] = lease, lease_id
            return False
        return status == _kvferry.NO_LEASE and time.monotonic() < until

    def _reserve(self, reserve: Callable[[Any, int], tuple[int, bytes | None, int]],
                 wanted: Any) -> tuple[int, bytes | None, int]:
        reserved = reserve(wanted, self._pool_blocks)
        self._refused |= reserved[0] == _kvferry.NO_LEASE
        return reserved

    def frees_soon(self) -> bool:
        """Whether the engine, which lacks blocks, had better wait for those that only leases hold. Not for ever: some may
        last."""
        if len(self._leases) == len(self._by_request):
            return False
        self._short = True
        if self._short_since is None:
            self._short_since = time.monotonic()
        return time.monotonic() < self._short_since + FREES_WITHIN_S

    def collect(self, orders: StepOrders) -> None:
        orders.make_room = self._short or self._refused or self.drains
        if not self._short:
            self._short_since = None
        self._short = self._refused = False
        self.has_news = False
        orders.end, self._end = self._end, []
        for publication, content in self._finished:
            self._order(orders, publication, content)
        self._finished = []

    def publish(self, orders: StepOrders, key: str, prompt: bytes, blocks: tuple[bytes, ...], content: Any = None,
                goes_on: bool = False) -> None:
        """This step computes the prompt's last tokens, with this LoRA adapter. `goes_on`: the request will write into the last
        block again, and readers compare bytes: they are complete when it has finished."""
        if count_positions(blocks) > _kvferry.BLOCKS_PER_LEASE_MAX:
            self.refuse(key, _kvferry.status_name(_kvferry.LIMIT))
            return
        if key in self._reserved:
            reserved, lease_id = self._reserved.pop(key)
        else:
            status, lease, lease_id = self._reserve(self._node.lease_reserve_blocks, blocks)
            if lease is None:
                self.refuse(key, _kvferry.status_name(status), _kvferry.error_text())
                return
            reserved = lease
        made = self._leases[lease_id] = self._by_request[key] = Lease(lease_id, reserved, prompt, blocks, key)
        self.hold(made, self._wanted[key], sliding=True)  # the engine gives it back as the request goes on
        publication = Publication(reserved, prompt, lease_id, blocks)
        made.is_known = not goes_on
        if goes_on:
            self._later[key] = publication, content
        else:
            self._order(orders, publication, content)

    @staticmethod
    def _order(orders: StepOrders, publication: Publication, content: Any) -> None:
        orders.publish.append(publication)
        if content is not None:
            orders.lease_adapters[publication.user] = content

    def forget(self, key: str) -> None:
        self._wanted.pop(key, None)
        self._later.pop(key, None)
        self._waits_until.pop(key, None)
        if key in self._reserved:
            self._node.lease_release([self._reserved.pop(key)[1]])

    def refuse(self, key: str, reason: str, why: str = "") -> None:
        self.forget(key)
        self._counters.add("no_tickets", reason)
        log_left_out("kvferry: request %s gets no ticket: %s", key, reason, why)

    def abandon(self, key: str) -> None:
        """The engine has taken the blocks of a running request: its lease, if any, ends before the step's memory work."""
        lease = self._by_request.pop(key, None)
        self._later.pop(key, None)
        if lease is not None:
            self._tell_end(lease)

    def _tell_end(self, lease: Lease) -> None:
        if not lease.is_known:
            self._node.lease_release([lease.id])
            del self._leases[lease.id]
            self.free_blocks(lease.held)
        elif not lease.ending:
            lease.ending = True
            self._end.append(lease.lease)

    def end_all(self) -> dict[int, bytes]:
        """All leases that some rank still has to end, by id; the caller ends them."""
        for lease in self._leases.values():
            lease.ending = True
        return {lease.id: lease.lease for lease in self._leases.values()}

    def give_up(self, key: str) -> None:
        """No ticket; if the request has a lease, it ends before the next step's memory work."""
        if key in self._wanted:
            self.refuse(key, INTERNAL_ERROR)
        self._by_request.pop(key, None)
        self._later.pop(key, None)
        for lease in [lease for lease in self._leases.values() if lease.key == key]:
            self._tell_end(lease)

    def stop(self) -> None:
        """All leases have ended on all ranks."""
        leases = list(self._leases.values())
        self._leases, self._by_request, self._end, self._later, self._finished = {}, {}, [], {}, []
        self.is_woken = False  # no step takes a rank's news any more
        for key in list(self._wanted):
            self.forget(key)
        self._node.lease_release([lease.id for lease in leases])
        for lease in leases:
            self.free_blocks(lease.held)

    def live(self, lease_ids: Iterable[int]) -> list[int]:
        return [id_ for id_ in lease_ids if id_ in self._leases]

    def end(self, key: str, request: Any, is_read: bool) -> str | None:
        """The request has finished: its ticket, if somebody reads it. From now on the lease alone keeps the blocks."""
        wanted, later = key in self._wanted, self._later.get(key)
        self.forget(key)
        lease = self._by_request.pop(key, None)
        if lease is not None:
            self.hold(lease, request, sliding=False)
        ticket = self._ticket(key, lease, is_read) if wanted else None
        if lease is not None and ticket is None:
            self._tell_end(lease)
        if lease is not None and ticket is not None and later is not None:
            lease.is_known = True
            self._finished.append(later)
        return ticket

    def copy_ticket(self, key: str) -> str | None:
        """Of another request's prompt, which has been computed, and whose lease has not ended."""
        lease = self._by_request.get(key)
        if lease is None or lease.ending or lease.ended:
            return None
        return self._node.ticket_make(lease.lease, lease.prompt, lease.blocks)[1]

    def _ticket(self, key: str, lease: Lease | None, is_read: bool) -> str | None:
        if not is_read:
            self._counters.add("no_tickets", ABORTED)  # not logged: most often it is the client that has left
        elif lease is None:
            self.refuse(key, PREEMPTED)  # the step that was under way has ended it
        elif lease.ending or lease.ended:
            self.refuse(key, LEASE_ENDED)
        else:
            status, ticket = self._node.ticket_make(lease.lease, lease.prompt, lease.blocks)
            if ticket is None:
                self.refuse(key, _kvferry.status_name(status), _kvferry.error_text())
            return ticket
        return None

    # ---- what the ranks say ----

    def receive(self, report: RankReport) -> None:
        for lease_id in report.unpublished & self._leases.keys():
            self._tell_end(self._leases[lease_id])
        ended = list(report.ended & self._leases.keys())
        for lease_id, status in zip(ended, self._node.lease_ended(ended, report.rank)):
            lease = self._leases[lease_id]
            lease.ended = True
            if status == _kvferry.OK:
                self._release(lease)

    def _release(self, lease: Lease) -> None:
        """It has ended on all ranks."""
        del self._leases[lease.id]
        if lease.held:
            self.free_blocks(lease.held)
        if self._by_request.get(lease.key) is lease:
            # It ended before its request did: what is left of the request needs no ticket.
            del self._by_request[lease.key]
            self.refuse(lease.key, LEASE_ENDED)
