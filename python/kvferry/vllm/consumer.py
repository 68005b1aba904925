"""The scheduler side of loading a prompt that another engine has computed.

    OPEN ──admitted──► LOADING ──verdict, and quiet on all ranks──► done
      └──────verdict──────┴──────► FAILING ──vLLM ends it with an error──► done

A request is LOADING only while vLLM keeps it in WAITING_FOR_REMOTE_KVS, where it must be reported to vLLM once, and not
after that. One that ends there waits for a last word from every rank, and its blocks for the load to become quiet.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvferry import Error, _kvferry

from .adapters import LORA_CHANGED, Content
from .config import load_bounds
from .failures import Failures
from .in_flight import InFlight
from .layout import check_groups, slides
from .log import limited
from .messages import Load, News, Orders
from .requests import OPTIONS, NoIdentity, Prompts, log_left_out, options_of, pack_blocks, ticket_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

    from kvferry import Node
    from kvferry._kvferry import Verdict

    from .metrics import Tally


WEIGHTS_CHANGED, DISCARDED, NOT_TAKEN, PREEMPTED = "weights_changed", "discarded", "not_taken", "preempted"
"""Why a ticket is not used, beside NoIdentity: vLLM has reset its cache, or paused, while its load was under way; vLLM did
not take the offer: another connector loads, of which there is one for a prompt, or its logprobs are asked for; vLLM has
taken back the blocks of a running request, whose lease ended when it had been loaded."""


class Phase(enum.Enum):
    OPEN = enum.auto()
    LOADING = enum.auto()
    FAILING = enum.auto()


@dataclass
class Arrival:
    """A request that came with a ticket."""

    request: Request
    phase: Phase
    ticket: str = ""
    prompt: bytes = b""
    content: Content | None = None
    """Of its adapter."""
    id: int = 0
    """The library's id; 0 if it has refused the ticket."""
    counts: tuple[int, ...] = ()
    peer: str | None = None
    """The producer's address, if the ticket was good."""
    load_timeout_ms: int = 0
    mistake: str | None = None
    """What is wrong with the request itself."""
    quiet: int = 0
    """Ranks on which its load is quiet."""
    stuck: bool = False
    """On some rank it does not become quiet."""
    verdict: Verdict | None = None
    offered: bool = False
    admitted: bool = False
    discarded: str = ""
    """Why what it has loaded is not wanted any more: it is computed here."""


@dataclass
class Quarantine:
    """Blocks that a load may still write to, and that belong to no request any more."""

    blocks: list[KVCacheBlock]
    quiet: int
    awaited: bool
    """Its load has been cancelled, and should become quiet soon."""


