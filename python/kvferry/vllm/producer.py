"""The scheduler side of handing a prompt over: reserves a lease in the step of its last tokens, makes the ticket when
the request finishes, and keeps its blocks until every rank has ended it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.utils.math_utils import cdiv
from vllm.v1.request import RequestStatus

from kvferry import _kvferry

from .adapters import LORA_CHANGED, Content
from .config import lease_wait_s
from .layout import check_groups, first_needed_block, slides
from .messages import News, Orders
from .requests import OPTIONS, TICKET, NoIdentity, Prompts, count_wanted, log_left_out, pack_blocks, wants_handover

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

    from kvferry import Node

    from .metrics import Tally

USABLE = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_REPETITION)
"""How a request finishes whose output, and ticket, somebody reads."""
PAUSED, WEIGHTS_CHANGED, LEASE_ENDED = "paused", "weights_changed", "lease_ended"
PREEMPTED, ABORTED = "preempted", "aborted"
"""Why there is no ticket, beside NoIdentity and the library's statuses."""
FREES_WITHIN_S = 1.0
"""How long vLLM waits for the blocks of leases, at a stretch, before it preempts."""


@dataclass
class Lease:
    id: int
    lease: bytes
    prompt: bytes
    blocks: tuple[bytes, ...]
    request_id: str
    ended: int = 0
    """Ranks that have ended it."""
    ending: bool = False
    """The ranks have been told to end it."""
    held: list[KVCacheBlock] = field(default_factory=list)
    """Blocks that the lease references, too: what slides out of windows, and all once the request has finished. Whoever
    else keeps them, be it another connector, has references of its own."""


