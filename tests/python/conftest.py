from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from engines import Engine, Log
from kvferry.engine import boundary
from kvferry.engine.log import logger
from pages import RECORDED, Serve


@pytest.fixture(autouse=True)
def internal_errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The hooks in which kvferry has spared an engine an exception. A test that wants some clears the list."""
    hooks: list[str] = []
    report = boundary._report

    def note(side: Any, hook: str, what_follows: str) -> None:
        hooks.append(hook)
        report(side, hook, what_follows)
    monkeypatch.setattr(boundary, "_report", note)
    yield hooks
    assert hooks == []


@pytest.fixture(autouse=True)
def told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have engines that are told where to listen."""
    for name in ("KVFERRY_LISTEN", "KVFERRY_ADVERTISE", "KVFERRY_KEY_FILE", "VLLM_NIXL_SIDE_CHANNEL_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def closes() -> Iterator[Callable[[Any], Any]]:
    """Hands on what it is given, and closes it when the test ends."""
    with ExitStack() as given:
        yield lambda one: given.enter_context(closing(one))


@pytest.fixture
def engine(closes: Callable[[Any], Any]) -> Callable[..., Engine]:
    """Makes engines that are closed with the test."""
    return lambda seed=1, **arguments: closes(Engine(seed, **arguments))


@pytest.fixture
def key_path(tmp_path: Path) -> str:
    """A file with a key, 0123456789abcdef."""
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_text("0123456789abcdef")
    return str(path)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server that gives these answers one after the other, then the last one for ever."""
    servers: list[ThreadingHTTPServer] = []

    def start(*answers: str | bytes | int, wait_s: float = 0.0) -> str:
        left = list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer = left.pop(0) if len(left) > 1 else left[0]
                time.sleep(wait_s)
                self.send_response(answer if isinstance(answer, int) else 200 if self.path == "/metrics" else 404)
                self.end_headers()
                if isinstance(answer, str):
                    self.wfile.write((RECORDED / answer).read_bytes())
                elif isinstance(answer, bytes):
                    self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
        return f"127.0.0.1:{servers[-1].server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def log() -> Iterator[Log]:
    heard = Log()
    level = logger.level
    logger.addHandler(heard)
    logger.setLevel("DEBUG")
    yield heard
    logger.setLevel(level)
    logger.removeHandler(heard)
