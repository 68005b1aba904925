"""PyExecutor on one rank: both loops, and what happens in one iteration in which order."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from . import names, signatures
from .arguments import make_arguments, refuse_after, refuse_before
from .cache import Cache, LayerGroup, layout_of, pool_tensor
from .collectives import CollectiveMismatch, RuleBroken, Seat, sit
from .device import open_device
from .model import MIXED, NO_WORD, Shape, answer_of, kv_of
from .names import RUNNABLE, LlmRequestState
from .requests import Batch, LlmRequest, Submission
from .scheduling import SchedulerV1, SchedulerV2

START_LIMIT_S = 20.0
"""For a connector's constructors."""


@dataclass(frozen=True)
class Spec:
    """What an engine is; all ranks have the same."""

    name: str
    ranks: int
    manager: str
    loop: str
    version: names.Version
    chunk_tokens: int | None
    blocks: int
    seed: int
    memory: str
    windows: tuple[int | None, ...]
    has_index: bool
    shape: Shape
    connector_module: str
    scheduler_class: str
    worker_class: str
    llm_args: dict[str, Any]


@dataclass
class Faults:
    """What tests do to a rank."""

    die: str | None = None
    delay_s: float = 0.0
    chunk_tokens: int | None = None
    held_blocks: int = 0
    pause: dict[int, str] = field(default_factory=dict)
    """V2, by id: preempt or rollback, as soon as nothing of it is under way."""
    defer: dict[int, int] = field(default_factory=dict)
    """V2, by id: it is prepared, its connector is asked, and it does not get into the batch, so many iterations."""
    honour_blocks: int | None = None
    """Of an offer, V2."""
    overtakes: bool = False
    """V2: what others have committed of an offer's beginning, between query and commit, is taken from the cache."""


@dataclass
class Report:
    """What a rank says after an iteration."""

    active: list[int]
    waiting: int
    free_blocks: int
    pinned: list[int]
    has_run: bool
    tokens: dict[int, list[int]] = field(default_factory=dict)
    """Of those that have said something new, or have ended."""
    finished: dict[int, str] = field(default_factory=dict)
    counters: dict[int, Counters] = field(default_factory=dict)


@dataclass
class Counters:
    """Of a request, in tokens of its prompt."""

    computed: int = 0
    matched: int = 0
    reused: int = 0


