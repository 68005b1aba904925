"""A worker's side."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank

from kvferry import Point, _kvferry
from kvferry.engine import worker
from kvferry.engine.boundary import Refused, of_all
from kvferry.engine.log import logger
from kvferry.engine.messages import RankReport, StepOrders

from . import contract, seam
from .config import has_checksums, open_node
from .content.adapters import Adapter, Content, loaded_adapters
from .layout import Pool, check_checksums, pool_of, split_of
from .split import ranks_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


def rank_of_worker(vllm_config: VllmConfig) -> int:
    """This process's, of ranks_of()."""
    stage = get_pp_group().rank_in_group
    return int(stage * vllm_config.parallel_config.tensor_parallel_size + get_tensor_model_parallel_rank())


def _nothing(*_: Any) -> None:
    """The answer of a rank that is stopped."""


def _why_stopped(side: Worker, *_: Any) -> RankReport:
    return RankReport(side._rank, stopped=side._stopped)


def _finished(side: Worker, orders: StepOrders) -> set[str]:
    """Also where all is stopped: vLLM waits for them."""
    return set(orders.finished)


class Worker(worker.Worker):
    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, features_off: Collection[str] = ()) -> None:
        rank = rank_of_worker(vllm_config)
        super().__init__(open_node(vllm_config, kv_cache_config, rank), rank)
        self._kv_cache_config = kv_cache_config
        self._ranks = ranks_of(vllm_config)
        self._split = split_of(vllm_config, rank)
        self._has_checksums = has_checksums(vllm_config)
        self._adapters = loaded_adapters(vllm_config.lora_config)
        self._kv_caches: dict[str, torch.Tensor] = {}  # until they are registered with the node
        self._pool: Pool | None = None
        self._is_away = False
        self._gpu: int | None = None
        self._loads_first = contract.LOADS_FIRST not in features_off
        self._stopped = ""  # why

    def register(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._kv_caches = kv_caches

    def open(self) -> None:
        """Once all connectors have registered: one beside this may have moved the tensors to memory of its own."""
        if not self._kv_caches:
            return
        pool = pool_of(self._kv_caches, self._kv_cache_config, self._split)
        if self._has_checksums:
            check_checksums(pool, self._kv_cache_config.kv_cache_layout)
        self._kv_caches = {}
        self._node.register(*pool)
        self._pool = pool
        self._gpu = next((region.device for region in pool.regions if region.memory == _kvferry.MEMORY_CUDA), None)
        if self._gpu is not None and not self._loads_first and self._rank == 0:
            seam.say_off(contract.LOADS_FIRST)  # the scheduler's process may not have the runner in memory
        logger.info("kvferry: rank %d of %d carries %d regions of %d blocks", self._rank, self._ranks, len(pool.regions),
                    self._kv_cache_config.num_blocks)

    def _give_memory_back(self) -> None:
        if not self.leave_memory():
            raise Refused("kvferry: a read of the KV cache has not ended: it must stay where it is")

    @of_all(_give_memory_back)
    def leave(self) -> None:
        """vLLM is about to take the memory away. Refused: a read of it has not ended."""
        self._is_away = True
        self._give_memory_back()

    @of_all(_nothing)
    def come_back(self) -> None:
        """The memory is there again, at the same addresses, with other content: a new generation."""
        if self._is_away and self._pool is not None:
            self._node.register(*self._pool)
        self._is_away = False

    def address(self) -> bytes:
        """Where the rank's node listens: a record for Node.set_ranks()."""
        self.open()
        return self._node.address()

    def loads_first(self) -> bool:
        """Whether loads start before the step's forward. Their copies would want the cores of a CPU's."""
        return self._loads_first and self._gpu is not None

    def work_so_far(self) -> Point | None:
        """vLLM gives it all to one stream, the current one wherever it calls: zeroing of new blocks, forward, drafter."""
        if self._gpu is None:
            return None
        return Point(_kvferry.MEMORY_CUDA, self._gpu, torch.cuda.current_stream(self._gpu).cuda_stream)

    def has_adapter(self, content: Content) -> bool:
        return self._adapters.has(content, self._rank)

    def adapters_changed(self) -> dict[int, Adapter]:
        return self._adapters.changes()

    # ---- bounded ----

    before_forward = of_all(_nothing)(worker.Worker.before_forward)
    start_loads = of_all(_nothing)(worker.Worker.start_loads)
    publish = of_all(_nothing)(worker.Worker.publish)
    finished = of_all(_finished)(worker.Worker.finished)
    answer = of_all(_why_stopped)(worker.Worker.answer)
    report = of_all(_why_stopped)(worker.Worker.report)
    end_transfers = of_all(_why_stopped)(worker.Worker.end_transfers)

    @property
    def stopped(self) -> bool:
        return bool(self._stopped)

    def count_error(self, hook: str) -> None:
        self._counters.add("internal_errors", hook)

    def stop(self, why: str) -> bool:
        """Whether nothing touches the engine's memory any more. All leases have ended when it returns, in any case. It waits
        once: the hooks of each later step ask again."""
        wait_s = 0 if self._stopped else worker.CONFIRM_S
        self._stopped = self._stopped or why
        return self.leave_memory(wait_s)
