"""An engine without an engine: the connector's sides on real nodes, stepped as vLLM steps them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from engines import gauges_left, wait_until
from fakes import (
    POOL_BLOCKS,
    TOKENS,
    FakeBlocks,
    FakeManager,
    join,
    kv_cache_config,
    request,
    step,
    take_errors,
    vllm_config,
    vllm_scheduler,
)
from kvferry.vllm import config, scheduler, worker
from kvferry.vllm.scheduler import RankReports, StepMetadata
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus

SOURCE, TARGET = [1, 2, 3], [4, 5, 6]
HEADS, BLOCK_TOKENS, HEAD_SIZE = 2, 32, 16
ids = itertools.count()


def host_memory(layer: int, rank: int) -> torch.Tensor:
    return torch.zeros(POOL_BLOCKS, HEADS, BLOCK_TOKENS, 2 * HEAD_SIZE)


def of_stage(kv: KVCacheConfig, layers: list[str]) -> KVCacheConfig:
    """As vLLM gives it to a pipeline's stage: all groups, and of each the layers that are there."""
    groups = [replace(group, layer_names=[name for name in group.layer_names if name in layers]) for group in kv.kv_cache_groups]
    return replace(kv, kv_cache_groups=groups)


REMEMBERED = {"_opened", "_shared"}
"""Of tickets that have been used, and of requests with several answers, so many."""


class Sides:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, ranks: int = 1, model: str = "toy",
                 memory: Callable[[int, int], torch.Tensor] = host_memory, control: dict[str, Any] | None = None,
                 kv: KVCacheConfig | None = None, kv_heads: int = 8, stages: int = 1, **options: Any) -> None:
        """`control` are options of the control node alone; `memory` is of a layer and tensor-parallel rank. With a key, too, it
        stays on loopback."""
        options = {"listen": "127.0.0.1"} | options
        monkeypatch.setattr(config, "identity_fields", lambda *engine: {"model": model})
        policy = options.pop("policy", "fail")
        kv = kv or kv_cache_config()
        layers = [name for group in kv.kv_cache_groups for name in group.layer_names]
        self._groups = len(kv.kv_cache_groups)
        by_stage = [layers[stage * len(layers) // stages:(stage + 1) * len(layers) // stages] for stage in range(stages)]
        self.scheduler = scheduler.Scheduler(vllm_config(policy, ranks, options | (control or {}), kv_heads, stages),
                                             of_stage(kv, by_stage[0]))
        self.workers = []
        self.memory: list[torch.Tensor] = []
        for rank in range(ranks * stages):
            own = by_stage[rank // ranks]
            monkeypatch.setattr(worker, "rank_of_worker", lambda engine: rank)
            self.workers.append(worker.Worker(vllm_config(policy, ranks, options, kv_heads, stages), of_stage(kv, own)))
            caches = {name: memory(layers.index(name), rank % ranks) for name in own}
            self.workers[-1].register(caches)
            self.memory += caches.values()
        self.requests: dict[str, Any] = {}
        self.stop_reasons: list[Any] = []  # of those that have failed
        self.ended: set[str] = set()
        """Requests of which vLLM has heard the last word in the last step."""
        self.manager = FakeManager()
        self.manager.groups = (SOURCE,) * self._groups
        self.vllm = vllm_scheduler(self.manager)
        join(self.scheduler, self.vllm, [side.address() for side in self.workers], self.workers)
        self.has_places = True
        self.silent: set[int] = set()
        """Ranks that are stuck: they do later what they are told now."""
        self._orders: list[list[StepMetadata]] = [[] for _ in self.workers]

    def close(self) -> None:
        self.scheduler.close()
        for side in self.workers:
            side.close()

    # ---- as vLLM does ----

    def step(self, output: Any = None) -> tuple[set[str], set[str]]:
        """Requests that vLLM hears of as received, and those that it ends with an error."""
        orders = self.scheduler.orders(output or step())
        self.ended, reports = set(), None
        for rank, side in enumerate(self.workers):
            self._orders[rank].append(orders)
            while self._orders[rank] and rank not in self.silent:
                own_orders = self._orders[rank].pop(0)
                side.before_forward(own_orders)
                side.start_loads(own_orders)
                side.publish(own_orders)
                self.ended |= set(own_orders.finished)
                own = RankReports([side.report()])
                reports = own if reports is None else reports.aggregate(own)
        failed = self._end_failed()
        heard = KVConnectorOutput(kv_connector_worker_meta=reports or RankReports())
        self.scheduler.update(heard)
        answers = EngineCoreOutputs(outputs=[EngineCoreOutput(id_, []) for id_ in failed])
        self.scheduler.say_why({0: answers})
        self.stop_reasons += [answer.stop_reason for answer in answers.outputs]
        return heard.finished_recving or set(), failed

    def _end_failed(self) -> set[str]:
        failed = {id_ for id_ in take_errors(self.vllm) if not RequestStatus.is_finished(self.requests[id_].status)}
        for id_ in failed:
            self.requests[id_].status = RequestStatus.FINISHED_ERROR
            self.scheduler.finish(self.requests[id_])
        return failed

    def prefill(self) -> dict[str, Any]:
        """What the client of a prefill gets."""
        one = request(f"cmpl-p{next(ids)}-0-00000000", TOKENS, params={"do_remote_decode": True})
        self.scheduler.arrive(one)
        self.step(step({one.request_id: TOKENS}))
        one.status = RequestStatus.FINISHED_LENGTH_CAPPED
        _, params = self.scheduler.finish(one)
        assert params is not None
        return params

    def begin(self, params: dict[str, Any]) -> Any:
        """A request with its blocks, if vLLM is told to wait for them."""
        one = request(f"cmpl-d{next(ids)}-0-00000000", TOKENS, params=params)
        self.requests[one.request_id] = one
        self.scheduler.arrive(one)
        external, _ = self.scheduler.offer(one, 0) if self.has_places else (0, False)
        if external:
            self.scheduler.admit(one, FakeBlocks(*[TARGET] * self._groups), external)
        one.status = RequestStatus.WAITING_FOR_REMOTE_KVS if external else RequestStatus.RUNNING
        return one

    def until_received(self, one: Any) -> bool:
        """Steps until vLLM hears of it, which has to be once; whether it has failed."""
        received, failed = wait_until("vLLM to be told", lambda: any(said := self.step()) and said)
        assert [*received, *failed] == [one.request_id]
        if received:
            one.status = RequestStatus.FINISHED_LENGTH_CAPPED
            self.scheduler.finish(one)
        return bool(failed)

    # ---- what is left ----

    def left(self) -> dict[str, Any]:
        """What is still on the books: of the two sides, and of their nodes."""
        found: dict[str, Any] = {}
        consumer, producer = self.scheduler._consumer, self.scheduler._producer
        for owner in (consumer, producer, *self.workers):
            found |= {f"{type(owner).__name__}.{name}": value for name, value in vars(owner).items()
                      if isinstance(value, (dict, list, set)) and value and name not in REMEMBERED}
        for side in self.workers:
            if not side._report.is_empty():
                found["report"] = side._report
        return found | gauges_left((self.scheduler._node, *(side._node for side in self.workers)))

    def until_nothing_is_left(self) -> None:
        wait_until(lambda: f"the end of {self.left()}", lambda: self.step() and not self.left())

    def stat(self, name: str, reason: str = "") -> int:
        return sum(value for node in (self.scheduler._node, *(side._node for side in self.workers))
                   for stat, why, value, _ in node.stats() if (stat, why) == (name, reason))
