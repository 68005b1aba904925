"""What processes of the same user on this host may ask an engine: a Unix socket in the engine's folder (errors.py), which
that user alone can enter. Each end of it has a line of JSON. The kernel says whose process the other one is."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from .log import limited

SOCKET = "questions"
LINE_BYTES_MAX = 1 << 16
LIMIT_S = 2.0
"""For one exchange: the next one waits meanwhile."""

PAUSE_S = 0.1
OTHER_USER = "it is another user's engine"

Fields = dict[str, Any]


def _read_line(connection: socket.socket) -> Fields:
    """ValueError: it is too long, or no object. OSError: it did not come in the time that the socket has."""
    line, until = b"", time.monotonic() + (connection.gettimeout() or 0)
    while not line.endswith(b"\n"):
        connection.settimeout(max(0.001, until - time.monotonic()))
        got = connection.recv(4096)
        if not got:
            break
        line += got
        if len(line) > LINE_BYTES_MAX:
            raise ValueError("too long")
    try:
        fields = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if not isinstance(fields, dict):
        raise ValueError("not an object")
    return fields


def _send_line(connection: socket.socket, fields: Fields) -> None:
    connection.sendall(json.dumps(fields).encode() + b"\n")


def ask(folder: Path, question: Fields, limit_s: float = LIMIT_S) -> Fields:
    """OSError: no engine answers there; PermissionError: it refuses. ValueError: what it says is no answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(limit_s)
        connection.connect(str(folder / SOCKET))
        _send_line(connection, question)
        answer = _read_line(connection)
    if "refused" in answer:
        raise PermissionError(answer["refused"])
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer


def _user_of(connection: socket.socket) -> int:
    _, user, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII")))
    return int(user)


class Questions:
    """The engine's end, in a thread of its own."""

    def __init__(self, folder: Path, answer: Callable[[Fields], Fields]) -> None:
        """OSError: the socket cannot be made. `answer` may raise ValueError and PermissionError."""
        self._answer = answer
        self._closed = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.bind(str(folder / SOCKET))
            self._socket.listen(16)
        except OSError:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._run, name="kvferry-questions", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed, or the process is short of descriptors
                time.sleep(PAUSE_S)
                continue
            with closing(connection), suppress(OSError):
                if not self._closed:
                    connection.settimeout(LIMIT_S)
                    _send_line(connection, self._reply(connection))

    def _reply(self, connection: socket.socket) -> Fields:
        try:
            question = _read_line(connection)  # first: bytes that nobody has read would break the answer off
        except ValueError as error:
            return {"error": str(error)}
        if _user_of(connection) not in (os.geteuid(), 0):
            return {"refused": OTHER_USER}
        try:
            return self._answer(question)
        except PermissionError as error:
            return {"refused": str(error)}
        except ValueError as error:
            return {"error": str(error)}
        except Exception as error:
            limited.error("kvferry: a query was not answered: %r", error)
            return {"error": f"internal error: {error!r}"}

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # which ends accept()
        self._thread.join(2 * LIMIT_S)
        self._socket.close()
