"""Two engines with a proxy of vLLM's before them, whose ports are known before they start."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from pd.connector import Connector
from pd.engine import BLOCK_TOKENS, HOST, Server
from pd.paths import FAST
from pd.ports import free_ports
from pd.process import Process
from pd.progress import wait_until
from pd.stack import START_LIMIT_S, Stack, log_folder, pair

BLOCKS = 64


class Proxy(Server):
    grace_s = 2.0

    def __init__(self, program: Path, stack: Stack, health: str) -> None:
        self.port, = free_ports(1)
        self.health = health
        argv = [sys.executable, str(program), "--host", HOST, "--port", str(self.port),
                "--prefiller-hosts", HOST, "--prefiller-ports", str(stack.prefill.port),
                "--decoder-hosts", HOST, "--decoder-ports", str(stack.decode.port)]
        self.process = Process(program.stem, argv, dict(os.environ), stack.logs / f"{program.stem}.log")


class Pair:
    def __init__(self, name: str, connector: Connector, proxy: Path, health: str = "/healthcheck", **shape: Any) -> None:
        """`shape`: what both engines have otherwise."""
        specs = [replace(spec, **shape) for spec in pair(FAST, connector, BLOCKS, BLOCKS)]
        self.stack = Stack(specs, log_folder(name), with_router=False)
        self.proxy = Proxy(proxy, self.stack, health)

    @property
    def env(self) -> dict[str, str]:
        """By which vLLM's tests find the three."""
        ports = {"PREFILL": self.stack.prefill.port, "DECODE": self.stack.decode.port, "PROXY": self.proxy.port}
        return {"BLOCK_SIZE": str(BLOCK_TOKENS), **{f"{name}_HOST": HOST for name in ports},
                **{f"{name}_PORT": str(port) for name, port in ports.items()}}

    def __enter__(self) -> Pair:
        self.stack.__enter__()
        try:
            self.proxy.start()
            wait_until(f"waiting for {self.proxy.name}", self.proxy.healthy, START_LIMIT_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.proxy.stop()
        self.stack.stop()
