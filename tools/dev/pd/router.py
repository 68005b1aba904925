"""vLLM's own router in front of prefill engines and a decode engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .engine import HOST, Server
from .ports import free_ports
from .process import Process


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
