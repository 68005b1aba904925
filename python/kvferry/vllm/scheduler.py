"""The scheduler's side: what the engine's control node and the workers have to tell vLLM's scheduler."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata
from vllm.v1.request import RequestStatus

from kvferry.engine.boundary import NotStoppedError, of_all, of_request
from kvferry.engine.control import Control
from kvferry.engine.drain import Drain, Look
from kvferry.engine.log import logger
from kvferry.engine.messages import RankReport, StepOrders
from kvferry.engine.metrics import Counters
from kvferry.engine.questions import Questions
from kvferry.engine.wakeup import Listener

from . import seam
from .config import (
    drain_grace_ms,
    error_status_of,
    harmless_rpcs,
    keys_of,
    loaded_weights,
    open_node,
    pinned_per_block,
    policy_of,
)
from .consumer import Consumer
from .content.prompts import Prompts
from .content.state import EngineContent
from .contract import WOKEN
from .middleware import Failures
from .producer import Producer
from .requests import drop_params, mistake_in

if TYPE_CHECKING:
    from kvferry import Node
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler as VllmScheduler
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


@dataclass
class StepMetadata(StepOrders, KVConnectorMetadata):
    pass


@dataclass
class RankReports(KVConnectorWorkerMetadata):
    ranks: list[RankReport] = field(default_factory=list)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> RankReports:
        assert isinstance(other, RankReports)
        return RankReports(self.ranks + other.ranks)


LISTED_MAX = 32
"""An answer is one line of bounded length."""


def peers_in_trouble(node: Node) -> list[str]:
    """A line each, and one for those beyond LISTED_MAX: what does not answer now. They may be elsewhere's trouble."""
    lines = [f"peer {peer.address}: {link.name}: not tried for now ({link.cause or 'no answer'})"
             for peer in node.peers() for link in peer.links if link.breaker]
    return lines[:LISTED_MAX] + [f"and {len(lines) - LISTED_MAX} more"] * (len(lines) > LISTED_MAX)


def _nothing(*_: Any) -> None:
    """The answer of a side that is stopped, or of a hook whose request is given up."""


