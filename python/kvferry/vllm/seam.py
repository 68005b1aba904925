"""All that kvferry calls or changes of vLLM beyond the connector's published contract, a function each.

Each looks at what is there when it is called: nothing is kept that vLLM may replace. contract.py has the same names as a
table, and start() checks it before the first request.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import vllm
from vllm.distributed.kv_transfer.kv_transfer_state import get_kv_transfer_group

from kvferry.engine.log import logger
from kvferry.engine.wrapping import wrap, wrap_methods

from . import contract, versions
from .contract import ContractError

if TYPE_CHECKING:
    import torch
    from vllm.config import LoadConfig, ModelConfig, VllmConfig
    from vllm.lora.request import LoRARequest
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
    from vllm.v1.request import Request

# ---- before the engine serves ----


def check_start(vllm_config: VllmConfig, allows_untested: bool) -> list[str]:
    """The features that are off. ContractError, VersionError: the engine must not start. Looks at the modules in memory
    alone: `kvferry check` looks at all."""
    versions.check(vllm.__version__)
    has = contract.features_of(vllm_config)
    found = contract.troubles(lambda entry: contract.is_loaded(entry) and (not entry.needs or entry.needs in has))
    return [entry.why for entry, _ in contract.judge(vllm.__version__, found, allows_untested)]


def say_start(features_off: list[str]) -> None:
    """Once an engine."""
    if not versions.is_tested(vllm.__version__):
        logger.warning("kvferry: this is vLLM %s, with which kvferry is not tested; all that it needs is there. Tested: vLLM %s",
                       vllm.__version__, versions.names())
    for why in dict.fromkeys(features_off):
        say_off(why)


def say_off(why: str) -> None:
    logger.warning("kvferry: on vLLM %s this is off: %s", vllm.__version__, why)


def check_scheduler(scheduler: Scheduler) -> None:
    """ContractError: its parts are not of the kinds that this module handles."""
    errors, received = scheduler.grammar_compile_error_reqs, scheduler.finished_recving_kv_req_ids
    if not isinstance(errors, (dict, set)) or not isinstance(received, set):
        raise ContractError(f"kvferry does not know vLLM {vllm.__version__}'s Scheduler: it has {type(errors).__name__} and "
                            f"{type(received).__name__} for requests that fail and that are received. Tested: vLLM {versions.names()}")


# ---- vLLM's classes ----

def wrap_engine_core(wrappers: dict[str, Callable[..., Any]], optional: Collection[str]) -> None:
    """Methods of EngineCore and of its subclasses; may be called again. AttributeError: one is not there, and not optional."""
    from vllm.v1.engine.core import EngineCore, EngineCoreProc
    wrap_methods(EngineCore, {name: around for name, around in wrappers.items()
                              if name not in optional or hasattr(EngineCoreProc, name)})


def wrap_adapter_loads(wrappers: dict[str, Callable[..., Any]]) -> None:
    from vllm.lora.worker_manager import WorkerLoRAManager
    wrap_methods(WorkerLoRAManager, wrappers)


def wrap_answers(around: Callable[..., Any]) -> None:
    """Of the scheduler's step, if requests can say there why they have failed."""
    from vllm.v1.core.sched.scheduler import Scheduler
    if not contract.lacks(contract.STOP_REASONS):
        wrap_methods(Scheduler, {"update_from_output": around})


def add_to_api_server(middleware: type) -> None:
    """To the application that this process is about to make, if it is an API server's: around all that is there, as
    --middleware would. May be called again."""
    module: Any = sys.modules.get(contract.APP)
    if module is None:
        return
    if contract.lacks(contract.ERRORS_ADDED):
        say_off(contract.ERRORS_ADDED)
        return

    def make_and_add(make: Callable[..., None], args: Any, app: Any, supported_tasks: Any) -> None:
        make(args, app, supported_tasks)
        app.add_middleware(middleware)
    if not hasattr(module.init_entrypoints_middleware, "of_kvferry"):
        module.init_entrypoints_middleware = wrap(module.init_entrypoints_middleware, make_and_add)


# ---- its engine, between steps ----

def scheduler_of(engine: Any) -> Scheduler:
    scheduler: Scheduler = engine.scheduler
    return scheduler


def connector_of(scheduler: Any) -> Any:
    return scheduler.get_kv_connector()


