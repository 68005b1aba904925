"""For TensorRT-LLM: `connector_module: kvferry.trtllm`, `connector_scheduler_class: KVFerryScheduler`,
`connector_worker_class: KVFerryWorker`. What has to be set, and what is not supported: docs/trtllm.md."""

from .scheduler import KVFerryScheduler
from .worker import KVFerryWorker

__all__ = ["KVFerryScheduler", "KVFerryWorker"]
