"""A cache in host memory for vLLM's OffloadingConnector on machines without a GPU: copies by memcpy, late.

    "kv_connector_extra_config": {"spec_name": "LateSpec", "spec_module_path": "pd.offload",
                                  "cpu_bytes_to_use": 67108864, "delay_ms": 200}

A store reads its blocks that long after it was told to, unless vLLM waits for it (before somebody else gets the blocks).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

DELAY_MS = 200


@dataclass
class Job:
    due: float
    blocks: GPULoadStoreSpec
    chunks: LoadStoreSpec
    is_store: bool


class LateWorker(OffloadingWorker):
    def __init__(self, caches: CanonicalKVCaches, chunks: int, delay_s: float) -> None:
        self._pools = [pool.tensor for pool in caches.tensors]
        self._host = [pool.new_empty((chunks, pool.shape[1])) for pool in self._pools]
        self._groups = [[ref.tensor_idx for ref in refs] for refs in caches.group_data_refs]
        self._delay_s = delay_s
        self._jobs: dict[int, Job] = {}
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        return self._submit(job_id, src_spec, dst_spec, is_store=True)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return self._submit(job_id, dst_spec, src_spec, is_store=False)

    def _submit(self, job_id: int, blocks: GPULoadStoreSpec, chunks: LoadStoreSpec, is_store: bool) -> bool:
        self._jobs[job_id] = Job(time.monotonic() + self._delay_s, blocks, chunks, is_store)
        return True

    def _run(self, job_id: int) -> None:
        job = self._jobs.pop(job_id)
        start, size, place = time.monotonic(), 0, 0
        chunks: Any = job.chunks
        for pools, count in zip(self._groups, job.blocks.group_sizes):
            for index in range(place, place + count):
                block, chunk = job.blocks.block_ids[index], chunks.block_ids[index]
                for pool in pools:
                    kv, host = self._pools[pool][block], self._host[pool][chunk]
                    (host if job.is_store else kv).copy_(kv if job.is_store else host)
                    size += kv.numel()
            place += count
        self._done.append(TransferResult(job_id, True, size, time.monotonic() - start))

    def get_finished(self) -> list[TransferResult]:
        now = time.monotonic()
        for job_id in [job_id for job_id, job in self._jobs.items() if job.due <= now]:
            self._run(job_id)
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        for job_id in job_ids & self._jobs.keys():
            self._run(job_id)


class LateSpec(CPUOffloadingSpec):
    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        delay_ms = int(self.extra_config.get("delay_ms", DELAY_MS))
        chunks = self.num_chunks if hasattr(self, "num_chunks") else self.num_blocks  # 0.29
        return LateWorker(kv_caches, chunks, delay_ms / 1000)
