"""What an engine's step pays NixlConnector: the worker's own get_finished(), of the installed vLLM, on a worker that was made
without an engine. NIXL's agent, its handles and the loads in flight are real; what the method asks of the worker besides
(no failures, no handshakes under way, one remote engine) stands as after a handshake."""

from __future__ import annotations

import queue
import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

REMOTE, ADDRESS, AGENT = "engine", ("127.0.0.1", 5600), "agent"


def agent_config() -> dict[str, Any]:
    """As NixlBaseConnectorWorker makes its agent's by default."""
    return {"num_threads": 4, "capture_telemetry": True}


def vllm_version() -> str:
    import vllm

    return str(vllm.__version__)


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
