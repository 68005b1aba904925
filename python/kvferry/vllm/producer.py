"""Leases on vLLM's scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.utils.math_utils import cdiv
from vllm.v1.request import RequestStatus

from kvferry.engine import producer
from kvferry.engine.messages import LORA_CHANGED, NoIdentity, Orders, pack_blocks
from kvferry.engine.metrics import Counters
from kvferry.engine.producer import PAUSED, WEIGHTS_CHANGED, Lease

from .adapters import Content
from .config import lease_wait_s
from .layout import check_groups, first_needed_block, slides
from .requests import OPTIONS, TICKET, Prompts, wants_handover

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

    from kvferry import Node

USABLE = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_REPETITION)
"""How a request finishes whose output, and ticket, somebody reads."""


class Producer(producer.Producer):
    manager: KVCacheManager  # set before the first request

    def __init__(self, node: Node, prompts: Prompts, counters: Counters, vllm_config: VllmConfig,
                 kv_cache_config: KVCacheConfig) -> None:
        super().__init__(node, counters, kv_cache_config.num_blocks, lease_wait_s(vllm_config))
        self._ranks = vllm_config.parallel_config.tensor_parallel_size
        self._prompts = prompts
        self._kv_cache_config = kv_cache_config
        self._block_tokens = check_groups(kv_cache_config)
        self._engine_id = vllm_config.kv_transfer_config.engine_id
        self._begun_with: dict[str, Content | None] = {}  # by request: its adapter when its first tokens were computed

    def arrive(self, request: Request) -> None:
        if wants_handover(request):
            self._wanted[request.request_id] = request

    def waits(self, request: Request) -> bool:
        def blocks() -> int | None:
            if isinstance(self._prompts.of(request), NoIdentity):
                return None
            count, firsts = self._range(request)
            return count * len(firsts) - sum(firsts)
        return self.waits_for_lease(request.request_id, blocks)

    def follow(self, orders: Orders, scheduler_output: SchedulerOutput) -> None:
        """The step that comes."""
        for request_id in scheduler_output.preempted_req_ids or ():
            self.abandon(request_id)
            self._begun_with.pop(request_id, None)
        for request_id, tokens in scheduler_output.num_scheduled_tokens.items() if self._wanted else ():
            request = self._wanted.get(request_id)
            if request is not None:
                self._follow(orders, scheduler_output, request, request.num_computed_tokens + tokens)

    def _follow(self, orders: Orders, scheduler_output: SchedulerOutput, request: Request, computed: int) -> None:
        request_id = request.request_id
        if request.num_computed_tokens < request.num_prompt_tokens:
            self.abandon(request_id)
        if request.lora_request is not None and request_id not in self._begun_with:
            self._begun_with[request_id] = self._prompts.content(request)
        if computed < request.num_prompt_tokens or request_id in self._by_request:
            return
        prompt, content = self._prompts.of(request), self._prompts.content(request)
        if self.paused or isinstance(prompt, NoIdentity):
            self.refuse(request_id, prompt.value if isinstance(prompt, NoIdentity) else PAUSED)
        elif content != self._begun_with.get(request_id):
            self.refuse(request_id, LORA_CHANGED)
        else:
            block_ids = scheduler_output.kv_connector_block_state.get_block_ids(request_id)
            groups = self._kv_cache_config.select_transfer_block_ids(block_ids)
            count, firsts = self._range(request)
            self.publish(orders, request_id, prompt,
                         pack_blocks(groups, self.manager.block_pool.null_block.block_id, [count] * len(groups), firsts),
                         content)

    def _range(self, request: Request) -> tuple[int, list[int]]:
        """The prompt's positions, and which is the first that is handed over, by group."""
        # The consumer computes the last token again: it needs what that one looks at.
        firsts = [first_needed_block(group, request.num_prompt_tokens - 1)
                  for group in self._kv_cache_config.transfer_groups]
        return cdiv(request.num_prompt_tokens, self._block_tokens), firsts

    def hold(self, lease: Lease, request: Request, sliding: bool) -> None:
        count, firsts = self._range(request)
        groups = self.manager.get_blocks(request.request_id).blocks
        held = [block for group_id, first in zip(self._kv_cache_config.transfer_group_ids, firsts)
                if slides(self._kv_cache_config.kv_cache_groups[group_id]) == sliding
                for block in groups[group_id][first:count] if not block.is_null]
        self.manager.block_pool.touch(held)
        lease.held += held

    def free_blocks(self, blocks: list[KVCacheBlock]) -> None:
        self.manager.block_pool.free_blocks(reversed(blocks))

    def forget(self, key: str) -> None:
        super().forget(key)
        self._begun_with.pop(key, None)

    def forget_started(self) -> None:
        """Requests of whose prompts some tokens have been computed get no ticket."""
        for request_id, request in list(self._wanted.items()):
            if request.num_computed_tokens > 0 or request.status == RequestStatus.RUNNING:
                self.refuse(request_id, WEIGHTS_CHANGED)

    def finish(self, request: Request) -> dict[str, Any] | None:
        """What NixlConnector's routers expect to find, and the ticket, if there is one."""
        ticket = self.end(request.request_id, request, request.status in USABLE)
        if ticket is None:
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
