"""HTTP on loopback with the standard library: a status, a JSON body, a time limit for the whole exchange."""

from __future__ import annotations

import http.client
import json
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

NO_ANSWER = 0


@dataclass(frozen=True)
class Answer:
    """status is NO_ANSWER when nothing came: then error says why."""

    status: int
    body: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""


def connect(url: str, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s), path


def decode(raw: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(raw))
    except (TypeError, ValueError):
        return {"text": raw.decode(errors="replace")}


def post_json(url: str, body: dict[str, Any], timeout_s: float, headers: dict[str, str] | None = None) -> Answer:
    """Never raises for what the server or the network does."""
    start = time.monotonic()
    connection, path = connect(url, timeout_s)
    try:
        with closing(connection):
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, decode(response.read()), {k.lower(): v for k, v in response.getheaders()},
                          time.monotonic() - start)
    except TimeoutError:
        return Answer(NO_ANSWER, seconds=time.monotonic() - start, error=f"no answer in {timeout_s:.0f} s")
    except (OSError, http.client.HTTPException) as fault:
        return Answer(NO_ANSWER, seconds=time.monotonic() - start, error=f"{type(fault).__name__}: {fault}")


def post(url: str, body: dict[str, Any], timeout_s: float = 5.0) -> http.client.HTTPConnection:
    """Sends a request. Its answer is for the caller to read, or the connection to be closed without."""
    connection, path = connect(url, timeout_s)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return connection


def get(url: str, timeout_s: float) -> tuple[int, str]:
    connection, path = connect(url, timeout_s)
    with closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")


def get_status(url: str, timeout_s: float) -> int:
    try:
        return get(url, timeout_s)[0]
    except (OSError, http.client.HTTPException):
        return NO_ANSWER
