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
from .messages import IN_A_LIST, LORA_CHANGED, RankReport, StepOrders, log_left_out
from .metrics import Counters

if TYPE_CHECKING:
    from kvferry import Node
    from kvferry._kvferry import Event, Verdict

WEIGHTS_CHANGED, DISCARDED, NOT_TAKEN, PREEMPTED = "weights_changed", "discarded", "not_taken", "preempted"
"""Reasons why a ticket is not used, beside NotCarried:

- The engine changed its weights, reset its cache or paused while the load was under way.
- The engine did not take the offer: another connector loads, or the prompt's logprobs are asked for.
- The engine has taken back the blocks of a running request, whose lease ended when it had been loaded."""


class Phase(enum.Enum):
    OPEN = enum.auto()
    LOADING = enum.auto()
    FAILING = enum.auto()


@dataclass
class RemotePrompt:
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
    first: RemotePrompt | None = None  # whose load, or whose place after it, the others wait for
    is_loaded: bool = False  # nobody waits for another load then
    waiting: list[RemotePrompt] = field(default_factory=list)  # whose time runs, since the first one loads


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
        self._remote: dict[str, RemotePrompt] = {}
        self._by_id: dict[int, RemotePrompt] = {}
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

    def truncate_to(self, request: Any, tokens: int) -> None:
        """The engine goes on after the first tokens of what it took for loaded, in the blocks that the request has; with 0
        it computes the prompt, in any blocks."""
        raise NotImplementedError

    def finds_cached(self, request: Any, missing: int) -> bool:
        """Whether a request that lacks so many tokens would find them in the engine's cache once another one of the same
        prompt has loaded them."""
        return False

    def is_taken_up(self, request: Any) -> bool:
        """Whether the engine has gone on with a request that is loaded: its blocks are in the cache."""
        return True

    def end_with_error(self, remote: RemotePrompt, verdict: Verdict) -> None:
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
        return next((remote.came_s for remote in self._remote.values() if remote.phase is Phase.OPEN), 0)

    @property
    def busy(self) -> bool:
        return bool(self._unreleased or self._ready or self._failing or self._given_back)

    def open(self, remote: RemotePrompt, tokens: int, options: dict[str, str]) -> None:
        """It has a ticket, and a prompt of so many tokens. Error: an option is bad."""
        status, info = self._node.request_open(remote.ticket, remote.prompt, 0, options, remote.keep_from, remote.key)
        if info is None:
            if self.is_for_another(remote, status):
                self.prefill_here(remote.key, IN_A_LIST)
            else:
                self._refuse(remote, status, self._node.request_refused(status, tokens, options))
            return
        remote.id, remote.counts, remote.peer = info.id, tuple(info.counts), info.peer
        remote.load_timeout_ms, remote.attachment = info.load_timeout_ms, info.attachment
        self._same_ticket.setdefault(info.attachment, SameTicket()).count += 1
        self._remote[remote.key] = self._by_id[remote.id] = remote

    def is_for_another(self, remote: RemotePrompt, status: int) -> bool:
        """Whether the refused ticket is for another prompt of the same list, and reached this one for that reason alone."""
        return False

    def _refuse(self, remote: RemotePrompt, status: int, verdict: Verdict) -> None:
        """The library's log has said why."""
        if verdict.action == _kvferry.ACTION_FAIL:
            self._fail(remote, verdict)

    def reject(self, remote: RemotePrompt, tokens: int, mistake: str) -> None:
        """Only the author of the request can do something about it."""
        limited.warning("kvferry: request %s fails: %s", remote.key, mistake)
        remote.mistake = mistake
        self._fail(remote, self._node.request_refused(_kvferry.INVALID, tokens, {}))

    def _fail(self, remote: RemotePrompt, verdict: Verdict) -> None:
        remote.phase = Phase.FAILING
        self._remote[remote.key] = remote
        self._failing.add(remote.key)
        if self._failures is not None:
            self._failures.record(remote.key, verdict, remote.peer, remote.mistake)
        self.end_with_error(remote, verdict)

    def prefill_here(self, key: str, reason: str) -> None:
        self._counters.add("not_loaded", reason)
        log_left_out("kvferry: request %s: its ticket is ignored (%s): the prompt is computed here", key, reason)

    def room_for(self, key: str, missing: int) -> int | None:
        """How many of `missing` tokens a load would bring; None: it is not to be admitted. Asked often."""
        remote = self._remote.get(key)
        if remote is not None and remote.phase is Phase.FAILING:
            return None
        if remote is None or remote.phase is not Phase.OPEN:
            return 0
        remote.offered = missing > 0
        if not remote.offered:
            return 0
        if self._waits_for_another(remote, missing):
            return None
        return missing if self._in_flight.has_room(missing) else None

    def _waits_for_another(self, remote: RemotePrompt, missing: int) -> bool:
        same = self._same_ticket[remote.attachment]
        if same.first is not None and same.is_loaded and self.is_taken_up(same.first.request):
            same.first = None
        if same.first is None or not self.finds_cached(remote.request, missing):
            return False
        if not same.is_loaded and remote.waits_since is None:
            remote.waits_since = time.monotonic()
            same.waiting.append(remote)
            self._node.request_wait([remote.id], True)
        return True

    def _end_waits(self, same: SameTicket) -> None:
        """The first one's load is over."""
        if not same.waiting:
            return
        now_s = time.monotonic()
        self._node.request_wait([remote.id for remote in same.waiting], False)
        for remote in same.waiting:
            assert remote.waits_since is not None
            remote.waited_s += now_s - remote.waits_since
            remote.waits_since = None
        same.waiting = []

    def opened(self, key: str) -> RemotePrompt | None:
        """Of a request whose load can begin."""
        remote = self._remote.get(key)
        return remote if remote is not None and remote.phase is Phase.OPEN else None

    def pass_over(self, remote: RemotePrompt) -> None:
        """The engine does not wait for a load."""
        self._forget(remote)
        if remote.offered:
            self.prefill_here(remote.key, NOT_TAKEN)

    def begin(self, remote: RemotePrompt, tokens: int, destination: tuple[bytes, ...]) -> None:
        """The engine waits for so many tokens in these blocks."""
        self._node.request_begin([remote.id])
        same = self._same_ticket[remote.attachment]
        if not same.is_loaded and same.first is None and self.finds_cached(remote.request, tokens):
            same.first = remote
        remote.phase, remote.admitted = Phase.LOADING, True
        self._in_flight.add(remote.id, tokens)
        self._unreleased.add(remote.id)
        self.order_load(remote, destination)

    def order_load(self, remote: RemotePrompt, destination: tuple[bytes, ...]) -> None:
        timeout_ms = max(1, remote.load_timeout_ms - int(remote.waited_s * 1000))
        self._load.append(Load(remote.id, remote.ticket, remote.prompt, timeout_ms, sum(remote.counts), destination, remote.key))
        if remote.content is not None:
            self._load_adapters[remote.id] = remote.content

    def end(self, key: str) -> bool:
        """The request has ended; whether the engine has to wait for the last word of every rank. Its blocks go their own
        way: the engine would free them with the first word of any connector."""
        remote = self._remote.get(key)
        if remote is None:
            return False
        if remote.phase is Phase.OPEN:
            self._forget(remote)
            return False
        if remote.phase is Phase.LOADING:
            self._quarantine(remote, awaited=True)
        elif remote.admitted:
            self.free(remote.request)
        del self._remote[key]  # not before its blocks are in safety, or nobody would know of them after an error
        self._failing.discard(key)
        if remote.phase is Phase.LOADING:
            self._leave(remote)
            self._node.request_cancel([remote.id])
        return remote.admitted

    def give_back(self, key: str, request: Any) -> None:
        """The engine waits for its load, and there is none, unless one is still under way."""
        if key not in self._remote:
            self._given_back[key] = request

    def take_given_back(self) -> set[str]:
        keys = set(self._given_back)
        for request in self._given_back.values():
            self.truncate_to(request, 0)
        self._given_back = {}
        return keys

    def give_up(self, key: str, has_ended: bool) -> None:
        """In any state it goes on without a load: at once, or when the one that is under way is over."""
        remote = self._remote.get(key)
        if has_ended or remote is None:
            self.end(key)
        elif remote.phase is Phase.LOADING:
            self.discard(remote, INTERNAL_ERROR)
        else:
            self._failing.discard(key)
            self._forget(remote)
            self.prefill_here(key, INTERNAL_ERROR)

    def stop(self, are_released: bool) -> None:
        """All loads have been aborted, and `are_released` on all ranks: else blocks that are quarantined stay so."""
        quarantined = list(self._quarantined.values())
        self._node.request_cancel(list(self._by_id))
        self._remote, self._by_id, self._unreleased, self._ready, self._failing = {}, {}, set(), {}, set()
        self._same_ticket = {}
        self._quarantined, self._load, self._load_adapters, self._abort = {}, [], {}, []
        for quarantine in quarantined if are_released else ():
            self.free_blocks(quarantine.blocks)

    def forget_waiting(self) -> None:
        """Requests whose load has not begun are computed here."""
        for remote in [remote for remote in self._remote.values() if remote.phase is Phase.OPEN]:
            self._forget(remote)
            self.prefill_here(remote.key, WEIGHTS_CHANGED)

    def detach_all(self) -> None:
        """The engine is about to abort its requests: their clients may go elsewhere, with the same tickets."""
        self._node.request_detach([id_ for id_, remote in self._by_id.items()
                                   if remote.phase in (Phase.OPEN, Phase.LOADING)])

    def discard_all(self) -> list[int]:
        """The loads under way, which the caller ends on every rank; their requests are computed here."""
        ids = [remote.id for remote in self._by_id.values() if remote.phase is Phase.LOADING]
        for id_ in ids:
            self._by_id[id_].discarded = DISCARDED
        self._node.request_cancel(ids)
        return ids + [id_ for id_, quarantine in self._quarantined.items() if quarantine.awaited]

    def unreleased(self, ids: list[int]) -> list[int]:
        return [id_ for id_ in ids if id_ in self._unreleased]

    def discard(self, remote: RemotePrompt, reason: str) -> None:
        if not remote.discarded:
            remote.discarded = reason
            self._node.request_cancel([remote.id])
            self._abort.append(remote.id)

    def _forget(self, remote: RemotePrompt) -> None:
        """Takes it off the books; the producer is told."""
        del self._remote[remote.key]
        self._leave(remote)
        self._node.request_cancel([remote.id])

    def _leave(self, remote: RemotePrompt, is_loaded: bool = False) -> None:
        if self._by_id.pop(remote.id, None) is None:
            return
        self._in_flight.drop(remote.id)
        same = self._same_ticket[remote.attachment]
        if same.first is remote:
            same.first, same.is_loaded = (remote, True) if is_loaded else (None, False)
            self._end_waits(same)
        same.count -= 1
        if same.count == 0:
            del self._same_ticket[remote.attachment]

    # ---- what the ranks and the library say ----

    def collect(self, orders: StepOrders) -> None:
        orders.load, self._load = self._load, []
        orders.load_adapters, self._load_adapters = self._load_adapters, {}
        orders.abort, self._abort = self._abort, []

    def receive(self, report: RankReport) -> None:
        for id_ in report.refused & self._by_id.keys():  # before their release, which would count as a failed load
            self.discard(self._by_id[id_], LORA_CHANGED)
        self._node.request_report(report.reports)
        self._node.request_released(list(report.released), report.rank)
        self._node.request_stuck(list(report.stuck))

    def on_event(self, event: Event) -> None:
        remote = self._by_id.get(event.id)
        if event.kind == _kvferry.EVENT_REQUEST_RELEASED:
            self._unreleased.discard(event.id)
            if event.id in self._quarantined:
                self.free_blocks(self._quarantined.pop(event.id).blocks)
        if remote is None:
            return
        if event.kind == _kvferry.EVENT_VERDICT:
            assert event.verdict is not None
            remote.verdict = event.verdict
            if remote.phase is Phase.OPEN:
                self._decide_early(remote, event.verdict)
        elif remote.verdict is not None or remote.discarded:  # else it is about to be aborted
            self._ready[event.id] = event.kind == _kvferry.EVENT_REQUEST_RELEASED

    def _decide_early(self, remote: RemotePrompt, verdict: Verdict) -> None:
        self._leave(remote)
        if verdict.action == _kvferry.ACTION_FAIL:
            self._fail(remote, verdict)
        else:
            del self._remote[remote.key]

    def settled(self) -> list[RemotePrompt]:
        """Requests whose load is over, each once: the engine may go on with them."""
        ready, self._ready = self._ready, {}
        remotes = [(self._by_id[id_], released) for id_, released in ready.items() if id_ in self._by_id]
        return [remote for remote, released in remotes if self._settle(remote, released)]

    def _settle(self, remote: RemotePrompt, released: bool) -> bool:
        """False: it is to be ended with an error."""
        verdict = remote.verdict
        is_good = verdict is not None and verdict.action == _kvferry.ACTION_USE and released and not remote.discarded
        self._leave(remote, is_loaded=is_good)
        if not released:
            count = self._quarantine(remote)
            limited.error("kvferry: request %s: %d blocks are quarantined, since its load is not released",
                          remote.key, count)
        if verdict is not None and verdict.action == _kvferry.ACTION_FAIL and not remote.discarded:
            self._fail(remote, verdict)
            return False
        del self._remote[remote.key]
        if remote.discarded:
            self.prefill_here(remote.key, remote.discarded)
        if verdict is None or remote.discarded or not released:
            self.truncate_to(remote.request, 0)
        elif verdict.action == _kvferry.ACTION_RECOMPUTE:
            self.truncate_to(remote.request, verdict.keep_tokens)
        return True

    def _quarantine(self, remote: RemotePrompt, awaited: bool = False) -> int:
        """The load may write to these blocks for nobody knows how long: the request goes on, or ends, without them."""
        blocks = self.take_blocks(remote.request)
        self._abort.append(remote.id)
        if remote.id in self._unreleased:
            self._quarantined[remote.id] = Quarantine(blocks, awaited)
        else:
            self.free_blocks(blocks)
        return len(blocks)
