"""A worker's side: carries the scheduler side's orders to the rank's node, and the node's events back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from kvferry import _kvferry

from .adapters import LORA_CHANGED, Content, loaded_adapters
from .config import open_rank_node
from .layout import regions_of
from .log import limited, logger
from .messages import Ending, News, Orders
from .metrics import Meter, Stats

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

CONFIRM_S = 0.8
"""How long a rank may take to end all of its leases and loads."""
CONFIRM_POLL_S = 0.001


class Worker:
    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> None:
        self._kv_cache_config = kv_cache_config
        self._ranks = vllm_config.parallel_config.tensor_parallel_size
        self._rank = get_tensor_model_parallel_rank()
        self._node = open_rank_node(vllm_config, kv_cache_config, self._rank)
        self._meter = Meter(self._node, f"rank {self._rank}")
        self._adapters = loaded_adapters(vllm_config.lora_config)
        self._news = News()
        self._loading: set[int] = set()
        self._kv_caches: dict[str, torch.Tensor] = {}
        """Until they are registered with the node."""

    @property
    def _bit(self) -> int:
        return 1 << self._rank

    def register(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._kv_caches = kv_caches

    def open(self) -> None:
        """Once all connectors have registered: one beside this may have moved the tensors to memory of its own."""
        if not self._kv_caches:
            return
        regions = regions_of(self._kv_caches, self._kv_cache_config, self._ranks)
        self._kv_caches = {}
        self._node.register(regions)
        logger.info("kvferry: rank %d of %d carries %d regions of %d blocks", self._rank, self._ranks, len(regions),
                    self._kv_cache_config.num_blocks)

    def address(self) -> bytes:
        """Where the rank's node listens: a record for Node.set_ranks()."""
        self.open()
        return self._node.address()

    def before_forward(self, orders: Orders) -> None:
        """Nothing that the step overwrites may be under a lease, or the destination of a load that is not wanted."""
        self._node.lease_end(orders.end)
        self._node.load_abort(orders.abort)

    def end_transfers(self, ending: Ending) -> News:
        """Ends these leases and loads, and waits for the library to confirm each. What it does not know has ended."""
        news = self._news
        for kinds, statuses in ((news.ended, zip(ending.leases, self._node.lease_end(list(ending.leases.values())))),
                                (news.quiet, zip(ending.loads, self._node.load_abort(ending.loads)))):
            kinds.update({id_: self._bit for id_, status in statuses if status == _kvferry.NOT_FOUND})
        deadline = time.monotonic() + CONFIRM_S
        self._poll()
        while not (news.ended.keys() >= ending.leases.keys() and news.quiet.keys() >= set(ending.loads)):
            if time.monotonic() > deadline:
                break
            time.sleep(CONFIRM_POLL_S)
            self._poll()
        return self._take_news()

    def start_loads(self, orders: Orders) -> None:
        self._news.refused |= self._have_another_adapter(orders.load_adapters)
        self._news.quiet |= dict.fromkeys(self._news.refused, self._bit)
        loads = [load for load in orders.load if load[0] not in self._news.refused]
        for load, status in zip(loads, self._node.load_start(loads)):
            request_id, positions = load[0], load[4]
            if status == _kvferry.OK:
                self._loading.add(request_id)
            else:  # no event will come, and nothing has been written
                self._news.reports[request_id] = _kvferry.report(request_id, self._rank, positions, 0, status)
                self._news.quiet[request_id] = self._bit

    def publish(self, orders: Orders) -> None:
        """The step's forward is over: the bytes of its prompts are complete."""
        others = self._have_another_adapter(orders.lease_adapters)
        publications = [publication for publication in orders.publish if publication[2] not in others]
        failed = dict.fromkeys(others, LORA_CHANGED)
        for publication, status in zip(publications, self._node.lease_publish(publications)):
            if status != _kvferry.OK:
                failed[publication[2]] = _kvferry.status_name(status)
        for lease_id, reason in failed.items():
            limited.warning("kvferry: lease %d cannot be published: %s", lease_id, reason, reason=reason)
            self._news.unpublished.add(lease_id)
            self._news.ended[lease_id] = self._bit

    def _have_another_adapter(self, contents: dict[int, Content]) -> set[int]:
        return {id_ for id_, content in contents.items() if not self._adapters.has(content, self._rank)}

    def results(self, orders: Orders) -> KVConnectorTransferResults:
        """vLLM hears of loads from the scheduler side. Of a request that has ended it waits for as many words as connectors
        keep it, and counts those of workers."""
        return KVConnectorTransferResults(finished_sending=set(orders.last_words))

    def _poll(self) -> None:
        news = self._news
        while events := self._node.poll():
            for kind, id_, _, payload in events:
                if kind == _kvferry.EVENT_LEASE_ENDED:
                    news.ended[id_] = self._bit
                elif kind == _kvferry.EVENT_LOAD:
                    news.reports[id_] = payload
                elif kind == _kvferry.EVENT_QUIET:
                    news.quiet[id_] = self._bit
                    self._loading.discard(id_)
        if self._loading and not self._node.healthy():
            loads = list(self._loading)
            news.stuck |= {id_ for id_, status in zip(loads, self._node.load_stuck(loads)) if status == _kvferry.OK}

    def news(self, orders: Orders) -> News | None:
        self._poll()
        news = self._take_news()
        return news if orders.answer or not news.is_empty() else None

    def look(self) -> News:
        """Between steps."""
        self._poll()
        return self._take_news()

    def _take_news(self) -> News:
        news, self._news = self._news, News()
        if changes := self._adapters.changes():
            news.adapters[self._rank] = changes
        return news

    def stats(self) -> Stats | None:
        return self._meter.read()

    def close(self) -> None:
        self._node.close()
