"""Where tickets come in, on the first rank of a decode engine: a socket of this user alone.

    {"ticket": "kvf5.…", "hold_ms": 2000}       ──►
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
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvferry.engine.config import ConfigError
from kvferry.engine.log import limited

LINE_BYTES_MAX = 8 << 20  # a ticket, or about a million token ids
ASKING_MAX = 1024  # at a time
ASK_S = 10.0  # how long one may take to ask
HOLD_MS_MAX = 60_000
NOT_IN_TIME, BUSY, MALFORMED = "not_in_time", "busy", "malformed"

Done = Callable[[int, str], None]


def check_folder(path: Path) -> None:
    """OSError: others than this user could put another mailbox in the place of this one."""
    status = path.parent.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{path.parent} is not a folder that only this user can write to")


class Mailbox:
    def __init__(self, path: str, deposit: Callable[[dict[str, Any], int, Done], None], hold_ms: int) -> None:
        """`deposit` is called with what was asked, and for how long it is held, by this mailbox's thread. ConfigError: the path
        is another's."""
        self._deposit = deposit
        self._hold_ms = hold_ms
        self._path = Path(path)
        self._socket = self._listen()
        self._asking = 0
        self._loop = asyncio.new_event_loop()
        self._serves = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvferry-mailbox", daemon=True)
        self._thread.start()
        self._serves.wait()

    def _listen(self) -> socket.socket:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_folder(self._path)
            if self._is_live():
                raise ConfigError(f"mailbox {self._path} is that of another engine: give each its own")
            self._path.unlink(missing_ok=True)
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(str(self._path))
            self._path.chmod(0o600)
            listening.listen(ASKING_MAX)
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
        try:
            serving = asyncio.start_unix_server(self._serve, sock=self._socket, limit=LINE_BYTES_MAX)
            server = self._loop.run_until_complete(serving)
        finally:
            self._serves.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._asking += 1
        try:
            tokens, reason = await self._answer(reader) if self._asking <= ASKING_MAX else (0, BUSY)
            writer.write(json.dumps({"tokens": tokens, "reason": reason}).encode() + b"\n")
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # who asked has left
        finally:
            self._asking -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, str]:
        line = await self._read(reader)
        answer: asyncio.Future[tuple[int, str]] = self._loop.create_future()

        def done(tokens: int, reason: str) -> None:
            with suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(lambda: None if answer.done() else answer.set_result((tokens, reason)))

        try:
            asked = json.loads(line)
            hold_ms = min(max(int(asked.get("hold_ms", self._hold_ms)), 0), HOLD_MS_MAX)
            self._deposit(asked, hold_ms, done)
        except Exception as error:  # anybody of this user may send anything
            limited.warning("kvferry: the mailbox received a malformed message: %s", error)
            return 0, MALFORMED
        try:
            return await asyncio.wait_for(answer, hold_ms / 1000)
        except TimeoutError:
            return 0, NOT_IN_TIME

    @staticmethod
    async def _read(reader: asyncio.StreamReader) -> bytes:
        """b"": it is too long, or does not come."""
        try:
            return await asyncio.wait_for(reader.readuntil(b"\n"), ASK_S)
        except (TimeoutError, asyncio.LimitOverrunError):
            return b""

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._socket.close()
        self._path.unlink(missing_ok=True)
