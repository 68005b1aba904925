"""TensorRT-LLM's names that this adapter imports, calls or overrides, and in which of its versions they are.

Nothing else of it is used. `tests/trtllm_engine` has the same table for its engine, and a test compares the two.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

PLACES = ("tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector", "tensorrt_llm._torch.pyexecutor.kv_cache_connector")
"""Of the connector's classes: since 1.3, and before."""


class Name(NamedTuple):
    name: str
    since: str
    use: str


NAMES = (
    Name("KvCacheConnectorScheduler", "1.0", "base class"),
    Name("KvCacheConnectorWorker", "1.0", "base class"),
    Name("KvCacheConnectorManager", "1.0", "rewind: get_finished() is wrapped"),
    Name("LlmRequestState.CONTEXT_INIT", "1.0", "rewind"),
    Name("mpi_rank", "1.0", "called"),
    Name("mpi_allgather", "1.0", "called"),
    Name("mpi_broadcast", "1.0", "called"),
    Name("register_kv_caches", "1.0", "overridden"),
    Name("register_kv_cache_layout", "1.3", "overridden"),
    Name("bind_connector_meta", "1.0", "overridden"),
    Name("start_load_kv", "1.0", "overridden"),
    Name("wait_for_layer_load", "1.0", "overridden"),
    Name("save_kv_layer", "1.0", "overridden"),
    Name("wait_for_save", "1.0", "overridden"),
    Name("get_finished", "1.0", "overridden"),
    Name("get_num_new_matched_tokens", "1.0", "overridden"),
    Name("update_state_after_alloc", "1.0", "overridden"),
    Name("update_state_after_alloc_by_layer_group", "1.3", "overridden"),
    Name("build_connector_meta", "1.0", "overridden"),
    Name("request_finished", "1.0", "overridden"),
    Name("request_finished_by_layer_group", "1.3", "overridden"),
    Name("request_reset", "1.3", "overridden"),
    Name("cancel_load", "1.3", "overridden"),
)


def _first(name: str) -> Any:
    for place in PLACES:
        try:
            return getattr(importlib.import_module(place), name)
        except ModuleNotFoundError as error:
            if not place.startswith(error.name or ""):
                raise
    raise ModuleNotFoundError(f"TensorRT-LLM has {name} in neither of {' and '.join(PLACES)}")


def manager_class() -> Any:
    return _first("KvCacheConnectorManager")


def request_state() -> Any:
    return importlib.import_module("tensorrt_llm.bindings").LlmRequestState


def keeps_blocks_of_transfers() -> bool:
    """True if the blocks of requests that load or save are kept to the end of the transfer. Older managers give them back
    when a request is cancelled. When it has finished, they keep the prefix cache's blocks of the prompt instead of its own."""
    return hasattr(manager_class(), "has_pending_transfers")


def says_what_it_drops() -> bool:
    """A request whose offer or blocks are gone: else KVCacheManagerV2 drops some without a word."""
    return hasattr(SchedulerBase, "request_reset") and hasattr(SchedulerBase, "cancel_load")


SchedulerBase, WorkerBase = _first("KvCacheConnectorScheduler"), _first("KvCacheConnectorWorker")


def mpi() -> Any:
    """mpi_rank(), mpi_broadcast() and mpi_allgather()."""
    return importlib.import_module("tensorrt_llm._utils")
