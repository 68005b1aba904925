"""vLLM servers without a GPU, and vLLM's own router in front of them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import metrics, web
from .connector import Connector
from .paths import LMCACHE
from .ports import free_ports
from .process import Process

BLOCK_TOKENS = 32
HOST = "127.0.0.1"
NO_SPINNING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that spin while they wait for one another kept all those of other engines from running, for more than three
seconds at a time."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
"""Nothing is asked of a hub or sent; the last is in GiB."""

LMCACHE_ENV = {"PYTHONPATH": str(LMCACHE), "LMCACHE_DISABLE_BANNER": "1", "LMCACHE_TRACK_USAGE": "false"}

SEVERAL_SERVERS = Path(__file__).with_name("servers.py")


class EngineError(RuntimeError):
    """A server that did not start, with the end of its log."""


@dataclass(frozen=True)
class EngineSpec:
    name: str
    model: Path
    connector: Connector
    cores: str
    blocks: int = 64
    max_tokens: int = 512
    args: tuple[str, ...] = ()
    api_servers: int = 1
    host: str = HOST
    """An address, in brackets if it is IPv6's."""
    enter: tuple[str, ...] = ()
    """A command that runs another one where that address is."""


def engine_env(spec: EngineSpec) -> dict[str, str]:
    return {
        **os.environ,
        **OFFLINE,
        "PYTHONUNBUFFERED": "1",
        "VLLM_CPU_OMP_THREADS_BIND": spec.cores,
        "VLLM_SERVER_DEV_MODE": "1",
        **spec.connector.env,
    }


def engine_argv(spec: EngineSpec, port: int) -> list[str]:
    program = ["-m", "vllm.entrypoints.openai.api_server"]
    if spec.api_servers > 1:
        program = [str(SEVERAL_SERVERS), "--api-server-count", str(spec.api_servers)]
    return [*spec.enter, sys.executable, *program, "--host", spec.host.strip("[]"), "--port", str(port), *engine_args(spec)]


def engine_args(spec: EngineSpec) -> list[str]:
    """Of vLLM's engine, whichever program it is in."""
    return [
        "--model", str(spec.model), "--served-model-name", "model",
        "--enforce-eager", "--dtype", "float32",
        "--max-model-len", str(spec.max_tokens),
        "--block-size", str(BLOCK_TOKENS),
        "--num-gpu-blocks-override", str(spec.blocks),
        "--kv-transfer-config", spec.connector.as_json(),
        *spec.args,
    ]


class Server:
    """A program that answers HTTP, and that can be paused, killed and started anew on the same port."""

    process: Process
    port: int
    grace_s = 10.0
    health = "/health"
    host = HOST

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        self.process.start()

    def healthy(self) -> bool:
        """True once the server answers; raises if it has ended instead."""
        if not self.process.running():
            raise EngineError(f"{self.name} ended while starting; its log ends so:\n{self.process.log_tail()}")
        return web.get_status(self.url + self.health, timeout_s=2.0) == 200

    def stop(self) -> None:
        self.process.stop(self.grace_s)


