"""A server on loopback that hands requests on to another one, and lets a test look at, or act on, each answer."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from . import web

FORWARD_LIMIT_S = 60.0
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


@dataclass(frozen=True)
class Passed:
    """An answer on its way back. The times are of the monotonic clock."""

    asked_s: float
    answered_s: float
    status: int
    headers: dict[str, str]
    body: bytes


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Front

    def ask(self) -> tuple[int, dict[str, str], bytes]:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP | {"host"}}
        try:
            with closing(web.connect(self.server.target_url, FORWARD_LIMIT_S)[0]) as connection:
                connection.request(self.command, self.path, body, headers)
                response = connection.getresponse()
                answer = response.read()
                return response.status, {name.lower(): value for name, value in response.getheaders()}, answer
        except (OSError, http.client.HTTPException) as fault:
            return 502, {"content-type": "text/plain"}, f"nothing answers behind this front: {fault}".encode()

    def do_GET(self) -> None:
        asked_s = time.monotonic()
        status, headers, body = self.ask()
        if self.command == "POST":
            passed = Passed(asked_s, time.monotonic(), status, headers, body)
            self.server.posts.append(passed)
            self.server.before_answer(passed)
        self.send_response(status)
        for name, value in headers.items():
            if name not in HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


class Front(ThreadingHTTPServer):
    """Use it as a context manager. `before_answer` runs when an answer is there and before the client gets it."""

    daemon_threads = True

    def __init__(self, target_url: str, before_answer: Callable[[Passed], None] = lambda passed: None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.posts: list[Passed] = []
        """The answers to POSTs so far, oldest first."""
        self.target_url, self.before_answer = target_url, before_answer
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Front:
        threading.Thread(target=self.serve_forever, args=(0.05,)).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
