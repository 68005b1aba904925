"""KvCacheConnectorManager, one on every rank: which requests are loading or saving, and who is asked when."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import collectives

if TYPE_CHECKING:
    from .cache import Cache
    from .requests import Batch, LlmRequest


@dataclass
class AsyncRequests:
    """By id. (kv_cache_connector.py: AsyncRequests)"""

    saving: dict[int, Any] = field(default_factory=dict)
    loading: dict[int, Any] = field(default_factory=dict)

    @property
    def saving_ids(self) -> set[int]:
        return set(self.saving)

    @property
    def loading_ids(self) -> set[int]:
        return set(self.loading)

    def add_from(self, other: AsyncRequests) -> None:
        self.saving.update(other.saving)
        self.loading.update(other.loading)
        other.saving, other.loading = {}, {}

    def extract_by_id(self, saving_ids: Any, loading_ids: Any) -> AsyncRequests:
        """An id that is not there is a KeyError, which nobody catches."""
        return AsyncRequests({each: self.saving.pop(each) for each in saving_ids},
                             {each: self.loading.pop(each) for each in loading_ids})


@dataclass
class _Reported:
    blocks: list[list[int]] = field(default_factory=list)
    tokens: int = 0


class SchedulerOutputs:
    """What has changed of each request since it was last in a batch. (KvCacheConnectorSchedulerOutputManager)"""

    def __init__(self) -> None:
        self.requests: dict[int, _Reported] = {}
        self.external_loads: dict[int, int] = {}

    def build(self, module: Any, batch: Batch, loading: set[int], cache: Cache) -> Any:
        output = module.SchedulerOutput()
        for request in batch.context:
            if request.request_id in loading:
                continue
            is_new = request.request_id not in self.requests
            data = self._data(module, request, cache)
            data.computed_position -= self.external_loads.get(request.request_id, 0)
            (output.new_requests if is_new else output.cached_requests).append(data)
        output.cached_requests += [self._data(module, request, cache) for request in batch.generation]
        self.external_loads = {}
        return output

    def reset_request(self, request_id: int) -> None:
        self.requests.pop(request_id, None)
        self.external_loads.pop(request_id, None)

    def _data(self, module: Any, request: LlmRequest, cache: Cache) -> Any:
        known = self.requests.setdefault(request.request_id, _Reported([[] for _ in cache.groups]))
        tokens = request.get_tokens(0)
        by_group = [ids[len(before):] for ids, before in zip(cache.ids(request.request_id), known.blocks)]
        for before, new in zip(known.blocks, by_group):
            before.extend(new)
        new_tokens, known.tokens = tokens[known.tokens:], len(tokens)
        if request.is_in_context:
            position = request.context_current_position
            count = min(request.context_remaining_length, request.context_chunk_size)
        else:
            position, count = len(tokens) - 1, 1
        # A page belongs to a layer group: of several there is no flat list. (update_and_build_data)
        flat = by_group[0] if len(by_group) == 1 else []
        data = module.RequestData(request.request_id, new_tokens, flat, position, count)
        if hasattr(data, "block_hashes"):
            data.block_hashes = [] if cache.is_v2 else _hashes(tokens, cache.tokens_per_block)
            data.new_block_ids_by_layer_group = by_group if cache.is_v2 else []
            data.cache_salt = request.cache_salt
        return data


def _hashes(tokens: list[int], tokens_per_block: int) -> list[int]:
    ends = range(tokens_per_block, len(tokens) + 1, tokens_per_block)
    return [zlib.crc32(repr(tokens[:end]).encode()) for end in ends]


class KvCacheConnectorManager:
    """Attributes and methods have the real one's names, for adapters that reach into it."""

    def __init__(self, worker: Any, scheduler: Any) -> None:
        self.worker = worker
        self.scheduler = scheduler
        self.new_async_requests = AsyncRequests()
        """Of which get_finished does not know yet."""
        self.pending_async_requests = AsyncRequests()
        """Which this rank's worker has not reported."""
        self.local_finished_async_requests = AsyncRequests()
        """Which it has, but not all ranks' have."""
        self.finished_async_loading_requests: dict[int, Any] = {}
        self.scheduler_output_manager = SchedulerOutputs()
        self._scheduler_output: Any = None

    def _run_on_leader(self, ask: Callable[[], Any]) -> Any:
        """Only rank 0 is asked; all learn what it said."""
        return collectives.seat().broadcast(f"manager: {sys._getframe(1).f_code.co_name}",
                                            ask() if self.scheduler is not None else None)

    # ---- asking ----

    def query_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        answer = self._run_on_leader(lambda: self.scheduler.get_num_new_matched_tokens(request, num_computed_tokens))
        tokens, is_async = answer
        if tokens == 0 and is_async:  # kv_cache_connector.py: query_num_new_matched_tokens
            raise RuntimeError("an asynchronous load of no tokens")
        return tokens, is_async

    def commit_new_matched_tokens(self, request: Any, num_tokens: int, load_kv_async: bool) -> None:
        if load_kv_async:
            self.new_async_requests.loading[request.request_id] = request
        self.scheduler_output_manager.external_loads[request.request_id] = num_tokens
        request.py_num_connector_matched_tokens = num_tokens

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> int:
        """As the C++ cache manager calls it, which takes all that it is offered."""
        if request.is_generation_only_request:
            raise RuntimeError("generation-only requests have no connector")
        tokens, is_async = self.query_num_new_matched_tokens(request, num_computed_tokens)
        self.commit_new_matched_tokens(request, tokens, is_async)
        return tokens

    def update_state_after_alloc(self, request: Any, block_ids: list[int],
                                 by_layer_group: list[list[int]] | None = None) -> None:
        """On rank 0 only, and nothing is broadcast."""
        if self.scheduler is None:
            return
        if by_layer_group:
            self.scheduler.update_state_after_alloc_by_layer_group(request, by_layer_group)
        else:
            self.scheduler.update_state_after_alloc(request, block_ids)

    def should_add_sequence(self, request: Any) -> bool:
        return request.request_id not in self.finished_async_loading_requests

    # ---- telling ----

    def request_finished(self, request: Any, block_ids: list[int],
                         by_layer_group: list[list[int]] | None = None) -> bool:
        self.finished_async_loading_requests.pop(request.request_id, None)
        saving = self._run_on_leader(
            lambda: self.scheduler.request_finished_by_layer_group(request, by_layer_group) if by_layer_group
            else self.scheduler.request_finished(request, block_ids))
        if saving:
            self.new_async_requests.saving[request.request_id] = request
            request.state = type(request.state).DISAGG_CONTEXT_TRANS_IN_PROGRESS
        return saving

    def reset_request_state(self, request: Any) -> None:
        self.scheduler_output_manager.reset_request(request.request_id)

    def request_reset(self, request: Any) -> None:
        """kv-cache-connector.md: request_reset."""
        self.reset_request_state(request)
        if self.scheduler is not None:
            self.scheduler.request_reset(request)

    def cancel_load(self, request: Any, start: int, end: int) -> None:
        """kv-cache-connector.md: cancel_load."""
        if self.scheduler is not None:
            self.scheduler.cancel_load(request, start, end)

    def has_pending_transfers(self, request_id: int) -> bool:
        return any(request_id in requests.saving or request_id in requests.loading
                   for requests in (self.new_async_requests, self.pending_async_requests,
                                    self.local_finished_async_requests))

    # ---- a batch ----

    def build_scheduler_output(self, module: Any, batch: Batch, cache: Cache) -> None:
        self._scheduler_output = self.scheduler_output_manager.build(module, batch, self.new_async_requests.loading_ids,
                                                                     cache)

    def take_scheduled_requests_pending_load(self, batch: Batch) -> None:
        for request in batch.context:
            if request.request_id in self.new_async_requests.loading:
                request.state = type(request.state).DISAGG_GENERATION_TRANS_IN_PROGRESS
                self.new_async_requests.loading[request.request_id] = request  # not what C++ had of it
        batch.context = [each for each in batch.context if each.request_id not in self.new_async_requests.loading]

    def handle_metadata(self) -> None:
        if self._scheduler_output is None:
            return
        metadata = self._run_on_leader(lambda: self.scheduler.build_connector_meta(self._scheduler_output))
        self._scheduler_output = None
        self.worker.bind_connector_meta(metadata)

    def get_finished(self) -> list[Any]:
        """What has been saved, by all ranks. What has been loaded by all can be scheduled again."""
        started_loading = list(self.new_async_requests.loading_ids)
        finished_gen = list(self.new_async_requests.saving_ids)
        self.pending_async_requests.add_from(self.new_async_requests)
        saved, loaded = self.worker.get_finished(finished_gen, started_loading)
        self.local_finished_async_requests.add_from(self.pending_async_requests.extract_by_id(saved, loaded))
        local = self.local_finished_async_requests
        everyone = collectives.seat().allgather("manager: get_finished", (local.saving_ids, local.loading_ids))
        done = local.extract_by_id(set.intersection(*(each[0] for each in everyone)),
                                   set.intersection(*(each[1] for each in everyone)))
        for request_id, request in done.loading.items():
            request.state = type(request.state).CONTEXT_INIT
            self.finished_async_loading_requests[request_id] = request
        return list(done.saving.values())

    # ---- layers, start-up ----

    def wait_for_initialization(self) -> None:
        if self.scheduler is not None and hasattr(self.scheduler, "wait_for_initialization"):
            self.scheduler.wait_for_initialization()