class Engine(Server):

    def __init__(self, spec: EngineSpec, logs: Path) -> None:
        self.port, self.connector_port = free_ports(2)
        self.host = spec.host
        self.spec = replace(spec, connector=spec.connector.at_port(self.connector_port))
        self._sockets = tempfile.TemporaryDirectory(prefix="pd-")
        """Those of vLLM's processes among each other: an engine that is killed leaves them. Gone with us."""
        env = {**engine_env(self.spec), "VLLM_RPC_BASE_PATH": self._sockets.name}
        self.process = Process(spec.name, engine_argv(self.spec, self.port), env, logs / f"{spec.name}.log")

    def samples(self) -> metrics.Samples:
        return metrics.parse(web.get(self.url + "/metrics", timeout_s=10.0)[1])

    def total(self, name: str, **labels: str) -> float:
        return metrics.total(self.samples(), name, **labels)

    def usage(self) -> float:
        """The share of the pool's blocks in use, 0.0 to 1.0."""
        return self.total("vllm:kv_cache_usage_perc")

    def call(self, path: str, limit_s: float, body: dict[str, Any] | None = None) -> web.Answer:
        """One of vLLM's for who serves it; EngineError if it fails."""
        answer = web.post_json(self.url + path, body or {}, limit_s)
        if answer.status != 200:
            raise EngineError(f"{self.name}: {path}: {answer.status} {answer.error or answer.body}")
        return answer

    def update_weights(self, folder: Path, limit_s: float, under_way: bool = False) -> None:
        """From files. `under_way`: vLLM goes on with the answers that it has begun, which are of both versions then; prompts
        that wait for a place are of the new one."""
        self._update(limit_s, under_way, "reload_weights", weights_path=str(folder))

    def write_to_weights(self, name: str, limit_s: float) -> None:
        """By its workers' extension (worker_extension.py)."""
        self._update(limit_s, False, "update_named_params", factor=-1.0, weights_id=name)

    def _update(self, limit_s: float, under_way: bool, method: str, **arguments: Any) -> None:
        """At once, or when all answers under way have ended: each is of one version then."""
        self.call("/pause?mode=" + ("keep&clear_cache=false" if under_way else "wait"), limit_s)
        self.call("/collective_rpc", limit_s, {"method": method, "kwargs": arguments})
        self.call(f"/reset_prefix_cache?reset_external=true&reset_running_requests={str(under_way).lower()}", limit_s)
        self.call("/resume", limit_s)

    def reset_prefix_cache(self, external: bool = True) -> bool:
        """Forgets cached prompts, also those of connectors beside ours; False while blocks are in use."""
        external = external and bool(self.spec.connector.siblings)
        if external:  # OffloadingConnector bears one reset between two steps
            web.post_json(self.url + "/v1/completions", {"model": "model", "prompt": [1, 2, 3], "max_tokens": 1}, 10.0)
        reply = web.post_json(self.url + f"/reset_prefix_cache?reset_external={external}", {}, timeout_s=10.0)
        return reply.status == 200 and bool(reply.body.get("success"))


class Router(Server):
    grace_s = 2.0

    def __init__(self, prefill_urls: Sequence[str], decode_url: str, logs: Path, port: int | None = None,
                 name: str = "router", args: Sequence[str] = ()) -> None:
        self.port, metrics_port = free_ports(2)
        self.port = port or self.port
        argv = [
            str(Path(sys.executable).with_name("vllm-router")), "--vllm-pd-disaggregation",
            *(word for url in prefill_urls for word in ("--prefill", url)), "--decode", decode_url,
            "--host", HOST, "--port", str(self.port), "--prometheus-port", str(metrics_port),
            "--kv-connector", "nixl", *args,
        ]
        self.process = Process(name, argv, dict(os.environ), logs / f"{name}.log")


class LMCacheServer(Server):
    """What LMCache's connectors of several engines keep, in host memory."""

    health = "/healthcheck"

    def __init__(self, logs: Path) -> None:
        self.port, self.data_port = free_ports(2)
        argv = [sys.executable, "-m", "lmcache.cli.main", "server", "--host", HOST, "--port", str(self.data_port),
                "--http-host", HOST, "--http-port", str(self.port), "--chunk-size", str(BLOCK_TOKENS),
                "--supported-transfer-mode", "auto", "--eviction-policy", "LRU", "--l1-size-gb", "1", "--no-l1-use-lazy",
                "--disable-observability"]
        self.process = Process("lmcache", argv, {**os.environ, **LMCACHE_ENV}, logs / "lmcache.log")


def split_cores() -> tuple[str, str]:
    """Core lists for P and D, in the form that VLLM_CPU_OMP_THREADS_BIND takes; at most four each."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1:
        return str(cores[0]), str(cores[0])
    half = min(len(cores) // 2, 4)
    return join(cores[:half]), join(cores[half:2 * half])


def join(cores: list[int]) -> str:
    return ",".join(str(core) for core in cores)
