"""Around vLLM's calls between steps: what each does to weights and adapters. `call` is vLLM's own method."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvferry.engine.boundary import all_of
from kvferry.engine.log import logger

from .. import seam
from ..transfers.core import Core
from . import updates

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

LEVEL_WITHOUT_WEIGHTS = 2  # of sleep


def look_first(core: Core, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    content = core.side.content
    if not content.knows_calls:
        content.learn_calls(set.intersection(*seam.on_all_workers(core.engine, updates.own_methods)))
    if content.has_other_weights:
        _end_disproved(core)
    return call(*args, **kwargs)


def _end_disproved(core: Core) -> None:
    """What was lent and loaded is of weights that nobody knows: nothing more is used of it. Nothing is taken from vLLM, so that
    a rank may confirm later."""
    side = core.side
    with all_of(side, "weights_disproved"):
        side.content.weights_disproved()
        left = core.transfers_left(loads=True)
        side.unload_waiting()
        if not left and seam.recompute_all(core.scheduler, others=not core.is_alone):
            side.content.cache_is_empty()
        else:
            logger.warning("kvferry: the prefix cache, which may hold blocks of other weights, has not been reset (%s): POST "
                           "/reset_prefix_cache?reset_running_requests=true", left or "another connector uses blocks")


def reset_prefix_cache(core: Core, call: Callable[..., bool], reset_running_requests: bool = False,
                       reset_connector: bool = False) -> bool:
    success = call(reset_running_requests, reset_connector)
    with all_of(core.side, "reset_prefix_cache"):
        if success and (reset_connector or core.is_alone):
            core.side.content.cache_is_empty()
    return success


def _empty_cache(core: Core) -> bool:
    """False: some request uses a block."""
    emptied = seam.reset_prefix_cache(core.scheduler, others=not core.is_alone)
    if emptied:
        core.side.content.cache_is_empty()
    return emptied


# ---- weights ----

def sleep(core: Core, call: Callable[..., Any], level: int = 1, mode: str = "abort") -> Any:
    with all_of(core.side, "sleep"):
        if level >= LEVEL_WITHOUT_WEIGHTS:
            core.side.content.weights_change("sleep")
    return call(level, mode)


def collective_rpc(core: Core, call: Callable[..., Any], method: Any, timeout: float | None = None, args: tuple[Any, ...] = (),
                   kwargs: dict[str, Any] | None = None) -> Any:
    name = method if isinstance(method, str) else f"{getattr(method, '__name__', 'a function')}()"  # none of vLLM's calls
    content = core.side.content
    if isinstance(method, str) and content.keeps_weights(name):
        return _with_look(core, call, method, timeout, args, kwargs)
    weights_id = updates.take_weights_id(kwargs)
    with all_of(core.side, "collective_rpc"):
        content.weights_change(name)
        core.end_all()
    start_ns, succeeded = time.time_ns(), False
    try:
        result = _with_look(core, call, method, timeout, args, kwargs)
        succeeded = True
    finally:
        with all_of(core.side, "collective_rpc"):
            if name == updates.CONFIGURE:
                content.loads_configured(updates.first_argument("overrides", args, kwargs) if succeeded else None)
            if name == updates.RELOAD and succeeded and not weights_id:
                content.weights_reloaded(updates.reloads_from(args, kwargs), start_ns)
            if content.weights_changed(name, weights_id, succeeded) and not _empty_cache(core):
                logger.warning("kvferry: no tickets and no loads before the prefix cache, which holds blocks of the old weights, "
                               "has been reset: POST /reset_prefix_cache when no request runs (beside other connectors with "
                               "?reset_external=true), or pause before an update")
    return result


def set_weight_version(core: Core, call: Callable[..., None], weight_version: str) -> None:
    call(weight_version)
    with all_of(core.side, "set_weight_version"):
        core.side.content.weights_named(weight_version)


# ---- adapters ----

def _with_look(core: Core, call: Callable[..., Any], *args: Any) -> Any:
    """A call that may load a LoRA adapter, or drop one."""
    try:
        return call(*args)
    finally:
        if seam.has_adapters(core.engine):
            with all_of(core.side, "adapters"):
                core.side.receive(core.on_ranks("report"))
                seam.receive(core.scheduler, core.side.settle())


def add_lora(core: Core, call: Callable[..., bool], lora_request: LoRARequest) -> bool:
    added: bool = _with_look(core, call, lora_request)
    with all_of(core.side, "add_lora"):
        if core.side.content.adapter_called(lora_request) and not _empty_cache(core):
            logger.warning("kvferry: no tickets and no loads for LoRA adapter %s: the prefix cache may hold blocks of its "
                           "old content. This ends when no request uses a block, or after POST /reset_prefix_cache",
                           lora_request.lora_name)
    return added


def remove_lora(core: Core, call: Callable[..., bool], lora_id: int) -> bool:
    removed: bool = _with_look(core, call, lora_id)
    return removed
