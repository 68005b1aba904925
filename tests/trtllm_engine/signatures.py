"""The connector's methods as TensorRT-LLM declares them: what they are called with, and what comes back.

Read in NVIDIA/TensorRT-LLM, tensorrt_llm/_torch/pyexecutor/kv_cache_connector.py at 00fdcbff, the same file in
connectors/ at 5a06f334 and 035ab91c, the newest that could be had, and docs/source/features/kv-cache-connector.md at
0972960b.
"""

from __future__ import annotations

from typing import NamedTuple


class Method(NamedTuple):
    arguments: tuple[str, ...] = ()
    """After self, by position and by name."""
    returns: str = "None"
    """`object`: whatever the connector likes."""


# In all of these texts.
WORKER = {
    "register_kv_caches": Method(("kv_cache_tensor",)),
    "start_load_kv": Method(("stream",)),
    "wait_for_layer_load": Method(("layer_idx", "stream")),
    "save_kv_layer": Method(("layer_idx", "stream")),
    "wait_for_save": Method(("stream",)),
    "get_finished": Method(("finished_gen_req_ids", "started_loading_req_ids"), "tuple[list[int], list[int]]"),
}
WORKER_DEFAULTS = {
    "bind_connector_meta": Method(("metadata",)),
    "get_connector_meta": Method((), "object"),
    "register_forward_pass_callable": Method((), "object"),
}
SCHEDULER = {
    "build_connector_meta": Method(("scheduler_output",), "object"),
    "get_num_new_matched_tokens": Method(("request", "num_computed_tokens"), "tuple[int, bool]"),
    "request_finished": Method(("request", "cache_block_ids"), "bool"),
    "update_state_after_alloc": Method(("request", "block_ids")),
}

# From 5a06f334 on.
INITIALIZATION = {"wait_for_initialization": Method()}

# At 035ab91c.
LAYOUT = {"register_kv_cache_layout": Method(("layout",))}
GROUPED = {
    "request_finished_by_layer_group": Method(("request", "cache_block_ids_by_layer_group"), "bool"),
    "update_state_after_alloc_by_layer_group": Method(("request", "block_ids_by_layer_group")),
}

# In the document alone: the class at 035ab91c has neither.
DROPS = {"request_reset": Method(("request",)), "cancel_load": Method(("request", "start", "end"))}

EVERY = {**WORKER, **WORKER_DEFAULTS, **SCHEDULER, **INITIALIZATION, **LAYOUT, **GROUPED, **DROPS}
