"""What kvferry uses of vLLM beyond the connector's published contract, as a table that is checked before it is used.

vLLM promises none of these names. An entry is a *guard* or a *feature*:

- A guard missing, or changed: a lease could outlive its blocks, a load could write late, or content could be mistaken.
  The engine does not start, with any options.
- A feature missing: it is off. On a version that kvferry is tested with this is said once and counted. On any other
  version the engine does not start, unless the option untested_vllm is "allow".

Nothing of vLLM is imported here before it is checked.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import versions

if TYPE_CHECKING:
    from vllm.config import VllmConfig

LORA, SLEEP, DRAFTS, OFFLOADING = "LoRA adapters", "sleep mode", "a drafter", "OffloadingConnector"
"""What an engine may have, and an entry may be about."""


@dataclass(frozen=True)
class Entry:
    name: str
    """MODULE:PATH"""
    why: str
    """A guard: what kvferry counts on. A feature: what is off without it."""
    is_guard: bool = True
    takes: tuple[str, ...] | None = None
    """The parameters of a function."""
    has: tuple[str, ...] = ()
    """Attributes that the source of a class, or of its bases, names."""
    says: str = ""
    """A pattern of the source."""
    needs: str = ""
    """It concerns engines that have this."""

    @property
    def module(self) -> str:
        return self.name.partition(":")[0]


CORE = "vllm.v1.engine.core:EngineCore."
SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
MANAGER = "vllm.v1.core.kv_cache_manager:KVCacheManager"
POOL = "vllm.v1.core.block_pool:BlockPool"
INTERFACE = "vllm.v1.kv_cache_interface:"
WORKER = "vllm.v1.worker.gpu_worker:Worker."
RUNNER = "vllm.v1.worker.gpu_model_runner:GPUModelRunner."
SECOND_RUNNER = "vllm.v1.worker.gpu.model_runner:GPUModelRunner."
MIXIN = "vllm.v1.worker.kv_connector_model_runner_mixin:KVConnectorModelRunnerMixin."
SECOND_CONNECTOR = "vllm.v1.worker.gpu.kv_connector:ActiveKVConnector."
BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base:KVConnectorBase_V1."
APP = "vllm.entrypoints.launchers.app"
OFFLOADER = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler:OffloadingConnectorScheduler"


def _call(name: str, why: str, *takes: str, needs: str = "", is_guard: bool = True) -> Entry:
    return Entry(name, why, is_guard, takes=takes, needs=needs)


def _fields(name: str, why: str, *has: str, needs: str = "", is_guard: bool = True) -> Entry:
    return Entry(name, why, is_guard, has=has, needs=needs)


def _order(name: str, why: str, says: str, needs: str = "", is_guard: bool = True) -> Entry:
    return Entry(name, why, is_guard, says=says, needs=needs)


ENDS = "leases and loads end before"
WOKEN = "an idle engine steps only when one of its leases has ended"
STOP_REASONS = "requests that fail say why in their stop_reason"
ERRORS_ADDED = "clients of vLLM's API server hear why requests fail without --middleware kvferry.vllm.KVErrors"
LOADS_FIRST = "on GPUs, loads start before a step's forward and not behind it"
SERVER_ENDS = "an API server says that its engine leaves, and that it ends"
CONTRACT: tuple[Entry, ...] = (
    # ---- between steps: what ends leases and loads ----
    _call(CORE + "add_request", "the ranks and the scheduler are joined before the first request", "self", "request", "request_wave"),
    _call(CORE + "reset_prefix_cache", f"{ENDS} the prefix cache is reset", "self", "reset_running_requests", "reset_connector"),
    _call(CORE + "pause_scheduler", f"{ENDS} a pause", "self", "mode", "clear_cache"),
    _call(CORE + "resume_scheduler", "tickets are given again after a pause", "self"),
    _call(CORE + "sleep", f"{ENDS} the engine sleeps", "self", "level", "mode", needs=SLEEP),
    _call(CORE + "collective_rpc", f"{ENDS} an update of the weights", "self", "method", "timeout", "args", "kwargs"),
    _call(CORE + "set_weight_version", "weights are named when they are sent", "self", "weight_version"),
    _call(WORKER + "reload_weights", "the files of new weights are read", "self", "args", "kwargs"),
    _call(WORKER + "start_weight_update", "weights change from here on", "self"),
    _call(WORKER + "start_draft_weight_update", "weights change from here on", "self"),
    _call(WORKER + "update_weights", "weights change here", "self", "update_info"),
    _call(WORKER + "finish_weight_update", "weights have changed here", "self"),
    _fields("vllm.v1.engine.core:EngineCore", "an engine's parts", "scheduler", "model_executor", "vllm_config"),
    _call("vllm.v1.engine.core:EngineCoreProc._handle_shutdown",
          "clients of an engine that is shut down take their tickets elsewhere", "self", is_guard=False),
    _order("vllm.v1.engine.core:EngineCoreProc._handle_client_request", WOKEN, r"EngineCoreRequestType\.WAKEUP:\s+return\b",
           is_guard=False),
    _order("vllm.v1.engine.core:EngineCoreProc._process_input_queue", WOKEN, r"while not self\.has_work\(\)(?s:.*)self\.input_queue\.get\(",
           is_guard=False),
    # ---- API servers ----
    _order("vllm.entrypoints.launchers.launcher:serve_http", SERVER_ENDS,
           r"engine_client = app\.state\.engine_client(?s:.*)engine_client\.shutdown(?s:.*)server\.should_exit = True", is_guard=False),
    _fields("vllm.config:KVTransferConfig", SERVER_ENDS, "engine_id", is_guard=False),
    # ---- vLLM's blocks ----
    _call(MANAGER + ".free", "blocks of an ended request go back once its load is released", "self", "request"),
    _call(MANAGER + ".pop_blocks_for_free", "blocks under a load are kept from reuse", "self", "request"),
    _call(MANAGER + ".record_blocks_for_zeroing", "blocks after a kept prefix are zeroed", "self", "request_id", "start_token"),
    _call(MANAGER + ".evict_blocks", "blocks of other content leave the prefix cache", "self", "block_ids"),
    _call(MANAGER + ".get_block_ids", "a request's blocks", "self", "request_id"),
    _call(MANAGER + ".get_blocks", "a request's blocks", "self", "request_id"),
    _call(MANAGER + ".reset_prefix_cache", "the prefix cache is emptied of other weights' blocks", "self"),
    _fields(MANAGER, "the pool of blocks", "block_pool", "usage"),
    _call(POOL + ".touch", "a lease references the blocks that it names", "self", "blocks"),
    _call(POOL + ".free_blocks", "a lease gives its references back", "self", "ordered_blocks"),
    _fields(POOL, "positions without a block", "null_block"),
    _call(INTERFACE + "KVCacheConfig.select_transfer_block_ids", "block tables of the groups that are carried", "self", "block_ids"),
    _fields(INTERFACE + "KVCacheConfig", "which layers are carried, and their layout",
            "transfer_groups", "transfer_group_ids", "needs_kv_cache_zeroing", "num_blocks", "kv_cache_layout"),
    _fields(INTERFACE + "FullAttentionSpec", "the shape of a layer's blocks",
            "block_size", "num_kv_heads", "head_size", "dtype", "real_page_size_bytes", "kv_quant_mode"),
    _fields(INTERFACE + "MambaSpec", "the shape of a layer's states",
            "shapes", "dtypes", "mamba_type", "tp_replicated", "num_speculative_blocks", "state_content_size_bytes"),
    _fields(INTERFACE + "UniformTypeKVCacheSpecs", "the shape of a layer's blocks", "kv_cache_specs"),
    _fields(INTERFACE + "SlidingWindowSpec", "which blocks a window keeps", "sliding_window", "extra_retained_tokens"),
    _fields(INTERFACE + "ChunkedLocalAttentionSpec", "which blocks a chunk keeps", "attention_chunk_size"),
    _fields(INTERFACE + "AttentionSpec", "loads of a latent or a single KV head between other numbers of tensor-parallel ranks",
            "max_tp_shards", is_guard=False),
    # ---- vLLM's scheduler ----
    _fields(SCHEDULER, "requests that fail, and requests whose load is over",
            "grammar_compile_error_reqs", "finished_recving_kv_req_ids", "requests", "kv_cache_manager", "connector"),
    _order(SCHEDULER + ".update_from_output", "requests that fail are ended there with an error, wherever they are",
           r"(set\(self\.grammar_compile_error_reqs\)\s+self\.grammar_compile_error_reqs\.clear\(\)"
           r"|= self\.grammar_compile_error_reqs\s+self\.grammar_compile_error_reqs = \{\})(?s:.*)FINISHED_ERROR"),
    _call(SCHEDULER + ".update_from_output", STOP_REASONS, "self", "scheduler_output", "model_runner_output", is_guard=False),
    _fields("vllm.v1.engine:EngineCoreOutput", STOP_REASONS, "request_id", "stop_reason", is_guard=False),
    _fields("vllm.v1.engine:EngineCoreOutputs", STOP_REASONS, "outputs", is_guard=False),
    _order("vllm.v1.engine.output_processor:OutputProcessor.process_outputs", STOP_REASONS,
           r"stop_reason = engine_core_output\.stop_reason", is_guard=False),
    _call(SCHEDULER + ".set_pause_state", "an engine whose pause has failed goes on", "self", "pause_state"),
    _fields(SCHEDULER, "an engine whose pause has failed goes on", "pause_state"),
    _order(SCHEDULER + ".has_requests", "steps go on while has_pending_push_work()", r"has_pending_push_work\(\)"),
    _call(SCHEDULER + "._update_waiting_for_remote_kv", "a request goes on when its load is over", "self", "request"),
    _order(SCHEDULER + "._update_waiting_for_remote_kv",
           "a request goes on after its num_computed_tokens, and the blocks before are cached",
           r"cache_blocks\(request, request\.num_computed_tokens\)"),
    _order(SCHEDULER + "._update_from_kv_xfer_finished", "finished_recving is read after the connector has seen the output",
           r"update_connector_output\(kv_connector_output\)(?s:.*)finished_recving"),
    _order("vllm.distributed.kv_transfer.kv_connector.v1.multi_connector:MultiConnector", "kvferry is found among other connectors",
           r"def sub_connectors\(self\)|self\._connectors\b"),
    _fields("vllm.v1.core.sched.output:SchedulerOutput", "what a step computes", "preempted_req_ids", "num_scheduled_tokens"),
    _fields("vllm.v1.core.kv_cache_manager:KVCacheBlocks", "a request's blocks", "blocks", "get_block_ids"),
    _fields("vllm.v1.core.kv_cache_utils:KVCacheBlock", "a request's blocks", "block_id", "is_null"),
    _fields("vllm.v1.outputs:KVConnectorOutput", "what the ranks say", "kv_connector_worker_meta", "finished_recving"),
    _fields("vllm.v1.request:Request", "what a request is, and what of it changes KV",
            "request_id", "kv_transfer_params", "abort_immediately", "prompt_token_ids", "prompt_embeds", "resumable",
            "lora_request", "mm_features", "cache_salt", "num_prompt_tokens", "num_computed_tokens", "max_tokens", "status",
            "skip_reading_prefix_cache", "_all_token_ids"),
    _fields("vllm.multimodal.inputs:MultiModalFeatureSpec", "which image stands where", "identifier", "mm_position"),
    _call(BASE + "_get_connector_metadata", "a step's orders", "self"),
    _call(BASE + "has_pending_block_frees", "a request waits for the blocks of leases before vLLM preempts one", "self",
          is_guard=False),
    _fields(OFFLOADER, "blocks that OffloadingConnector still stores are not loaded into", "_current_batch_allocated_block_ids",
            needs=OFFLOADING),
    # ---- the order of memory work ----
    _order(RUNNER + "execute_model", "a step's adapters are read before its loads start",
           r"_prepare_inputs\((?s:.*)maybe_get_kv_connector_output\(", needs=LORA),
    _order(RUNNER + "execute_model", "new blocks are zeroed and copied before loads start, on the same stream",
           r"_update_states\((?s:.*)maybe_get_kv_connector_output\("),
    _order(RUNNER + "execute_model", "with a drafter, blocks are saved after it",
           r"defer_kv_connector_finalize = self\.speculative_config is not None(?s:.*)"
           r"defer_finalize=defer_kv_connector_finalize", needs=DRAFTS),
    _order(RUNNER + "sample_tokens", "blocks are saved when the drafter's work is on the stream, too",
           r"propose_draft_token_ids\((?s:.*)self\.finalize_kv_connector\(\)", needs=DRAFTS),
    _order(MIXIN + "finalize_kv_connector",
           "blocks are saved then", r"wait_for_save\(\)", needs=DRAFTS),
    _order(SECOND_RUNNER + "execute_model", "new blocks are zeroed and copied before loads start, on the same stream",
           r"self\.update_requests\((?s:.*)self\.kv_connector\.pre_forward\("),
    _order(SECOND_RUNNER + "sample_tokens", "blocks are saved when the drafter's work is on the stream, too",
           r"self\.speculator\.propose\((?s:.*)self\.kv_connector\.(post_forward\(finished_req_ids\)|finalize_step\()",
           needs=DRAFTS),
    _order(SECOND_CONNECTOR + "post_forward", "blocks are saved after the step's loads have started",
           r"_start_load_kv\(\)(?s:.*)(wait_for_save\(\)|finalize_step\()"),
    # ---- loads before the forward: what it may write is the step's own requests', all else has been given to the stream ----
    _fields("vllm.v1.core.sched.output:SchedulerOutput", LOADS_FIRST, "has_sync_kv_loads", is_guard=False),
    _order(SCHEDULER + ".schedule", LOADS_FIRST, r"has_sync_kv_loads=(?s:.*)_build_kv_connector_meta\(", is_guard=False),
    _order(RUNNER + "_update_states", LOADS_FIRST, r"_zero_block_ids\((?s:.*)copy_kv_cache_blocks_inplace\(", is_guard=False),
    _order(RUNNER + "execute_model", LOADS_FIRST,
           r"_update_states\((?s:.*)preprocess_mamba\((?s:.*)maybe_get_kv_connector_output\("
           r"(?:(?!zero_block|copy_kv_cache|preprocess_mamba)[\s\S])*\Z", is_guard=False),
    _order(RUNNER + "_get_slot_mappings", LOADS_FIRST, r"num_tokens_unpadded:num_tokens_padded\]\.fill_\(-1\)", is_guard=False),
    _order(MIXIN + "_get_kv_connector_output", LOADS_FIRST, r"has_sync_kv_loads(?s:.*?)start_load_kv\((?s:.*?)yield", is_guard=False),
    _order(SECOND_RUNNER + "update_requests", LOADS_FIRST, r"zero_block_ids\((?s:.*)copy_kv_cache_blocks_inplace\(", is_guard=False),
    _order(SECOND_RUNNER + "execute_model", LOADS_FIRST,
           r"self\.update_requests\((?s:.*)preprocess_state\((?s:.*)_set_active_loras\((?s:.*?)self\.kv_connector\.pre_forward\("
           r"(?:(?!zero_block|copy_kv_cache|preprocess_state)[\s\S])*\Z", is_guard=False),
    _order("vllm.v1.worker.gpu.block_table:BlockTables.compute_slot_mappings", LOADS_FIRST, r"PAD_ID=PAD_SLOT_ID", is_guard=False),
    _order(SECOND_CONNECTOR + "pre_forward", LOADS_FIRST,
           r"handle_preemptions\((?s:.*)bind_connector_metadata\((?s:.*)has_sync_kv_loads:(?s:.*)_start_load_kv\(\)", is_guard=False),
    # ---- ids of requests ----
    _order("vllm.v1.engine.input_processor:InputProcessor.assign_request_id", "the prompts of one list are told apart",
           r'request\.request_id = f"\{request\.external_req_id\}-\{random_uuid\(\):\.8\}"', is_guard=False),
    _order("vllm.v1.engine.parallel_sampling:ParentRequest.get_child_info", "the answers of one request share a lease",
           r'f"\{index\}_\{self\.request_id\}"', is_guard=False),
    # ---- content ----
    _call("vllm.v1.attention.backends.cpu_attn:_get_attn_isa", "the packing of blocks on a CPU",
          "dtype", "block_size", "head_size", "kv_cache_dtype"),
    _call("vllm.transformers_utils.repo_utils:get_hf_file_to_dict", "the model's configuration as its author wrote it",
          "file_name", "model", "revision"),
    _fields("vllm.config:ModelConfig", "which model it is",
            "hf_config_path", "hf_overrides", "hf_config", "hf_text_config", "max_model_len", "quantization", "multimodal_config",
            "model", "revision", "model_weights"),
    _fields("vllm.config:KVTransferConfig", "kvferry's options", "kv_buffer_device", "kv_connector_extra_config"),
    _order("vllm.config:SpeculativeConfig", "a drafter's layers are told from the target's",
           r"def uses_draft_kv_cache\(|def use_eagle\((?s:.*)def uses_draft_model\((?s:.*)def uses_extract_hidden_states\(",
           needs=DRAFTS),
    _call("vllm.model_executor.model_loader.default_loader:DefaultModelLoader._prepare_weights",
          "weights are known by their files; without it, by the option weights_id alone",
          "self", "model_name_or_path", "subfolder", "revision", "fall_back_to_pt", "allow_patterns_overrides", is_guard=False),
    _call("vllm.v1.executor.abstract:Executor.__init__", "files of weights are read beside vLLM's load, and not after it",
          "self", "vllm_config", is_guard=False),
    # ---- API servers ----
    _call("vllm.engine.arg_utils:EngineArgs.create_engine_config", ERRORS_ADDED, "self", "usage_context", "headless",
          is_guard=False),
    _call(APP + ":init_entrypoints_middleware", ERRORS_ADDED, "args", "app", "supported_tasks", is_guard=False),
    _order(APP + ":build_app", ERRORS_ADDED, r"\binit_entrypoints_middleware\(args, app, supported_tasks\)", is_guard=False),
    # ---- LoRA adapters ----
    _call(CORE + "add_lora", "an adapter's content is read when it is loaded", "self", "lora_request", needs=LORA),
    _call(CORE + "remove_lora", "an adapter's content is forgotten", "self", "lora_id", needs=LORA),
    _call("vllm.v1.core.kv_cache_utils:_gen_lora_extra_hash_keys", "the keys by which cached blocks of adapters are told apart",
          "request", needs=LORA),
    _order("vllm.v1.core.kv_cache_utils:_gen_lora_extra_hash_keys", "these keys are made of an adapter's name, or name and path",
           r"lora_request\.lora_name", needs=LORA),
    _call("vllm.lora.worker_manager:WorkerLoRAManager._load_adapter", "an adapter's content is read", "self", "lora_request", needs=LORA),
    _call("vllm.lora.worker_manager:LRUCacheWorkerLoRAManager._apply_adapters", "a step's adapters stay in memory",
          "self", "lora_requests", needs=LORA),
    _call("vllm.lora.worker_manager:WorkerLoRAManager.list_adapters", "which adapters are in memory", "self", needs=LORA),
    _call("vllm.lora.model_manager:LoRAModelManager.get_adapter", "a step's adapters stay in memory", "self", "adapter_id", needs=LORA),
    _fields("vllm.lora.request:LoRARequest", "which adapter it is", "lora_name", "lora_int_id", "lora_path", "load_inplace", needs=LORA),
    _fields("vllm.lora.lora_model:LoRAModel", "an adapter's content", "id", "loras", "is_3d_lora_weight", needs=LORA),
    _fields("vllm.lora.lora_weights:LoRALayerWeights", "an adapter's content", "lora_a", "lora_b", "scaling", needs=LORA),
    _fields("vllm.config.lora:LoRAConfig", "an adapter's content", "target_modules", "enable_tower_connector_lora", needs=LORA),
)


class ContractError(ValueError):
    """A vLLM with which kvferry does not start; the text says why, and what to do."""


def find(name: str) -> Any:
    """The object; AttributeError, ImportError: it is not there. A class's members as they are defined."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
    return found


