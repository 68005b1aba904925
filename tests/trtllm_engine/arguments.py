"""llm_args, as a connector's constructor gets it, with those of its names that one reads, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from .names import Version

# llmapi/llm_args.py: TorchLlmArgs, KvCacheConfig, SchedulerConfig, KvCacheConnectorConfig.
_DEFAULTS: dict[str, Any] = {
    "model": "/models/toy", "revision": None, "dtype": "float32", "quant_config": None, "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1, "context_parallel_size": 1, "enable_attention_dp": False, "max_beam_width": 1,
    "max_seq_len": 1024, "max_num_tokens": 256, "max_batch_size": 8, "enable_chunked_prefill": False,
    "lora_config": None, "speculative_config": None, "attn_backend": "TRTLLM", "disable_overlap_scheduler": True, 
    "backend": "pytorch", "cuda_graph_config": None, "kv_connector_config": None}
_KV_CACHE: dict[str, Any] = {
    "tokens_per_block": 4, "dtype": "auto", "enable_block_reuse": True, "enable_partial_reuse": False,
    "host_cache_size": None, "use_kv_cache_manager_v2": False, "max_attention_window": None}


def make_arguments(changes: dict[str, Any]) -> SimpleNamespace:
    """A change of a name of kv_cache_config goes there; any other name is an argument itself. Nothing else is known."""
    values = _DEFAULTS | {name: value for name, value in changes.items() if name not in _KV_CACHE}
    policy = values.pop("capacity_scheduler_policy", "GUARANTEED_NO_EVICT")
    unknown = set(values) - set(_DEFAULTS)
    if unknown:
        raise TypeError(f"no arguments of TensorRT-LLM, or none that the model has: {sorted(unknown)}")
    cache = SimpleNamespace(**_KV_CACHE | {name: value for name, value in changes.items() if name in _KV_CACHE})
    parallel = SimpleNamespace(tp_size=values["tensor_parallel_size"], pp_size=values["pipeline_parallel_size"],
                               cp_size=values["context_parallel_size"], world_size=values["tensor_parallel_size"],
                               enable_attention_dp=values["enable_attention_dp"])
    return SimpleNamespace(**values, kv_cache_config=cache, parallel_config=parallel,
                           scheduler_config=SimpleNamespace(capacity_scheduler_policy=policy))


def refuse_before(version: Version, arguments: Any, classes: tuple[type, ...]) -> None:
    """Before any connector is there. (py_executor_creator.py)"""
    cache = arguments.kv_cache_config
    if ("v2" if cache.use_kv_cache_manager_v2 else "v1") not in version.managers:
        raise NotImplementedError("a connector with KVCacheManagerV2")
    policy = arguments.scheduler_config.capacity_scheduler_policy
    if not cache.use_kv_cache_manager_v2 and policy != "GUARANTEED_NO_EVICT":
        raise NotImplementedError(f"a connector with the capacity policy {policy}")
    shares = all(getattr(each, "supports_attention_dp", False) is True for each in classes)
    if arguments.enable_attention_dp and not shares:
        raise NotImplementedError("a connector with attention DP that has not declared supports_attention_dp")


def refuse_after(version: Version, arguments: Any) -> None:
    """When there are connectors, but not told of the cache. (py_executor.py: _maybe_init_kv_connector_manager)"""
    found = {"pp": arguments.pipeline_parallel_size > 1, "cp": arguments.context_parallel_size > 1,
             "beam": arguments.max_beam_width > 1, "host_cache": bool(arguments.kv_cache_config.host_cache_size)}
    for name in sorted(version.refuses):
        if found[name]:
            raise NotImplementedError(f"a connector with {name}")
