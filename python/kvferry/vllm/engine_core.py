"""Ends this engine's transfers before vLLM resets its pool, pauses, or gets other weights; and joins the scheduler side to
its engine before the first request.

No hook of the connector's contract comes in time (docs/upstream/end-transfers.md), so methods of vLLM's EngineCore are
wrapped, in its own process. They run between two steps: what the scheduler side has ordered has reached the workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from kvferry.engine.boundary import Refused, all_of
from kvferry.engine.log import logger

from . import seam, updates
from .contract import LORA, SLEEP, features_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.lora.request import LoRARequest

    from .scheduler import Scheduler

LEVEL_WITHOUT_WEIGHTS = 2  # of sleep


class TransfersError(Refused):
    """Some rank has not confirmed that its leases and loads have ended: nothing that they use may be touched."""


def _own(connector: Any) -> Any:
    """Our connector, alone or in vLLM's MultiConnector."""
    from .connector import KVFerryConnector
    return next((one for one in seam.siblings_of(connector) or [connector] if isinstance(one, KVFerryConnector)), None)


def _side_of(engine: Any) -> Scheduler | None:
    connector = _own(seam.connector_of(seam.scheduler_of(engine)))
    return connector._scheduler if connector is not None else None


def on_worker(worker: Any, call: str, *args: Any) -> Any:
    """Runs in each worker's process: one of our Worker's methods there."""
    return getattr(_own(seam.worker_connector())._worker, call)(*args)


def end_transfers(engine: Any, side: Scheduler, loads: bool) -> None:
    """Ends all leases, and if asked all loads, on every rank, and gives their blocks back to vLLM.

    TransfersError: a rank has not confirmed. A worker that does not answer at all holds up its engine here as in any
    step: an answer that comes after a timeout would be taken for that of vLLM's next call."""
    left = _end_transfers(engine, side, loads)
    if left:
        raise TransfersError(f"kvferry: not all ranks have ended their transfers in time: {left}")


def _end_transfers(engine: Any, side: Scheduler, loads: bool) -> str:
    """What some rank has not confirmed; "" if there is none."""
    if side.stopped:
        side.stop("end_transfers")
    ending = side.ending(loads)
    if not ending.leases and not ending.loads:
        return ""
    side.take(seam.on_all_workers(engine, on_worker, "end_transfers", ending))
    left = side.not_ended(ending)
    if not left:
        seam.receive(seam.scheduler_of(engine), side.settle())  # there may be no step
    return left


def _end_disproved(engine: Any, side: Scheduler) -> None:
    """What was lent and loaded is of weights that nobody knows: nothing more is used of it. Nothing is taken from vLLM, so that
    a rank may confirm later."""
    if not side.has_other_weights:
        return
    with all_of(side, "weights_disproved"):
        side.weights_disproved()
        left = _end_transfers(engine, side, loads=True)
        side.unload_waiting()
        if not left and seam.recompute_all(seam.scheduler_of(engine), others=not _alone(engine)):
            side.cache_is_empty()
        else:
            logger.warning("kvferry: the prefix cache, which may hold blocks of other weights, has not been reset (%s): POST "
                           "/reset_prefix_cache?reset_running_requests=true", left or "another connector uses blocks")


# ---- around vLLM's methods ----

def _join(engine: Any, side: Scheduler) -> None:
    """Of the start: an exception goes through."""
    if not side.joined:
        side.join(seam.scheduler_of(engine), seam.on_all_workers(engine, on_worker, "address"),
                  partial(seam.on_all_workers, engine, on_worker, "stop"),
                  all(seam.on_all_workers(engine, on_worker, "loads_first")),
                  set.intersection(*seam.on_all_workers(engine, updates.own_methods)))
        if seam.can_be_woken(engine):
            side.be_woken(partial(seam.wake, engine), lambda address: all(seam.on_all_workers(engine, on_worker, "tell", address)))


