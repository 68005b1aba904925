"""LoRA adapters by content: what each worker has read, and what the scheduler side knows of it.

vLLM reads an adapter's files when it is told to, when a request comes whose adapter is not in memory, and anew after it had
to make room for others. Its ids, names and paths say nothing of what it has found there.
"""

from __future__ import annotations

import hashlib
import itertools
import weakref
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from kvferry.engine.log import limited

from .. import seam

if TYPE_CHECKING:
    from vllm.config.lora import LoRAConfig
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.request import LoRARequest
    from vllm.v1.request import Request

ADAPTERS_MAX = 4096
"""Remembered, beside those in memory: what is forgotten counts as not loaded, or its cached blocks as old."""


@dataclass(frozen=True)
class Adapter:
    """One of a rank's, under vLLM's id of it."""

    digest: bytes
    version: int  # another one whenever the content has changed, even if it has changed back since
    loaded: bool  # it is in memory; else vLLM will read its files again
    reported: int = 0  # grows: reports may overtake one another


@dataclass(frozen=True)
class Content:
    """An adapter that all ranks have read alike."""

    lora_id: int
    digest: bytes
    versions: tuple[int, ...]  # by rank


def _trim(known: dict[int, Adapter]) -> None:
    for lora_id in [id_ for id_, adapter in known.items() if not adapter.loaded][:max(0, len(known) - ADAPTERS_MAX)]:
        del known[lora_id]


# ---- in each worker ----

