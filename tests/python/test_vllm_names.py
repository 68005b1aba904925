"""What kvferry.vllm uses of vLLM beyond the connector's contract: each name, with the module that leans on it.

vLLM promises none of them. When one goes, this says which, before an engine dies of it.
"""

from __future__ import annotations

import importlib
import inspect
import re

import pytest

vllm = pytest.importorskip("vllm")

BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base:"
MANAGER = "vllm.v1.core.kv_cache_manager:"
SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
CORE = "vllm.v1.engine.core:EngineCore."
INTERFACE = "vllm.v1.kv_cache_interface:"

CALLS = [
    ("consumer.py", MANAGER + "KVCacheManager.free", ["self", "request"]),
    ("consumer.py", MANAGER + "KVCacheManager.pop_blocks_for_free", ["self", "request"]),
    ("consumer.py", MANAGER + "KVCacheManager.record_blocks_for_zeroing", ["self", "request_id", "start_token"]),
    ("consumer.py", MANAGER + "KVCacheManager.evict_blocks", ["self", "block_ids"]),
    ("consumer.py", MANAGER + "KVCacheManager.get_block_ids", ["self", "request_id"]),
    ("scheduler.py", MANAGER + "KVCacheManager.reset_prefix_cache", ["self"]),
    ("adapters.py", "vllm.lora.worker_manager:WorkerLoRAManager._load_adapter", ["self", "lora_request"]),
    ("adapters.py", "vllm.lora.worker_manager:LRUCacheWorkerLoRAManager._apply_adapters", ["self", "lora_requests"]),
    ("adapters.py", "vllm.lora.worker_manager:WorkerLoRAManager.list_adapters", ["self"]),
    ("adapters.py", "vllm.lora.model_manager:LoRAModelManager.get_adapter", ["self", "adapter_id"]),
    ("consumer.py", "vllm.v1.core.block_pool:BlockPool.free_blocks", ["self", "ordered_blocks"]),
    ("consumer.py", INTERFACE + "KVCacheConfig.select_transfer_block_ids", ["self", "block_ids"]),
    ("producer.py", MANAGER + "KVCacheManager.get_blocks", ["self", "request_id"]),
    ("producer.py", "vllm.v1.core.block_pool:BlockPool.touch", ["self", "blocks"]),
    ("connector.py", BASE + "KVConnectorBase_V1._get_connector_metadata", ["self"]),
    ("identity.py", "vllm.v1.attention.backends.cpu_attn:_get_attn_isa",
     ["dtype", "block_size", "head_size", "kv_cache_dtype"]),
    ("identity.py", "vllm.transformers_utils.repo_utils:get_hf_file_to_dict", ["file_name", "model", "revision"]),
    ("weights.py", "vllm.model_executor.model_loader.default_loader:DefaultModelLoader._prepare_weights",
     ["self", "model_name_or_path", "subfolder", "revision", "fall_back_to_pt", "allow_patterns_overrides"]),
    ("engine_core.py", CORE + "reset_prefix_cache", ["self", "reset_running_requests", "reset_connector"]),
    ("engine_core.py", CORE + "pause_scheduler", ["self", "mode", "clear_cache"]),
    ("engine_core.py", CORE + "resume_scheduler", ["self"]),
    ("engine_core.py", CORE + "sleep", ["self", "level", "mode"]),
    ("engine_core.py", CORE + "collective_rpc", ["self", "method", "timeout", "args", "kwargs"]),
    ("engine_core.py", CORE + "set_weight_version", ["self", "weight_version"]),
    ("engine_core.py", CORE + "add_request", ["self", "request", "request_wave"]),
    ("engine_core.py", CORE + "add_lora", ["self", "lora_request"]),
    ("engine_core.py", CORE + "remove_lora", ["self", "lora_id"]),
    ("engine_core.py", "vllm.v1.worker.gpu_worker:Worker.reload_weights", ["self", "args", "kwargs"]),
    ("engine_core.py", "vllm.v1.worker.gpu_worker:Worker.start_weight_update", ["self"]),
    ("engine_core.py", "vllm.v1.worker.gpu_worker:Worker.start_draft_weight_update", ["self"]),
    ("engine_core.py", "vllm.v1.worker.gpu_worker:Worker.update_weights", ["self", "update_info"]),
    ("engine_core.py", "vllm.v1.worker.gpu_worker:Worker.finish_weight_update", ["self"]),
    ("vllm_plugin.py", "vllm.v1.executor.abstract:Executor.__init__", ["self", "vllm_config"]),
    ("consumer.py", SCHEDULER + "._update_waiting_for_remote_kv", ["self", "request"]),
]

