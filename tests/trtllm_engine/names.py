"""Stand-ins for the modules of TensorRT-LLM that an adapter imports, by version, and what differs between versions."""

from __future__ import annotations

import enum
import sys
import types
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, make_dataclass
from typing import Any

from . import collectives, signatures
from .manager import AsyncRequests, KvCacheConnectorManager

OLD_PATH = "tensorrt_llm._torch.pyexecutor.kv_cache_connector"
NEW_PATH = "tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector"
UTILITIES = {"mpi_rank", "mpi_world_size", "mpi_broadcast", "mpi_allgather"}

# What has no default must be there.
_WORKER, _WORKER_DEFAULTS = frozenset(signatures.WORKER), frozenset(signatures.WORKER_DEFAULTS)
_SCHEDULER = frozenset(signatures.SCHEDULER)
_FIELDS = ("request_id", "new_tokens", "new_block_ids", "computed_position", "num_scheduled_tokens")
_NEWER_FIELDS = ("block_hashes", "priorities", "cache_salt", "new_block_ids_by_layer_group")

# nanobind/batch_manager/bindings.cpp: what the C++ base class of a request has, as get_num_new_matched_tokens of the V1
# manager gets it. The salt itself is not there.
BOUND = frozenset({
    "request_id", "prompt_len", "max_new_tokens", "state", "get_tokens", "get_num_tokens", "orig_prompt_len",
    "context_current_position", "context_chunk_size", "context_remaining_length", "prepopulated_prompt_len",
    "is_first_context_chunk", "is_last_context_chunk", "is_context_only_request", "is_generation_only_request",
    "is_finished", "lora_task_id", "cache_salt_id", "multimodal_hashes", "multimodal_positions", "multimodal_lengths"})


@dataclass(frozen=True, repr=False)
class Version:
    """One of TensorRT-LLM's, as a connector sees it."""

    name: str
    path: str
    """Of the connector's classes."""
    worker: frozenset[str]
    worker_defaults: frozenset[str]
    scheduler: frozenset[str]
    scheduler_defaults: frozenset[str]
    fields: tuple[str, ...]
    """Of RequestData."""
    managers: frozenset[str] = frozenset({"v1"})
    finishes_when_terminated: bool = False
    """request_finished is called for each request whose blocks are given back, a cancelled one too; else only for those
    that have ended by themselves, before their answer goes out."""
    cancel_waits: bool = False
    """A request with a transfer is not cancelled before get_finished has reported it."""
    cancel_resets: bool = False
    """request_reset is called when a request of KVCacheManagerV2 is cancelled, which does not run again."""
    dies_together: bool = False
    """One rank's death is that of all; else the others hang."""
    refuses: frozenset[str] = frozenset({"pp"})
    attributes: frozenset[str] = field(default=frozenset())
    """Class attributes of both."""

    def __repr__(self) -> str:
        return self.name


V1_0 = Version(
    # py_executor.py: _do_terminate_request calls request_finished; kv_cache_connector.py: no wait_for_initialization.
    "1.0", OLD_PATH, _WORKER, _WORKER_DEFAULTS, _SCHEDULER, frozenset(), _FIELDS, finishes_when_terminated=True)
V1_2 = Version(
    # 1.2: py_executor.py: _send_kv_async calls request_finished.
    "1.2", OLD_PATH, _WORKER, _WORKER_DEFAULTS, _SCHEDULER, frozenset(signatures.INITIALIZATION), _FIELDS)
NEWEST = Version(
    # connectors/kv_cache_connector.py, docs/source/features/kv-cache-connector.md (request_reset, cancel_load),
    # py_executor.py: _save_kv_to_connector_async, _event_loop_wrapper (hard_kill_on_rank_crash), _try_cancel_request
    # (as tests/unittest's test_cancel_waits_for_connector_dma has it).
    "newest", NEW_PATH, _WORKER, _WORKER_DEFAULTS | set(signatures.LAYOUT), _SCHEDULER,
    frozenset({**signatures.INITIALIZATION, **signatures.GROUPED, **signatures.DROPS}), _FIELDS + _NEWER_FIELDS,
    managers=frozenset({"v1", "v2"}), cancel_waits=True, cancel_resets=True, dies_together=True,
    refuses=frozenset({"pp", "cp", "beam", "host_cache"}), attributes=frozenset({"supports_attention_dp"}))
VERSIONS = {version.name: version for version in (V1_0, V1_2, NEWEST)}


class LlmRequestState(enum.Enum):
    """Of tensorrt_llm.bindings."""

    CONTEXT_INIT = 10
    DISAGG_GENERATION_TRANS_IN_PROGRESS = 8
    DISAGG_CONTEXT_TRANS_IN_PROGRESS = 20
    DISAGG_CONTEXT_COMPLETE = 21
    GENERATION_IN_PROGRESS = 13
    GENERATION_TO_COMPLETE = 14
    GENERATION_COMPLETE = 30