def source_of(found: Any) -> str:
    """Of a function, or of a class and its bases; "" if it cannot be read."""
    parts = [one for one in found.__mro__ if one.__module__.startswith("vllm")] if inspect.isclass(found) else [found]
    try:
        return "\n".join(map(inspect.getsource, parts))
    except (OSError, TypeError):
        return ""


@functools.cache
def trouble(entry: Entry) -> str:
    """How vLLM differs from the entry; "" if it does not."""
    try:
        found = find(entry.name)
    except Exception:  # anything that an import of vLLM's may raise
        return "is not there"
    if entry.takes is not None:
        takes = tuple(inspect.signature(found).parameters)
        if takes != entry.takes:
            return f"takes {', '.join(takes)} and not {', '.join(entry.takes)}"
    if not entry.has and not entry.says:
        return ""
    source = source_of(found)
    gone = [name for name in entry.has if not re.search(rf"\b{name}\b\s*[:=(]", source)]
    if gone:
        return f"has no {', '.join(gone)}"
    return "" if re.search(entry.says, source) else "has changed"


def troubles(is_concerned: Callable[[Entry], bool] = lambda entry: True) -> list[tuple[Entry, str]]:
    return [(entry, text) for entry in CONTRACT if is_concerned(entry) and (text := trouble(entry))]