FIELDS = [
    ("consumer.py", MANAGER + "KVCacheManager", ["block_pool"]),
    ("consumer.py", "vllm.v1.core.block_pool:BlockPool", ["null_block"]),
    ("requests.py", "vllm.v1.request:Request",
     ["request_id", "kv_transfer_params", "abort_immediately", "prompt_token_ids", "prompt_embeds", "resumable",
      "lora_request", "mm_features", "cache_salt", "num_prompt_tokens", "num_computed_tokens", "max_tokens", "status"]),
    ("adapters.py", "vllm.lora.request:LoRARequest", ["lora_name", "lora_int_id", "lora_path", "load_inplace"]),
    ("adapters.py", "vllm.lora.lora_model:LoRAModel", ["id", "loras", "is_3d_lora_weight"]),
    ("adapters.py", "vllm.lora.lora_weights:LoRALayerWeights", ["lora_a", "lora_b", "scaling"]),
    ("adapters.py", "vllm.config.lora:LoRAConfig", ["target_modules", "enable_tower_connector_lora"]),
    ("requests.py", "vllm.multimodal.inputs:MultiModalFeatureSpec", ["identifier", "mm_position"]),
    ("producer.py", "vllm.v1.core.sched.output:SchedulerOutput",
     ["kv_connector_block_state", "preempted_req_ids", "num_scheduled_tokens"]),
    ("scheduler.py", "vllm.v1.outputs:KVConnectorOutput", ["kv_connector_worker_meta", "finished_recving"]),
    ("scheduler.py", SCHEDULER, ["grammar_compile_error_reqs", "finished_recving_kv_req_ids"]),
    ("layout.py", INTERFACE + "KVCacheConfig",
     ["transfer_groups", "transfer_group_ids", "needs_kv_cache_zeroing", "num_blocks", "kv_cache_layout"]),
    ("layout.py", INTERFACE + "FullAttentionSpec",
     ["block_size", "num_kv_heads", "head_size", "dtype", "max_tp_shards", "real_page_size_bytes"]),
    ("identity.py", INTERFACE + "FullAttentionSpec", ["kv_quant_mode"]),
    ("layout.py", INTERFACE + "UniformTypeKVCacheSpecs", ["kv_cache_specs"]),
    ("layout.py", INTERFACE + "SlidingWindowSpec", ["sliding_window", "extra_retained_tokens"]),
    ("layout.py", INTERFACE + "ChunkedLocalAttentionSpec", ["attention_chunk_size"]),
    ("identity.py", "vllm.config:ModelConfig",
     ["hf_config_path", "hf_overrides", "hf_config", "hf_text_config", "max_model_len", "quantization", "multimodal_config"]),
    ("weights.py", "vllm.config:ModelConfig", ["model", "revision", "model_weights"]),
    ("config.py", "vllm.config:KVTransferConfig", ["kv_buffer_device", "kv_connector_extra_config"]),
]

