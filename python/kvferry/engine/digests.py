"""SHA-256 of files: read whole, or known from an earlier reading on this host."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from .log import logger

READ_BYTES = 1 << 20
CACHED_FILES_MAX = 4096
SETTLED_NS = 2_000_000_000
"""A file that is as young as the clock's steps may change once more without another time: not for the cache."""
LOOK_AGAIN_S = 0.2
SHA256 = re.compile(r"[0-9a-f]{64}")


class StoppedError(Exception):
    """Nobody wants the digest any more."""


class State(NamedTuple):
    """What changes when a file does."""

    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def state_of(path: Path) -> State:
    stat = path.stat()
    return State(str(path.resolve()), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def sha256(path: Path, has_read: Callable[[int], None] = lambda count: None) -> str:
    """`has_read` is told of each piece's bytes; what it raises goes through."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(READ_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            has_read(count)
    return digest.hexdigest()


def hub_digest(path: Path, state: State) -> str | None:
    """A hub's cache links to blobs that are named by their SHA-256; the link is made when the blob is complete."""
    blob = Path(state.path)
    if not path.is_symlink() or blob.parent.name != "blobs" or not SHA256.fullmatch(blob.name):
        return None
    linked_ns = path.lstat().st_mtime_ns
    return blob.name if max(state.mtime_ns, state.ctime_ns) <= linked_ns else None


class Cache:
    """Digests of files that have not changed since; a folder that its owner alone can write to."""

    def __init__(self) -> None:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        self._folder: Path | None = Path(base) / "kvferry" / "weights"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            stat = self._folder.stat()
            if stat.st_uid != os.geteuid() or stat.st_mode & 0o077:
                raise PermissionError(f"{self._folder} is not its owner's alone (chmod 700)")
        except OSError as error:
            logger.warning("kvferry: digests of weights are not kept for the next start: %s", error)
            self._folder = None

    def _place(self, state: State) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / hashlib.sha256(repr(tuple(state)).encode()).hexdigest()

    def find(self, state: State) -> str | None:
        place = self._place(state)
        try:
            text = place.read_text() if place is not None else ""
        except OSError:
            return None
        return text if SHA256.fullmatch(text) else None

    def keep(self, state: State, digest: str) -> None:
        place = self._place(state)
        if place is None or time.time_ns() - state.ctime_ns < SETTLED_NS:
            return
        unnamed = place.with_suffix(f".{os.getpid()}")
        try:
            unnamed.write_text(digest)
            unnamed.rename(place)
            self._remove_oldest(place.parent)
        except OSError as error:
            logger.warning("kvferry: the digest of %s is not kept for the next start: %s", state.path, error)

    @contextmanager
    def alone(self, state: State, goes_on: Callable[[], bool]) -> Iterator[None]:
        """Within, no other process of this user reads the file in the same way: it may be in the cache by now. Waits while
        `goes_on` says so, and what that raises goes through; without a folder nobody waits for anybody."""
        lock = self._lock(state, goes_on)
        try:
            yield
        finally:
            if lock is not None:
                with suppress(OSError):
                    self._lock_file(state).unlink()  # who waits for it still has it, and looks into the cache first
                os.close(lock)

    def _lock_file(self, state: State) -> Path:
        place = self._place(state)
        assert place is not None
        return place.with_suffix(".lock")

    def _lock(self, state: State, goes_on: Callable[[], bool]) -> int | None:
        """None: there is no folder, or the wait is over."""
        if self._folder is None:
            return None
        try:
            lock = os.open(self._lock_file(state), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            while goes_on():
                with suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return os.dup(lock)
                time.sleep(LOOK_AGAIN_S)
        except OSError:
            pass  # a file system without locks
        finally:
            os.close(lock)
        return None

    @staticmethod
    def _remove_oldest(folder: Path) -> None:
        def made_ns(file: Path) -> int:
            with suppress(OSError):
                return file.stat().st_mtime_ns
            return 0  # another process has removed it
        for file in sorted(folder.iterdir(), key=made_ns)[:-CACHED_FILES_MAX]:
            file.unlink(missing_ok=True)
