"""The scheduler side of loading a prompt that another engine has computed.

    OPEN ──admitted──► LOADING ──verdict, and released on all ranks──► done
      └──────verdict──────┴──────► FAILING ──the engine ends it with an error──► done

A request that is LOADING is one that the engine keeps waiting, and that it is told of once. One that ends there waits for a
last word from every rank, and its blocks until they are released.

Of the requests with one ticket the first one loads, and the others wait OPEN, no longer than their own load might take: they
find its blocks in the engine's cache. If its load fails, the next one that is asked for loads.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kvferry import Load, _kvferry

from .boundary import INTERNAL_ERROR
from .errors import Failures
from .log import limited
from .messages import IN_A_LIST, LORA_CHANGED, News, Orders, log_left_out
from .metrics import Counters

if TYPE_CHECKING:
    from kvferry import Node
    from kvferry._kvferry import Event, Verdict

WEIGHTS_CHANGED, DISCARDED, NOT_TAKEN, PREEMPTED = "weights_changed", "discarded", "not_taken", "preempted"
"""Why a ticket is not used, beside NoIdentity: the engine has reset its cache, or paused, while its load was under way; the
engine did not take the offer: another connector loads, or its logprobs are asked for; the engine has taken back the
blocks of a running request, whose lease ended when it had been loaded."""


class Phase(enum.Enum):
    OPEN = enum.auto()
    LOADING = enum.auto()
    FAILING = enum.auto()


@dataclass
class Arrival:
    """A request that came with a ticket."""

    key: str  # the engine's id
    request: Any
    phase: Phase = Phase.OPEN
    ticket: str = ""
    prompt: bytes = b""
    content: Any = None  # of its LoRA adapter
    id: int = 0  # the library's id; 0 if it has refused the ticket
    attachment: int = 0  # the library's number of those with the same ticket
    waits_since: float | None = None  # while another one of the same ticket loads
    waited_s: float = 0.0  # before
    came_s: float = field(default_factory=time.time)
    counts: tuple[int, ...] = ()
    peer: str | None = None  # the producer's address, if the ticket was good
    load_timeout_ms: int = 0
    keep_from: int = 0  # of a failed load: fewer good tokens are of no use
    mistake: str | None = None  # what is wrong with the request itself
    verdict: Verdict | None = None
    offered: bool = False
    admitted: bool = False
    discarded: str = ""  # why what it has loaded is not wanted any more: it is computed here


class Quarantine(NamedTuple):
    """Blocks that a load may still write to, and that belong to no request any more."""

    blocks: Sequence[Any]
    awaited: bool  # its load has been cancelled, and should be released soon


@dataclass
class SameTicket:
    """The requests with one ticket."""

    count: int = 0
    first: Arrival | None = None  # whose load, or whose place after it, the others wait for
    is_loaded: bool = False  # nobody waits for another load then
    waiting: list[Arrival] = field(default_factory=list)  # whose time runs, since the first one loads


class InFlight:
    """The loads that are under way on an engine, and whether there may be another one."""

    def __init__(self, loads_max: int, tokens_max: int) -> None:
        self._loads_max = loads_max
        self._tokens_max = tokens_max
        self._tokens = 0
        self._loads: dict[int, int] = {}

    def has_room(self, tokens: int) -> bool:
        """A load that is too large for the bound goes alone."""
        return not self._loads or (len(self._loads) < self._loads_max and self._tokens + tokens <= self._tokens_max)

    def add(self, id_: int, tokens: int) -> None:
        self._loads[id_] = tokens
        self._tokens += tokens

    def drop(self, id_: int) -> None:
        self._tokens -= self._loads.pop(id_, 0)


class Consumer:
    def __init__(self, node: Node, counters: Counters, failures: Failures | None, in_flight: InFlight) -> None:
        """`failures`: None: the engine has no way to end a request with an error."""
        self._node = node
        self._counters = counters
        self._failures = failures
        self._in_flight = in_flight
        self._arrivals: dict[str, Arrival] = {}
        self._by_id: dict[int, Arrival] = {}
        self._same_ticket: dict[int, SameTicket] = {}  # by attachment
        self._unreleased: set[int] = set()  # loads to whose blocks some rank may still write
        self._ready: dict[int, bool] = {}
        """Loads that can be acted upon, and whether they are released: else they are stuck."""
        self._failing: set[str] = set()
        self._quarantined: dict[int, Quarantine] = {}
        self._given_back: dict[str, Any] = {}  # requests that the engine waits for, and that have no load any more
        self._load: list[Load] = []
        self._load_adapters: dict[int, Any] = {}
        self._abort: list[int] = []

    # ---- what an engine's adapter does ----

    def keep(self, request: Any, tokens: int) -> None:
        """The engine goes on after the first tokens of what it took for loaded, in the blocks that the request has; with 0
        it computes the prompt, in whatever blocks."""
        raise NotImplementedError

    def finds_cached(self, request: Any, missing: int) -> bool:
        """Whether a request that lacks so many tokens would find them in the engine's cache once another one of the same
        prompt has loaded them."""
        return False

    def is_taken_up(self, request: Any) -> bool:
        """Whether the engine has gone on with a request that is loaded: its blocks are in the cache."""
        return True

    def end_with_error(self, arrival: Arrival, verdict: Verdict) -> None:
        """The engine ends the request at the end of its step."""
        raise NotImplementedError

    def free(self, request: Any) -> None:
        """Gives back the blocks of a request that has ended."""
        raise NotImplementedError

    def take_blocks(self, request: Any) -> Sequence[Any]:
        """From the request, which has none then."""
        raise NotImplementedError

    def free_blocks(self, blocks: Sequence[Any]) -> None:
        raise NotImplementedError

    # ---- what the engine's scheduler says ----

    @property
    def oldest_waiting_s(self) -> float:
        """When the request came that waits longest for its load to begin; 0: there is none."""
        return next((arrival.came_s for arrival in self._arrivals.values() if arrival.phase is Phase.OPEN), 0)

    @property
    def busy(self) -> bool:
        return bool(self._unreleased or self._ready or self._failing or self._given_back)

    def open(self, arrival: Arrival, tokens: int, options: dict[str, str]) -> None:
        """It has a ticket, and a prompt of so many tokens. Error: an option is bad."""
        status, info = self._node.request_open(arrival.ticket, arrival.prompt, 0, options, arrival.keep_from)
        if info is None:
            if self.is_for_another(arrival, status):
                self.compute_here(arrival.key, IN_A_LIST)
            else:
                self._refuse(arrival, status, self._node.request_refused(status, tokens, options))
            return
        arrival.id, arrival.counts, arrival.peer = info.id, tuple(info.counts), info.peer
        arrival.load_timeout_ms, arrival.attachment = info.load_timeout_ms, info.attachment
        self._same_ticket.setdefault(info.attachment, SameTicket()).count += 1
        self._arrivals[arrival.key] = self._by_id[arrival.id] = arrival

    def is_for_another(self, arrival: Arrival, status: int) -> bool:
        """Whether the refused ticket is for another prompt of the same list, and reached this one for that reason alone."""
        return False

    def _refuse(self, arrival: Arrival, status: int, verdict: Verdict) -> None:
        fails, reason = verdict.action == _kvferry.ACTION_FAIL, _kvferry.status_name(status)
        limited.warning("kvferry: request %s: its ticket is refused (%s): %s", arrival.key, reason,
                        "it fails" if fails else "it is computed here", reason=reason)
        if fails:
            self._fail(arrival, verdict)

    def reject(self, arrival: Arrival, tokens: int, mistake: str) -> None:
        """Nothing can be done about it but by whoever has made the request."""
        limited.warning("kvferry: request %s fails: %s", arrival.key, mistake)
        arrival.mistake = mistake
        self._fail(arrival, self._node.request_refused(_kvferry.INVALID, tokens, {}))

    def _fail(self, arrival: Arrival, verdict: Verdict) -> None:
        arrival.phase = Phase.FAILING
        self._arrivals[arrival.key] = arrival
        self._failing.add(arrival.key)
        if self._failures is not None:
            self._failures.record(arrival.key, verdict, arrival.peer, arrival.mistake)
        self.end_with_error(arrival, verdict)

    def compute_here(self, key: str, reason: str) -> None:
        self._counters.add("not_loaded", reason)
        log_left_out("kvferry: request %s is computed here, whatever its ticket: %s", key, reason)

    def room_for(self, key: str, missing: int) -> int | None:
        """How many of `missing` tokens a load would bring; None: it is not to be admitted. Asked often."""
        arrival = self._arrivals.get(key)
        if arrival is not None and arrival.phase is Phase.FAILING:
            return None
        if arrival is None or arrival.phase is not Phase.OPEN:
            return 0
        arrival.offered = missing > 0
        if not arrival.offered:
            return 0
        if self._waits_for_another(arrival, missing):
            return None
        return missing if self._in_flight.has_room(missing) else None

    def _waits_for_another(self, arrival: Arrival, missing: int) -> bool:
        same = self._same_ticket[arrival.attachment]
        if same.first is not None and same.is_loaded and self.is_taken_up(same.first.request):
            same.first = None
        if same.first is None or not self.finds_cached(arrival.request, missing):
            return False
        if not same.is_loaded and arrival.waits_since is None:
            arrival.waits_since = time.monotonic()
            same.waiting.append(arrival)
            self._node.request_wait([arrival.id], True)
        return True

    def _end_waits(self, same: SameTicket) -> None:
        """The first one's load is over."""
        if not same.waiting:
            return
        now_s = time.monotonic()
        self._node.request_wait([arrival.id for arrival in same.waiting], False)
        for arrival in same.waiting:
            assert arrival.waits_since is not None
            arrival.waited_s += now_s - arrival.waits_since
            arrival.waits_since = None
        same.waiting = []

    def opened(self, key: str) -> Arrival | None:
        """Of a request whose load can begin."""
        arrival = self._arrivals.get(key)
        return arrival if arrival is not None and arrival.phase is Phase.OPEN else None

    def pass_over(self, arrival: Arrival) -> None:
        """The engine does not wait for a load."""
        self._forget(arrival)
        if arrival.offered:
            self.compute_here(arrival.key, NOT_TAKEN)

    def begin(self, arrival: Arrival, tokens: int, destination: tuple[bytes, ...]) -> None:
        """The engine waits for so many tokens in these blocks."""
        self._node.request_begin([arrival.id])
        same = self._same_ticket[arrival.attachment]
        if not same.is_loaded and same.first is None and self.finds_cached(arrival.request, tokens):
            same.first = arrival
        arrival.phase, arrival.admitted = Phase.LOADING, True
        self._in_flight.add(arrival.id, tokens)
        self._unreleased.add(arrival.id)
        self.order_load(arrival, destination)

    def order_load(self, arrival: Arrival, destination: tuple[bytes, ...]) -> None:
        timeout_ms = max(1, arrival.load_timeout_ms - int(arrival.waited_s * 1000))
        self._load.append(Load(arrival.id, arrival.ticket, arrival.prompt, timeout_ms, sum(arrival.counts), destination))
        if arrival.content is not None:
            self._load_adapters[arrival.id] = arrival.content

    def end(self, key: str) -> bool:
        """The request has ended; whether the engine has to wait for the last word of every rank. Its blocks go their own
        way: the engine would free them with the first word of whichever connector."""
        arrival = self._arrivals.get(key)
        if arrival is None:
            return False
        if arrival.phase is Phase.OPEN:
            self._forget(arrival)
            return False
        if arrival.phase is Phase.LOADING:
            self._quarantine(arrival, awaited=True)
        elif arrival.admitted:
            self.free(arrival.request)
        del self._arrivals[key]  # not before its blocks are in safety, or nobody would know of them after an error
        self._failing.discard(key)
        if arrival.phase is Phase.LOADING:
            self._leave(arrival)
            self._node.request_cancel([arrival.id])
        return arrival.admitted

    def give_back(self, key: str, request: Any) -> None:
        """The engine waits for its load, and there is none, unless one is still under way."""
        if key not in self._arrivals:
            self._given_back[key] = request

    def take_given_back(self) -> set[str]:
        keys = set(self._given_back)
        for request in self._given_back.values():
            self.keep(request, 0)
        self._given_back = {}
        return keys

    def give_up(self, key: str, has_ended: bool) -> None:
        """Whatever it is doing, it goes on without a load: at once, or when the one that is under way is over."""
        arrival = self._arrivals.get(key)
        if has_ended or arrival is None:
            self.end(key)
        elif arrival.phase is Phase.LOADING:
            self.discard(arrival, INTERNAL_ERROR)
        else:
            self._failing.discard(key)
            self._forget(arrival)
            self.compute_here(key, INTERNAL_ERROR)

    def stop(self, are_released: bool) -> None:
        """All loads have been aborted, and `are_released` on all ranks: else blocks that are quarantined stay so."""
        quarantined = list(self._quarantined.values())
        self._node.request_cancel(list(self._by_id))
        self._arrivals, self._by_id, self._unreleased, self._ready, self._failing = {}, {}, set(), {}, set()
        self._same_ticket = {}
        self._quarantined, self._load, self._load_adapters, self._abort = {}, [], {}, []
        for quarantine in quarantined if are_released else ():
            self.free_blocks(quarantine.blocks)

    def forget_waiting(self) -> None:
        """Requests whose load has not begun are computed here."""
        for arrival in [arrival for arrival in self._arrivals.values() if arrival.phase is Phase.OPEN]:
            self._forget(arrival)
            self.compute_here(arrival.key, WEIGHTS_CHANGED)

    def detach_all(self) -> None:
        """The engine is about to abort its requests: their clients may go elsewhere, with the same tickets."""
        self._node.request_detach([id_ for id_, arrival in self._by_id.items()
                                   if arrival.phase in (Phase.OPEN, Phase.LOADING)])

    def discard_all(self) -> list[int]:
        """The loads under way, which the caller ends on every rank; their requests are computed here."""
        ids = [arrival.id for arrival in self._by_id.values() if arrival.phase is Phase.LOADING]
        for id_ in ids:
            self._by_id[id_].discarded = DISCARDED
        self._node.request_cancel(ids)
        return ids + [id_ for id_, quarantine in self._quarantined.items() if quarantine.awaited]

    def unreleased(self, ids: list[int]) -> list[int]:
        return [id_ for id_ in ids if id_ in self._unreleased]

    def discard(self, arrival: Arrival, reason: str) -> None:
        if not arrival.discarded:
            arrival.discarded = reason
            self._node.request_cancel([arrival.id])
            self._abort.append(arrival.id)

    def _forget(self, arrival: Arrival) -> None:
        """Takes it off the books; the producer is told."""
        del self._arrivals[arrival.key]
        self._leave(arrival)
        self._node.request_cancel([arrival.id])

    def _leave(self, arrival: Arrival, is_loaded: bool = False) -> None:
        if self._by_id.pop(arrival.id, None) is None:
            return
        self._in_flight.drop(arrival.id)
        same = self._same_ticket[arrival.attachment]
        if same.first is arrival:
            same.first, same.is_loaded = (arrival, True) if is_loaded else (None, False)
            self._end_waits(same)
        same.count -= 1
        if same.count == 0:
            del self._same_ticket[arrival.attachment]

    # ---- what the ranks and the library say ----

    def fill(self, orders: Orders) -> None:
        orders.load, self._load = self._load, []
        orders.load_adapters, self._load_adapters = self._load_adapters, {}
        orders.abort, self._abort = self._abort, []

    def take(self, news: News) -> None:
        for id_ in news.refused & self._by_id.keys():  # before their release, which would count as a failed load
            self.discard(self._by_id[id_], LORA_CHANGED)
        self._node.request_report(news.reports)
        self._node.request_released(list(news.released), news.rank)
        self._node.request_stuck(list(news.stuck))

    def on_event(self, event: Event) -> None:
        arrival = self._by_id.get(event.id)
        if event.kind == _kvferry.EVENT_REQUEST_RELEASED:
            self._unreleased.discard(event.id)
            if event.id in self._quarantined:
                self.free_blocks(self._quarantined.pop(event.id).blocks)
        if arrival is None:
            return
        if event.kind == _kvferry.EVENT_VERDICT:
            assert event.verdict is not None
            arrival.verdict = event.verdict
            if arrival.phase is Phase.OPEN:
                self._decide_early(arrival, event.verdict)
        elif arrival.verdict is not None or arrival.discarded:  # else it is about to be aborted
            self._ready[event.id] = event.kind == _kvferry.EVENT_REQUEST_RELEASED

    def _decide_early(self, arrival: Arrival, verdict: Verdict) -> None:
        self._leave(arrival)
        if verdict.action == _kvferry.ACTION_FAIL:
            self._fail(arrival, verdict)
        else:
            del self._arrivals[arrival.key]

    def settled(self) -> list[Arrival]:
        """Requests whose load is over, each once: the engine may go on with them."""
        ready, self._ready = self._ready, {}
        arrivals = [(self._by_id[id_], released) for id_, released in ready.items() if id_ in self._by_id]
        return [arrival for arrival, released in arrivals if self._settle(arrival, released)]

    def _settle(self, arrival: Arrival, released: bool) -> bool:
        """False: it is to be ended with an error."""
        verdict = arrival.verdict
        is_good = verdict is not None and verdict.action == _kvferry.ACTION_USE and released and not arrival.discarded
        self._leave(arrival, is_loaded=is_good)
        if not released:
            count = self._quarantine(arrival)
            limited.error("kvferry: request %s: %d blocks are quarantined, since its load is not released",
                          arrival.key, count)
        if verdict is not None and verdict.action == _kvferry.ACTION_FAIL and not arrival.discarded:
            self._fail(arrival, verdict)
            return False
        del self._arrivals[arrival.key]
        if arrival.discarded:
            self.compute_here(arrival.key, arrival.discarded)
        if verdict is None or arrival.discarded or not released:
            self.keep(arrival.request, 0)
        elif verdict.action == _kvferry.ACTION_RECOMPUTE:
            self.keep(arrival.request, verdict.keep_tokens)
        return True

    def _quarantine(self, arrival: Arrival, awaited: bool = False) -> int:
        """The load may write to these blocks for nobody knows how long: the request goes on, or ends, without them."""
        blocks = self.take_blocks(arrival.request)
        self._abort.append(arrival.id)
        if arrival.id in self._unreleased:
            self._quarantined[arrival.id] = Quarantine(blocks, awaited)
        else:
            self.free_blocks(blocks)
        return len(blocks)
