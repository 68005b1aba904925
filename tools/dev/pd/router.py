"""vLLM's own router in front of prefill engines and a decode engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from . import web
from .engine import HOST, EngineError
from .ports import free_ports
from .process import Process


class Router:
    def __init__(self, prefill_urls: Sequence[str], decode_url: str, logs: Path, port: int | None = None,
                 name: str = "router", args: Sequence[str] = ()) -> None:
        self.name = name
        self.port, metrics_port = free_ports(2)
        self.port = port or self.port
        argv = [
            str(Path(sys.executable).with_name("vllm-router")), "--vllm-pd-disaggregation",
            *(word for url in prefill_urls for word in ("--prefill", url)), "--decode", decode_url,
            "--host", HOST, "--port", str(self.port), "--prometheus-port", str(metrics_port),
            "--kv-connector", "nixl", *args,
        ]
        self.process = Process(self.name, argv, dict(os.environ), logs / f"{name}.log")

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        self.process.start()

    def healthy(self) -> bool:
        if not self.process.running():
            raise EngineError(f"the router ended while starting; its log ends so:\n{self.process.log_tail()}")
        return web.get_status(self.url + "/health", timeout_s=2.0) == 200

    def stop(self) -> None:
        self.process.stop(grace_s=2.0)