def _add_request(engine: Any, side: Scheduler, call: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    _join(engine, side)  # an engine without a process of its own
    _end_disproved(engine, side)
    call(engine, *args, **kwargs)


def _alone(engine: Any) -> bool:
    """No other connector has a cache of its own."""
    return seam.siblings_of(seam.connector_of(seam.scheduler_of(engine))) is None


def _empty_cache(engine: Any, side: Scheduler) -> bool:
    """False: some request uses a block."""
    emptied = seam.reset_prefix_cache(seam.scheduler_of(engine), others=not _alone(engine))
    if emptied:
        side.cache_is_empty()
    return emptied


def _reset_prefix_cache(engine: Any, side: Scheduler, call: Callable[..., bool], reset_running_requests: bool = False,
                        reset_connector: bool = False) -> bool:
    with all_of(side, "reset_prefix_cache"):
        end_transfers(engine, side, loads=True)
        side.unload_waiting()
    success = call(engine, reset_running_requests, reset_connector)
    with all_of(side, "reset_prefix_cache"):
        if success and (reset_connector or _alone(engine)):
            side.cache_is_empty()
    return success


def _pause_scheduler(engine: Any, side: Scheduler, call: Callable[..., Any], mode: str = "abort",
                     clear_cache: bool = True) -> Any:
    before = side.paused, seam.pause_state(engine)
    try:
        with all_of(side, "pause_scheduler"):
            side.pause(True)
            if mode == "abort":
                side.aborting()
            end_transfers(engine, side, loads=mode != "wait")  # that mode lets requests end that have begun
        paused = call(engine, mode, clear_cache)
    except BaseException:
        _unpause(engine, side, *before)
        raise
    if isinstance(paused, Future):  # it is complete later
        paused.add_done_callback(lambda it: _unpause(engine, side, *before) if it.cancelled() or it.exception() else None)
    return paused


def _unpause(engine: Any, side: Scheduler, paused: bool, state: Any) -> None:
    """A pause has failed, and its caller knows: vLLM would stand still until somebody resumes it."""
    side.pause(paused)
    seam.go_back_to(engine, state)


def _handle_shutdown(engine: Any, side: Scheduler, call: Callable[..., bool]) -> bool:
    """vLLM calls it before each step, and before the first request."""
    _join(engine, side)
    _end_disproved(engine, side)
    with all_of(side, "_handle_shutdown"):
        if seam.is_shutting_down(engine):
            side.shutting_down()
        if seam.is_shut_down_at_once(engine):
            side.aborting()
    return call(engine)


def _resume_scheduler(engine: Any, side: Scheduler, call: Callable[..., None]) -> None:
    call(engine)
    with all_of(side, "resume_scheduler"):
        side.pause(False)


def _sleep(engine: Any, side: Scheduler, call: Callable[..., Any], level: int = 1, mode: str = "abort") -> Any:
    with all_of(side, "sleep"):
        if level >= LEVEL_WITHOUT_WEIGHTS:
            side.weights_change("sleep")
    return call(engine, level, mode)


def _collective_rpc(engine: Any, side: Scheduler, call: Callable[..., Any], method: Any, timeout: float | None = None,
                    args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
    _join(engine, side)
    _end_disproved(engine, side)
    name = method if isinstance(method, str) else f"{getattr(method, '__name__', 'a function')}()"  # none of vLLM's calls
    if isinstance(method, str) and side.keeps_weights(name):
        return _with_look(engine, side, call, method, timeout, args, kwargs)
    weights_id = updates.take_weights_id(kwargs)
    with all_of(side, "collective_rpc"):
        side.weights_change(name)
        end_transfers(engine, side, loads=True)
        side.unload_waiting()
    start_ns, succeeded = time.time_ns(), False
    try:
        result = _with_look(engine, side, call, method, timeout, args, kwargs)
        succeeded = True
    finally:
        with all_of(side, "collective_rpc"):
            if name == updates.CONFIGURE:
                side.loads_configured(updates.first_argument("overrides", args, kwargs) if succeeded else None)
            if name == updates.RELOAD and succeeded and not weights_id:
                side.weights_reloaded(updates.reloads_from(args, kwargs), start_ns)
            if side.weights_changed(name, weights_id, succeeded):
                _end_weight_change(engine, side)
    return result


def _end_weight_change(engine: Any, side: Scheduler) -> None:
    if not _empty_cache(engine, side):
        logger.warning("kvferry: no tickets and no loads before the prefix cache, which holds blocks of the old weights, "
                       "has been reset: POST /reset_prefix_cache when no request runs (beside other connectors with "
                       "?reset_external=true), or pause before an update")


def _with_look(engine: Any, side: Scheduler, call: Callable[..., Any], *args: Any) -> Any:
    """A call that may load a LoRA adapter, or drop one."""
    try:
        return call(engine, *args)
    finally:
        if seam.has_adapters(engine):
            with all_of(side, "adapters"):
                side.take(seam.on_all_workers(engine, on_worker, "news"))
                seam.receive(seam.scheduler_of(engine), side.settle())


def _add_lora(engine: Any, side: Scheduler, call: Callable[..., bool], lora_request: LoRARequest) -> bool:
    added: bool = _with_look(engine, side, call, lora_request)
    with all_of(side, "add_lora"):
        _say_adapter(engine, side, lora_request)
    return added


def _say_adapter(engine: Any, side: Scheduler, lora_request: LoRARequest) -> None:
    if side.adapter_called(lora_request) and not _empty_cache(engine, side):
        logger.warning("kvferry: no tickets and no loads for LoRA adapter %s before no request uses a block, or the "
                       "prefix cache, which holds blocks of the adapter's old content, has been reset: POST "
                       "/reset_prefix_cache", lora_request.lora_name)


def _remove_lora(engine: Any, side: Scheduler, call: Callable[..., bool], lora_id: int) -> bool:
    removed: bool = _with_look(engine, side, call, lora_id)
    return removed


def _set_weight_version(engine: Any, side: Scheduler, call: Callable[..., None], weight_version: str) -> None:
    call(engine, weight_version)
    with all_of(side, "set_weight_version"):
        side.weights_named(weight_version)


def _update_from_output(call: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Of the scheduler: a step's answers."""
    outputs = call(scheduler, *args, **kwargs)
    connector = _own(seam.connector_of(scheduler))
    if connector is not None:
        connector._scheduler.say_why(outputs)
    return outputs


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


NEEDED_BY = {"sleep": SLEEP, "add_lora": LORA, "remove_lora": LORA}
OPTIONAL = ("_handle_shutdown",)


def install(vllm_config: VllmConfig) -> None:
    """What this engine can do, and no more. May be called again."""
    has = features_of(vllm_config)
    wanted = {name: _for_ours(around) for name, around in WRAPPERS.items() if NEEDED_BY.get(name) in (None, *has)}
    seam.wrap_engine_core(wanted, OPTIONAL)
    seam.wrap_answers(_update_from_output)
