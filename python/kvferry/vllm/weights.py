"""Which weights an engine has, by their content: SHA-256 of each file that vLLM loads, whole, read beside vLLM's own load.

Until it is known the engine gives no tickets and loads nothing. Where the files cannot be seen (object storage, streamed
loaders), or are not what is in memory any more, a user names the weights: option `weights_id`.
"""

from __future__ import annotations

import copy
import hashlib
import os
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from .log import logger

if TYPE_CHECKING:
    from vllm.config import LoadConfig, ModelConfig, VllmConfig

WEIGHTS_ID = "weights_id"
ID_CHARACTERS_MAX = 1024
READ_BYTES = 1 << 20
CACHED_FILES_MAX = 4096
SETTLED_NS = 2_000_000_000
"""A file that is as young as the clock's steps may change once more without another time: not for the cache."""
BLOB = re.compile(r"[0-9a-f]{64}")
HOW_TO_NAME = (f'give both engines "{WEIGHTS_ID}" in kv_connector_extra_config: a name of the weights that changes '
               "whenever they do, or set vLLM's weight version after an update")


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


def loaded_files(model: ModelConfig, load: LoadConfig) -> list[Path]:
    """The files that vLLM's loader reads; none for weights that are made up."""
    from vllm.model_executor import model_loader as loaders
    if load.load_format == "dummy":
        return []
    kind = loaders._LOAD_FORMAT_TO_MODEL_LOADER.get(load.load_format)
    if kind is loaders.DefaultModelLoader and not model.model_weights:
        listed = kind(load)._prepare_weights(model.model, None, model.revision, True, None)[1]
        files = [Path(name) for name in listed]
    elif load.load_format == "sharded_state" and Path(model.model).is_dir():
        files = list(Path(model.model).glob("*.safetensors"))
    else:
        raise UnknownWeightsError(f"the files that load_format {load.load_format!r} reads cannot be seen: {HOW_TO_NAME}")
    if not files:
        raise UnknownWeightsError(f"{model.model} has no files of weights: {HOW_TO_NAME}")
    return files


def _combine(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Weights:
    """The identity of the weights in memory. For use by one thread; the reading is done by another one."""

    def __init__(self, model: ModelConfig, load: LoadConfig, given: str | None = None) -> None:
        self._model = model
        self._load = load
        self._given = given
        self._lock = threading.Lock()
        self._generation = 0
        self._digest: str | None = None
        self._version: str | None = None
        self._read_from_files = False
        self._loaded = threading.Event()

    @property
    def digest(self) -> str | None:
        """None: it is not known, or not yet."""
        return self._digest

    def begin(self, loaded_from_ns: int | None = None, path: str | None = None) -> None:
        """Reads what vLLM loads from now on (or since then), from its model's files or from another folder. loaded() has
        to follow when it has."""
        self.forget()
        if path is not None:  # as vLLM does it: for later loads, too
            self._model = copy.copy(self._model)
            self._model.model, self._model.model_weights, self._model.revision = path, "", None
        given, self._given = self._given, None  # it names the first weights only
        if given is not None:
            self._digest = _combine(["named", given])
            return
        self._read_from_files = True
        start_ns = time.time_ns() if loaded_from_ns is None else loaded_from_ns
        arguments = (self._generation, self._loaded, start_ns)
        threading.Thread(target=self._read, args=arguments, name="kvferry-weights", daemon=True).start()

    def loaded(self) -> None:
        """vLLM has loaded them: files that have changed up to now have no identity."""
        self._loaded.set()

    def forget(self) -> None:
        """The weights in memory change from now on."""
        with self._lock:
            self._generation += 1
            self._digest = self._version = None
            self._read_from_files = False
            self._loaded = threading.Event()

    def name(self, version: str) -> None:
        """Whoever has sent the weights in memory has named them. Those that can be read from files need no name."""
        with self._lock:
            self._version = version
            if not self._read_from_files:
                self._digest = _combine(["version", version])

    def _read(self, generation: int, loaded: threading.Event, loaded_from_ns: int) -> None:
        start = time.monotonic()
        try:
            digest, size = self._read_files(loaded, loaded_from_ns)
        except (UnknownWeightsError, OSError, ValueError, RuntimeError) as error:
            self._fail(generation, error)
            return
        with self._lock:
            if generation == self._generation:
                self._digest = digest
                logger.info("kvferry: the weights are %s (%.1f GB, known after %.1f s)", digest[:16], size / 1e9,
                            time.monotonic() - start)

    def _fail(self, generation: int, error: Exception) -> None:
        with self._lock:
            if generation != self._generation:
                return
            self._read_from_files = False
            if self._version is not None:
                self._digest = _combine(["version", self._version])
                return
        logger.warning("kvferry: this engine gives no tickets and loads nothing, since its weights have no identity: %s",
                       error)

    def _read_files(self, loaded: threading.Event, loaded_from_ns: int) -> tuple[str, int]:
        cache = _Cache()
        files = loaded_files(self._model, self._load)
        states = [_state_of(file) for file in files]
        digests = [_digest_of(file, state, loaded_from_ns, cache) for file, state in zip(files, states)]
        loaded.wait()
        for file, state in zip(files, states):
            if _state_of(file) != state:
                raise UnknownWeightsError(f"{file} has changed while it was loaded: start the engine again")
        return _combine(["files", *sorted(digests)]), sum(state.size for state in states)


# ---- one for each model of this process ----

_begun: dict[int, Weights] = {}
"""By the id of vLLM's ModelConfig, which lives as long as the process."""


def _make(vllm_config: VllmConfig, given: object) -> Weights:
    if given is not None and (not isinstance(given, str) or not 0 < len(given) <= ID_CHARACTERS_MAX):
        raise ValueError(f"{WEIGHTS_ID} is a text of 1 to {ID_CHARACTERS_MAX} characters")
    return Weights(vllm_config.model_config, vllm_config.load_config, given)


def begin_beside_load(vllm_config: VllmConfig, given: object) -> None:
    """To be called before vLLM loads the model."""
    weights = _begun[id(vllm_config.model_config)] = _make(vllm_config, given)
    weights.begin()


def weights_of(vllm_config: VllmConfig, given: object) -> Weights:
    """To be called when vLLM has loaded the model."""
    weights = _begun.get(id(vllm_config.model_config))
    if weights is None:
        weights = _make(vllm_config, given)
        weights.begin(int(psutil.Process().create_time() * 1e9))  # nothing can have been loaded before
    weights.loaded()
    return weights