def siblings_of(connector: Any) -> list[Any] | None:
    """Of a MultiConnector: all that are in it; None: it is none."""
    return getattr(connector, "sub_connectors", getattr(connector, "_connectors", None))  # 0.29 has the second alone


def worker_connector() -> Any:
    """This worker's, alone or a MultiConnector."""
    return get_kv_transfer_group()


def on_all_workers(engine: Any, call: Callable[..., Any], *args: Any) -> list[Any]:
    """The answer of each: `call` gets the worker and the arguments."""
    answers: list[Any] = engine.model_executor.collective_rpc(call, args=args)
    return answers


def can_be_woken(engine: Any) -> bool:
    """It has a process, and a loop, of its own."""
    return hasattr(engine, "input_queue")


def wake(engine: Any) -> None:
    """From any thread: it steps, if somebody says that it has work."""
    from vllm.v1.engine import EngineCoreRequestType
    engine.input_queue.put_nowait((EngineCoreRequestType.WAKEUP, None))


def is_shutting_down(engine: Any) -> bool:
    return bool(engine.shutdown_state.name != "RUNNING")


def is_shut_down_at_once(engine: Any) -> bool:
    """vLLM is about to abort all requests."""
    return bool(engine.shutdown_state.name == "REQUESTED" and engine.vllm_config.shutdown_timeout == 0)


def pause_state(engine: Any) -> Any:
    return engine.scheduler.pause_state


def go_back_to(engine: Any, state: Any) -> None:
    engine.scheduler.set_pause_state(state)


def has_adapters(engine: Any) -> bool:
    return engine.vllm_config.lora_config is not None


# ---- its scheduler ----

def start_loads_first(scheduler_output: SchedulerOutput) -> None:
    """vLLM has start_load_kv() before the step's forward, as for loads that the forward waits for; else it comes behind what it
    gives the device, and loads wait for all of that."""
    scheduler_output.has_sync_kv_loads = True


MISTAKE = "validation_error"
"""The code of an error that vLLM takes for its client's: HTTP 400."""


def fail_request(scheduler: Scheduler, key: str, code: str, message: str, retryable: bool) -> None:
    """Ends it with an error at the end of the step."""
    errors: Any = scheduler.grammar_compile_error_reqs
    if isinstance(errors, dict):
        from vllm.outputs import RequestError
        errors[key] = RequestError(code=code, message=message, retryable=retryable)
    else:
        errors.add(key)


def set_stop_reasons(scheduler: Scheduler, outputs: Any, reasons: dict[str, str]) -> None:
    """Of a step's answers those to requests that have failed get theirs; what is left are those that end in the next step."""
    for output in itertools.chain.from_iterable(of_client.outputs for of_client in outputs.values()):
        if output.request_id in reasons:
            output.stop_reason = reasons.pop(output.request_id)
    for key in reasons.keys() - set(scheduler.grammar_compile_error_reqs):
        del reasons[key]


def receive(scheduler: Scheduler, keys: Iterable[str]) -> None:
    """These need no load any more, as if their workers had said so in a step."""
    scheduler.finished_recving_kv_req_ids |= set(keys)


def loaded_and_waiting(scheduler: Scheduler) -> list[Request]:
    """Requests whose load, by any connector, is over, and which have had no place in a step: they have blocks."""
    from vllm.v1.request import RequestStatus
    received = scheduler.finished_recving_kv_req_ids
    return [request for request in scheduler.requests.values() if request.num_computed_tokens > 0 and not request.resumable
            and (request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
                 or (request.status == RequestStatus.WAITING_FOR_REMOTE_KVS and request.request_id in received))]


def reset_prefix_cache(scheduler: Scheduler, others: bool) -> bool:
    """With `others` that of all connectors, too. False: some request uses a block."""
    return bool(scheduler.reset_prefix_cache(reset_connector=others))


def recompute_all(scheduler: Scheduler, others: bool) -> bool:
    """The same, and requests that run give their blocks up and are computed anew. False: another connector's load uses one."""
    try:
        return bool(scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=others))
    except RuntimeError:
        return False


