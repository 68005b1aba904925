"""Which weights an engine has, by their content: SHA-256 of each file that it loads, whole, read beside its own load.

Until it is known the engine gives no tickets and loads nothing. Where the files cannot be seen (object storage,
streamed loaders), or are not what is in memory any more, a user names the weights: option `weights_id`.

With the option `weights_digest` = `trust` digests that a file beside the first weights names count at once. What they
were believed of is read afterwards: a difference ends the identity, and the engine is to end its leases and loads.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from . import digest_file
from .digest_file import DigestFileError, Entries
from .digests import Cache, State, StoppedError, hub_digest, sha256, state_of
from .log import logger

WEIGHTS_ID = "weights_id"
ID_CHARACTERS_MAX = 1024
WEIGHTS_DIGEST, READ, TRUST = "weights_digest", "read", "trust"
NICE = 19
"""Of the thread that reads what has been believed: the engine's come first."""
PROGRESS_S = 60.0
WAIT_FOR_OTHERS_S = 600.0
"""How long the reading waits, in all, for other engines of this host that read the same files."""
REMEDY = ("All leases and loads of this engine end now, and it gives no tickets and loads nothing. Put the right files "
          "there, or make their digests anew (kvferry identity DIR), and start the engine again, or call reload_weights. "
          "Engines that have loaded from this one since its start may keep blocks of other weights: reset their prefix caches")


class UnknownWeightsError(Exception):
    """Weights that have no identity; the text says why, and the way out."""


class _File(NamedTuple):
    path: Path
    state: State
    digest: str
    is_read: bool  # and not only believed


def _believed(files: Sequence[Path]) -> dict[Path, Entries]:
    """By folder, what the file of digests there says, if it can be believed."""
    found: dict[Path, Entries] = {}
    for folder in {file.parent for file in files}:
        try:
            found[folder] = digest_file.load(folder)
        except DigestFileError as error:
            logger.warning("kvferry: the weights are read before they have an identity, despite the option %s: %s",
                           WEIGHTS_DIGEST, error)
    return found


def _file_of(path: Path, state: State, loaded_from_ns: int, cache: Cache, believed: Entries | None) -> _File:
    known = hub_digest(path, state)
    if known is not None:
        return _File(path, state, known, True)
    if state.ctime_ns >= loaded_from_ns:
        raise UnknownWeightsError(f"{path} has changed since the engine began to load it: start the engine again")
    digest = cache.find(state)
    if digest is None and believed is not None:
        digest = digest_file.digest_in(believed, path, state)
        if digest is not None:
            return _File(path, state, digest, False)
        logger.warning("kvferry: %s is not named with this size in %s: it is read before the weights have an identity",
                       path, digest_file.NAME)
    if digest is None:
        digest = sha256(path)
        cache.keep(state, digest)
    return _File(path, state, digest, True)


def _find(paths: Sequence[Path], loaded_from_ns: int, cache: Cache, trusts: bool) -> list[_File]:
    states = [state_of(path) for path in paths]
    believed = _believed(paths) if trusts else {}
    return [_file_of(path, state, loaded_from_ns, cache, believed.get(path.parent)) for path, state in zip(paths, states)]


def _check_unchanged(files: Sequence[_File]) -> None:
    for file in files:
        if state_of(file.path) != file.state:
            raise UnknownWeightsError(f"{file.path} has changed while it was loaded: start the engine again")


def _gigabytes(files: Sequence[_File]) -> float:
    return sum(file.state.size for file in files) / 1e9


