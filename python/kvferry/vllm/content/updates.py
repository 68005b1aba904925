"""Calls of vLLM's workers that may change the weights: all but those that are known to leave them alone."""

from __future__ import annotations

from typing import Any

RELOAD = "reload_weights"
CONFIGURE = "update_config"
UPDATE_ENDS = "finish_weight_update"
UPDATE_GOES_ON = ("update_weights", UPDATE_ENDS)
UPDATE = ("start_weight_update", "start_draft_weight_update", *UPDATE_GOES_ON)
WEIGHTS_ID = "weights_id"
KEEPING = "rpcs_that_keep_weights"  # the option: calls of workers that leave the weights alone, beside vLLM's own

KEEP_WEIGHTS = frozenset({
    "add_lora", "check_health", "compute_weight_checksums", "determine_available_memory", "execute_dummy_batch",
    "get_cache_block_size_bytes", "get_compilation_match_table", "get_encoder_timing_stats", "get_kv_cache_spec",
    "get_model_inspection", "get_supported_kv_cache_layouts", "get_supported_tasks", "init_weight_transfer_engine", "list_loras",
    "pin_lora", "profile", "release_late_interaction_query_cache", "remove_lora", "reset_encoder_cache", "reset_mm_cache",
    "save_sharded_state", "save_tensorized_model", "shutdown_weight_transfer_engine", "supports_draft_weight_updates",
    "synchronize_device", "take_draft_token_ids"})
"""vLLM's own. An adapter's content is compared for itself: adapters.py. `get_model` is not among them: with the model its
caller has the weights."""


def own_methods(worker: Any, module: str = "vllm.") -> set[str]:
    """Runs in a worker's process: which of KEEP_WEIGHTS are vLLM's there, and not of a user's class or extension."""
    classes = type(getattr(worker, "worker", worker)).__mro__
    definer = {name: next((one for one in classes if name in vars(one)), object) for name in KEEP_WEIGHTS}
    return {name for name, one in definer.items() if one.__module__.startswith(module)}


def take_weights_id(kwargs: dict[str, Any] | None) -> str:
    """What its sender calls the new weights, among the call's arguments or in an update's own: it is not for vLLM."""
    info = (kwargs or {}).get("update_info")
    for given in (kwargs, info if isinstance(info, dict) else None):
        if given and WEIGHTS_ID in given:
            return str(given.pop(WEIGHTS_ID))
    return ""


def first_argument(name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """None: it is not given."""
    return args[0] if args else (kwargs or {}).get(name)


def reloads_from(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> tuple[bool, str | None]:
    """Of RELOAD: whether it reads files, and of which folder (None: the model's). An iterator brings weights of nobody
    knows which files."""
    iterator, path, *_ = (*args, None, None)
    given = {"weights_iterator": iterator, "weights_path": path} | (kwargs or {})
    return given["weights_iterator"] is None, given["weights_path"]
