"""Ends this engine's transfers before vLLM resets its pool, pauses, or gets other weights; and joins the scheduler side to
its engine before the first request.

No hook of the connector's contract comes in time (docs/upstream/end-transfers.md), so methods of vLLM's EngineCore are
wrapped, in its own process. They run between two steps: what the scheduler side has ordered has reached the workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_transfer_state import get_kv_transfer_group

from kvferry.engine.log import logger
from kvferry.engine.wrapping import wrap_methods

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

    from .scheduler import Scheduler

RELOAD = "reload_weights"
UPDATE_ENDS = "finish_weight_update"
UPDATE_GOES_ON = ("update_weights", UPDATE_ENDS)
UPDATE = ("start_weight_update", "start_draft_weight_update", *UPDATE_GOES_ON)
WEIGHTS_ID = "weights_id"
LEVEL_WITHOUT_WEIGHTS = 2  # of sleep


class TransfersError(RuntimeError):
    """Some rank has not confirmed that its leases and loads have ended: nothing that they use may be touched."""


def _own(connector: Any) -> Any:
    """Our connector, alone or in vLLM's MultiConnector."""
    from .connector import KVFerryConnector
    return next((one for one in getattr(connector, "sub_connectors", [connector])
                 if isinstance(one, KVFerryConnector)), None)


def _side_of(engine: Any) -> Scheduler | None:
    connector = _own(engine.scheduler.get_kv_connector())
    return connector._scheduler if connector is not None else None


def on_worker(worker: Any, call: str, *args: Any) -> Any:
    """Runs in each worker's process: one of our Worker's methods there."""
    return getattr(_own(get_kv_transfer_group())._worker, call)(*args)


def end_transfers(engine: Any, side: Scheduler, loads: bool) -> None:
    """Ends all leases, and if asked all loads, on every rank, and gives their blocks back to vLLM.

    TransfersError: a rank has not confirmed. A worker that does not answer at all holds up its engine here as in any
    step: an answer that comes after a timeout would be taken for that of vLLM's next call."""
    ending = side.ending(loads)
    if not ending.leases and not ending.loads:
        return
    side.take(engine.model_executor.collective_rpc(on_worker, args=("end_transfers", ending)))
    left = side.not_ended(ending)
    if left:
        raise TransfersError(f"kvferry: not all ranks have ended their transfers in time: {left}")
    engine.scheduler.finished_recving_kv_req_ids |= side.settle()  # as in a step: there may be none


# ---- around vLLM's methods ----

def _join(engine: Any, side: Scheduler) -> None:
    if not side.joined:
        side.join(engine.scheduler, engine.model_executor.collective_rpc(on_worker, args=("address",)))


