"""The scheduler's side: the engine's control node, and what it and the workers have to tell vLLM's scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvferry import _kvferry

from .config import error_status_of, loaded_weights, open_control_node
from .consumer import Consumer
from .failures import Failures
from .messages import News, Orders, RankAddress
from .metrics import Meter, Stats
from .producer import Producer
from .requests import Prompts

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class Scheduler:
    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
        self._node = open_control_node(vllm_config, kv_cache_config)
        self._meter = Meter(self._node, "control")
        prompts = Prompts(vllm_config, loaded_weights(vllm_config))
        self._producer = Producer(self._node, prompts, vllm_config, kv_cache_config)
        self._failures = Failures(error_status_of(vllm_config))
        self._consumer = Consumer(self._node, prompts, self._failures, vllm_config, kv_cache_config)

    def bind(self, manager: KVCacheManager) -> None:
        self._consumer.manager = manager
        self._producer.manager = manager

    def set_ranks(self, addresses: list[RankAddress]) -> None:
        self._node.set_ranks([address.record for address in addresses])

    def arrive(self, request: Request) -> None:
        self._producer.arrive(request)
        self._consumer.arrive(request)

    def offer(self, request: Request, computed: int) -> tuple[int, bool]:
        return self._consumer.offer(request, computed)

    def admit(self, request: Request, blocks: KVCacheBlocks, external: int) -> None:
        self._consumer.admit(request, blocks, external)

    def finish(self, request: Request) -> tuple[bool, dict[str, Any] | None]:
        self._consumer.finish(request)
        return self._producer.finish(request)

    def _poll(self) -> None:
        while events := self._node.poll():
            for kind, id_, _, payload in events:
                if kind == _kvferry.EVENT_VERDICT:
                    self._consumer.decide(id_, payload)

    def orders(self, scheduler_output: SchedulerOutput) -> Orders:
        """The step's orders to the workers."""
        self._poll()
        orders = Orders()
        self._producer.fill(orders, scheduler_output)
        self._consumer.fill(orders)
        orders.answer = self._producer.busy or self._consumer.busy
        return orders

    def update(self, output: KVConnectorOutput) -> None:
        """The step's news. vLLM acts on the two sets of the output after this returns, and its engine dies of an id
        that it does not expect: they are replaced by what is due, each id once."""
        news = output.kv_connector_worker_meta
        if isinstance(news, News):
            self._producer.take(news)
            self._consumer.take(news)
        self._poll()
        output.finished_recving = self._consumer.settle(output.finished_recving or ())
        output.finished_sending = self._producer.take_released()

    def stats(self) -> Stats | None:
        return self._meter.read()

    def close(self) -> None:
        self._failures.close()
        self._node.close()
