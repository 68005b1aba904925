"""Who is in a batch, and which blocks it gets: with the V1 cache manager and with KVCacheManagerV2. Every rank decides
for itself, and all decide the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .collectives import RuleBroken
from .names import RUNNABLE, LlmRequestState
from .requests import Batch, BoundRequest, LlmRequest, Offer

if TYPE_CHECKING:
    from .executor import Executor


class _Scheduler:
    def __init__(self, executor: Executor) -> None:
        self._executor, self._cache, self._size = executor, executor.cache, executor.tokens_per_block

    def _of(self, state: LlmRequestState) -> list[LlmRequest]:
        """What is to be paused is left out, until its last forward has been handled."""
        return [each for each in self._executor.active
                if each.state is state and each.request_id not in self._executor.faults.pause]

    def _generating(self) -> list[LlmRequest]:
        return self._of(LlmRequestState.GENERATION_IN_PROGRESS)

    def _in_context(self) -> list[LlmRequest]:
        return self._of(LlmRequestState.CONTEXT_INIT)

    def _chunk(self, position: int, request: LlmRequest, budget: int) -> int:
        """0: none of it fits. What is not the last ends with a block."""
        rest = request.prompt_len - position
        chunk = min(rest, budget, self._executor.faults.chunk_tokens or rest)
        if chunk < rest:
            if not self._executor.arguments.enable_chunked_prefill:
                return 0
            chunk = max(0, (position + chunk) // self._size * self._size - position)
        return chunk

    def check_offer(self, request: LlmRequest, local: int, tokens: int, is_async: bool) -> None:
        """Offers are whole blocks, and leave the last token. (mooncake_store/scheduler.py; resource_manager.py)"""
        what = f"request {request.request_id} of {request.prompt_len} tokens, {local} of them here: offered {tokens}"
        if not isinstance(tokens, int) or not isinstance(is_async, bool) or tokens < 0:
            raise RuleBroken(f"{what}, {is_async!r}")
        if tokens and (tokens % self._size or local % self._size):
            raise RuleBroken(f"{what}, which are not whole blocks of {self._size}")
        if local + tokens >= request.prompt_len:
            raise RuleBroken(f"{what}, with the last token, which is always computed")

    def commit(self, request: LlmRequest) -> None:
        """What has been computed, of the prompt and after it."""
        computed = request.context_current_position if request.is_in_context else len(request._tokens) - 1
        if request.is_finished:
            computed = min(request.context_current_position, request.prompt_len)
            if computed == request.prompt_len:
                computed = len(request._tokens) - 1
        self._cache.commit(request.request_id, request._identity, request._tokens[:computed])

    def pause(self, request: LlmRequest, how: str) -> None:
        raise RuleBroken("only KVCacheManagerV2 pauses requests: V1 is GUARANTEED_NO_EVICT")

    def forget(self, request: LlmRequest) -> None:
        """It ends."""


class SchedulerV1(_Scheduler):
    """GUARANTEED_NO_EVICT: who has begun can go on to its end. The whole prompt is allocated at once."""

    def schedule(self) -> Batch:
        batch, budget = Batch(), self._executor.arguments.max_num_tokens
        batch.generation = self._generating()[:budget]
        budget -= len(batch.generation)
        is_full = False
        for request in self._in_context():
            is_full = is_full or not (self._cache.has(request.request_id) or self._fits(request, batch))
            if is_full and not self._cache.has(request.request_id):
                continue
            chunk = self._chunk(request.context_current_position, request, budget)
            if chunk == 0:
                continue
            request.context_chunk_size = chunk
            budget -= chunk
            batch.context.append(request)
        return batch

    def _total(self, request: LlmRequest) -> int:
        return -(-(request.prompt_len + request.max_new_tokens) // self._size)

    def _fits(self, request: LlmRequest, batch: Batch) -> bool:
        new = [each for each in batch.context if not self._cache.has(each.request_id)]
        promised = sum(self._total(each) - len(self._cache.ids(each.request_id)[0]) for each in self._executor.active
                       if self._cache.has(each.request_id))
        return (promised + sum(map(self._total, new)) + self._total(request) + (1 if self._cache.partial_reuse else 0)
                <= self._cache.available(0))

    def prepare_resources(self, batch: Batch) -> None:
        """resource_manager.py: KVCacheManager.prepare_resources."""
        for request in batch.context:
            if request.is_first_context_chunk and self._executor.manager.should_add_sequence(request):
                self._add_sequence(request)
        for request in batch.generation:
            assert self._cache.grow(request.request_id, request.prompt_len + request._begun)

    def _add_sequence(self, request: LlmRequest) -> None:
        """In C++ the connector is asked before the rest of the blocks is allocated."""
        manager, name = self._executor.manager, request.request_id
        match = self._cache.match(request._identity, request._tokens)
        local = match.tokens(self._size)
        self._cache.add(name, match)
        tokens = manager.get_num_new_matched_tokens(BoundRequest(request), local)
        self.check_offer(request, local, tokens, name in manager.new_async_requests.loading)
        request.py_num_connector_matched_tokens = tokens
        assert self._cache.grow(name, request.prompt_len)
        request.set_prepopulated_prompt_len(local + tokens, self._size)
        counters = self._executor.counters[name]
        counters.reused, counters.matched = local, tokens
        manager.update_state_after_alloc(request, self._cache.ids(name)[0])


class SchedulerV2(_Scheduler):
    """MAX_UTILIZATION, and pages by chunks. What it prepares may not get into the batch, and is prepared anew later;
    the connector is asked once all the same. (kv_cache_manager_v2.py: prepare_context; kv-cache-connector.md)
    """

    _has_preempted = False

    def schedule(self) -> Batch:
        batch, budget = Batch(), self._executor.arguments.max_num_tokens
        self._has_preempted = False
        for request in self._generating():
            if request.state is LlmRequestState.GENERATION_IN_PROGRESS and budget > 0 and self._grow(request, batch):
                batch.generation.append(request)
                budget -= 1
        for request in self._in_context():
            if request.state is LlmRequestState.CONTEXT_INIT:
                budget -= self._schedule_context(request, batch, budget)
                if self._has_preempted:
                    break
        return batch

    def _preempt_for_pages(self, request: LlmRequest, batch: Batch) -> None:
        """Else requests of which some chunks are computed could keep all pages from each other for ever. The pages are for
        this one: nobody else is admitted in this iteration. (scheduler_v2.py: preempt_for_pages)"""
        victim = self._victim(request, batch, started=True)
        if victim is not None:
            self.pause(victim, "preempt")
            self._has_preempted = True

    def _grow(self, request: LlmRequest, batch: Batch) -> bool:
        """For one more token; who came last is preempted where there is no page."""
        name, tokens = request.request_id, request.prompt_len + request._begun
        self._cache.slide(name, tokens - 1)
        while not self._cache.grow(name, tokens):
            victim = self._victim(request, batch)
            if victim is None:
                return False
            is_in = victim._offer is None or victim._offer.is_delivered
            self.pause(victim, "preempt" if is_in else "rollback")
        return True

    def _victim(self, request: LlmRequest, batch: Batch, started: bool = False) -> LlmRequest | None:
        flying = self._executor.previous.all if self._executor.previous is not None else []
        for each in reversed(self._executor.active):
            is_busy = each is request or each in batch.all or each in flying
            if started and each.state is LlmRequestState.CONTEXT_INIT and each.is_first_context_chunk:
                continue
            if not is_busy and self._cache.has(each.request_id) and each.state in RUNNABLE:
                return each
        return None

    def _schedule_context(self, request: LlmRequest, batch: Batch, budget: int) -> int:
        name = request.request_id
        if not self._cache.has(name):
            self._prepare_context(request)
        offer = request._offer
        if offer is not None and not offer.is_delivered:
            self._reserve(request, offer)
        position = request.context_current_position
        chunk = 0 if self._is_deferred(name) else self._chunk(position, request, budget)
        if chunk == 0 or not self._cache.grow(name, position + chunk, position):
            if chunk > 0:
                self._preempt_for_pages(request, batch)
            if offer is not None and not offer.is_delivered:  # suspended: what was matched stays, and what was offered
                self._cache.shrink(name, offer.start)
            return 0
        request.context_chunk_size = chunk
        batch.context.append(request)
        return chunk

    def _is_deferred(self, name: int) -> bool:
        left = self._executor.faults.defer.get(name, 0)
        if left:
            self._executor.faults.defer[name] = left - 1
        return left > 0

    def _prepare_context(self, request: LlmRequest) -> None:
        """What is matched here is fixed from now on, whenever the request gets into a batch."""
        match = self._cache.match(request._identity, request._tokens)
        committed = match.tokens(self._size)
        self._cache.add(request.request_id, match)
        self._executor.counters[request.request_id].reused = committed
        request._offer = self._ask(request, committed)

    def _reserve(self, request: LlmRequest, offer: Offer) -> None:
        """Pages for what was offered; where there are none, it is computed."""
        if not self._cache.grow(request.request_id, offer.end, offer.end):
            self._give_up(request, offer.start, offer.end)
            offer.end = offer.start
        request._prepopulated = request.context_current_position = offer.end

    def _ask(self, request: LlmRequest, committed: int) -> Offer:
        tokens, is_async = self._executor.manager.query_num_new_matched_tokens(request, committed)
        self.check_offer(request, committed, tokens, is_async)
        offer = Offer(committed, committed + tokens, is_async)
        most = self._executor.faults.honour_blocks
        if most is not None and tokens > most * self._size:
            self._give_up(request, committed + most * self._size, offer.end)
            offer.end = committed + most * self._size
        return offer

    def _give_up(self, request: LlmRequest, start: int, end: int) -> None:
        if end > start:
            self._executor.manager.cancel_load(request, start, end)

    def _give_up_undelivered(self, request: LlmRequest) -> None:
        offer = request._offer
        if offer is not None and not offer.is_delivered:
            self._give_up(request, offer.start, offer.end)

    def prepare_resources(self, batch: Batch) -> None:
        """What the connector has offered counts from here on: the request is in the batch. An asynchronous one is
        parked even where nothing of it is taken. (kv_cache_connector.py: commit_new_matched_tokens)"""
        manager = self._executor.manager
        for request in batch.context:
            offer = request._offer
            if offer is None or offer.is_delivered:
                continue
            offer.is_delivered = True
            self._overtake(request, offer)
            manager.commit_new_matched_tokens(request, offer.end - offer.start, offer.is_async)
            self._executor.counters[request.request_id].matched = offer.end - offer.start
            ids = self._cache.ids(request.request_id)
            manager.update_state_after_alloc(request, ids[0] if len(ids) == 1 else [], ids)

    def _overtake(self, request: LlmRequest, offer: Offer) -> None:
        """The runtime counts it as loaded all the same. (kv-cache-connector.md: cancel_load of the beginning)"""
        if not self._executor.faults.overtakes:
            return
        match = self._cache.match(request._identity, request._tokens)
        end = min(len(match.nodes) * self._size, offer.end)
        if end > offer.start:
            self._cache.take_over(request.request_id, match, offer.start // self._size, end // self._size)
            self._give_up(request, offer.start, end)

    def commit(self, request: LlmRequest) -> None:
        if request._offer is not None and request._offer.is_delivered:
            super().commit(request)
            self._cache.slide(request.request_id, request.context_current_position)

    def pause(self, request: LlmRequest, how: str) -> None:
        """Preempted: request_finished; rolled back: request_reset. Its blocks go, and it begins anew."""
        if not self._cache.has(request.request_id):
            return
        saves = False
        self._give_up_undelivered(request)
        if how == "preempt":
            saves = self._executor.tell_request_finished(request)
            self._executor.manager.reset_request_state(request)
        else:
            self._executor.manager.request_reset(request)
        self._cache.release(request.request_id)
        request.pause()
        request._is_told_finished = False
        if saves:
            request.state = LlmRequestState.DISAGG_CONTEXT_TRANS_IN_PROGRESS

    def forget(self, request: LlmRequest) -> None:
        """free_resources: what was offered and not taken is given up; without request_finished, there is a reset."""
        self._give_up_undelivered(request)
        is_unknown = self._cache.has(request.request_id) and not request._is_told_finished
        if is_unknown and self._executor.version.cancel_resets:
            self._executor.manager.request_reset(request)
