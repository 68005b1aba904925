"""A proxy in front of several prefill engines and a decode engine: each request goes to the next prefill engine that
answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from pd import client, web
from pd.engine import HOST, Engine

LIMIT_S = 60.0
PASSED_ON = ("content-type", "retry-after", "retry-after-ms", "x-should-retry")


class Proxy:
    """Use it as a context manager. `prefilled` is called with each prefill engine when it has given its ticket."""

    def __init__(self, producers: list[Engine], decoder: Engine, prefilled: Callable[[Engine], None]) -> None:
        self._producers, self._decoder, self._prefilled = producers, decoder, prefilled
        self.replies: list[tuple[int, float, float]] = []
        """Status, and when the request came and was answered, on the monotonic clock."""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                proxy._pass_on(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_address[1]}"

    def _pass_on(self, handler: BaseHTTPRequestHandler) -> None:
        came = time.monotonic()
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        ticket = self._prefill(handler.path, body)
        status, headers, data = self._decode(handler.path, {**body, "kv_transfer_params": ticket})
        handler.send_response(status)
        for name in PASSED_ON:
            if name in headers:
                handler.send_header(name, headers[name])
        handler.send_header("content-length", str(len(data)))
        handler.end_headers()
        self.replies.append((status, came, time.monotonic()))
        handler.wfile.write(data)

    def _prefill(self, path: str, body: dict[str, Any]) -> client.Ticket:
        asked = {**body, "max_tokens": 1, "stream": False, "kv_transfer_params": client.ASK_FOR_TICKET}
        turn = len(self.replies) % len(self._producers)
        for producer in self._producers[turn:] + self._producers[:turn]:
            answer = web.post_json(producer.url + path, asked, LIMIT_S)
            if answer.status == 200:
                self._prefilled(producer)
                return answer.body["kv_transfer_params"]
        raise RuntimeError("no prefill engine answers")

    def _decode(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        parts = urlsplit(self._decoder.url)
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=LIMIT_S)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