def offloaders_of(connector: Any) -> list[Any]:
    """The schedulers' sides of OffloadingConnectors beside ours. ContractError: they are not as we know them."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
    found = [one.connector_scheduler for one in siblings_of(connector) or () if isinstance(one, OffloadingConnector)]
    if not all(hasattr(one, "_current_batch_allocated_block_ids") for one in found):
        raise ContractError(f"kvferry cannot tell vLLM {vllm.__version__}'s OffloadingConnector which blocks it loads into")
    return found


def tell_offloader(offloader: Any, blocks: KVCacheBlocks) -> None:
    """It may still have to store other requests' content of these blocks. It waits for that only if it is told of their
    new owner. vLLM tells it when it schedules one."""
    offloader._current_batch_allocated_block_ids.update(itertools.chain(*blocks.get_block_ids()))


def transferred(config: KVCacheConfig, block_ids: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """Of these tables those of the groups that are carried."""
    tables: Sequence[Sequence[int]] = config.select_transfer_block_ids(block_ids)
    return tables


def drop_last_tokens(request: Request, tokens: int) -> None:
    """Of its prompt, before anything is computed."""
    request.prompt_token_ids = request.prompt_token_ids[:-tokens]
    del request._all_token_ids[-tokens:]
    request.num_prompt_tokens -= tokens


class Pool:
    """vLLM's blocks: what requests have, and what else references them."""

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager

    @property
    def null_block(self) -> int:
        return int(self._manager.block_pool.null_block.block_id)

    def free(self, request: Request) -> None:
        self._manager.free(request)

    def take(self, request: Request) -> list[KVCacheBlock]:
        """From the request, which has none then."""
        return self._manager.pop_blocks_for_free(request)

    def release(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._manager.block_pool.free_blocks(reversed(blocks))

    def blocks_of(self, request: Request) -> Sequence[Sequence[KVCacheBlock]]:
        """By KV group."""
        groups: Sequence[Sequence[KVCacheBlock]] = self._manager.get_blocks(request.request_id).blocks
        return groups

    def block_ids_of(self, request: Request) -> Sequence[Sequence[int]]:
        """By KV group, those of the step that is being scheduled included."""
        groups: Sequence[Sequence[int]] = self._manager.get_block_ids(request.request_id)
        return groups

    def reference(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._manager.block_pool.touch(blocks)

    def zero_after(self, request: Request, tokens: int) -> None:
        self._manager.record_blocks_for_zeroing(request.request_id, tokens)

    def uncache(self, request: Request) -> None:
        """Its blocks leave the prefix cache."""
        self._manager.evict_blocks({block for group in self.block_ids_of(request) for block in group})

    def reset_cache(self) -> bool:
        """The prefix cache, if no request uses a block."""
        return bool(self._manager.usage == 0 and self._manager.reset_prefix_cache())


# ---- the ids of requests, which vLLM makes of a client's: the last part is random ----

_IN_A_LIST = re.compile(r"cmpl-.+-(\d+)-[0-9a-f]{8}")
_OF_SEVERAL = re.compile(r"\d+_(.+)")


def place_in_list(request_id: str) -> int:
    """Of a prompt in the list that the completions endpoint was given; 0: the first one, or the id does not say it."""
    found = _IN_A_LIST.fullmatch(request_of_several(request_id) or request_id)
    return int(found[1]) if found else 0


def request_of_several(request_id: str) -> str | None:
    """The request, with `n` above 1, of which this is one answer."""
    found = _OF_SEVERAL.fullmatch(request_id)
    return found[1] if found else None


# ---- content ----

def hf_file(model: str, revision: str | None, name: str) -> dict[str, Any] | None:
    """A model's file of this name as its author wrote it."""
    from vllm.transformers_utils.repo_utils import get_hf_file_to_dict
    found: dict[str, Any] | None = get_hf_file_to_dict(name, model, revision)
    return found


def code_files(model: ModelConfig) -> list[Path]:
    """Python files of the model, and of repositories that its configuration takes classes from."""
    config = hf_file(model.hf_config_path or model.model, model.revision, "config.json") or {}
    classes = itertools.chain.from_iterable(one if isinstance(one, list) else [one] for one in config.get("auto_map", {}).values())
    others = {str(name).partition("--")[0] for name in classes if "--" in str(name)}
    folders = [_folder_of(model.model, model.revision), *(_folder_of(name, model.code_revision) for name in sorted(others))]
    return [file for folder in folders for file in sorted(folder.rglob("*.py"))]


def _folder_of(model: str, revision: str | None) -> Path:
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import snapshot_download
    return Path(snapshot_download(model, revision=revision, allow_patterns="*.py"))


def name_of_media(model: ModelConfig) -> str:
    """What vLLM puts before a medium's content when it hashes the medium."""
    return str(model.model)


def cpu_kernel(dtype: torch.dtype, block_size: int, head_size: int | None, kv_dtype: str) -> str:
    """By which blocks are packed on a CPU."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
    return str(_get_attn_isa(dtype, block_size, head_size, kv_dtype))


def kv_format() -> str:
    """versions.py"""
    return versions.kv_format(vllm.__version__)


def loader_files(load: LoadConfig, model: ModelConfig) -> list[str] | None:
    """What vLLM's default loader reads; None: it is another loader."""
    from vllm.model_executor import model_loader as loaders
    kind = loaders._LOAD_FORMAT_TO_MODEL_LOADER.get(load.load_format)
    if kind is not loaders.DefaultModelLoader or model.model_weights:
        return None
    return list(kind(load)._prepare_weights(model.model, None, model.revision, True, None)[1])


def prefill_lookahead(vllm_config: VllmConfig) -> int:
    """How many tokens further ahead a drafter reads."""
    if hasattr(vllm_config, "num_prefill_lookahead_tokens"):
        return int(vllm_config.num_prefill_lookahead_tokens)
    speculative = vllm_config.speculative_config
    if speculative is None or not speculative.use_eagle():
        return 0
    return int(speculative.num_speculative_tokens) if speculative.use_multi_module_mtp() else 1


def page_bytes(spec: KVCacheSpec) -> int:
    """Of a layer's block, without padding."""
    real = getattr(spec, "real_page_size_bytes", None)  # 0.29: not of states
    return int(spec.state_content_size_bytes if real is None else real)


def has_draft_kv(vllm_config: VllmConfig) -> bool:
    """A drafter has layers of its own beside the target's."""
    speculative = vllm_config.speculative_config
    if speculative is None:
        return False
    if hasattr(speculative, "uses_draft_kv_cache"):
        return bool(speculative.uses_draft_kv_cache())
    return bool(speculative.use_eagle() or speculative.uses_draft_model() or speculative.uses_extract_hidden_states())


def max_tp_shards(spec: KVCacheSpec) -> int | None:
    """Over how many tensor-parallel ranks a layer's KV is split at most; None: not known."""
    return getattr(spec, "max_tp_shards", None)


def draft_layers(config: KVCacheConfig) -> set[str]:
    """Those that vLLM marks as a drafter's. A spec that several layers share has the mark of one of them."""
    own = [specs for group in config.kv_cache_groups if (specs := getattr(group.kv_cache_spec, "kv_cache_specs", None))]
    return {name for specs in own for name, spec in specs.items() if getattr(spec, "is_draft", False)}


def returns_routed_experts(vllm_config: VllmConfig) -> bool:
    outputs = getattr(vllm_config, "aux_output_config", None) or vllm_config.model_config
    return bool(getattr(outputs, "enable_return_routed_experts", False))


# ---- an API server ----

def engine_of_server(app: Any) -> str | None:
    """The id of the engine behind it, by which its scheduler knows itself, too; None: there is none, or not yet."""
    found = app.state
    for name in ("engine_client", "vllm_config", "kv_transfer_config", "engine_id"):
        found = getattr(found, name, None)
    return None if found is None else str(found)


def watch_shutdown(app: Any, begins: Callable[[], None]) -> None:
    """Has it called when the server has been asked to end, before anything is taken down."""
    client = getattr(app.state, "engine_client", None)
    shut_down = getattr(client, "shutdown", None)
    if client is None or shut_down is None:
        return

    def watched(*args: Any, **kwargs: Any) -> Any:
        begins()
        return shut_down(*args, **kwargs)
    client.shutdown = watched


# ---- LoRA adapters ----

def cache_key(lora: LoRARequest) -> tuple[Any, ...]:
    """By which vLLM's prefix cache tells the adapter from others."""
    from vllm.v1.core.kv_cache_utils import _gen_lora_extra_hash_keys
    return tuple(_gen_lora_extra_hash_keys(SimpleNamespace(lora_request=lora)))


def adapters_in_memory(manager: Any) -> Collection[int]:
    """Of a worker's LoRA manager: their ids."""
    found: Collection[int] = manager.list_adapters()
    return found


def use_adapter(manager: Any, lora_id: int) -> None:
    """So that it is not the one that goes to make room."""
    manager._adapter_manager.get_adapter(lora_id)
