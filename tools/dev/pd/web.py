"""HTTP on loopback with the standard library: a status, a JSON body, a time limit for the whole exchange."""

from __future__ import annotations

import http.client
import json
import socket
import time
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
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s), parts.path or "/"


def decode(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except ValueError:
        return {"text": raw.decode(errors="replace")}
    return body if isinstance(body, dict) else {"value": body}


def post_json(url: str, body: dict[str, Any], timeout_s: float, headers: dict[str, str] | None = None) -> Answer:
    """Never raises for what the server or the network does."""
    start = time.monotonic()
    connection, path = connect(url, timeout_s)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return Answer(response.status, decode(response.read()), {k.lower(): v for k, v in response.getheaders()},
                      time.monotonic() - start)
    except (TimeoutError, socket.timeout):
        return Answer(NO_ANSWER, seconds=time.monotonic() - start, error=f"no answer in {timeout_s:.0f} s")
    except (OSError, http.client.HTTPException) as fault:
        return Answer(NO_ANSWER, seconds=time.monotonic() - start, error=f"{type(fault).__name__}: {fault}")
    finally:
        connection.close()


def post(url: str, body: dict[str, Any], timeout_s: float = 5.0) -> http.client.HTTPConnection:
    """Sends a request. Its answer is for the caller to read, or the connection to be closed without."""
    connection, path = connect(url, timeout_s)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return connection


def post_and_hang_up(url: str, body: dict[str, Any], after_s: float) -> None:
    """Sends a request and closes the connection a moment later, without reading."""
    connection = post(url, body)
    time.sleep(after_s)
    connection.close()


def get_text(url: str, timeout_s: float) -> str:
    connection, path = connect(url, timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode(errors="replace")
    finally:
        connection.close()


def get_status(url: str, timeout_s: float) -> int:
    connection, path = connect(url, timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return NO_ANSWER
    finally:
        connection.close()
