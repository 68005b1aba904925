"""vllm-router with health checks in front of two prefill engines and a decode engine, and one of the former is taken out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from load import Answers, Load, Question
from pd import metrics
from pd.connector import kvferry
from pd.engine import NO_SPINNING, Engine, EngineSpec, Router, split_cores
from pd.paths import FAST, KEY
from pd.progress import wait_until
from pd.rig import RECOMPUTED
from pd.stack import START_LIMIT_S, Stack, log_folder
from rows import Row

COUNT = 100
GRACE_S = 6
HEALTH = ("--policy", "round_robin", "--health-check-interval-secs", "1", "--health-failure-threshold", "2")
LOADS, LEASES = "kvferry_loads_total", "kvferry_leases_published_total"
LIMIT_S = 120.0


@dataclass
class Up:
    p: list[Engine]
    d: Engine
    router: Router

    def loads(self) -> float:
        return metrics.total(self.d.samples(), LOADS)

    def recomputed(self) -> float:
        return metrics.total(self.d.samples(), RECOMPUTED)


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    p_cores, d_cores = split_cores()
    connector = replace(kvferry(drain_grace_ms=GRACE_S * 1000), env=NO_SPINNING)
    specs = [EngineSpec(name, FAST, connector, cores, 400, args=("--shutdown-timeout", "40"))
             for name, cores in (("P1", p_cores), ("D", d_cores), ("P2", p_cores))]
    logs = log_folder("vllm-router")
    with Stack(specs, logs, with_router=False) as stack:
        first, d, second = stack.engines
        router = Router([first.url, second.url], d.url, logs, args=HEALTH)
        router.start()
        try:
            wait_until("waiting for the router", router.healthy, START_LIMIT_S)
            yield Up([first, second], d, router)
        finally:
            router.stop()


def test_vllm_router(up: Up, some: Callable[[int], list[Question]], row: Row) -> None:
    wait_until("loads", lambda: Load(up.router.url, some(1)).join().right == 1 and up.loads() > 0, LIMIT_S)
    loads, recomputed = up.loads(), up.recomputed()
    answers = Load(up.router.url, some(COUNT)).join()
    row.tell(answers, loads=up.loads() - loads, recomputed_tokens=up.recomputed() - recomputed)
    assert answers.right == COUNT == up.loads() - loads, answers
    assert all(metrics.total(p.samples(), LEASES) > COUNT // 3 for p in up.p), "both are asked"


def test_vllm_router_drained_producer(up: Up, some: Callable[[int], list[Question]], row: Row) -> None:
    """The client sees nothing of it: neither of the drain, nor of the end of the process."""
    loads, recomputed, answers = up.loads(), up.recomputed(), Answers()
    leaving = up.p[0]
    draining = subprocess.Popen([sys.executable, "-m", "kvferry.cli", "drain", leaving.url, "--key-file", str(KEY)])
    try:
        while draining.poll() is None:
            Load(up.router.url, some(20)).join(answers)
        assert draining.returncode == 0
    finally:
        draining.kill()
        draining.wait()
    leaving.process.ask_to_end()
    Load(up.router.url, some(COUNT)).join(answers)
    wait_until("the end of P1", lambda: not leaving.process.running(), LIMIT_S)
    row.tell(answers, loads=up.loads() - loads, recomputed_tokens=up.recomputed() - recomputed)
    assert answers.right == answers.count == up.loads() - loads, answers
