"""Two prefill engines, a decode engine and vLLM's router; the injector is loaded into each engine."""

from __future__ import annotations

import http.client
import time
from dataclasses import replace
from pathlib import Path

from pd import client, web
from pd.connector import CONNECTORS, Connector
from pd.engine import Engine, EngineError, EngineSpec, Router, split_cores
from pd.paths import FAST
from pd.progress import wait_until
from pd.rig import PROBE
from pd.stack import START_LIMIT_S, Stack

from .clients import LOAD_TIMEOUT_S
from .injector import VARIABLE, Control
from .plan import PRODUCERS

LEASE_S = 3.0
P_BLOCKS = 64
D_BLOCKS = 96
"""Both less than what all prompts need: a block has another owner soon."""
BUDGET_TOKENS_PER_S = 150
"""Of recomputing on D: what goes beyond it is a typed error."""
ROUTER_ARGS = ("--prefill-policy", "random")
"""The router goes on asking a dead prefill engine: who tries again should not meet it each time."""
IDLE_POKE_S = 3.0
WARM_UP_LIMIT_S = 60.0


def connector_for(name: str) -> Connector:
    base = CONNECTORS[name](LEASE_S)
    if name != "kvferry":
        return base
    return base.with_options(load_timeout_ms=int(LOAD_TIMEOUT_S * 1000), recompute_budget_tokens_per_s=BUDGET_TOKENS_PER_S,
                             checksum="on")


def blocks_in_use(engine: Engine) -> int:
    """All of them where the engine does not answer. One block is vLLM's own."""
    try:
        return round(engine.usage() * (engine.spec.blocks - 1))
    except (OSError, http.client.HTTPException):
        return engine.spec.blocks


class Cluster(Stack):
    """A Stack whose engines are P1, D, P2. P2 of ours offers tcp alone, so that both transports are in use."""

    def __init__(self, name: str, seed: int, library: Path, logs: Path) -> None:
        base = connector_for(name)
        only_tcp = base.with_options(transports=["tcp"]) if name == "kvferry" else base
        p_cores, d_cores = split_cores()
        typed = ("--middleware", "kvferry.vllm.KVErrors") if name == "kvferry" else ()
        specs = [EngineSpec("P1", FAST, base, p_cores, P_BLOCKS),
                 EngineSpec("D", FAST, base, d_cores, D_BLOCKS, args=typed),
                 EngineSpec("P2", FAST, only_tcp, p_cores, P_BLOCKS)]
        self.controls = {spec.name: Control(spec.name, seed + place) for place, spec in enumerate(specs)}
        super().__init__([self._with_injector(spec, library) for spec in specs], logs, with_router=False)
        self.by_name = {engine.name: engine for engine in self.engines}
        self.router = Router([self.by_name[p].url for p in PRODUCERS], self.decode.url, logs, args=ROUTER_ARGS)

    def _with_injector(self, spec: EngineSpec, library: Path) -> EngineSpec:
        env = {**spec.connector.env, "LD_PRELOAD": str(library), VARIABLE: self.controls[spec.name].path}
        return replace(spec, connector=replace(spec.connector, env=env))

    def up(self, name: str) -> bool:
        engine = self.by_name[name]
        return engine.process.running() and web.get_status(engine.url + "/health", timeout_s=2.0) == 200

    def warm_up(self) -> None:
        """An engine's first request takes seconds."""
        for engine in self.engines:
            client.complete(engine.url, PROBE, 1, timeout_s=WARM_UP_LIMIT_S)

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        for engine in self.engines:
            self.controls[engine.name].switch_off()
            engine.process.resume()

    def come_back(self) -> list[str]:
        """Waits until all engines answer. Returns what is wrong with those that do not."""
        problems = []
        for engine in self.engines:
            try:
                wait_until(f"waiting for {engine.name}", engine.healthy, START_LIMIT_S)
            except (EngineError, TimeoutError) as error:
                problems.append(f"{engine.name} did not come back: {str(error)[:200]}")
        return problems

    def leaked_blocks(self, limit_s: float) -> int:
        """The blocks that are still in use after the limit. An engine tells of its blocks when it steps: each is given
        something to do."""
        end = time.monotonic() + limit_s
        while True:
            for engine in self.engines:
                client.complete(engine.url, PROBE, 1, timeout_s=IDLE_POKE_S)
            time.sleep(0.5)
            leaked = sum(blocks_in_use(engine) for engine in self.engines)
            if leaked == 0 or time.monotonic() > end:
                return leaked

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for control in self.controls.values():
            control.close()
