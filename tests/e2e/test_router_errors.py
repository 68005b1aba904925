"""The real vllm-router, prefill and decode apart, and what becomes of an engine's error, and of an engine that leaves. Engines
here only say what those with kvferry say (tests/e2e/test_typed_errors.py): what is tried is the router."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pd.engine import Router
from pd.progress import wait_until

TICKET = {"do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "e", "remote_block_ids": [[1]],
          "remote_host": "127.0.0.1", "remote_port": 1, "kvferry_ticket": "T"}
ERROR = {"error": {"message": "The producer has taken the blocks back.", "type": "kv_transfer_error", "reason": "lease_expired", "retryable": True}}
RETRY = {"retry-after": "1", "x-should-retry": "true"}
HEALTH_S = 1


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Speaker

    def answer(self, status: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(raw)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": "model", "object": "model"}]}
        self.answer(503 if self.path == "/health" and self.server.leaving else 200, models, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(body)
        if self.server.status != 200:
            return self.answer(self.server.status, ERROR, RETRY)
        params = {"kv_transfer_params": TICKET} if (body.get("kv_transfer_params") or {}).get("do_remote_decode") else {}
        choice = {"index": 0, "text": "a", "finish_reason": "length", "logprobs": None}
        self.answer(200, {"id": "cmpl", "object": "text_completion", "created": 1, "model": "model", "choices": [choice]} | params, {})

    def log_message(self, format: str, *args: object) -> None:
        pass


class Speaker(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[dict[str, Any]] = []
        self.status = 200
        self.leaving = False
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answer:
    def __init__(self, port: int, **more: Any) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            connection.request("POST", "/v1/completions", json.dumps({"model": "model", "prompt": "a", "max_tokens": 2, **more}),
                               {"content-type": "application/json"})
            response = connection.getresponse()
            self.status, self.headers, self.body = response.status, response.headers, response.read().decode()


Ask = Callable[..., Answer]


@pytest.fixture
def speakers() -> Iterator[list[Speaker]]:
    """P, P, D, D."""
    made = [Speaker() for _ in range(4)]
    yield made
    for each in made:
        each.shutdown()
        each.server_close()


@pytest.fixture
def ask(speakers: list[Speaker], tmp_path: Path) -> Iterator[Ask]:
    router = Router([each.url for each in speakers[:2]], speakers[2].url, tmp_path, args=(
        "--decode", speakers[3].url, "--policy", "round_robin", "--retry-max-retries", "4", "--cb-failure-threshold", "2",
        "--health-check-interval-secs", str(HEALTH_S), "--health-failure-threshold", "2", "--worker-startup-check-interval", "1"))
    router.start()
    try:
        wait_until("waiting for the router", lambda: router.healthy() and Answer(router.port).status == 200, 60)
        for each in speakers:
            each.asked.clear()
        yield lambda **more: Answer(router.port, **more)
    finally:
        router.stop()


def counts(speakers: list[Speaker]) -> list[int]:
    return [len(each.asked) for each in speakers]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_an_error_of_d_is_handed_on_and_no_other_is_asked(speakers: list[Speaker], ask: Ask, status: int) -> None:
    for each in speakers[2:]:
        each.status = status
    answer = ask()
    assert (answer.status, json.loads(answer.body)) == (status, ERROR)
    assert {name: answer.headers[name] for name in RETRY} == RETRY
    assert sum(counts(speakers)[:2]) == sum(counts(speakers)[2:]) == 1


def test_an_error_of_p_loses_its_reason_and_no_other_is_asked(speakers: list[Speaker], ask: Ask) -> None:
    for each in speakers[:2]:
        each.status = 503
    answer = ask()
    assert answer.status == 500 and "lease_expired" not in answer.headers.as_string() and answer.headers["retry-after"] is None
    assert not answer.headers["content-type"].startswith("application/json")
    assert sum(counts(speakers)[:2]) == 1 and counts(speakers)[2:] == [0, 0]


def test_its_circuit_breaker_does_not_open(speakers: list[Speaker], ask: Ask) -> None:
    speakers[2].status = 503
    got = [ask().status for _ in range(20)]
    assert got.count(503) == 10 and counts(speakers)[2:] == [10, 10], got


def test_an_engine_whose_health_is_503_is_left(speakers: list[Speaker], ask: Ask) -> None:
    """As one that leaves says (kvferry drain)."""
    speakers[0].leaving = True

    def left() -> bool:
        before = len(speakers[0].asked)
        return all(ask().status == 200 for _ in range(4)) and len(speakers[0].asked) == before
    wait_until("waiting for the router to see it", left, 10 * HEALTH_S, every_s=0.5)
    assert all(ask().status == 200 for _ in range(8))


def test_options_of_one_request_do_not_arrive_in_transfer_params(speakers: list[Speaker], ask: Ask) -> None:
    assert ask(kv_transfer_params={"kvferry_options": {"policy": "fail"}}).status == 200
    for each in speakers:
        for body in each.asked:
            assert "kvferry_options" not in json.dumps(body)