class Scheduler(Control):
    _producer: Producer
    _consumer: Consumer

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, drafts_left_out: int = 0,
                 features_off: Collection[str] = ()) -> None:
        if drafts_left_out:
            logger.warning("kvferry: the KV of %d draft layers is NOT carried: after a load, fewer of their tokens are "
                           "accepted. The answers are the same.", drafts_left_out)
        node, counters, failures = open_node(vllm_config, kv_cache_config), Counters(), Failures(error_status_of(vllm_config))
        self._weights = loaded_weights(vllm_config)
        self._prompts = prompts = Prompts(vllm_config, self._weights)
        super().__init__(node, Producer(node, prompts, counters, vllm_config, kv_cache_config),
                         Consumer(node, prompts, counters, failures, vllm_config, kv_cache_config), failures, counters,
                         {"draft_layers_not_carried": drafts_left_out, "vllm_features_off": len(features_off)},
                         pinned_per_block(kv_cache_config))
        self._can_be_woken = WOKEN not in features_off
        self._listener: Listener | None = None
        self._steps = self._steps_told = 0
        self.content = EngineContent(self._weights, prompts, counters, harmless_rpcs(vllm_config), self._give_up_started)
        self._finished: list[str] = []
        self.joined = False
        self.stopped = self._stop_failed = False
        self._alone = True
        self._loads_first = False
        self._pool: seam.Pool | None = None
        self._unhealthy: set[int] = set()  # ranks
        self._ask_ranks: Callable[[], None] = lambda: None
        self._drain: Drain | None = None
        self._questions: Questions | None = None
        self._begin_to_answer = partial(self._open_questions, vllm_config.kv_transfer_config.engine_id,
                                        drain_grace_ms(vllm_config), keys_of(vllm_config))

    def join(self, scheduler: VllmScheduler, addresses: list[bytes], stop_ranks: Callable[[str], list[bool]],
             loads_first: bool) -> None:
        """Facts that no hook of the contract gives, before the first request: the scheduler, its ranks' addresses, the way to
        stop them all, and whether a step's loads may start before its forward."""
        seam.check_scheduler(scheduler)
        self._node.set_ranks(addresses)
        self._pool = self._consumer.pool = self._producer.pool = seam.Pool(scheduler.kv_cache_manager)
        self._consumer.scheduler = self._scheduler = scheduler
        self._stop_ranks = stop_ranks
        self._consumer.offloaders = seam.offloaders_of(scheduler.connector)
        policy = policy_of(scheduler.vllm_config.kv_transfer_config)
        if policy is not None:
            logger.info(policy.line())
            self._consumer.defaults = {"policy": policy.name}
        self._alone = seam.siblings_of(scheduler.connector) is None
        self._loads_first = loads_first and self._alone  # vLLM does it for all connectors of the step, or for none
        self._begin_to_answer()
        self.joined = True

    def _open_questions(self, engine: str, grace_ms: int, keys: list[bytes]) -> None:
        folder = self._failures.folder
        if folder is None:
            return  # which the log has said
        try:
            self._drain = Drain(folder, engine, grace_ms, keys, self._look)
            self._questions = Questions(folder, self._drain.answer)
        except OSError as error:
            logger.warning("kvferry: `kvferry drain` and `kvferry ready` do not find this engine: %s", error)

    def _look(self) -> Look:
        """In a thread of its own."""
        why_not = []
        if self._weights.digest is None:
            why_not.append("the weights have no identity, or none yet: no tickets and no loads")
        if self.stopped:
            why_not.append("transfers are stopped after an internal error, which the log has: start the engine anew")
        if self._unhealthy:
            why_not.append(f"rank {', '.join(map(str, sorted(self._unhealthy)))}: a load is not released in time, or its device is "
                           "lost: replace the engine")
            self._ask_ranks()  # it may be over, and an idle engine would not hear of it
        return Look(len(self._scheduler.requests), self._producer.leases, why_not, peers_in_trouble(self._node))

    def be_woken(self, wake: Callable[[], None], notify_ranks: Callable[[bytes], bool]) -> None:
        """From now on an idle engine need not be stepped while its leases are out. notify_ranks() has each rank say, to this
        address, when it has news; False: some cannot."""
        def step() -> None:
            self._producer.has_news = True
            wake()
        if self._can_be_woken:
            self._ask_ranks = step
            self._listener = Listener(self._needs_step, step)
            self._listener.start(notify_ranks(self._listener.address))
            self._producer.is_woken = True
            self._weights.on_disproved(step)

    def _needs_step(self, told: bool) -> bool:
        """If a rank has news of a lease; and once more after the last step, since gauges are as old as it. More often would
        cost: after a step vLLM's workers spin for seconds."""
        if told:
            return self._producer.has_leases
        if self._steps == self._steps_told:
            return False
        self._steps_told = self._steps + 1
        return True

    # ---- one request ----

    @of_request(_nothing)
    def arrive(self, request: Request) -> None:
        if not self.joined:
            return  # no engine core has sent it, and none would hear that it fails
        mistake = mistake_in(request.kv_transfer_params)
        if mistake:
            drop_params(request)
            self._consumer.reject_params(request, mistake)
            return
        if self.content.cache_is_old:
            self._empty_cache()
        self._prompts.adapters.arrive(request)
        self._producer.arrive(request)
        self._consumer.arrive(request)

    @of_request(lambda side, request, computed: (0, False))
    def offer(self, request: Request, computed: int) -> tuple[int | None, bool]:
        return (None, False) if self._producer.waits(request) else self._consumer.offer(request, computed)

    @of_request(lambda side, request, blocks, external: side._consumer.give_back(request.request_id, request)
                if external else None)
    def admit(self, request: Request, blocks: KVCacheBlocks, external: int) -> None:
        self._consumer.admit(request, blocks, external)

    @of_request(lambda side, request: (side._leave(request.request_id), None))
    def finish(self, request: Request) -> tuple[bool, dict[str, Any] | None]:
        self._consumer.finish(request)
        self._prompts.adapters.finish(request)
        params = self._producer.finish(request)
        return self._leave(request.request_id), params

    def _leave(self, key: str) -> bool:
        """Whether vLLM keeps the request until every rank has said its last word of it."""
        waits = self._consumer.leave(key)
        if waits:
            self._finished.append(key)
        return waits

    def give_up(self, request: Request) -> None:
        self._producer.give_up(request.request_id)
        self._consumer.give_up(request.request_id, RequestStatus.is_finished(request.status))

    # ---- a step ----

    @of_all(lambda side: False)
    def frees_soon(self) -> bool:
        return self._producer.frees_soon()

    @of_all(lambda side, scheduler_output: StepMetadata(finished=side._take_finished()))
    def orders(self, scheduler_output: SchedulerOutput) -> StepMetadata:
        """The step's orders to the workers."""
        orders = StepMetadata()
        self._steps += 1
        self._consumer.start(scheduler_output.num_scheduled_tokens, scheduler_output.preempted_req_ids or ())
        self._producer.follow(orders, scheduler_output)
        self.collect(orders)
        orders.finished = self._take_finished()
        if orders.load and self._loads_first:
            seam.start_loads_first(scheduler_output)
        return orders

    def _take_finished(self) -> list[str]:
        words, self._finished = self._finished, []
        return words

    @of_all(lambda side, output: side._deliver(output, side._take_given_back()))
    def update(self, output: KVConnectorOutput) -> None:
        """The step's news. vLLM acts on what has been received after this returns; other connectors' requests are in
        the same set."""
        if isinstance(output.kv_connector_worker_meta, RankReports):
            self.receive(output.kv_connector_worker_meta.ranks)
        if not self.stopped:
            self._deliver(output, self.settle())

    def _deliver(self, output: KVConnectorOutput, keys: set[str]) -> None:
        output.finished_recving = self._consumer.told(keys | (output.finished_recving or set()))

    @of_all(lambda side, outputs: None)
    def say_why(self, outputs: Any) -> None:
        """These answers of a step are about to go out."""
        self._consumer.say_why(outputs)

    def receive(self, reports: Iterable[RankReport]) -> None:
        for one in reports:
            if one.stopped:
                self.stop(f"rank {one.rank}: {one.stopped}")
                return
            self._prompts.adapters.receive(one.rank, one.adapters)
            (self._unhealthy.discard if one.healthy else self._unhealthy.add)(one.rank)
            super().receive([one])

    def settle(self) -> set[str]:
        self._consumer.drop_other_adapters()
        return self._consumer.told(self._consumer.settle(self.settled()) | self._consumer.take_given_back())

    def _take_given_back(self) -> set[str]:
        return self._consumer.told(self._consumer.take_given_back())

    # ---- after an internal error ----

    def count_error(self, hook: str) -> None:
        self._counters.add("internal_errors", hook)

    def stop(self, why: str) -> None:
        """A rank's exception goes through: then it is unknown whether its leases have ended."""
        if self.stopped:
            if self._stop_failed:
                raise NotStoppedError("kvferry: not all ranks have ended their leases")
            return
        self.stopped = self._stop_failed = True
        logger.error("kvferry: transfers are stopped: all leases of this engine end, and its loads are aborted (%s)", why)
        self._meter.set_gauge("transfers_stopped", 1)
        if self.joined:
            self._stop_all(why)
        self._stop_failed = False

    def _stop_all(self, why: str) -> None:
        try:
            are_released = all(self._stop_ranks(why))
        except Exception as error:
            raise NotStoppedError(f"kvferry: not all ranks have ended their leases: {error}") from error
        self._producer.stop()
        self._consumer.stop(are_released)
        seam.receive(self._scheduler, self._take_given_back())

    def close(self) -> None:
        if self._questions is not None:
            self._questions.close()
        if self._listener is not None:
            self._listener.close()
        self._weights.close()
        super().close()

    # ---- between steps: transfers/calls.py ----

    def unload_waiting(self) -> None:
        """Prompts that are loaded and wait for a place are computed here."""
        if self.joined:  # before its first request, an engine without a process of its own has not joined
            self._consumer.unload_waiting()

    @property
    def paused(self) -> bool:
        return self._producer.paused

    def pause(self, paused: bool) -> None:
        """No new leases until pause(False)."""
        self._producer.paused = self._consumer.refuses_for_now = paused

    def _give_up_started(self) -> None:
        self._producer.forget_started()
        self._consumer.forget_waiting()

    def _empty_cache(self) -> None:
        """vLLM's, of blocks of other weights or adapters, if no request uses any."""
        if self._alone and self._pool is not None and self._pool.reset_cache():
            self.content.cache_is_empty()

    def shutting_down(self) -> None:
        """vLLM lets its requests end, and takes no more."""
        if self._drain is not None:
            with suppress(OSError):  # its API server knows
                self._drain.begin(0)
        self._consumer.refuses_for_now = self._producer.drains = True

    def aborting(self) -> None:
        """vLLM is about to abort all its requests, and not because their clients have left."""
        self._consumer.detach_all()