TEXTS = [
    ("consumer.py", "ends the requests of that set with an error, wherever they are, and keeps the set",
     SCHEDULER + ".update_from_output",
     r"set\(self\.grammar_compile_error_reqs\)\s+self\.grammar_compile_error_reqs\.clear\(\)(?s:.*)FINISHED_ERROR"),
    ("connector.py", "steps on while has_pending_push_work()", SCHEDULER + ".has_requests", r"has_pending_push_work\(\)"),
    ("adapters.py", "keys cached blocks by an adapter's name and path", "vllm.v1.core.kv_cache_utils:_gen_lora_extra_hash_keys",
     r"lora_request\.lora_name, lora_request\.lora_path"),
    ("worker.py", "takes a step's adapters before the step's loads start",
     "vllm.v1.worker.gpu_model_runner:GPUModelRunner.execute_model",
     r"_prepare_inputs\((?s:.*)maybe_get_kv_connector_output\("),
    ("connector.py", "saves when the drafter's work has been given to the device, too (the first model runner)",
     "vllm.v1.worker.gpu_model_runner:GPUModelRunner.sample_tokens",
     r"propose_draft_token_ids\((?s:.*)self\.finalize_kv_connector\(\)"),
    ("connector.py", "leaves saving to that as soon as there is a drafter",
     "vllm.v1.worker.gpu_model_runner:GPUModelRunner.execute_model",
     r"defer_kv_connector_finalize = self\.speculative_config is not None(?s:.*)defer_finalize=defer_kv_connector_finalize"),
    ("connector.py", "saves then", "vllm.v1.worker.kv_connector_model_runner_mixin:KVConnectorModelRunnerMixin.finalize_kv_connector",
     r"wait_for_save\(\)"),
    ("connector.py", "saves when the drafter's work has been given to the device, too (the second model runner)",
     "vllm.v1.worker.gpu.model_runner:GPUModelRunner.sample_tokens",
     r"self\.speculator\.propose\((?s:.*)self\.kv_connector\.post_forward\(finished_req_ids\)"),
    ("connector.py", "saves after it has started the step's loads", "vllm.v1.worker.gpu.kv_connector:ActiveKVConnector.post_forward",
     r"_start_load_kv\(\)(?s:.*)wait_for_save\(\)"),
    ("worker.py", "zeroes new blocks, and copies, before it starts loads, on the same stream (the first model runner)",
     "vllm.v1.worker.gpu_model_runner:GPUModelRunner.execute_model",
     r"_update_states\((?s:.*)maybe_get_kv_connector_output\("),
    ("worker.py", "zeroes new blocks, and copies, before it starts loads, on the same stream (the second model runner)",
     "vllm.v1.worker.gpu.model_runner:GPUModelRunner.execute_model",
     r"self\.update_requests\((?s:.*)self\.kv_connector\.pre_forward\("),
    ("identity.py", "knows a model's backend without its layers, as where it has none",
     "vllm.distributed.kv_transfer.kv_connector.utils:get_current_attn_backends",
     r"set_current_vllm_config\(vllm_config\)(?s:.*)get_attn_backend\("),
    ("consumer.py", "goes on after num_computed_tokens of a received request, and caches what is before",
     SCHEDULER + "._update_waiting_for_remote_kv", r"cache_blocks\(request, request\.num_computed_tokens\)"),
    ("scheduler.py", "reads finished_recving after the connector has seen the output",
     SCHEDULER + "._update_from_kv_xfer_finished", r"update_connector_output\(kv_connector_output\)(?s:.*)finished_recving"),
]


def find(name: str) -> object:
    module, _, path = name.partition(":")
    found: object = importlib.import_module(module)
    for part in path.split("."):
        assert hasattr(found, part), f"vLLM {vllm.__version__} has no {name} any more"
        found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
    return found


@pytest.mark.parametrize("user, name, parameters", CALLS, ids=[name for _, name, _ in CALLS])
def test_calls(user: str, name: str, parameters: list[str]) -> None:
    now = list(inspect.signature(find(name)).parameters)
    assert now == parameters, f"{user}: vLLM {vllm.__version__}'s {name} takes {now}, not {parameters}"


@pytest.mark.parametrize("user, name, fields", FIELDS, ids=[name for _, name, _ in FIELDS])
def test_fields(user: str, name: str, fields: list[str]) -> None:
    cls = find(name)
    source = "\n".join(inspect.getsource(base) for base in cls.__mro__ if base.__module__.startswith("vllm"))
    gone = [field for field in fields if not re.search(rf"\b(self\.)?{field}\b\s*[:=(]", source)]
    assert not gone, f"{user}: vLLM {vllm.__version__}'s {name} has no {', '.join(gone)} any more"


@pytest.mark.parametrize("user, what, name, pattern", TEXTS, ids=[what for _, what, _, _ in TEXTS])
def test_order(user: str, what: str, name: str, pattern: str) -> None:
    assert re.search(pattern, inspect.getsource(find(name))), (
        f"{user}: vLLM {vllm.__version__}'s {name} has changed. kvferry counts on: it {what}")
