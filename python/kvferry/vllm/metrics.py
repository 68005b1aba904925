"""The nodes' numbers as vLLM carries and shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from kvferry.engine.metrics import Data, Prometheus, merge_data, no_data, summary

from .config import prefix_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import PromMetric, PromMetricT


@dataclass
class Stats(KVConnectorStats):
    data: Data = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data = no_data()

    def aggregate(self, other: KVConnectorStats) -> Stats:
        merge_data(self.data, other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        return summary(self.data)

    def is_empty(self) -> bool:
        return not any(self.data.values())


class PromMetrics(KVConnectorPromMetrics):
    def __init__(self, vllm_config: VllmConfig, metric_types: dict[type[PromMetric], type[PromMetricT]],
                 labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._metrics = Prometheus(metric_types[Counter], metric_types[Gauge], metric_types[Histogram], self._labelnames,
                                   self.per_engine_labelvalues,
                                   prefix_of(vllm_config.kv_transfer_config.kv_connector_extra_config))

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        self._metrics.observe(Stats(data=transfer_stats_data).data, engine_idx)