RUNNABLE = (LlmRequestState.CONTEXT_INIT, LlmRequestState.GENERATION_IN_PROGRESS)


# ---- the defaults (kv_cache_connector.py) ----


def _flat(method: str) -> Any:
    def grouped(self: Any, request: Any, ids_by_group: list[list[int]]) -> Any:
        if len(ids_by_group) != 1:
            raise NotImplementedError(f"{type(self).__name__} has no {method}_by_layer_group, and the cache has "
                                      f"{len(ids_by_group)} layer groups")
        return getattr(self, method)(request, ids_by_group[0])
    return grouped


def _register_kv_cache_layout(self: Any, layout: Any) -> None:
    tensor = layout.as_single_pool_tensor()
    if tensor is None:
        raise NotImplementedError(f"{type(self).__name__} has no register_kv_cache_layout, and no single tensor "
                                  "describes this cache")
    self.register_kv_caches(tensor)


def _bind_connector_meta(self: Any, metadata: object) -> None:
    self._metadata = metadata


def _nothing(self: Any, *_: Any) -> None:
    return None


_DEFAULTS = {
    "bind_connector_meta": _bind_connector_meta,
    "get_connector_meta": lambda self: self._metadata,
    "register_forward_pass_callable": _nothing,
    "register_kv_cache_layout": _register_kv_cache_layout,
    "request_finished_by_layer_group": _flat("request_finished"),
    "update_state_after_alloc_by_layer_group": _flat("update_state_after_alloc"),
    "wait_for_initialization": _nothing,
    "request_reset": _nothing,
    "cancel_load": _nothing,
}


def _abstract(name: str) -> Any:
    def missing(self: Any, *_: Any) -> None:
        raise NotImplementedError(name)
    return abstractmethod(missing)


def _init(self: Any, llm_args: Any) -> None:
    self._llm_args = llm_args
    self._metadata = None


def _base(name: str, methods: frozenset[str], defaults: frozenset[str], version: Version) -> type:
    body: dict[str, Any] = {"__init__": _init, "__module__": version.path}
    body |= {method: _abstract(method) for method in methods}
    body |= {method: _DEFAULTS[method] for method in defaults}
    body |= {attribute: False for attribute in version.attributes}
    return type(ABC)(name, (ABC,), body)


class _Missing:
    """In place of what a version does not have."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(self._name)


def _connector_module(version: Version) -> types.ModuleType:
    module = types.ModuleType(version.path)
    module.KvCacheConnectorWorker = _base("KvCacheConnectorWorker", version.worker, version.worker_defaults, version)
    module.KvCacheConnectorScheduler = _base("KvCacheConnectorScheduler", version.scheduler, version.scheduler_defaults,
                                             version)
    newer = {} if version.cancel_waits else {"has_pending_transfers": _Missing()}
    module.KvCacheConnectorManager = type("KvCacheConnectorManager", (KvCacheConnectorManager,),
                                          {"__module__": version.path} | newer)
    module.AsyncRequests = AsyncRequests
    newer = [(name, Any, None) for name in version.fields if name not in _FIELDS]
    place = {"__module__": version.path}
    module.RequestData = make_dataclass("RequestData", [(name, Any) for name in _FIELDS] + newer, namespace=place)
    outputs = [(name, list, field(default_factory=list)) for name in ("new_requests", "cached_requests")]
    if "block_hashes" in version.fields:
        outputs.append(("attention_dp_rank", Any, None))
    module.SchedulerOutput = make_dataclass("SchedulerOutput", outputs, namespace=place)
    return module


# ---- in sys.modules ----

_installed: tuple[Version, types.ModuleType] | None = None


def install(version: Version) -> types.ModuleType:
    """The connector's module of this version, which can be imported from now on, as what it needs; none of another."""
    global _installed
    if _installed is not None and _installed[0] == version and sys.modules.get(version.path) is _installed[1]:
        return _installed[1]
    uninstall()
    connector = _connector_module(version)
    utilities = types.ModuleType("tensorrt_llm._utils")
    for name in UTILITIES:
        setattr(utilities, name, getattr(collectives, name))
    bindings = types.ModuleType("tensorrt_llm.bindings")
    bindings.LlmRequestState = LlmRequestState
    for module in (connector, utilities, bindings):
        _add(module)
    sys.modules["tensorrt_llm"].__version__ = version.name
    _installed = (version, connector)
    return connector


def uninstall() -> None:
    global _installed
    _installed = None
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


def _add(module: types.ModuleType) -> None:
    above, _, name = module.__name__.rpartition(".")
    if above and above not in sys.modules:
        package = types.ModuleType(above)
        package.__path__ = []
        _add(package)
    sys.modules[module.__name__] = module
    if above:
        setattr(sys.modules[above], name, module)
