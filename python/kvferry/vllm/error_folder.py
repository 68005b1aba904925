"""Where the files with engines' failures lie, and whose engine still lives.

An engine holds its file's lock as long as it lives: the system lets go of it however the engine ends. A file whose lock
is free is of a dead engine, and whoever finds it removes it. API servers look into the files of all living engines of
their user, since vLLM tells several API servers nothing that names their engine; requests' ids are unique.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import stat
import tempfile
from pathlib import Path

from .error_ring import FILE_BYTES, RingReader, RingWriter

SUFFIX = ".errors"
MEMORY_FOLDER = Path("/dev/shm")


def errors_folder() -> Path:
    """The user's own, made if it is not there. OSError: it belongs to somebody else, or cannot be made."""
    base = MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    folder = base / f"kvferry-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder that only this user can use")
    return folder


def _is_alive(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def sweep(folder: Path) -> None:
    """Removes what dead engines have left."""
    for path in folder.glob(f"*{SUFFIX}"):
        try:
            with path.open("rb") as file:
                if not _is_alive(file.fileno()):
                    path.unlink(missing_ok=True)
        except OSError:
            continue


class EngineFile:
    """The file of this engine. It gets its name only when its lock is held, or a sweep could take it for a dead one's."""

    def __init__(self, folder: Path) -> None:
        sweep(folder)
        unnamed = folder / f".{os.getpid()}-{secrets.token_hex(8)}"
        self.path = unnamed.with_name(unnamed.name[1:] + SUFFIX)
        self._descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # All of it now: a full file system has to show here, not as a signal when a record is written.
            os.posix_fallocate(self._descriptor, 0, FILE_BYTES)
            self._memory = mmap.mmap(self._descriptor, FILE_BYTES)
            self.ring = RingWriter(self._memory)
            unnamed.rename(self.path)
        except OSError:
            unnamed.unlink(missing_ok=True)
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        self._memory.close()
        os.close(self._descriptor)


class _Opened:
    """A file that this API server has mapped."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._memory = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
            self.ring = RingReader(self._memory)
        except (OSError, ValueError):
            os.close(self._descriptor)
            raise

    def is_alive(self) -> bool:
        """Removes the file if it is not."""
        alive = _is_alive(self._descriptor)
        if not alive:
            self._path.unlink(missing_ok=True)
        return alive

    def close(self) -> None:
        self._memory.close()
        os.close(self._descriptor)


class Engines:
    """The files of all living engines, looked up anew whenever a request has failed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: dict[str, _Opened] = {}

    def find(self, request_id: str, since_ns: int) -> bytes | None:
        """The text of a request's failure since then, by whichever engine."""
        self._look()
        for opened in self._opened.values():
            text = opened.ring.find(request_id, since_ns)
            if text is not None:
                return text
        return None

    def _look(self) -> None:
        names = {name for name in os.listdir(self._folder) if name.endswith(SUFFIX)}
        for name in names - self._opened.keys():
            try:
                self._opened[name] = _Opened(self._folder / name)
            except (OSError, ValueError):
                continue
        for name, opened in list(self._opened.items()):
            if name not in names or not opened.is_alive():
                del self._opened[name]
                opened.close()
