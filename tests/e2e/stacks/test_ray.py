"""Ray Serve LLM, prefill and decode apart, on the vLLM that this Ray pins: `build_pd_openai_app`, and kvferry.ray for Ray's factory."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import own_network
import psutil
import pytest
from beside import environment
from load import CLIENTS, Answers, Load, Question
from pd import metrics, web
from pd.connector import QUICKSTART, Connector, make_key
from pd.paths import FAST, KEY, OTHER_KEY
from pd.ports import free_ports
from pd.progress import wait_until
from pd.stack import log_folder
from rows import Row
from why import KEYS_DIFFER, WELL, why

COUNT = 100
VLLM = "0.29.0"
LOADS_LIMIT_S = 120.0
SHOWN_S = 12.0
"""Ray collects its metrics every ten seconds."""
LOADS, RECOMPUTED = "ray_kvferry_loads_total", "ray_kvferry_recomputed_tokens_total"
APP = Path(__file__).with_name("ray_app.py")
REPLICA = "ray::ServeReplica:pd:Prefill"


def connector(key: Path = KEY) -> Connector:
    return QUICKSTART.with_options(key_file=str(make_key(key)))


class App:
    """Ray Serve with one application. Its driver is told the number of replicas, P's and D's."""

    def __init__(self, logs: Path, d: Connector) -> None:
        self.port, self.metrics_port = free_ports(2)
        self.url = f"http://127.0.0.1:{self.port}"
        self._metrics_url = f"http://{own_network.MACHINE}:{self.metrics_port}/metrics"
        self._temporary = tempfile.TemporaryDirectory(prefix="ray-")
        env = {**environment("ray", VLLM), "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
        logs.mkdir(parents=True)
        self._log = (logs / "ray.log").open("w")
        self._driver = subprocess.Popen(
            [sys.executable, str(APP), str(self.port), str(self.metrics_port), self._temporary.name, str(FAST), connector().as_json(),
             d.as_json()], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, bufsize=1)
        self._counts = (0, 0)

    def deploy(self, p: int, d: int) -> None:
        """Nothing, where so many run already."""
        if (p, d) == self._counts:
            return
        assert self._driver.stdin is not None and self._driver.stdout is not None
        self._driver.stdin.write(f"{p} {d}\n")
        while not (line := self._driver.stdout.readline()).startswith("deployed "):
            self._log.write(line)
            assert line, "Ray's driver has ended"
        self._counts = (p, d)

    def prefill_replicas(self) -> list[psutil.Process]:
        return [process for process in own_network.processes() if process.name().startswith("ray::Serve") and
                REPLICA in " ".join(process.cmdline())]

    def total(self, name: str) -> float:
        return metrics.total(metrics.parse(web.get(self._metrics_url, 10.0)[1]), name)

    def why(self) -> str:
        return why(self._metrics_url)

    def close(self) -> None:
        assert self._driver.stdin is not None
        self._driver.stdin.close()
        try:
            self._driver.wait(60.0)
        except subprocess.TimeoutExpired:
            self._driver.kill()
            self._driver.wait()
        own_network.end_all()
        self._log.close()
        self._temporary.cleanup()


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    made = App(log_folder("ray"), connector())
    yield made
    made.close()


def loads_through(app: App, some: Callable[[int], list[Question]], row: Row, stream: bool = False) -> None:
    """All of so many, by Ray's metrics."""
    wait_until("loads", lambda: Load(app.url, some(2)).join().right == 2 and app.total(LOADS) > 0, LOADS_LIMIT_S, every_s=2.0)
    time.sleep(SHOWN_S)
    loads, recomputed = app.total(LOADS), app.total(RECOMPUTED)
    answers = Load(app.url, some(COUNT), stream=stream).join()
    time.sleep(SHOWN_S)
    row.tell(answers, loads=app.total(LOADS) - loads, recomputed_tokens=app.total(RECOMPUTED) - recomputed)
    assert answers.right == app.total(LOADS) - loads == COUNT, answers


def test_ray_1p1d(app: App, some: Callable[[int], list[Question]], row: Row) -> None:
    app.deploy(1, 1)
    loads_through(app, some, row)
    assert re.match(WELL, said := app.why()), said


def test_ray_streams(app: App, some: Callable[[int], list[Question]], row: Row) -> None:
    app.deploy(1, 1)
    loads_through(app, some, row, stream=True)


def test_ray_2p2d(app: App, some: Callable[[int], list[Question]], row: Row) -> None:
    app.deploy(2, 2)
    loads_through(app, some, row)


def test_ray_replica_killed(app: App, some: Callable[[int], list[Question]], row: Row) -> None:
    """Ray does not retry the prompts that this replica is computing: at most one for each client."""
    app.deploy(2, 2)
    loads = app.total(LOADS)
    load = Load(app.url, some(2 * COUNT))
    wait_until("the first answers", lambda: load.answered > COUNT // 4, LOADS_LIMIT_S)
    app.prefill_replicas()[0].kill()
    answers = load.join()
    time.sleep(SHOWN_S)
    row.tell(answers, loads=app.total(LOADS) - loads)
    died_with_it = sum(count for error, count in answers.errors.items() if "ActorDiedError" in error and "Prefill" in error)
    assert answers.right + died_with_it == answers.count and died_with_it <= CLIENTS, answers


def test_ray_replica_count_changed(app: App, some: Callable[[int], list[Question]], row: Row) -> None:
    """Ray replaces all of them."""
    app.deploy(2, 2)
    loads, answers = app.total(LOADS), Answers()
    with ThreadPoolExecutor(1) as pool:
        change = pool.submit(app.deploy, 1, 2)
        while not change.done():
            Load(app.url, some(20)).join(answers)
        change.result()
    Load(app.url, some(COUNT)).join(answers)
    time.sleep(SHOWN_S)
    row.tell(answers, loads=app.total(LOADS) - loads)
    assert answers.right == answers.count, answers


def test_ray_errors(some: Callable[[int], list[Question]], row: Row) -> None:
    """With the policy `fail`, and another key on D: no load begins. The client reads Ray's words, without a reason."""
    app = App(log_folder("ray-errors"), connector(OTHER_KEY).with_policy("fail"))
    try:
        app.deploy(1, 1)
        wait_until("the first refusal", lambda: bool(Load(app.url, some(1)).join().errors), LOADS_LIMIT_S)
        answers = Load(app.url, some(COUNT)).join()
        row.tell(answers)
        assert answers.errors.total() == COUNT, answers
        assert all(error.startswith("500 InternalServerError: ") and "kvferry" not in error for error in answers.errors), answers
        time.sleep(SHOWN_S)
        assert re.match(KEYS_DIFFER, said := app.why()), said
    finally:
        app.close()