def _combine(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Weights:
    """The identity of the weights in memory. For use by one thread; the reading is done by another one."""

    def __init__(self, files: Callable[[], list[Path]], given: object = None, trusts: bool = False) -> None:
        """`files` are those that the engine loads (UnknownWeightsError: they cannot be seen), called in the caller's
        thread, since an engine's loader is not thread-safe. `given` is a user's name for the first weights, or None; `trusts`:
        their files of digests are believed. ValueError: it is no name."""
        if given is not None and (not isinstance(given, str) or not 0 < len(given) <= ID_CHARACTERS_MAX):
            raise ValueError(f"{WEIGHTS_ID} is a text of 1 to {ID_CHARACTERS_MAX} characters")
        self._files = files
        self._given = given
        self._trusts = trusts
        self._lock = threading.Lock()
        self._generation = 0
        self._content: str | None = None  # by their files, or a user's name for the first ones
        self._is_reading = False
        self._version: str | None = None
        self._loaded = threading.Event()
        self._is_disproved = False
        self._tell_disproved: Callable[[], None] = lambda: None

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
        given, trusts = self._given, self._trusts
        self._given, self._trusts = None, False  # they are of the first weights only
        if given is not None:
            self._content = _combine(["named", given])
            return
        self._is_reading = True
        try:
            paths = self._files()
        except Exception as error:  # any error: the engine loads, and its weights are not known
            self._fail(self._generation, error)
            return
        start_ns = time.time_ns() if loaded_from_ns is None else loaded_from_ns
        arguments = (self._generation, self._loaded, paths, start_ns, trusts)
        threading.Thread(target=self._read, args=arguments, name="kvferry-weights", daemon=True).start()

    def loaded(self) -> None:
        """The engine has loaded them: files that have changed up to now have no identity."""
        self._loaded.set()

    def forget(self) -> None:
        """The weights in memory change from now on."""
        with self._lock:
            self._generation += 1
            self._content = self._version = None
            self._is_reading = self._is_disproved = False
            self._loaded.set()  # a thread that still reads the last ones ends
            self._loaded = threading.Event()

    def name(self, version: str) -> None:
        """The sender of the weights in memory has named them, as they are from now on: their files alone do not say it."""
        with self._lock:
            self._version = version

    # ---- what was believed, and is wrong ----

    @property
    def is_disproved(self) -> bool:
        """They had an identity that is wrong, or cannot be confirmed, and have none any more. Until forget()."""
        return self._is_disproved

    def on_disproved(self, tell: Callable[[], None]) -> None:
        """To be called, in any thread, when is_disproved becomes true; at once, if it is."""
        with self._lock:
            self._tell_disproved = tell
            is_late = self._is_disproved
        if is_late:
            tell()

    # ---- the reading ----

    def close(self) -> None:
        """Nobody asks any more: the reading ends."""
        self.forget()

    def _read(self, generation: int, loaded: threading.Event, paths: Sequence[Path], loaded_from_ns: int, trusts: bool) -> None:
        start = time.monotonic()
        try:
            cache = Cache()
            files = _find(paths, loaded_from_ns, cache, trusts)
            is_read = all(file.is_read for file in files)
            if is_read:
                loaded.wait()
                _check_unchanged(files)
            self._take(generation, files, "known" if is_read else "believed", time.monotonic() - start)
        except Exception as error:  # any error: the weights are not known
            self._fail(generation, error)
            return
        if not is_read:
            loaded.wait()
            self._confirm(generation, files, cache)

    def _take(self, generation: int, files: Sequence[_File], how: str, seconds: float) -> None:
        digest = _combine(["files", *sorted(file.digest for file in files)])
        with self._lock:
            if generation == self._generation:
                self._content, self._is_reading = digest, False
                logger.info("kvferry: the weights are %s (%.1f GB, %s after %.1f s)", digest[:16], _gigabytes(files), how,
                            seconds)

    def _fail(self, generation: int, error: Exception) -> None:
        with self._lock:
            if generation != self._generation:
                return
            self._is_reading = False
            if self._version is not None:
                return
        is_told = isinstance(error, (UnknownWeightsError, OSError))
        logger.warning("kvferry: this engine gives no tickets and loads nothing, since its weights have no identity: %s",
                       error if is_told else f"{type(error).__name__}: {error}: set the option {WEIGHTS_ID} on both engines")

    def _confirm(self, generation: int, files: Sequence[_File], cache: Cache) -> None:
        start = time.monotonic()
        try:
            _Confirmation(files, cache, lambda: generation == self._generation).run()
        except StoppedError:
            return
        except Exception as error:  # any error: the weights are not confirmed
            self._disprove(generation, error)
            return
        logger.info("kvferry: %s is correct: %.1f GB of weights were read in %.1f s", digest_file.NAME, _gigabytes(files),
                    time.monotonic() - start)

    def _disprove(self, generation: int, error: Exception) -> None:
        with self._lock:
            if generation != self._generation:
                return
            self._content = self._version = None
            self._is_disproved = True
            tell = self._tell_disproved
        logger.error("kvferry: this engine's weights may differ from those in %s: %s. %s", digest_file.NAME,
                     error, REMEDY)
        tell()


class _Confirmation:
    """Reads what has been believed, a piece at a time, behind all else that the machine has to do."""

    def __init__(self, files: Sequence[_File], cache: Cache, is_wanted: Callable[[], bool]) -> None:
        self._files = files
        self._cache = cache
        self._is_wanted = is_wanted
        self._bytes = 0
        self._told_at = time.monotonic()
        self._waits_until = self._told_at + WAIT_FOR_OTHERS_S

    def run(self) -> None:
        """UnknownWeightsError, OSError: they are others, or nobody knows. StoppedError: they are not wanted any more."""
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        for file in self._files:
            digest = file.digest if file.is_read else self._digest_of(file)
            _check_unchanged([file])
            if digest != file.digest:
                raise UnknownWeightsError(f"{file.path} has SHA-256 {digest}, and not {file.digest}")

    def _digest_of(self, file: _File) -> str:
        with self._cache.alone(file.state, self._waits):
            digest = self._cache.find(file.state)
            if digest is None:
                digest = sha256(file.path, self._has_read)
                self._cache.keep(file.state, digest)
        return digest

    def _waits(self) -> bool:
        self._has_read(0)
        return time.monotonic() < self._waits_until

    def _has_read(self, count: int) -> None:
        if not self._is_wanted():
            raise StoppedError
        self._bytes += count
        if time.monotonic() >= self._told_at + PROGRESS_S:
            self._told_at = time.monotonic()
            logger.info("kvferry: of %.1f GB of weights that %s names %.1f GB have been read", _gigabytes(self._files),
                        digest_file.NAME, self._bytes / 1e9)
