"""Mooncake's Transfer Engine as its vLLM connector uses it: a synchronous call with the lists of addresses."""

from __future__ import annotations

import importlib.metadata

import side
from mooncake.engine import TransferEngine

BATCH_MAX = 2048  # of one call: with 5120 it fails


class Mooncake:
    def __init__(self, _role: str, _variant: str, options: dict[str, str]):
        self.engine = TransferEngine()
        self.address = options.get("address", "127.0.0.1")
        if self.engine.initialize(self.address, "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("Mooncake's engine does not start")
        self.registered = False
        self.batches: list[tuple[str, list[int], list[int], list[int]]] = []

    def version(self) -> str:
        return f"Mooncake {importlib.metadata.version('mooncake-transfer-engine-non-cuda')}"

    def register(self, job: side.Job) -> None:
        if not self.registered and self.engine.register_memory(job.pool, job.pool_bytes) != 0:
            raise RuntimeError("Mooncake does not register the pool")
        self.registered = True

    def hold(self, job: side.Job) -> str:
        self.register(job)
        return f"{job.pool} {self.address}:{self.engine.get_rpc_port()}"

    def read(self, job: side.Job, offer: str) -> None:
        pool, target = offer.split()
        self.register(job)
        count = job.layers * job.blocks
        ours = (job.pool + job.segments(job.local_ids) * job.block_bytes).tolist()
        theirs = (int(pool) + job.segments(job.remote_ids) * job.block_bytes).tolist()
        self.batches = [
            (target, ours[at : at + BATCH_MAX], theirs[at : at + BATCH_MAX], [job.block_bytes] * min(BATCH_MAX, count - at))
            for at in range(0, count, BATCH_MAX)
        ]

    def read_once(self) -> None:
        for batch in self.batches:
            if self.engine.batch_transfer_sync_read(*batch) != 0:
                raise RuntimeError("a transfer has failed")

    def end(self) -> None:
        pass


if __name__ == "__main__":
    side.main(Mooncake)