def digest_of(lora: LoRAModel, config: LoRAConfig) -> bytes:
    """Of the tensors, before they are sliced for ranks, and of all that says how they are applied."""
    targets = sorted(config.target_modules) if config.target_modules is not None else None
    digest = hashlib.sha256(repr((targets, config.enable_tower_connector_lora, lora.is_3d_lora_weight)).encode())
    for name, weights in sorted(lora.loras.items()):
        for tensor in (weights.lora_a, weights.lora_b):
            if tensor is None:
                digest.update(repr((name, None)).encode())
                continue
            digest.update(repr((name, float(weights.scaling), str(tensor.dtype), tuple(tensor.shape))).encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.digest()


class LoadedAdapters:
    """What vLLM's LoRA manager in this process has read."""

    def __init__(self) -> None:
        self._manager: Any = lambda: None
        self._known: dict[int, Adapter] = {}
        self._reported: dict[int, Adapter] = {}
        self._numbers = itertools.count(1)
        self.mistake: Exception | None = None
        """Of ours, in vLLM's calls: raised where the worker's hooks have a boundary."""

    @contextmanager
    def noting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.mistake = self.mistake or error

    def note(self, manager: Any, lora_id: int, digest: bytes | None) -> None:
        """It has read this; None: nobody knows what."""
        self._manager = weakref.ref(manager)
        before = self._known.pop(lora_id, None)
        if digest is None:
            return
        same = before is not None and before.digest == digest
        version = before.version if before is not None and same else next(self._numbers)
        self._known[lora_id] = Adapter(digest, version, loaded=True)
        self._look()
        _trim(self._known)

    def _look(self) -> None:
        if self.mistake is not None:
            raise self.mistake
        manager = self._manager()
        loaded = seam.adapters_in_memory(manager) if manager is not None else ()
        for lora_id, adapter in self._known.items():
            if adapter.loaded != (lora_id in loaded):
                self._known[lora_id] = replace(adapter, loaded=lora_id in loaded)

    def has(self, content: Content, rank: int) -> bool:
        """It is in memory, and nothing else has been read since."""
        self._look()
        adapter = self._known.get(content.lora_id)
        return adapter is not None and adapter.loaded and adapter.version == content.versions[rank]

    def changes(self) -> dict[int, Adapter]:
        """Since the last call."""
        self._look()
        changed = {lora_id: replace(adapter, reported=next(self._numbers)) for lora_id, adapter in self._known.items()
                   if self._reported.get(lora_id) != adapter}
        for lora_id in self._reported.keys() - self._known.keys():
            changed[lora_id] = replace(self._reported[lora_id], loaded=False, reported=next(self._numbers))
        self._reported = dict(self._known)
        return changed


_of_engines: dict[int, tuple[LoRAConfig, LoadedAdapters]] = {}
"""By the id of the engine's LoRAConfig, which is kept so that no other has it."""


def loaded_adapters(config: LoRAConfig | None) -> LoadedAdapters:
    """Of the engine with this configuration."""
    if config is None:
        return LoadedAdapters()
    wrap_loads()
    return _of_engines.setdefault(id(config), (config, LoadedAdapters()))[1]


def _load_adapter(method: Any, manager: Any, lora_request: LoRARequest) -> LoRAModel:
    lora: LoRAModel = method(manager, lora_request)
    known = loaded_adapters(manager.lora_config)
    with known.noting():
        known.note(manager, lora.id, _digest_if_known(lora, manager.lora_config, lora_request.lora_name))
    return lora


def _digest_if_known(lora: LoRAModel, config: LoRAConfig, name: str) -> bytes | None:
    try:
        return digest_of(lora, config)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        limited.error("kvferry: LoRA adapter %s is of an unknown kind: its requests get no tickets and no loads: %s",
                      name, error)
    return None


def _apply_adapters(method: Any, manager: Any, lora_requests: Collection[LoRARequest | None]) -> None:
    """vLLM takes a step's adapters one by one, and may make room for one by dropping another of the step. So those in
    memory are used first, and none of them is read again."""
    with loaded_adapters(manager.lora_config).noting():
        for request in filter(None, lora_requests):
            seam.use_adapter(manager, request.lora_int_id)
    method(manager, lora_requests)


def wrap_loads() -> None:
    seam.wrap_adapter_loads({"_load_adapter": _load_adapter, "_apply_adapters": _apply_adapters})


# ---- on the scheduler's side ----

Key = tuple[Any, ...]
"""By which vLLM's prefix cache tells adapters apart: name and path, or the name alone (0.29)."""
SEVERAL = b""  # digest of blocks that more than one content has computed


class Adapters:
    """What the ranks have read, and with which contents vLLM's prefix cache was filled."""

    def __init__(self, ranks: int) -> None:
        self._ranks: list[dict[int, Adapter]] = [{} for _ in range(ranks)]
        self._cached: dict[Key, bytes] = {}
        self._alive: dict[int, Counter[Key]] = {}  # requests that are not over, by adapter's id
        self._by_call: dict[int, None] = {}
        self._unsteady: dict[int, None] = {}

    def receive(self, rank: int, changed: dict[int, Adapter]) -> None:
        for lora_id, adapter in changed.items():
            self._receive(self._ranks[rank], lora_id, adapter)

    def _receive(self, known: dict[int, Adapter], lora_id: int, adapter: Adapter) -> None:
        before = known.get(lora_id)
        if before is not None and before.reported > adapter.reported:
            return
        known[lora_id] = adapter
        _trim(known)
        for key in self._alive.get(lora_id, ()):
            changed = before is not None and before.version != adapter.version
            self._fill(key, SEVERAL if changed else adapter.digest)

    def _fill(self, key: Key, digest: bytes) -> None:
        if key in self._cached or len(self._cached) < ADAPTERS_MAX:
            self._cached[key] = digest if self._cached.get(key, digest) == digest else SEVERAL

    def _fill_all(self, lora_id: int, key: Key) -> None:
        for known in self._ranks:
            if (adapter := known.get(lora_id)) is not None:
                self._fill(key, adapter.digest)

    def arrive(self, request: Request) -> None:
        lora = request.lora_request
        if lora is None:
            return
        if lora.load_inplace:
            self._steady(request, lora)
        key = seam.cache_key(lora)
        self._alive.setdefault(lora.lora_int_id, Counter())[key] += 1
        self._fill_all(lora.lora_int_id, key)

    def _steady(self, request: Request, lora: LoRARequest) -> None:
        """With load_inplace vLLM reads the files again in every step. Its server leaves that in the requests that come after
        the call which has loaded them."""
        if lora.lora_int_id in self._by_call:
            request.lora_request = msgspec.structs.replace(lora, load_inplace=False)
        else:
            self._remember(self._unsteady, lora.lora_int_id)

    @staticmethod
    def _remember(ids: dict[int, None], lora_id: int) -> None:
        ids[lora_id] = None
        if len(ids) > ADAPTERS_MAX:
            del ids[next(iter(ids))]

    def finish(self, request: Request) -> None:
        lora = request.lora_request
        keys = self._alive.get(lora.lora_int_id) if lora is not None else None
        if lora is None or keys is None:
            return
        key = seam.cache_key(lora)
        keys[key] -= 1
        if keys[key] <= 0:
            del keys[key]
        if not keys:
            del self._alive[lora.lora_int_id]

    def called(self, lora: LoRARequest) -> None:
        """A call has had it loaded."""
        self._unsteady.pop(lora.lora_int_id, None)
        self._remember(self._by_call, lora.lora_int_id)

    def content(self, lora_id: int) -> Content | None:
        """What all ranks have read last; None: not known, or not alike."""
        adapters = [known.get(lora_id) for known in self._ranks]
        known = [adapter for adapter in adapters if adapter is not None]
        if lora_id in self._unsteady or len(known) < len(adapters) or len({adapter.digest for adapter in known}) > 1:
            return None
        return Content(lora_id, known[0].digest, tuple(adapter.version for adapter in known))

    def are_in_memory(self, content: Content) -> bool:
        """On every rank, and nothing else has been read since."""
        return all(adapter is not None and adapter.loaded and adapter.version == version for adapter, version in
                   ((known.get(content.lora_id), version) for known, version in zip(self._ranks, content.versions)))

    # ---- vLLM's prefix cache ----

    def cache_is_old(self, lora: LoRARequest) -> bool:
        """It may hold blocks that another content has computed under this key."""
        content = self.content(lora.lora_int_id)
        return content is None or self._cached.get(seam.cache_key(lora), SEVERAL) != content.digest

    @property
    def some_are_old(self) -> bool:
        return SEVERAL in self._cached.values() or len(self._cached) >= ADAPTERS_MAX

    def would_be_old(self, lora: LoRARequest) -> bool:
        """For the first request that comes with it."""
        return seam.cache_key(lora) in self._cached and self.cache_is_old(lora)

    def cache_is_empty(self) -> None:
        self._cached = {}
        for lora_id, keys in self._alive.items():
            for key in keys:
                self._fill_all(lora_id, key)