class Executor:
    """One rank's. Everything but the constructors of the connector is called in its thread."""

    def __init__(self, seat: Seat, spec: Spec) -> None:
        self.seat, self.spec, self.version = seat, spec, spec.version
        self.is_overlap, self.is_v2 = spec.loop == "overlap", spec.manager == "v2"
        self.module = names.install(spec.version)
        self.arguments = make_arguments(spec.llm_args | {
            "tensor_parallel_size": spec.ranks, "use_kv_cache_manager_v2": self.is_v2,
            "enable_chunked_prefill": spec.chunk_tokens is not None, "disable_overlap_scheduler": not self.is_overlap})
        self.tokens_per_block = self.arguments.kv_cache_config.tokens_per_block
        self.device = open_device(spec.memory)
        self.cache = self._make_cache()
        self.active: list[LlmRequest] = []
        self.waiting: list[Submission] = []
        self.canceled: list[int] = []
        self.previous: Batch | None = None
        self.faults = Faults(chunk_tokens=spec.chunk_tokens)
        self.counters: dict[int, Counters] = {}
        self._report: Report | None = None
        self._transfers: dict[int, LlmRequest] = {}
        """Requests that are saving. (AsyncTransferManager)"""
        self.scheduler = (SchedulerV2 if self.is_v2 else SchedulerV1)(self)

    def _make_cache(self) -> Cache:
        spec, windows = self.spec, self.spec.windows
        layers = [list(range(i, spec.shape.layers, len(windows))) for i in range(len(windows))]
        groups = [LayerGroup(i, layers[i], window, spec.blocks, spec.shape, self.tokens_per_block, self.seat.rank,
                             spec.ranks, spec.has_index, self.device) for i, window in enumerate(windows)]
        config = self.arguments.kv_cache_config
        return Cache(groups, self.tokens_per_block, spec.seed, config.enable_block_reuse,
                     config.enable_partial_reuse and not self.is_v2, self.is_v2)

    # ---- start-up ----

    def start(self) -> None:
        """py_executor_creator.py, then _maybe_init_kv_connector_manager."""
        worker_class, scheduler_class = self._classes()
        self.arguments.kv_connector_config = SimpleNamespace(
            connector_module=self.spec.connector_module, connector_scheduler_class=self.spec.scheduler_class,
            connector_worker_class=self.spec.worker_class)
        refuse_before(self.version, self.arguments, (worker_class, scheduler_class))
        worker, scheduler = self._construct(worker_class, scheduler_class)
        self.manager = self.module.KvCacheConnectorManager(worker, scheduler)
        self._at_forward_end = (worker.register_forward_pass_callable()
                                if hasattr(worker, "register_forward_pass_callable") else None)
        refuse_after(self.version, self.arguments)
        self._register()
        self.manager.wait_for_initialization()

    def _classes(self) -> tuple[type, type]:
        bases = (self.module.KvCacheConnectorWorker, self.module.KvCacheConnectorScheduler)
        with _importing:
            found = self._import()
            if not all(issubclass(one, base) for one, base in zip(found, bases)):
                # It has been imported with another version's.
                inside = self.spec.connector_module + "."
                for name in list(sys.modules):  # which other threads add to
                    if (name + ".").startswith(inside):
                        del sys.modules[name]
                found = self._import()
        for one, base in zip(found, bases):
            if not issubclass(one, base):
                raise RuleBroken(f"{one} is no {base}")
        return found

    def _import(self) -> tuple[type, type]:
        module = importlib.import_module(self.spec.connector_module)
        return getattr(module, self.spec.worker_class), getattr(module, self.spec.scheduler_class)

    def _construct(self, worker_class: type, scheduler_class: type) -> tuple[Any, Any]:
        """At the same time; the scheduler on rank 0 only. They may wait for each other."""
        self.seat.no_collectives = "a constructor"
        with ThreadPoolExecutor(2) as pool:
            worker = pool.submit(self._sitting, worker_class)
            scheduler = pool.submit(self._sitting, scheduler_class) if self.seat.rank == 0 else None
            made = worker.result(START_LIMIT_S), scheduler.result(START_LIMIT_S) if scheduler else None
        self.seat.no_collectives = None
        return made

    def _sitting(self, make: Callable[[Any], Any]) -> Any:
        sit(self.seat)
        return make(self.arguments)

    def _register(self) -> None:
        worker, groups = self.manager.worker, self.cache.groups
        if not self.is_v2:
            worker.register_kv_caches(self.device.shown(pool_tensor(groups[0])))
            return
        if len(groups) > 1:
            self._refuse_flat_only()
        worker.register_kv_cache_layout(layout_of(groups, self.tokens_per_block, self.device))

    def _refuse_flat_only(self) -> None:
        """kv_cache_connector.py: reject_flat_only_scheduler."""
        scheduler, base = self.manager.scheduler, self.module.KvCacheConnectorScheduler
        missing = [] if scheduler is None else [name for name in signatures.GROUPED
                                                if getattr(type(scheduler), name) is getattr(base, name)]
        missing = self.seat.broadcast("engine: grouped methods", missing)
        if missing:
            raise NotImplementedError(f"several layer groups, and a scheduler without {missing}")

    # ---- an iteration ----

    def iterate(self, items: list[Any], faults: dict[str, Any]) -> Report:
        for name, value in faults.items():
            setattr(self.faults, name, value)
        time.sleep(self.faults.delay_s)
        if self.faults.die is not None:
            raise RuntimeError(f"a test lets rank {self.seat.rank} die: {self.faults.die}")
        self.cache.held = self.faults.held_blocks
        self._report = Report([], 0, 0, [], False)
        self._fetch(items)
        (self._loop_overlap if self.is_overlap else self._loop_plain)()
        report = self._report
        report.active, report.waiting = [request.request_id for request in self.active], len(self.waiting)
        report.free_blocks, report.pinned = self.cache.free_blocks(), sorted(self.cache.pinned())
        return report

    def _loop_plain(self) -> None:
        """py_executor.py: _executor_loop."""
        batch = self._schedule()
        if batch.all:
            self._prepare(batch)
            self._start_batch(batch)
        if batch.all:
            self._forward_step(batch)
            self._update_request_states(batch)
            self._update_requests(batch)
            if self.is_v2:
                self._commit(batch)
            self._tell_finished(batch)
            self._handle_canceled_requests()
            self._handle_responses()
            if not self.is_v2:
                self._commit(batch)
        self._poll()

    def _loop_overlap(self) -> None:
        """py_executor.py: _executor_loop_overlap. What the batch before has sampled is handled when this has begun."""
        batch = self._schedule()
        if batch.all:
            self._prepare(batch)
            self._start_batch(batch)
        can_queue, previous = bool(batch.all), self.previous
        if can_queue and not self._forward_step(batch):
            raise RuntimeError("sampling failed")
        if previous is not None:
            self._update_requests(previous)
            if self.is_v2:
                self._commit(previous)
            self._tell_finished(previous)
        if can_queue:
            self._update_request_states(batch)
        if previous is not None:
            self._handle_canceled_requests()
            self._handle_responses()
            if not self.is_v2:
                self._commit(previous)
        self.previous = batch if can_queue else None
        self._poll()

    def _fetch(self, items: list[Any]) -> None:
        """Rank 0 has them, and all learn them. (_fetch_and_enqueue_requests)"""
        for item in self.seat.broadcast("engine: fetch requests", items):
            if isinstance(item, Submission):
                self.waiting.append(item)
                self.counters[item.request_id] = Counters()
            else:
                self.canceled.append(item)
        while self.waiting and len(self.active) < self.arguments.max_batch_size:
            self.active.append(LlmRequest(self.waiting.pop(0)))

    def _schedule(self) -> Batch:
        for request in [each for each in self.active if each.request_id in self.faults.pause]:
            is_flying = self.previous is not None and request in self.previous.all
            if not is_flying and request.state in RUNNABLE:
                self.scheduler.pause(request, self.faults.pause.pop(request.request_id))
        return self.scheduler.schedule()

    def _prepare(self, batch: Batch) -> None:
        self.scheduler.prepare_resources(batch)
        self.manager.build_scheduler_output(self.module, batch, self.cache)

    def _start_batch(self, batch: Batch) -> None:
        """_kv_connector_start_batch: the batch was not empty, even if it is now."""
        self.manager.take_scheduled_requests_pending_load(batch)
        self.manager.handle_metadata()
        self.manager.worker.start_load_kv(self.device.stream)

    # ---- forward ----

    def _forward_step(self, batch: Batch) -> bool:
        """An exception in here ends all requests of this rank, which the other ranks do not learn. (_forward_step)"""
        self._report.has_run = True
        try:
            self._forward(batch)
            self.manager.worker.wait_for_save(self.device.stream)
            return True
        except Exception as error:
            self._handle_errors(f"{type(error).__name__}: {error}")
            return False

    def _forward(self, batch: Batch) -> None:
        stream, worker = self.device.stream, self.manager.worker
        steps = [self._step_of(request, batch) for request in batch.all]
        for layer in range(self.spec.shape.layers):
            worker.wait_for_layer_load(layer, stream)
            stream.run(lambda layer=layer: [self._compute(layer, *step) for step in steps])
            worker.save_kv_layer(layer, stream)
        if self._at_forward_end is not None:
            self._at_forward_end()
        stream.run(lambda: [self._sample(batch, *step) for step in steps])

    def _step_of(self, request: LlmRequest, batch: Batch) -> tuple[LlmRequest, int, int, list[list[int]]]:
        """Which of its positions are computed, and its blocks, as they are now."""
        if request in batch.context:
            begin, end = request.context_current_position, request.context_current_position + request.context_chunk_size
            self.counters[request.request_id].computed += end - begin
        else:
            end = request.prompt_len + request._begun
            begin = end - 1
        if end >= request.prompt_len:
            batch.expected.append(request)
            request._begun += 1
        return request, begin, end, self.cache.ids(request.request_id)

    def _compute(self, layer: int, request: LlmRequest, begin: int, end: int, tables: list[list[int]]) -> None:
        group = next(group for group in self.cache.groups if layer in group.layers)
        table, size = tables[group.index], self.tokens_per_block
        number = request._identity.start()
        if begin > 0:
            number = group.number(layer, table[(begin - 1) // size], (begin - 1) % size)
        tokens = request._tokens[:request.prompt_len] + request._sampled
        for position in range(begin, end):
            number = kv_of(number, tokens[position])
            group.write(layer, table[position // size], position % size, number)

    def _sample(self, batch: Batch, request: LlmRequest, begin: int, end: int, tables: list[list[int]]) -> None:
        if end < request.prompt_len:
            return
        token = answer_of(self._numbers(end, tables))
        batch.outputs[request.request_id] = token
        request._sampled.append(token)

    def _numbers(self, end: int, tables: list[list[int]]) -> dict[int, int]:
        """Of the positions that the last one attends to, as this rank's blocks have them."""
        found: dict[int, int] = {}
        size = self.tokens_per_block
        for group in self.cache.groups:
            first = 0 if group.window is None else max(0, end - group.window)
            numbers = group.numbers(tables[group.index][first // size:-(-end // size)])
            for position, number in enumerate(numbers[first % size:][:end - first], first):
                found[position] = number if found.get(position, number) == number else MIXED
        return found

    def _update_request_states(self, batch: Batch) -> None:
        for request in batch.context:
            if request.is_finished:
                continue
            request.context_current_position += request.context_chunk_size
            if request.context_remaining_length == 0:
                request.state = LlmRequestState.GENERATION_IN_PROGRESS
        for request in batch.all:
            if (self.is_overlap and not request.is_finished and request._begun >= request.max_new_tokens
                    and not request.is_in_context):
                request.state = LlmRequestState.GENERATION_TO_COMPLETE

    def _update_requests(self, batch: Batch) -> None:
        """Waits for the stream; then all ranks must have sampled the same. (update_requests)"""
        self.device.stream.wait()
        mine = [(request.request_id, batch.outputs.get(request.request_id)) for request in batch.expected]
        everyone = self.seat.allgather("engine: sampled tokens", mine)
        if any([each[0] for each in other] != [each[0] for each in mine] for other in everyone):
            raise CollectiveMismatch(f"the ranks have different batches: {everyone}")
        for i, request in enumerate(batch.expected):
            if request.is_finished:
                continue
            said = {other[i][1] for other in everyone}
            token = said.pop() if len(said) == 1 else NO_WORD
            request._sampled[len(request._tokens) - request.prompt_len] = token
            request._tokens.append(token)
            if len(request._tokens) - request.prompt_len >= request.max_new_tokens:
                request.finish("length")
            self._report.tokens[request.request_id] = request.answer

    # ---- the end of requests ----

    def _tell_finished(self, batch: Batch) -> None:
        """_save_kv_to_connector_async."""
        if self.version.finishes_when_terminated:
            return
        for request in batch.all:
            if request.is_finished and not request._is_told_finished and self.cache.has(request.request_id):
                self.tell_request_finished(request)

    def tell_request_finished(self, request: LlmRequest) -> bool:
        """True: it saves, and its blocks are pinned until all ranks have reported."""
        ids = self.cache.ids(request.request_id)
        saving = self.manager.request_finished(request, ids[0] if len(ids) == 1 else [], ids if self.is_v2 else None)
        if not isinstance(saving, bool):
            raise RuleBroken(f"request_finished has returned {saving!r}")
        if saving:
            self.cache.pin(request.request_id)
            self._transfers[request.request_id] = request
        request._is_told_finished = True
        return saving

    def _handle_canceled_requests(self) -> None:
        """Only after a batch has run, as the real one. (_handle_canceled_requests)"""
        pending = []
        self.waiting = [each for each in self.waiting if not self._is_gone(each)]
        for request in self.active:
            if request.request_id not in self.canceled or request.is_finished:
                continue
            if self.version.cancel_waits and self.manager.has_pending_transfers(request.request_id):
                pending.append(request.request_id)
            else:
                request._was_parked = request.state is LlmRequestState.DISAGG_GENERATION_TRANS_IN_PROGRESS
                request.finish("cancelled")
        self.canceled = pending

    def _is_gone(self, asked: Submission) -> bool:
        if asked.request_id in self.canceled:
            self._report.finished[asked.request_id] = "cancelled"
        return asked.request_id in self.canceled

    def _handle_errors(self, what: str) -> None:
        for request in self.active:
            request.finish(f"error: {what}")
        self._handle_responses()

    def _handle_responses(self) -> None:
        ended = [request for request in self.active if request.is_finished]
        self.active = [request for request in self.active if not request.is_finished]
        for request in ended:
            self._report.finished[request.request_id] = request._finish_reason
            self._report.tokens[request.request_id] = request.answer
            self._report.counters[request.request_id] = self.counters.pop(request.request_id)
        for request in ended:
            self._terminate(request)

    def _terminate(self, request: LlmRequest) -> None:
        """_do_terminate_request."""
        has_blocks = self.cache.has(request.request_id)
        if self.version.finishes_when_terminated and has_blocks:
            self.tell_request_finished(request)
        self.scheduler.forget(request)
        if has_blocks:
            if not request._was_parked:
                self.scheduler.commit(request)
            self.cache.release(request.request_id)

    def _commit(self, batch: Batch) -> None:
        """What a chunk has filled is there for others from now on. (update_resources, update_context_resources)"""
        for request in batch.context:
            if self.cache.has(request.request_id):
                self.scheduler.commit(request)

    def _poll(self) -> None:
        """In every iteration. (_kv_connector_terminate_requests)"""
        for request in self.manager.get_finished():
            self._transfers.pop(request.request_id)
            self.cache.unpin(request.request_id)
            request.state = LlmRequestState.DISAGG_CONTEXT_COMPLETE
            if request in self.active:  # it was preempted, and is to run again
                request.state = LlmRequestState.CONTEXT_INIT

    def close(self) -> None:
        self.device.close()


_importing = threading.RLock()
"""Ranks that are threads import together."""
