"""The class that vLLM loads: hands each call to the side that this process has."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from kvferry.engine.boundary import all_of

from . import seam
from .config import carries_drafts, check_start, serves_tcp
from .engine_core import install
from .groups import without_drafts
from .metrics import PromMetrics, Stats
from .scheduler import RankReports, Scheduler
from .worker import Worker

if TYPE_CHECKING:
    import torch
    from vllm.config import KVTransferConfig, VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
        KVConnectorPromMetrics,
        KVConnectorStats,
        PromMetric,
        PromMetricT,
    )
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class KVFerryConnector(KVConnectorBase_V1, SupportsHMA):
    with suppress(ModuleNotFoundError):  # vLLM 0.31 does not ask
        from vllm.v1.metrics.cache_hit_source import CacheHitSource

        _cache_hit_source = CacheHitSource.P2P

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        kv_cache_config, drafts = without_drafts(vllm_config, kv_cache_config, carries_drafts(vllm_config))
        super().__init__(vllm_config, role, kv_cache_config)
        features_off = check_start(vllm_config)
        self._side: Scheduler | Worker
        if role == KVConnectorRole.SCHEDULER:
            seam.say_start(features_off)
            self._side = self._scheduler = Scheduler(vllm_config, kv_cache_config, len(drafts), features_off)
            install(vllm_config, KVFerryConnector)
        else:
            self._side = self._worker = Worker(vllm_config, kv_cache_config, features_off)

    @property
    def _orders(self) -> Any:
        return self._get_connector_metadata()

    # ---- both sides ----

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        return "LBHNC"

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: KVTransferConfig) -> bool:
        """What vLLM's allocator makes for it only tcp reads: no other process can map it, and no network card keeps it."""
        return serves_tcp(kv_transfer_config)

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        data = None
        with all_of(self._side, "stats"):  # also when all is stopped
            data = self._side.stats()
        return None if data is None else Stats(data)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats:
        return Stats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config: VllmConfig, metric_types: dict[type[PromMetric], type[PromMetricT]],
                           labelnames: list[str],
                           per_engine_labelvalues: dict[int, list[object]]) -> KVConnectorPromMetrics:
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        self._side.close()

    # ---- workers, in the order of one step ----

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._worker.register(kv_caches)

    def get_handshake_metadata(self) -> None:
        """There is none: vLLM asks when all connectors have registered, and before it starts the engine."""
        self._worker.open()

    def unregister_kv_caches(self) -> None:
        self._worker.leave()

    def restore_kv_caches(self) -> None:
        self._worker.come_back()

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        self._worker.before_forward(kv_connector_metadata)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        self._worker.start_loads(self._orders)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are asynchronous: no layer of a step waits for one."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: AttentionMetadata,
                      **kwargs: Any) -> None:
        """Blocks are read from where they are."""

    def wait_for_save(self) -> None:
        self._worker.publish(self._orders)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """vLLM hears of loads from the scheduler side. Of a request that has ended it waits for as many words as connectors
        keep it, and counts those of workers."""
        return self._worker.finished(self._orders), None

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        report = self._worker.answer(self._orders)
        return RankReports([report]) if report is not None else None

    # ---- the scheduler ----

    def on_new_request(self, request: Request) -> None:
        self._scheduler.arrive(request)

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        return self._kv_cache_config.transfer_group_ids

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._scheduler.offer(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self._scheduler.admit(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        return self._scheduler.orders(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self._scheduler.update(connector_output)

    def has_pending_block_frees(self) -> bool:
        return self._scheduler.frees_soon()

    def has_pending_push_work(self) -> bool:
        return self._scheduler.busy

    def request_finished(self, request: Request, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        return self._scheduler.finish(request)

    request_finished_all_groups = request_finished
