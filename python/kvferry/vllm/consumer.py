"""Loads on vLLM's scheduler: a request is LOADING only while vLLM keeps it in WAITING_FOR_REMOTE_KVS."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from kvferry import Error, _kvferry
from kvferry.engine import consumer
from kvferry.engine.consumer import DISCARDED, PREEMPTED, Phase, RemotePrompt
from kvferry.engine.errors import Failures, stop_reason
from kvferry.engine.log import limited
from kvferry.engine.messages import LORA_CHANGED, NotCarried
from kvferry.engine.metrics import Counters

from . import seam
from .config import in_flight
from .content.prompts import Prompts
from .groups import Groups
from .requests import MEDIA_NAME, OPTIONS, media_name_of, options_of, ticket_of
from .split import ranks_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

    from kvferry import Node
    from kvferry._kvferry import Verdict

OPENED_MAX = STOP_REASONS_MAX = 8192


class Consumer(consumer.Consumer):
    pool: seam.Pool  # set before the first request
    scheduler: VllmScheduler

    def __init__(self, node: Node, prompts: Prompts, counters: Counters, failures: Failures, vllm_config: VllmConfig,
                 kv_cache_config: KVCacheConfig) -> None:
        super().__init__(node, counters, failures, in_flight(vllm_config, kv_cache_config))
        self._prompts = prompts
        self._ranks = ranks_of(vllm_config)
        self._kv_cache_config = kv_cache_config
        self._groups = Groups(kv_cache_config, seam.prefill_lookahead(vllm_config))
        self._caches = bool(vllm_config.cache_config.enable_prefix_caching)
        self._block_tokens = self._groups.block_tokens
        self._awaited: dict[str, Request] = {}  # requests that vLLM waits for: it has not been told that they are received
        self._loaded: set[str] = set()  # not finished yet
        self._unstarted: dict[str, RemotePrompt] = {}  # loaded with an adapter, and not yet in a step
        self._opened: dict[int, None] = {}  # tickets that have been used here, oldest first
        self.stop_reasons: dict[str, str] = {}  # of requests that are about to end with an error, oldest first
        self.refuses_for_now = False  # the engine is paused, or ends
        self.offloaders: list[Any] = []  # beside us in a MultiConnector
        self.defaults: dict[str, str] = {}  # options of requests that do not name them

    # ---- what vLLM's scheduler says ----

    def arrive(self, request: Request) -> None:
        ticket = ticket_of(request)
        if ticket is None:
            return
        if request.abort_immediately:
            self._turned_away(ticket)
            return
        prompt = self._prompts.of(request, self._handed_over(request))
        if isinstance(prompt, NotCarried):
            self.prefill_here(request.request_id, prompt.value)
            return
        remote = RemotePrompt(request.request_id, request, ticket=ticket, prompt=prompt, content=self._prompts.content(request),
                          keep_from=self._groups.keep_from(request.num_prompt_tokens))
        try:
            self._opened[hash(ticket)] = None
            if len(self._opened) > OPENED_MAX:
                del self._opened[next(iter(self._opened))]
            self.open(remote, self._handed_over(request), self.defaults | options_of(request))
        except (Error, ValueError) as error:
            self.reject(remote, request.num_prompt_tokens, f"{OPTIONS}: {error}")

    def _turned_away(self, ticket: str) -> None:
        """vLLM has refused the request, or its client has left; vLLM's stand-in for it has another prompt. The lease ends at
        once. It does not if this engine has used the ticket, and tells P itself, or if a later try may be accepted."""
        if self.refuses_for_now or hash(ticket) in self._opened:
            return
        _, prompt = self._node.ticket_prompt(ticket)
        info = None if prompt is None else self._node.request_open(ticket, prompt, 0, {}, 0)[1]
        if info is not None:
            self._node.request_cancel([info.id])

    def reject_params(self, request: Request, mistake: str) -> None:
        self.reject(RemotePrompt(request.request_id, request), request.num_prompt_tokens, f"kv_transfer_params: {mistake}")

    def is_for_another(self, remote: RemotePrompt, status: int) -> bool:
        return (status == _kvferry.BAD_TICKET and seam.place_in_list(remote.key) > 0
                and self._node.ticket_prompt(remote.ticket)[0] == _kvferry.OK)

    def _refuse(self, remote: RemotePrompt, status: int, verdict: Verdict) -> None:
        super()._refuse(remote, status, verdict)
        theirs, ours = media_name_of(remote.request), self._prompts.media_name
        if status == _kvferry.INCOMPATIBLE and theirs not in (None, ours):
            limited.warning("kvferry: prompts with media load only from an engine whose model has the same path or name: it "
                            "is %r there, and %r here", theirs, ours, reason=MEDIA_NAME)

    def offer(self, request: Request, computed: int) -> tuple[int | None, bool]:
        """How many tokens after the `computed` first ones a load would bring; None: it is not to be admitted."""
        # A load writes whole blocks, and one of which vLLM has some tokens already may be another request's as well.
        whole = self._groups.are_whole_blocks(computed)
        tokens = self.room_for(request.request_id, self._loadable(request) - computed if whole else 0)
        return tokens, bool(tokens)

    def _handed_over(self, request: Request) -> int:
        """Tokens of its prompt that a ticket is of."""
        return request.num_prompt_tokens - self._groups.not_handed_over

    def _loadable(self, request: Request) -> int:
        return request.num_prompt_tokens - self._groups.left_out

    def admit(self, request: Request, blocks: KVCacheBlocks, external: int) -> None:
        """vLLM has given the request its blocks, and waits for `external` tokens."""
        if external:
            self._awaited[request.request_id] = request
        remote = self.opened(request.request_id)
        if remote is None:
            return
        if external == 0:
            self.pass_over(remote)
            return
        for offloader in self.offloaders:
            seam.tell_offloader(offloader, blocks)
        missing = self._groups.missing(self._handed_over(request), self._loadable(request) - external)
        self.begin(remote, external, self._groups.pack(blocks.get_block_ids(), self.pool.null_block, missing))

    def finish(self, request: Request) -> bool:
        self._unstarted.pop(request.request_id, None)
        self._loaded.discard(request.request_id)
        return self.end(request.request_id)

    def leave(self, key: str) -> bool:
        """It has ended, and is off the books; whether vLLM waits for a last word of it."""
        waited_for = self._awaited.pop(key, None), self._given_back.pop(key, None)
        return any(request is not None for request in waited_for)

    def settle(self, settled: list[RemotePrompt]) -> set[str]:
        """Requests to report to vLLM as received."""
        for remote in settled:
            if remote.request.num_computed_tokens > 0:
                self._loaded.add(remote.key)
                if remote.content is not None:
                    self._unstarted[remote.key] = remote
        return {remote.key for remote in settled}

    def told(self, keys: set[str]) -> set[str]:
        """vLLM hears of these, and does not wait for them any more."""
        for key in keys:
            self._awaited.pop(key, None)
        return keys

    def stop(self, are_released: bool) -> None:
        """The requests that vLLM waits for are given back, and what it has not begun to use is not used."""
        loads = list(self._unreleased)
        super().stop(are_released)
        for rank in range(self._ranks if are_released else 0):
            self._node.request_released(loads, rank)
        while self._node.poll():  # nobody acts on it
            pass
        for remote in self._unstarted.values():
            if remote.request.status != RequestStatus.RUNNING:
                self._unload(remote.request)
                self.prefill_here(remote.key, LORA_CHANGED)
        self._unstarted, self._loaded = {}, set()
        for request in self._awaited.values() if not are_released else ():
            self.take_blocks(request)
        self._given_back |= {key: request for key, request in self._awaited.items() if not RequestStatus.is_finished(request.status)}

    def start(self, scheduled: Iterable[str], preempted: Iterable[str]) -> None:
        """These are in the step that comes; of these vLLM has taken back the blocks."""
        for key in self._loaded.intersection(preempted):
            self._loaded.remove(key)
            self.prefill_here(key, PREEMPTED)
        for key in self._unstarted.keys() & set(scheduled) if self._unstarted else ():
            del self._unstarted[key]

    def drop_other_adapters(self) -> None:
        """What was loaded, or is being loaded, is of no use if vLLM has read another content since, or will read its files
        again before the request goes on."""
        for remote in [*self._by_id.values(), *self._unstarted.values()]:
            if remote.content is None or self._prompts.adapters.are_in_memory(remote.content):
                continue
            if remote.phase is Phase.LOADING and remote.id in self._by_id:
                self.discard(remote, LORA_CHANGED)
            elif remote.key in self._unstarted:
                self._unload(self._unstarted.pop(remote.key).request)
                self.prefill_here(remote.key, LORA_CHANGED)

    def unload_waiting(self) -> None:
        """Unloads prompts that are loaded and wait for a place, also another connector's. Else vLLM would go on with them
        after new weights; it does not expect their blocks when it resets its cache."""
        for request in seam.loaded_and_waiting(self.scheduler):
            self._unload(request)
            self._unstarted.pop(request.request_id, None)
            if request.request_id in self._loaded:
                self._loaded.remove(request.request_id)
                self.prefill_here(request.request_id, DISCARDED)

    def _unload(self, request: Request) -> None:
        """vLLM has been told, and may have cached the blocks, but not computed with them."""
        self.pool.uncache(request)
        self.truncate_to(request, 0)

    # ---- vLLM's requests and blocks ----

    def finds_cached(self, request: Request, missing: int) -> bool:
        return self._caches and missing > self._block_tokens and not request.skip_reading_prefix_cache

    def is_taken_up(self, request: Request) -> bool:
        return request.status != RequestStatus.WAITING_FOR_REMOTE_KVS

    def end_with_error(self, remote: RemotePrompt, verdict: Verdict) -> None:
        why = self.stop_reasons[remote.key] = stop_reason(verdict)
        if len(self.stop_reasons) > STOP_REASONS_MAX:
            del self.stop_reasons[next(iter(self.stop_reasons))]
        message = remote.mistake or _kvferry.status_meaning(verdict.status)
        seam.fail_request(self.scheduler, remote.key, seam.MISTAKE if remote.mistake else _kvferry.status_name(verdict.status),
                          f"{message} ({why})", verdict.retry_after_ms > 0)

    def say_why(self, outputs: Any) -> None:
        """vLLM's answers of a step."""
        if self.stop_reasons:
            seam.set_stop_reasons(self.scheduler, outputs, self.stop_reasons)

    def truncate_to(self, request: Request, tokens: int) -> None:
        request.num_computed_tokens = tokens
        if tokens == 0:
            # vLLM looks for the prompt in its own cache again, and gives it blocks anew.
            self.pool.free(request)
        elif self._kv_cache_config.needs_kv_cache_zeroing:
            self.pool.zero_after(request, tokens)

    def free(self, request: Request) -> None:
        self.pool.free(request)

    def take_blocks(self, request: Request) -> list[KVCacheBlock]:
        return self.pool.take(request)

    def free_blocks(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.pool.release(blocks)
