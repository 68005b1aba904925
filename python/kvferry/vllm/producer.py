"""Leases on vLLM's scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from kvferry.engine import producer
from kvferry.engine.messages import IN_A_LIST, LORA_CHANGED, NotCarried, StepOrders
from kvferry.engine.metrics import Counters
from kvferry.engine.producer import PAUSED, WEIGHTS_CHANGED, Lease

from . import seam
from .config import has_checksums, lease_wait_s
from .content.adapters import Content
from .content.prompts import Prompts
from .groups import Groups
from .requests import MEDIA_NAME, OPTIONS, TICKET, shorten, wants_handover

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

    from kvferry import Node


USABLE = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_REPETITION)
"""How a request finishes whose output, and ticket, somebody reads."""

SHARED_MAX = 1024
"""Requests with several answers that are remembered: the first answer may be over before the next one has come."""


@dataclass
class Shared:
    """The answers of one request with `n` above 1: one prompt, and one lease."""

    first: str
    unfinished: set[str] = field(default_factory=set)
    ticket: str | None = None
    first_is_over: bool = False


class Producer(producer.Producer):
    pool: seam.Pool  # set before the first request

    def __init__(self, node: Node, prompts: Prompts, counters: Counters, vllm_config: VllmConfig,
                 kv_cache_config: KVCacheConfig) -> None:
        super().__init__(node, counters, kv_cache_config.num_blocks, lease_wait_s(vllm_config))
        self._ranks = vllm_config.parallel_config.tensor_parallel_size
        self._has_checksums = has_checksums(vllm_config)
        self._prompts = prompts
        self._groups = Groups(kv_cache_config)
        self._engine_id = vllm_config.kv_transfer_config.engine_id
        self._begun_with: dict[str, Content | None] = {}  # by request: its adapter when its first tokens were computed
        self._shared: dict[str, Shared] = {}  # by request
        self._left_whole: dict[str, NotCarried] = {}  # by request: why its last token is computed here

    def arrive(self, request: Request) -> None:
        if not wants_handover(request):
            return
        if seam.place_in_list(request.request_id) > 0:  # vLLM answers a list with the first one's parameters
            self.refuse(request.request_id, IN_A_LIST)
            return
        several = seam.request_of_several(request.request_id)
        if several is not None:
            shared = self._shared.get(several)
            if shared is None or shared.first == request.request_id:
                shared = self._shared[several] = Shared(request.request_id)
            shared.unfinished.add(request.request_id)
            if shared.first != request.request_id:
                return
        self._wanted[request.request_id] = request
        if self._groups.not_handed_over:
            prompt = self._prompts.of(request, request.num_prompt_tokens - self._groups.not_handed_over)
            if request.skip_reading_prefix_cache:
                self._left_whole[request.request_id] = NotCarried.PROMPT_LOGPROBS
            elif isinstance(prompt, NotCarried):
                self._left_whole[request.request_id] = prompt
            else:
                shorten(request, self._groups.not_handed_over)

    def _prompt(self, request: Request) -> bytes | NotCarried:
        return self._left_whole.get(request.request_id) or self._prompts.of(request)

    def waits(self, request: Request) -> bool:
        def blocks() -> int | None:
            if isinstance(self._prompt(request), NotCarried):
                return None
            return sum(map(len, self._groups.handed_over(request.num_prompt_tokens)))
        return self.waits_for_lease(request.request_id, blocks)

    def follow(self, orders: StepOrders, scheduler_output: SchedulerOutput) -> None:
        """The step that comes."""
        for request_id in scheduler_output.preempted_req_ids or ():
            self.abandon(request_id)
            self._begun_with.pop(request_id, None)
        for request_id, tokens in scheduler_output.num_scheduled_tokens.items() if self._wanted else ():
            request = self._wanted.get(request_id)
            if request is not None:
                self._follow(orders, request, request.num_computed_tokens + tokens)

    def _follow(self, orders: StepOrders, request: Request, computed: int) -> None:
        request_id = request.request_id
        if request.num_computed_tokens < request.num_prompt_tokens:
            self.abandon(request_id)
        if request.lora_request is not None and request_id not in self._begun_with:
            self._begun_with[request_id] = self._prompts.content(request)
        if computed < request.num_prompt_tokens or request_id in self._by_request:
            return
        prompt, content = self._prompt(request), self._prompts.content(request)
        if self.paused or isinstance(prompt, NotCarried):
            self.refuse(request_id, prompt.value if isinstance(prompt, NotCarried) else PAUSED)
        elif content != self._begun_with.get(request_id):
            self.refuse(request_id, LORA_CHANGED)
        else:
            blocks = self._groups.pack(self.pool.block_ids_of(request), self.pool.null_block, self._groups.handed_over(request.num_prompt_tokens))
            self.publish(orders, request_id, prompt, blocks, content,
                         goes_on=self._has_checksums and request.max_tokens > 1)

    def hold(self, lease: Lease, request: Request, sliding: bool) -> None:
        groups = self.pool.blocks_of(request)
        held = [block for group_id, slides, positions in self._groups.by_id(self._groups.handed_over(request.num_prompt_tokens))
                if slides == sliding
                for block in groups[group_id][positions.start:positions.stop] if not block.is_null]
        self.pool.reference(held)
        lease.held += held

    def free_blocks(self, blocks: list[KVCacheBlock]) -> None:
        self.pool.release(blocks)

    def forget(self, key: str) -> None:
        super().forget(key)
        self._begun_with.pop(key, None)
        self._left_whole.pop(key, None)

    def forget_started(self) -> None:
        """Requests of whose prompts some tokens have been computed get no ticket."""
        for request_id, request in list(self._wanted.items()):
            if request.num_computed_tokens > 0 or request.status == RequestStatus.RUNNING:
                self.refuse(request_id, WEIGHTS_CHANGED)

    def _end_shared(self, request: Request, shared: Shared) -> str | None:
        """All answers of one request have the ticket of the first answer: vLLM hands on the parameters of any of them."""
        if request.request_id == shared.first:
            shared.ticket = self.end(request.request_id, request, request.status in USABLE)
            shared.first_is_over = True
        elif not shared.first_is_over and shared.ticket is None:
            shared.ticket = self.copy_ticket(shared.first)
        shared.unfinished.discard(request.request_id)
        if len(self._shared) > SHARED_MAX:
            over = next((name for name, shared in self._shared.items() if not shared.unfinished), None)
            if over is not None:
                del self._shared[over]
        return shared.ticket

    def finish(self, request: Request) -> dict[str, Any] | None:
        """What NixlConnector's routers expect to find, and the ticket, if there is one."""
        name = seam.request_of_several(request.request_id) or "" if self._shared else ""
        shared = self._shared.get(name)
        if shared is not None and request.request_id in shared.unfinished:
            ticket = self._end_shared(request, shared)
        else:
            ticket = self.end(request.request_id, request, request.status in USABLE)
        if ticket is None:
            return None
        return {
            **self._options_for_consumer(request),
            **({MEDIA_NAME: self._prompts.media_name} if request.mm_features else {}),
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
