"""NVIDIA Dynamo's frontend and workers, prefill and decode apart, on the vLLM that this Dynamo pins; found by files, without etcd and NATS."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import own_network
import pytest
from beside import environment
from load import Load, Question
from pd import metrics, web
from pd.connector import QUICKSTART, Connector, make_key
from pd.paths import FAST, KEY, OTHER_KEY
from pd.process import Process
from pd.progress import wait_until
from pd.stack import START_LIMIT_S, log_folder
from rows import Row
from why import KEYS_DIFFER, WELL, why

COUNT = 100
VLLM = "0.31.0"
LIMIT_S = 120.0
VERDICTS = "vllm:kvferry_verdicts_total"
LOADS, RECOMPUTED = "vllm:kvferry_loads_total", "vllm:kvferry_recomputed_tokens_total"
WORKER = Path(__file__).with_name("dynamo_worker.py")
DISCOVERY = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")


def connector(key: Path = KEY) -> Connector:
    return QUICKSTART.as_nixl().with_options(key_file=str(make_key(key)))


class Up:
    """P1, P2, P3, D and the frontend."""

    def __init__(self, d: Connector, prefill: int, first_port: int) -> None:
        """Dynamo reads the port of a worker as a number of 15 bits; in a network of our own all are free."""
        self._stack = ExitStack()
        self._files = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dynamo-"))
        self._logs = log_folder("dynamo")
        self.url = f"http://127.0.0.1:{first_port}"
        self._metrics_url, *self._p_metrics_urls = (f"http://127.0.0.1:{first_port + 1 + number}/metrics" for number in range(prefill + 1))
        self._start("frontend", [sys.executable, "-m", "dynamo.frontend", "--http-port", str(first_port), "--http-host", "127.0.0.1",
                                 "--migration-limit", "3", *DISCOVERY])
        self.p = [self._worker(f"P{number + 1}", "prefill", connector(), "0", first_port + number + 2) for number in range(prefill)]
        self.d = self._worker("D", "decode", d, "1", first_port + 1)

    def _worker(self, name: str, mode: str, given: Connector, core: str, port: int) -> Process:
        return self._start(name, [
            sys.executable, str(WORKER), "--model", str(FAST), "--served-model-name", "model", "--disaggregation-mode", mode,
            "--enforce-eager", "--dtype", "float32", "--max-model-len", "512", "--block-size", "32", "--num-gpu-blocks-override", "1600",
            "--max-num-seqs", "16", "--kv-transfer-config", given.as_json(), *DISCOVERY],
            VLLM_CPU_OMP_THREADS_BIND=core, DYN_SYSTEM_PORT=str(port), DYN_SYSTEM_ENABLED="true")

    def _start(self, name: str, argv: list[str], **more: str) -> Process:
        env = {**environment("dynamo", VLLM), "DYN_FILE_KV": self._files, **more}
        process = Process(name, argv, env, self._logs / f"{name}.log")
        self._stack.callback(process.stop)
        process.start()
        return process

    def total(self, name: str, **labels: str) -> float:
        """Of D; 0 while it starts."""
        if web.get_status(self._metrics_url, 10.0) != 200:
            return 0.0
        return metrics.total(metrics.parse(web.get(self._metrics_url, 10.0)[1]), name, **labels)

    def has_come_to(self, name: str, question: Question, **labels: str) -> bool:
        """D counts that, once it is asked."""
        assert self.d.running() and all(p.running() for p in self.p), "a worker has ended"
        Load(self.url, [question]).join()
        return self.total(name, **labels) > 0

    def why(self) -> str:
        return why(self._metrics_url, *self._p_metrics_urls)

    def close(self) -> None:
        self._stack.close()
        own_network.end_all()


@pytest.fixture(scope="module")
def up(some: Callable[[int], list[Question]]) -> Iterator[Up]:
    made = Up(connector(), 3, 8000)
    try:
        wait_until("the first load", lambda: made.has_come_to(LOADS, *some(1)), START_LIMIT_S, every_s=3.0)
        yield made
    finally:
        made.close()


def loads_through(up: Up, some: Callable[[int], list[Question]], row: Row, stream: bool = False) -> None:
    loads, recomputed = up.total(LOADS), up.total(RECOMPUTED)
    answers = Load(up.url, some(COUNT), stream=stream).join()
    row.tell(answers, loads=up.total(LOADS) - loads, recomputed_tokens=up.total(RECOMPUTED) - recomputed)
    assert answers.right == up.total(LOADS) - loads == COUNT, answers


def test_dynamo(up: Up, some: Callable[[int], list[Question]], row: Row) -> None:
    loads_through(up, some, row)
    assert re.match(WELL, said := up.why()), said


def test_dynamo_streams(up: Up, some: Callable[[int], list[Question]], row: Row) -> None:
    loads_through(up, some, row, stream=True)


def all_right_meanwhile(up: Up, some: Callable[[int], list[Question]], row: Row, ends: Process, end: Callable[[], None]) -> None:
    """No client hears of the end of this producer."""
    loads, recomputed = up.total(LOADS), up.total(RECOMPUTED)
    load = Load(up.url, some(2 * COUNT))
    wait_until("the first answers", lambda: load.answered > COUNT // 4, LIMIT_S)
    end()
    answers = load.join()
    wait_until(f"the end of {ends.name}", lambda: not ends.running(), LIMIT_S)
    row.tell(answers, loads=up.total(LOADS) - loads, recomputed_tokens=up.total(RECOMPUTED) - recomputed)
    assert answers.right == answers.count, answers


def test_dynamo_drained_producer(up: Up, some: Callable[[int], list[Question]], row: Row) -> None:
    """By SIGTERM, which Dynamo's worker knows: it asks for no more prompts, and ends when it has no more to do."""
    all_right_meanwhile(up, some, row, up.p[0], up.p[0].ask_to_end)


def test_dynamo_killed_producer(up: Up, some: Callable[[int], list[Question]], row: Row) -> None:
    all_right_meanwhile(up, some, row, up.p[1], up.p[1].kill)


def test_dynamo_errors(some: Callable[[int], list[Question]], row: Row) -> None:
    """With the policy `fail`, and another key on D: no load begins. The client reads Dynamo's words, without a reason."""
    up = Up(connector(OTHER_KEY).with_policy("fail"), 1, 9000)
    try:
        wait_until("the first refusal", lambda: up.has_come_to(VERDICTS, *some(1), action="fail"), START_LIMIT_S, every_s=3.0)
        answers = Load(up.url, some(COUNT)).join()
        row.tell(answers)
        assert answers.errors.total() == COUNT, answers
        assert all(error.startswith("500 InternalServerError: ") and "kvferry" not in error for error in answers.errors), answers
        assert re.match(KEYS_DIFFER, said := up.why()), said
    finally:
        up.close()