def is_loaded(entry: Entry) -> bool:
    """Its module is in memory: to look at it is cheap, and a module that is not cannot be used."""
    return entry.module in sys.modules


def lacks(feature: str) -> bool:
    return bool(troubles(lambda entry: entry.why == feature and is_loaded(entry)))


def features_of(vllm_config: VllmConfig) -> set[str]:
    """What the engine has of that which entries may be about."""
    transfer = vllm_config.kv_transfer_config
    children = (transfer.kv_connector_extra_config or {}).get("connectors", ())
    offloads = any("Offloading" in str(child.get("kv_connector")) for child in children)
    has = {LORA: vllm_config.lora_config is not None, SLEEP: getattr(vllm_config.model_config, "enable_sleep_mode", True),
           DRAFTS: vllm_config.speculative_config is not None, OFFLOADING: offloads}
    return {name for name, is_there in has.items() if is_there}


def _lines(found: Iterable[tuple[Entry, str]]) -> str:
    return "; ".join(f"{entry.name} {text} ({entry.why})" for entry, text in found)


def judge(version: str, found: list[tuple[Entry, str]], allows_untested: bool) -> list[tuple[Entry, str]]:
    """The features that are off. ContractError: the engine must not start."""
    guards = [one for one in found if one[0].is_guard]
    if guards:
        raise ContractError(f"kvferry does not start: it could hand over wrong KV on vLLM {version}: {_lines(guards)}. "
                            f"Tested: {versions.names()}")
    if found and not versions.is_tested(version) and not allows_untested:
        raise ContractError(f"kvferry is not tested with vLLM {version}: {_lines(found)}. Take a tested one ({versions.names()}), "
                            'or set "untested_vllm": "allow" to do without')
    return found
