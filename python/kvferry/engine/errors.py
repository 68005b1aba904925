"""Why requests have failed: an engine's process writes it down, and its API servers look it up.

All engines of a user share a folder in memory, which is his alone. Each has a folder of its own in it, with a file for each
request that has failed, there before the engine hears that it has. An engine holds its folder's lock as long as it lives:
the system releases it at any end of the engine, and the next process that looks for such folders removes it. API servers look
into the folders of all engines, because they may not know which is theirs; requests' ids are unique.

A failure is complete but for HTTP's own words, so that an API server needs no configuration.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvferry import _kvferry

from .log import limited, logger

if TYPE_CHECKING:
    from kvferry._kvferry import Verdict

FILES_MAX = 8192
"""Of an engine: two for each load that it may have (loads_max), should they all fail at once. The oldest go first."""
MEMORY_FOLDER = Path("/dev/shm")


class Reply(NamedTuple):
    """What the client gets."""

    status: int
    headers: list[tuple[bytes, bytes]]
    error: dict[str, Any]


def failure_text(verdict: Verdict, peer: str | None, http_status: int, mistake: str | None = None) -> bytes:
    """The content of a file. A `mistake` is the client's, for any option of the engine."""
    return json.dumps([time.monotonic_ns(), 400 if mistake else http_status, verdict.retry_after_ms,
                       _kvferry.status_name(verdict.status), peer,
                       mistake or _kvferry.status_meaning(verdict.status)]).encode()


def stop_reason(verdict: Verdict) -> str:
    """The same for programs that get the engine's answer without an API server of ours: Ray, Dynamo, other programs."""
    return f"kvferry:{_kvferry.status_name(verdict.status)}:retry={int(verdict.retry_after_ms > 0)}"


def reply_of(text: bytes, since_ns: int = 0) -> Reply | None:
    """None: it is of an earlier time. ValueError: it is no failure."""
    at_ns, http_status, retry_after_ms, reason, peer, message = json.loads(text)
    if at_ns < since_ns:
        return None
    return make_reply(http_status, retry_after_ms, reason, peer, message)


def make_reply(http_status: int, retry_after_ms: int, reason: str, peer: str | None, message: str) -> Reply:
    retryable = retry_after_ms > 0
    error = {"message": message, "type": "kv_transfer_error", "code": http_status, "reason": reason, "retryable": retryable,
             "peer": peer}
    if retryable:
        # The header of the standard counts in seconds; OpenAI's clients look for the finer one first.
        headers = [(b"retry-after", b"%d" % math.ceil(retry_after_ms / 1000)),
                   (b"retry-after-ms", b"%d" % retry_after_ms)]
    else:
        headers = [(b"x-should-retry", b"false")]
    return Reply(http_status, headers, error)


def errors_folder() -> Path:
    """The user's own, made if it is not there. OSError: it belongs to somebody else, or cannot be made."""
    base = MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    folder = base / f"kvferry-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder that only this user can use")
    return folder


def _lock(folder: Path) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def sweep(base: Path) -> None:
    """Removes what dead engines have left."""
    for folder in base.glob("[!.]*"):
        with suppress(OSError):  # it lives
            os.close(_lock(folder))
            shutil.rmtree(folder, ignore_errors=True)


def _file_name(request_id: str) -> str:
    return hashlib.blake2b(request_id.encode(errors="replace"), digest_size=16).hexdigest()


def find_failure(base: Path, request_id: str, since_ns: int) -> Reply | None:
    """Why a request has failed since then, in any engine. OSError, ValueError: it cannot be read."""
    name = _file_name(request_id)
    for folder in base.iterdir():
        with suppress(FileNotFoundError, NotADirectoryError):
            if (reply := reply_of((folder / name).read_bytes(), since_ns)) is not None:
                return reply
    return None


class Failures:
    """An engine's own. Without a folder, and so where none can be made, its clients get the engine's own error."""

    def __init__(self, http_status: int) -> None:
        self._http_status = http_status
        self._folder: Path | None = None
        self._files: dict[str, None] = {}
        try:
            base = errors_folder()
            sweep(base)
            unnamed = base / f".{os.getpid()}-{secrets.token_hex(8)}"
            unnamed.mkdir(mode=0o700)
            self._descriptor = _lock(unnamed)  # before it has a name, or a sweep could take it for a dead one's
            self._folder = unnamed.rename(base / unnamed.name[1:])
        except OSError as error:
            logger.warning("kvferry: clients of failed requests will not get the reason: %s", error)

    @property
    def folder(self) -> Path | None:
        """The engine's, which lasts as long as it. None: there is none."""
        return self._folder

    def names_of(self, key: str) -> tuple[str, ...]:
        """By which an API server may ask for the engine's request."""
        return (key,)

    def record(self, key: str, verdict: Verdict, peer: str | None, mistake: str | None = None) -> None:
        """To be called before the engine hears that the request has failed."""
        if self._folder is None:
            return
        text = failure_text(verdict, peer, self._http_status, mistake)
        try:
            for name in map(_file_name, dict.fromkeys(self.names_of(key))):
                self._write(self._folder, name, text)
        except OSError as error:
            limited.warning("kvferry: request %s: its client will not get the reason of the failure: %s", key, error)

    def _write(self, folder: Path, name: str, text: bytes) -> None:
        unnamed = folder / "unnamed"
        with open(os.open(unnamed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(text)
        unnamed.rename(folder / name)
        self._files.pop(name, None)
        self._files[name] = None
        if len(self._files) > FILES_MAX:
            oldest = next(iter(self._files))
            del self._files[oldest]
            (folder / oldest).unlink(missing_ok=True)

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._descriptor)
            self._folder = None