def _add_request(engine: Any, side: Scheduler, call: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    _join(engine, side)  # an engine without a process of its own
    call(engine, *args, **kwargs)


def _alone(engine: Any) -> bool:
    """No other connector has a cache of its own."""
    connector = engine.scheduler.get_kv_connector()
    return _own(connector) is connector


def _empty_cache(engine: Any, side: Scheduler) -> bool:
    """False: some request uses a block."""
    emptied: bool = engine.scheduler.reset_prefix_cache(reset_connector=not _alone(engine))
    if emptied:
        side.cache_is_empty()
    return emptied


def _reset_prefix_cache(engine: Any, side: Scheduler, call: Callable[..., bool], reset_running_requests: bool = False,
                        reset_connector: bool = False) -> bool:
    end_transfers(engine, side, loads=True)
    success = call(engine, reset_running_requests, reset_connector)
    if success and (reset_connector or _alone(engine)):
        side.cache_is_empty()
    return success


def _pause_scheduler(engine: Any, side: Scheduler, call: Callable[..., Any], mode: str = "abort",
                     clear_cache: bool = True) -> Any:
    side.pause(True)
    try:
        if mode == "abort":
            side.aborting()
        end_transfers(engine, side, loads=mode != "wait")  # that mode lets requests end that have begun
        return call(engine, mode, clear_cache)
    except BaseException:
        side.pause(False)
        raise


def _handle_shutdown(engine: Any, side: Scheduler, call: Callable[..., bool]) -> bool:
    """vLLM calls it before each step, and before the first request."""
    _join(engine, side)
    if engine.shutdown_state.name == "REQUESTED" and engine.vllm_config.shutdown_timeout == 0:
        side.aborting()
    return call(engine)


def _resume_scheduler(engine: Any, side: Scheduler, call: Callable[..., None]) -> None:
    call(engine)
    side.pause(False)


def _sleep(engine: Any, side: Scheduler, call: Callable[..., Any], level: int = 1, mode: str = "abort") -> Any:
    if level >= LEVEL_WITHOUT_WEIGHTS:
        side.weights_change()
    return call(engine, level, mode)


def _collective_rpc(engine: Any, side: Scheduler, call: Callable[..., Any], method: Any, timeout: float | None = None,
                    args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
    name = method if isinstance(method, str) else getattr(method, "__name__", "")
    if name != RELOAD and name not in UPDATE:
        return _with_look(engine, side, call, method, timeout, args, kwargs)
    weights_id = _take_weights_id(kwargs)
    side.weights_change()
    end_transfers(engine, side, loads=True)
    start_ns = time.time_ns()
    result = _with_look(engine, side, call, method, timeout, args, kwargs)
    if name == RELOAD:
        iterator, path, *_ = (*args, None, None)
        given = {"weights_iterator": iterator, "weights_path": path} | (kwargs or {})
        if given["weights_iterator"] is None and not weights_id:
            side.weights_reloaded(given["weights_path"], start_ns)
    side.weights_id_given(weights_id, begins=name not in UPDATE_GOES_ON)
    if name in (RELOAD, UPDATE_ENDS):
        _end_weight_change(engine, side)
    return result


def _take_weights_id(kwargs: dict[str, Any] | None) -> str:
    """What its sender calls the new weights, among the call's arguments or in an update's own: it is not for vLLM."""
    info = (kwargs or {}).get("update_info")
    for given in (kwargs, info if isinstance(info, dict) else None):
        if given and WEIGHTS_ID in given:
            return str(given.pop(WEIGHTS_ID))
    return ""


def _end_weight_change(engine: Any, side: Scheduler) -> None:
    side.weights_have_changed()
    if not _empty_cache(engine, side):
        logger.warning("kvferry: no tickets and no loads before the prefix cache, which holds blocks of the old weights, "
                       "has been reset: POST /reset_prefix_cache when no request runs (beside other connectors with "
                       "?reset_external=true), or pause before an update")


def _with_look(engine: Any, side: Scheduler, call: Callable[..., Any], *args: Any) -> Any:
    """A call that may load a LoRA adapter, or drop one."""
    try:
        return call(engine, *args)
    finally:
        if engine.vllm_config.lora_config is not None:
            side.take(engine.model_executor.collective_rpc(on_worker, args=("news",)))
            engine.scheduler.finished_recving_kv_req_ids |= side.settle()


def _add_lora(engine: Any, side: Scheduler, call: Callable[..., bool], lora_request: LoRARequest) -> bool:
    added: bool = _with_look(engine, side, call, lora_request)
    if side.adapter_called(lora_request) and not _empty_cache(engine, side):
        logger.warning("kvferry: no tickets and no loads for LoRA adapter %s before no request uses a block, or the "
                       "prefix cache, which holds blocks of the adapter's old content, has been reset: POST "
                       "/reset_prefix_cache", lora_request.lora_name)
    return added


def _remove_lora(engine: Any, side: Scheduler, call: Callable[..., bool], lora_id: int) -> bool:
    removed: bool = _with_look(engine, side, call, lora_id)
    return removed


def _set_weight_version(engine: Any, side: Scheduler, call: Callable[..., None], weight_version: str) -> None:
    call(engine, weight_version)
    side.weights_named(weight_version)


WRAPPERS: dict[str, Callable[..., Any]] = {
    "add_request": _add_request,
    "reset_prefix_cache": _reset_prefix_cache,
    "pause_scheduler": _pause_scheduler,
    "_handle_shutdown": _handle_shutdown,
    "resume_scheduler": _resume_scheduler,
    "sleep": _sleep,
    "collective_rpc": _collective_rpc,
    "set_weight_version": _set_weight_version,
    "add_lora": _add_lora,
    "remove_lora": _remove_lora,
}


def _for_ours(around: Callable[..., Any]) -> Callable[..., Any]:
    """Only in engines that have our connector."""
    def wrapped(call: Callable[..., Any], engine: Any, *args: Any, **kwargs: Any) -> Any:
        side = _side_of(engine)
        return call(engine, *args, **kwargs) if side is None else around(engine, side, call, *args, **kwargs)
    return wrapped


def install() -> None:
    """May be called again."""
    from vllm.v1.engine.core import EngineCore

    wrap_methods(EngineCore, {name: _for_ours(around) for name, around in WRAPPERS.items()})