class Consumer:
    def __init__(self, node: Node, prompts: Prompts, tally: Tally, failures: Failures, vllm_config: VllmConfig,
                 kv_cache_config: KVCacheConfig) -> None:
        self._node = node
        self._prompts = prompts
        self._tally = tally
        self._failures = failures
        self._kv_cache_config = kv_cache_config
        self._block_tokens = check_groups(kv_cache_config)
        # vLLM computes the last token again. To what it takes for loaded it applies the windows: of all N tokens they
        # leave what token N looks at, not token N-1.
        self._left_out = int(any(map(slides, kv_cache_config.transfer_groups)))
        self._all_ranks = (1 << vllm_config.parallel_config.tensor_parallel_size) - 1
        self.manager: KVCacheManager | None = None
        self._arrivals: dict[str, Arrival] = {}
        self._by_id: dict[int, Arrival] = {}
        self._quarantined: dict[int, Quarantine] = {}
        self._in_flight = InFlight(*load_bounds(vllm_config, kv_cache_config))
        self._loaded: dict[str, Request] = {}
        """Not finished yet."""
        self._unstarted: dict[str, Arrival] = {}
        """Loaded with an adapter, and not yet in a step."""
        self._load: list[Load] = []
        self._load_adapters: dict[int, Content] = {}
        self._abort: list[int] = []
        self.errors: set[str] = set()
        """Requests that vLLM ends with an error at the end of its step. The set is vLLM's."""
        self.offloaders: list[OffloadingConnectorScheduler] = []
        """Beside us in a MultiConnector."""
        self.defaults: dict[str, str] = {}
        """Options of requests that do not name them."""

    @property
    def busy(self) -> bool:
        return bool(self._quarantined) or any(
            arrival.phase in (Phase.LOADING, Phase.FAILING) for arrival in self._arrivals.values())

    # ---- what vLLM's scheduler says ----

    def arrive(self, request: Request) -> None:
        ticket = ticket_of(request)
        if ticket is None:
            return
        prompt = self._prompts.of(request)
        if isinstance(prompt, NoIdentity):
            self._compute_here(request, prompt.value)
            return
        try:
            options = self.defaults | options_of(request)
            status, info = self._node.request_open(ticket, prompt, 0, options)
        except (Error, ValueError) as error:
            self._reject(request, f"{OPTIONS}: {error}")
            return
        if info is None:
            self._refuse(request, status, options)
            return
        id_, _, counts, peer, load_timeout_ms = info
        arrival = Arrival(request, Phase.OPEN, ticket, prompt, self._prompts.content(request), id_, tuple(counts), peer,
                          load_timeout_ms)
        self._arrivals[request.request_id] = self._by_id[id_] = arrival

    def _compute_here(self, request: Request, reason: str) -> None:
        self._tally.add("not_loaded", reason)
        log_left_out("kvferry: request %s is computed here, whatever its ticket: %s", request.request_id, reason)

    def _reject(self, request: Request, mistake: str) -> None:
        """Nothing can be done about it but by whoever has made the request."""
        limited.warning("kvferry: request %s fails: %s", request.request_id, mistake)
        verdict = self._node.request_refused(_kvferry.INVALID, request.num_prompt_tokens, {})
        self._fail(Arrival(request, Phase.OPEN, verdict=verdict, mistake=mistake))

    def _refuse(self, request: Request, status: int, options: dict[str, str]) -> None:
        verdict = self._node.request_refused(status, request.num_prompt_tokens, options)
        fails = verdict[0] == _kvferry.ACTION_FAIL
        reason = _kvferry.status_name(status)
        limited.warning("kvferry: request %s: its ticket is refused (%s): %s", request.request_id, reason,
                        "it fails" if fails else "it is computed here", reason=reason)
        if fails:
            self._fail(Arrival(request, Phase.OPEN, verdict=verdict))

    def _fail(self, arrival: Arrival) -> None:
        assert arrival.verdict is not None
        arrival.phase = Phase.FAILING
        request_id = arrival.request.request_id
        self._arrivals[request_id] = arrival
        self._failures.record(request_id, arrival.verdict, arrival.peer, arrival.mistake)
        self.errors.add(request_id)

    def offer(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """How many tokens after the `computed` first ones a load would bring; None: it is not to be admitted. Asked often:
        changes nothing."""
        arrival = self._arrivals.get(request.request_id)
        missing = request.num_prompt_tokens - self._left_out - computed
        if arrival is not None and arrival.phase is Phase.FAILING:
            return None, False
        if arrival is None or arrival.phase is not Phase.OPEN:
            return 0, False
        arrival.offered = missing > 0
        if not arrival.offered:
            return 0, False
        return (missing, True) if self._in_flight.has_room(missing) else (None, False)

    def admit(self, request: Request, blocks: KVCacheBlocks, external: int) -> None:
        """vLLM has given the request its blocks, and waits for `external` tokens."""
        arrival = self._arrivals.get(request.request_id)
        if arrival is None or arrival.phase is not Phase.OPEN:
            return
        if external == 0:
            self._forget(arrival)
            if arrival.offered:
                self._compute_here(request, NOT_TAKEN)
        else:
            self._in_flight.add(arrival.id, external)
            self._start_loading(arrival, blocks, request.num_prompt_tokens - self._left_out - external)

    def _start_loading(self, arrival: Arrival, blocks: KVCacheBlocks, computed: int) -> None:
        assert self.manager is not None
        for offloader in self.offloaders:
            # It may still have to store what other requests have left in these blocks, and waits for that only if it is
            # told of their new owner, which vLLM does when it schedules one.
            offloader._current_batch_allocated_block_ids.update(itertools.chain(*blocks.get_block_ids()))
        groups = self._kv_cache_config.select_transfer_block_ids(blocks.get_block_ids())
        destination = pack_blocks(groups, self.manager.block_pool.null_block.block_id, arrival.counts,
                                  [computed // self._block_tokens] * len(groups))
        arrival.phase, arrival.admitted = Phase.LOADING, True
        self._node.request_begin([arrival.id])
        self._load.append((arrival.id, arrival.ticket, arrival.prompt, arrival.load_timeout_ms,
                           sum(arrival.counts), destination))
        if arrival.content is not None:
            self._load_adapters[arrival.id] = arrival.content

    def finish(self, request: Request) -> bool:
        """The request has ended; whether vLLM has to wait for the last word of every rank. Its blocks go their own way: vLLM
        would free them with the first word of whichever connector."""
        assert self.manager is not None
        self._unstarted.pop(request.request_id, None)
        self._loaded.pop(request.request_id, None)
        arrival = self._arrivals.get(request.request_id)
        if arrival is None:
            return False
        if arrival.phase is Phase.OPEN:
            self._forget(arrival)
            return False
        del self._arrivals[request.request_id]
        if arrival.phase is Phase.LOADING:
            self._leave(arrival)
            self._node.request_cancel([arrival.id])
            self._quarantine(arrival, awaited=True)
        elif arrival.admitted:
            self.manager.free(request)
        return arrival.admitted

    def forget_waiting(self) -> None:
        """Requests whose load has not begun are computed here."""
        for arrival in [arrival for arrival in self._arrivals.values() if arrival.phase is Phase.OPEN]:
            self._forget(arrival)
            self._compute_here(arrival.request, WEIGHTS_CHANGED)

    def detach_all(self) -> None:
        """vLLM is about to abort its requests: their clients may go elsewhere, with the same tickets."""
        self._node.request_detach([id_ for id_, arrival in self._by_id.items()
                                   if arrival.phase in (Phase.OPEN, Phase.LOADING)])

    def discard_all(self) -> list[int]:
        """The loads under way, which the caller ends on every rank; their requests are computed here."""
        ids = [arrival.id for arrival in self._arrivals.values() if arrival.phase is Phase.LOADING]
        for id_ in ids:
            self._by_id[id_].discarded = DISCARDED
        self._node.request_cancel(ids)
        return ids + [id_ for id_, quarantine in self._quarantined.items() if quarantine.awaited]

    def not_quiet(self, ids: Iterable[int]) -> list[int]:
        return [id_ for id_ in ids if id_ in self._quarantined
                or id_ in self._by_id and self._by_id[id_].quiet != self._all_ranks]

    def _forget(self, arrival: Arrival) -> None:
        """Takes it off the books; the producer is told unless there was a verdict."""
        del self._arrivals[arrival.request.request_id]
        if arrival.id in self._by_id and arrival.verdict is None:
            self._node.request_cancel([arrival.id])
        self._leave(arrival)

    def _leave(self, arrival: Arrival) -> None:
        self._by_id.pop(arrival.id, None)
        self._in_flight.drop(arrival.id)

    # ---- what the workers and the library say ----

    def fill(self, orders: Orders) -> None:
        orders.load, self._load = self._load, []
        orders.load_adapters, self._load_adapters = self._load_adapters, {}
        orders.abort, self._abort = self._abort, []

    def take(self, news: News) -> None:
        self._node.request_report(list(news.reports.values()))
        for id_ in news.stuck & self._by_id.keys():
            self._by_id[id_].stuck = True
        for id_ in news.refused:
            if (arrival := self._by_id.get(id_)) is not None:
                self._discard(arrival, LORA_CHANGED)
        for id_, ranks in news.quiet.items():
            if (arrival := self._by_id.get(id_)) is not None:
                arrival.quiet |= ranks
            elif (quarantine := self._quarantined.get(id_)) is not None:
                quarantine.quiet |= ranks
                if quarantine.quiet == self._all_ranks:
                    self._free_quarantine(id_)

    def decide(self, id_: int, verdict: Verdict) -> None:
        """The library has decided what to do with a request."""
        arrival = self._by_id.get(id_)
        if arrival is None:
            return
        arrival.verdict = verdict
        if arrival.phase is not Phase.OPEN:
            return
        del self._by_id[id_]
        if verdict[0] == _kvferry.ACTION_FAIL:
            self._fail(arrival)
        else:
            del self._arrivals[arrival.request.request_id]

    def settle(self) -> set[str]:
        """Requests to report to vLLM as received, each once."""
        self._drop_other_adapters()
        loading = [arrival for arrival in self._arrivals.values() if arrival.phase is Phase.LOADING]
        done = [arrival for arrival in loading if self._settle_load(arrival)]
        self._loaded |= {arrival.request.request_id: arrival.request for arrival in done
                         if arrival.request.num_computed_tokens > 0}
        self._unstarted |= {arrival.request.request_id: arrival for arrival in done
                            if arrival.content is not None and arrival.request.num_computed_tokens > 0}
        return {arrival.request.request_id for arrival in done}

    def start(self, scheduled: Iterable[str], preempted: Iterable[str]) -> None:
        """These are in the step that comes; of these vLLM has taken back the blocks."""
        for request_id in preempted:
            if (request := self._loaded.pop(request_id, None)) is not None:
                self._compute_here(request, PREEMPTED)
        for request_id in list(self._unstarted) if self._unstarted else ():
            if request_id in scheduled:
                del self._unstarted[request_id]

    def _drop_other_adapters(self) -> None:
        """What was loaded, or is being loaded, is of no use if vLLM has read another content since, or will read its files
        again before the request goes on."""
        for arrival in [*self._by_id.values(), *self._unstarted.values()]:
            if arrival.content is None or self._prompts.adapters.are_in_memory(arrival.content):
                continue
            if arrival.phase is Phase.LOADING and arrival.id in self._by_id:
                self._discard(arrival, LORA_CHANGED)
            elif arrival.request.request_id in self._unstarted:
                self._unload(arrival)

    def _discard(self, arrival: Arrival, reason: str) -> None:
        if not arrival.discarded:
            arrival.discarded = reason
            self._node.request_cancel([arrival.id])
            self._abort.append(arrival.id)

    def _unload(self, arrival: Arrival) -> None:
        """vLLM has been told, and may have cached the blocks, but not computed with them."""
        assert self.manager is not None
        request = arrival.request
        del self._unstarted[request.request_id]
        self.manager.evict_blocks({block for group in self.manager.get_block_ids(request.request_id) for block in group})
        self._truncate(request, 0)
        self._compute_here(request, LORA_CHANGED)

    def _settle_load(self, arrival: Arrival) -> bool:
        """Acts on a load that can be acted upon; true if its request is to be reported now."""
        quiet = arrival.quiet == self._all_ranks
        if arrival.discarded:
            if not quiet and not arrival.stuck:
                return False
            if not quiet:
                self._quarantine_stuck(arrival)
            self._forget(arrival)
            self._truncate(arrival.request, 0)
            self._compute_here(arrival.request, arrival.discarded)
            return True
        if arrival.verdict is None:
            return False
        action, status, _, keep_tokens, _, _ = arrival.verdict
        if not quiet:
            if action == _kvferry.ACTION_USE or not (arrival.stuck or status == _kvferry.RANK_LOST):
                return False
            self._quarantine_stuck(arrival)
            keep_tokens = 0
        self._leave(arrival)
        if action == _kvferry.ACTION_FAIL:
            self._fail(arrival)
            return False
        del self._arrivals[arrival.request.request_id]
        if action == _kvferry.ACTION_RECOMPUTE:
            self._truncate(arrival.request, keep_tokens)
        return True

    # ---- vLLM's blocks ----

    def _truncate(self, request: Request, keep_tokens: int) -> None:
        """vLLM goes on after the first `keep_tokens` tokens, in the blocks that the request has."""
        assert self.manager is not None
        request.num_computed_tokens = keep_tokens
        if keep_tokens == 0:
            # vLLM looks for the prompt in its own cache again, and gives it blocks anew.
            self.manager.free(request)
        elif self._kv_cache_config.needs_kv_cache_zeroing:
            self.manager.record_blocks_for_zeroing(request.request_id, keep_tokens)

    def _quarantine_stuck(self, arrival: Arrival) -> None:
        count = self._quarantine(arrival)
        limited.error("kvferry: request %s: %d blocks are quarantined, since its load does not become quiet",
                      arrival.request.request_id, count)

    def _quarantine(self, arrival: Arrival, awaited: bool = False) -> int:
        """The load may write to these blocks for nobody knows how long: the request goes on, or ends, without them."""
        assert self.manager is not None
        blocks = self.manager.pop_blocks_for_free(arrival.request)
        self._quarantined[arrival.id] = Quarantine(blocks, arrival.quiet, awaited)
        self._abort.append(arrival.id)
        if arrival.quiet == self._all_ranks:
            self._free_quarantine(arrival.id)
        return len(blocks)

    def _free_quarantine(self, id_: int) -> None:
        assert self.manager is not None
        self.manager.block_pool.free_blocks(reversed(self._quarantined.pop(id_).blocks))
