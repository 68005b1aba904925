"""Which weights an engine has, by their content: SHA-256 of each file that it loads, whole, read beside its own load.

Until it is known the engine gives no tickets and loads nothing. Where the files cannot be seen (object storage, streamed
loaders), or are not what is in memory any more, a user names the weights: option `weights_id`.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from .log import logger

WEIGHTS_ID = "weights_id"
ID_CHARACTERS_MAX = 1024
READ_BYTES = 1 << 20
CACHED_FILES_MAX = 4096
SETTLED_NS = 2_000_000_000
"""A file that is as young as the clock's steps may change once more without another time: not for the cache."""
BLOB = re.compile(r"[0-9a-f]{64}")


class UnknownWeightsError(Exception):
    """Weights that have no identity; the text says why, and the way out."""


class _State(NamedTuple):
    """What changes when a file does."""

    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def _state_of(path: Path) -> _State:
    stat = path.stat()
    return _State(str(path.resolve()), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


# ---- what the hub and earlier engines know ----

def _hub_digest(path: Path, state: _State) -> str | None:
    """A hub's cache links to blobs that are named by their SHA-256; the link is made when the blob is complete."""
    blob = Path(state.path)
    if not path.is_symlink() or blob.parent.name != "blobs" or not BLOB.fullmatch(blob.name):
        return None
    linked_ns = path.lstat().st_mtime_ns
    return blob.name if max(state.mtime_ns, state.ctime_ns) <= linked_ns else None


class _Cache:
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

    def _place(self, state: _State) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / hashlib.sha256(repr(tuple(state)).encode()).hexdigest()

    def find(self, state: _State) -> str | None:
        place = self._place(state)
        try:
            text = place.read_text() if place is not None else ""
        except OSError:
            return None
        return text if BLOB.fullmatch(text) else None

    def keep(self, state: _State, digest: str) -> None:
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

    @staticmethod
    def _remove_oldest(folder: Path) -> None:
        files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        for file in files[:max(0, len(files) - CACHED_FILES_MAX)]:
            file.unlink(missing_ok=True)


# ---- files ----

def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(READ_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def _digest_of(path: Path, state: _State, loaded_from_ns: int, cache: _Cache) -> str:
    known = _hub_digest(path, state)
    if known is not None:
        return known
    if state.ctime_ns >= loaded_from_ns:
        raise UnknownWeightsError(f"{path} has changed since the engine began to load it: start the engine again")
    digest = cache.find(state)
    if digest is None:
        digest = _sha256(path)
        cache.keep(state, digest)
    return digest


def _combine(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Weights:
    """The identity of the weights in memory. For use by one thread; the reading is done by another one."""

    def __init__(self, files: Callable[[], list[Path]], given: object = None) -> None:
        """`files` are those that the engine loads (UnknownWeightsError: they cannot be seen), `given` a user's name for
        the first weights, or None. ValueError: it is no name."""
        if given is not None and (not isinstance(given, str) or not 0 < len(given) <= ID_CHARACTERS_MAX):
            raise ValueError(f"{WEIGHTS_ID} is a text of 1 to {ID_CHARACTERS_MAX} characters")
        self._files = files
        self._given = given
        self._lock = threading.Lock()
        self._generation = 0
        self._content: str | None = None  # by their files, or a user's name for the first ones
        self._is_reading = False
        self._version: str | None = None
        self._loaded = threading.Event()

    @property
    def digest(self) -> str | None:
        """None: it is not known, or not yet."""
        with self._lock:
            if self._is_reading or self._version is None:
                return self._content
            return _combine(["version", self._version, *([] if self._content is None else [self._content])])

    def begin(self, loaded_from_ns: int | None = None) -> None:
        """Reads what the engine loads from now on, or since then. loaded() has to follow when it has."""
        self.forget()
        given, self._given = self._given, None  # it names the first weights only
        if given is not None:
            self._content = _combine(["named", given])
            return
        self._is_reading = True
        start_ns = time.time_ns() if loaded_from_ns is None else loaded_from_ns
        arguments = (self._generation, self._loaded, start_ns)
        threading.Thread(target=self._read, args=arguments, name="kvferry-weights", daemon=True).start()

    def loaded(self) -> None:
        """The engine has loaded them: files that have changed up to now have no identity."""
        self._loaded.set()

    def forget(self) -> None:
        """The weights in memory change from now on."""
        with self._lock:
            self._generation += 1
            self._content = self._version = None
            self._is_reading = False
            self._loaded = threading.Event()

    def name(self, version: str) -> None:
        """Whoever has sent the weights in memory has named them, as they are from now on: their files alone do not say it."""
        with self._lock:
            self._version = version

    def _read(self, generation: int, loaded: threading.Event, loaded_from_ns: int) -> None:
        start = time.monotonic()
        try:
            digest, size = self._read_files(loaded, loaded_from_ns)
        except (UnknownWeightsError, OSError, ValueError, RuntimeError) as error:
            self._fail(generation, error)
            return
        with self._lock:
            if generation == self._generation:
                self._content, self._is_reading = digest, False
                logger.info("kvferry: the weights are %s (%.1f GB, known after %.1f s)", digest[:16], size / 1e9,
                            time.monotonic() - start)

    def _fail(self, generation: int, error: Exception) -> None:
        with self._lock:
            if generation != self._generation:
                return
            self._is_reading = False
            if self._version is not None:
                return
        logger.warning("kvferry: this engine gives no tickets and loads nothing, since its weights have no identity: %s",
                       error)

    def _read_files(self, loaded: threading.Event, loaded_from_ns: int) -> tuple[str, int]:
        cache = _Cache()
        files = self._files()
        states = [_state_of(file) for file in files]
        digests = [_digest_of(file, state, loaded_from_ns, cache) for file, state in zip(files, states)]
        loaded.wait()
        for file, state in zip(files, states):
            if _state_of(file) != state:
                raise UnknownWeightsError(f"{file} has changed while it was loaded: start the engine again")
        return _combine(["files", *sorted(digests)]), sum(state.size for state in states)
