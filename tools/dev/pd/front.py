"""A server on loopback that hands requests on to another one, and lets a test look at, or act on, each answer."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from . import web

FORWARD_LIMIT_S = 60.0
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


@dataclass(frozen=True)
class Passed:
    """An answer on its way back. The times are of the monotonic clock."""

    path: str
    asked_s: float
    answered_s: float
    status: int
    headers: dict[str, str]
    body: bytes


class Front:
    """Use it as a context manager. `before_answer` runs when an answer is there and before the client gets it."""

    def __init__(self, target_url: str, before_answer: Callable[[Passed], None] = lambda passed: None) -> None:
        self.posts: list[Passed] = []
        """The answers to POSTs so far, oldest first."""
        self._target_url = target_url
        self._before_answer = before_answer
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                front._forward(self)

            do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def _ask(self, handler: BaseHTTPRequestHandler) -> Passed:
        asked_s = time.monotonic()
        body = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        headers = {name: value for name, value in handler.headers.items()
                   if name.lower() not in HOP_BY_HOP | {"host"}}
        connection, _ = web.connect(self._target_url, FORWARD_LIMIT_S)
        try:
            connection.request(handler.command, handler.path, body, headers)
            response = connection.getresponse()
            answer = response.read()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Passed(handler.path, asked_s, time.monotonic(), response.status, found, answer)
        except (OSError, http.client.HTTPException) as fault:
            text = f"nothing answers behind this front: {fault}".encode()
            return Passed(handler.path, asked_s, time.monotonic(), 502, {"content-type": "text/plain"}, text)
        finally:
            connection.close()

    def _forward(self, handler: BaseHTTPRequestHandler) -> None:
        passed = self._ask(handler)
        if handler.command == "POST":
            self.posts.append(passed)
            self._before_answer(passed)
        handler.send_response(passed.status)
        for name, value in passed.headers.items():
            if name not in HOP_BY_HOP:
                handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(passed.body)))
        handler.end_headers()
        handler.wfile.write(passed.body)

    def __enter__(self) -> Front:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