class Producer:
    def __init__(self, node: Node, prompts: Prompts, tally: Tally, vllm_config: VllmConfig,
                 kv_cache_config: KVCacheConfig) -> None:
        self._node = node
        self._prompts = prompts
        self._tally = tally
        self._kv_cache_config = kv_cache_config
        self._block_tokens = check_groups(kv_cache_config)
        self._engine_id = vllm_config.kv_transfer_config.engine_id
        self._ranks = vllm_config.parallel_config.tensor_parallel_size
        self._all_ranks = (1 << self._ranks) - 1
        self.manager: KVCacheManager | None = None
        self._wanted: dict[str, Request] = {}
        self._begun_with: dict[str, Content | None] = {}
        """By request: its adapter when its first tokens were computed."""
        self._leases: dict[int, Lease] = {}
        self._by_request: dict[str, Lease] = {}
        self._end: list[bytes] = []
        self._wait_s = lease_wait_s(vllm_config)
        self._waits_until: dict[str, float] = {}
        self._reserved: dict[str, tuple[bytes, int]] = {}
        """By request that is not computed yet: the lease that it will have, if prompts wait for theirs."""
        self._short_since: float | None = None
        """In each step since then vLLM has lacked blocks."""
        self._short = False
        self.paused = False
        """vLLM waits for work to end: no new leases."""

    @property
    def busy(self) -> bool:
        return bool(self._leases)

    def arrive(self, request: Request) -> None:
        if wants_handover(request):
            self._wanted[request.request_id] = request

    def waits(self, request: Request) -> bool:
        """Whether vLLM is not to compute it yet, since leases leave no room for its own. Asked often."""
        request_id = request.request_id
        if self._wait_s == 0 or request_id not in self._wanted or request_id in self._reserved:
            return False
        if request_id not in self._waits_until:
            if isinstance(self._prompts.of(request), NoIdentity):
                return False
            self._waits_until[request_id] = time.monotonic() + self._wait_s
        count, firsts = self._range(request)
        status, lease, lease_id = self._node.lease_reserve(count * len(firsts) - sum(firsts), self._kv_cache_config.num_blocks)
        if lease is not None:
            self._reserved[request_id] = lease, lease_id
            return False
        return status == _kvferry.NO_LEASE and time.monotonic() < self._waits_until[request_id]

    def frees_soon(self) -> bool:
        """Whether vLLM, which lacks blocks, had better wait for those that only leases hold. Not for ever: some may last."""
        if len(self._leases) == len(self._by_request):
            return False
        self._short = True
        if self._short_since is None:
            self._short_since = time.monotonic()
        return time.monotonic() < self._short_since + FREES_WITHIN_S

    def fill(self, orders: Orders, scheduler_output: SchedulerOutput) -> None:
        if not self._short:
            self._short_since = None
        self._short = False
        for request_id in scheduler_output.preempted_req_ids or ():
            self._abandon(request_id)
            self._begun_with.pop(request_id, None)
        if self._wanted:
            for request_id, tokens in scheduler_output.num_scheduled_tokens.items():
                request = self._wanted.get(request_id)
                if request is not None:
                    self._follow(orders, scheduler_output, request, request.num_computed_tokens + tokens)
        orders.end += self._end
        self._end = []

    def _follow(self, orders: Orders, scheduler_output: SchedulerOutput, request: Request, computed: int) -> None:
        if request.num_computed_tokens < request.num_prompt_tokens:
            self._abandon(request.request_id)
        if request.lora_request is not None and request.request_id not in self._begun_with:
            self._begun_with[request.request_id] = self._prompts.content(request)
        if computed >= request.num_prompt_tokens and request.request_id not in self._by_request:
            block_ids = scheduler_output.kv_connector_block_state.get_block_ids(request.request_id)
            self._publish(orders, request, self._kv_cache_config.select_transfer_block_ids(block_ids))

    def _publish(self, orders: Orders, request: Request, groups: tuple[list[int], ...]) -> None:
        assert self.manager is not None
        request_id = request.request_id
        prompt = self._prompts.of(request)
        if self.paused or isinstance(prompt, NoIdentity):
            self._refuse(request_id, prompt.value if isinstance(prompt, NoIdentity) else PAUSED)
            return
        content = self._prompts.content(request)
        if content != self._begun_with.get(request_id):
            self._refuse(request_id, LORA_CHANGED)
            return
        count, firsts = self._range(request)
        blocks = pack_blocks(groups, self.manager.block_pool.null_block.block_id, [count] * len(groups), firsts)
        if request_id in self._reserved:
            reserved, lease_id = self._reserved.pop(request_id)
        else:
            status, reserved, lease_id = self._node.lease_reserve(count_wanted(blocks), self._kv_cache_config.num_blocks)
            if reserved is None:
                self._refuse(request_id, _kvferry.status_name(status))
                return
        lease = Lease(lease_id, reserved, prompt, blocks, request_id)
        self._hold(lease, request, sliding=True)  # vLLM gives it back as the request goes on, and when it finishes
        self._leases[lease_id] = self._by_request[request_id] = lease
        orders.publish.append((reserved, prompt, lease_id, blocks))
        if content is not None:
            orders.lease_adapters[lease_id] = content

    def _range(self, request: Request) -> tuple[int, list[int]]:
        """The prompt's positions, and which is the first that is handed over, by group."""
        # The consumer computes the last token again: it needs what that one looks at.
        firsts = [first_needed_block(group, request.num_prompt_tokens - 1)
                  for group in self._kv_cache_config.transfer_groups]
        return cdiv(request.num_prompt_tokens, self._block_tokens), firsts

    def _hold(self, lease: Lease, request: Request, sliding: bool) -> None:
        """References the blocks of those groups that slide, or of those that do not."""
        assert self.manager is not None
        count, firsts = self._range(request)
        groups = self.manager.get_blocks(request.request_id).blocks
        held = [block for group_id, first in zip(self._kv_cache_config.transfer_group_ids, firsts)
                if slides(self._kv_cache_config.kv_cache_groups[group_id]) == sliding
                for block in groups[group_id][first:count] if not block.is_null]
        self.manager.block_pool.touch(held)
        lease.held += held

    def _forget(self, request_id: str) -> None:
        self._wanted.pop(request_id, None)
        self._begun_with.pop(request_id, None)
        self._waits_until.pop(request_id, None)
        if request_id in self._reserved:
            self._node.lease_release([self._reserved.pop(request_id)[1]])

    def _refuse(self, request_id: str, reason: str) -> None:
        self._forget(request_id)
        self._tally.add("no_tickets", reason)
        log_left_out("kvferry: request %s gets no ticket: %s", request_id, reason)

    def _abandon(self, request_id: str) -> None:
        """vLLM has taken the blocks of a running request: its lease, if any, ends before the step's memory work."""
        lease = self._by_request.pop(request_id, None)
        if lease is not None:
            self._tell_end(lease)

    def _tell_end(self, lease: Lease) -> None:
        if not lease.ending:
            lease.ending = True
            self._end.append(lease.lease)

    def end_all(self) -> dict[int, bytes]:
        """All leases that some rank still has to end, by id; the caller ends them."""
        for lease in self._leases.values():
            lease.ending = True
        return {lease.id: lease.lease for lease in self._leases.values()}

    def live(self, lease_ids: Iterable[int]) -> list[int]:
        return [id_ for id_ in lease_ids if id_ in self._leases]

    def forget_started(self) -> None:
        """Requests of whose prompts some tokens have been computed get no ticket."""
        for request_id, request in list(self._wanted.items()):
            if request.num_computed_tokens > 0 or request.status == RequestStatus.RUNNING:
                self._refuse(request_id, WEIGHTS_CHANGED)

    def finish(self, request: Request) -> dict[str, Any] | None:
        """The ticket's parameters. From now on the lease alone keeps the blocks."""
        wanted = request.request_id in self._wanted
        self._forget(request.request_id)
        lease = self._by_request.pop(request.request_id, None)
        if lease is not None:
            self._hold(lease, request, sliding=False)
        params = self._hand_over(request, lease) if wanted else None
        if lease is not None and params is None:
            self._tell_end(lease)
        return params

    def _hand_over(self, request: Request, lease: Lease | None) -> dict[str, Any] | None:
        if request.status not in USABLE:
            self._tally.add("no_tickets", ABORTED)  # not logged: most often it is the client that has left
            return None
        if lease is None:
            self._refuse(request.request_id, PREEMPTED)  # the step that was under way has ended it
            return None
        if lease.ending or lease.ended:
            self._refuse(request.request_id, LEASE_ENDED)
            return None
        return self._parameters(request, lease)

    def _parameters(self, request: Request, lease: Lease) -> dict[str, Any] | None:
        """What NixlConnector's routers expect to find, and the ticket."""
        status, ticket = self._node.ticket_make(lease.lease, lease.prompt, lease.blocks)
        if ticket is None:
            self._refuse(request.request_id, _kvferry.status_name(status))
            return None
        return {
            **self._options_for_consumer(request),
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [],
            "remote_engine_id": self._engine_id,
            "remote_request_id": request.request_id,
            "remote_host": "",
            "remote_port": 0,
            "tp_size": self._ranks,
            "remote_num_tokens": request.num_prompt_tokens,
            TICKET: ticket,
        }

    @staticmethod
    def _options_for_consumer(request: Request) -> dict[str, Any]:
        """A router hands the client's parameters to the prefill engine, and to the decode engine those that come back."""
        params = request.kv_transfer_params or {}
        return {OPTIONS: params[OPTIONS]} if OPTIONS in params else {}

    def take(self, news: News) -> None:
        for lease_id in news.unpublished:
            if lease_id in self._leases:
                self._tell_end(self._leases[lease_id])
        for lease_id, ranks in news.ended.items():
            lease = self._leases.get(lease_id)
            if lease is not None:
                lease.ended |= ranks
                if lease.ended == self._all_ranks:
                    self._release(lease)

    def _release(self, lease: Lease) -> None:
        del self._leases[lease.id]
        self._node.lease_release([lease.id])
        if lease.held:
            assert self.manager is not None
            self.manager.block_pool.free_blocks(reversed(lease.held))
        if self._by_request.get(lease.request_id) is lease:
            # It ended before its request did: what is left of the request needs no ticket.
            del self._by_request[lease.request_id]
            self._refuse(lease.request_id, LEASE_ENDED)
