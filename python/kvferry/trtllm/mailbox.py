"""Where tickets come in, on the first rank of a decode engine: a socket of this user alone.

    {"ticket": "kvf2.…", "hold_ms": 2000}       ──►
    {"token_ids": [1, 5, …], "at": null, …}     ──►
                                                ◄──  {"tokens": 4096, "reason": ""}

One line asks, one line answers: when the ticket's blocks are in the staging, or it is known that they will not be, or
`hold_ms` have passed. Only then is its request to be sent to the engine, which asks once.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvferry.engine.config import ConfigError
from kvferry.engine.log import limited

LINE_BYTES_MAX = 1 << 20  # a ticket, or some hundred thousand token ids
WAITING_MAX = 1024  # that are answered later
ASK_S = 10.0  # how long one may take to ask
HOLD_MS_MAX = 60_000
NOT_IN_TIME, BUSY, MALFORMED = "not_in_time", "busy", "malformed"

Done = Callable[[int, str], None]


class Mailbox:
    def __init__(self, path: str, deposit: Callable[[dict[str, Any], int, Done], None], hold_ms: int) -> None:
        """`deposit` is called with what was asked, and for how long it is held, by this mailbox's thread. ConfigError: the path
        is another's."""
        self._deposit = deposit
        self._hold_ms = hold_ms
        self._path = Path(path)
        self._socket = self._listen()
        self._waiting = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="kvferry-mailbox", daemon=True)
        self._thread.start()

    def _listen(self) -> socket.socket:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._is_live():
                raise ConfigError(f"mailbox {self._path} is that of another engine: give each its own")
            self._path.unlink(missing_ok=True)
            listening = socket.socket(socket.AF_UNIX)
            mask = os.umask(0o177)
            try:
                listening.bind(str(self._path))
            finally:
                os.umask(mask)
            listening.listen(WAITING_MAX)
            listening.setblocking(False)
        except OSError as error:
            raise ConfigError(f"mailbox {self._path}: {error}") from error
        return listening

    def _is_live(self) -> bool:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(1.0)
            return asking.connect_ex(str(self._path)) == 0

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_unix_server(self._serve, sock=self._socket, limit=LINE_BYTES_MAX))
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            tokens, reason = await self._answer(reader)
            writer.write(json.dumps({"tokens": tokens, "reason": reason}).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, str]:
        if self._waiting >= WAITING_MAX:
            return 0, BUSY
        try:
            asked = json.loads(await asyncio.wait_for(reader.readuntil(b"\n"), ASK_S))
            hold_ms = min(max(int(asked.get("hold_ms", self._hold_ms)), 0), HOLD_MS_MAX)
        except (ValueError, TypeError, AttributeError, TimeoutError, asyncio.LimitOverrunError) as error:
            limited.warning("kvferry: the mailbox was asked what it does not understand: %s", error)
            return 0, MALFORMED
        answer: asyncio.Future[tuple[int, str]] = self._loop.create_future()

        def done(tokens: int, reason: str) -> None:
            with suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(lambda: None if answer.done() else answer.set_result((tokens, reason)))

        self._waiting += 1
        try:
            self._deposit(asked, hold_ms, done)
            return await asyncio.wait_for(answer, hold_ms / 1000)
        except TimeoutError:
            return 0, NOT_IN_TIME
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._path.unlink(missing_ok=True)
