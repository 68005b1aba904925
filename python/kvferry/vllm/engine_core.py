"""Wraps methods of vLLM's EngineCore, in its own process, since no hook of the connector's contract comes in time
(docs/upstream/end-transfers.md). They run between two steps. What is done around each is in transfers/calls.py and
content/calls.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from . import seam
from .content import calls as content
from .contract import LORA, SLEEP, features_of
from .transfers import calls as transfers
from .transfers.core import Core, own

if TYPE_CHECKING:
    from vllm.config import VllmConfig

Around = Callable[..., Any]

AROUNDS: dict[str, tuple[Around, ...]] = {
    "add_request": (transfers.join_first, content.look_first),  # an engine without a process of its own
    "reset_prefix_cache": (transfers.reset_prefix_cache, content.reset_prefix_cache),
    "pause_scheduler": (transfers.pause_scheduler,),
    "_handle_shutdown": (transfers.join_first, content.look_first, transfers.handle_shutdown),
    "resume_scheduler": (transfers.resume_scheduler,),
    "sleep": (content.sleep,),
    "collective_rpc": (transfers.join_first, content.look_first, content.collective_rpc),
    "set_weight_version": (content.set_weight_version,),
    "add_lora": (content.add_lora,),
    "remove_lora": (content.remove_lora,),
}
"""By method: the outermost first."""
NEEDED_BY = {"sleep": SLEEP, "add_lora": LORA, "remove_lora": LORA}
OPTIONAL = ("_handle_shutdown",)


def around(kind: type, name: str) -> Around:
    """Of a method, in engines that have a connector of this kind."""
    def wrapped(method: Callable[..., Any], engine: Any, *args: Any, **kwargs: Any) -> Any:
        connector = own(seam.connector_of(seam.scheduler_of(engine)), kind)
        call: Callable[..., Any] = partial(method, engine)
        if connector is not None:
            core = Core(engine, connector._scheduler, kind)
            for one in reversed(AROUNDS[name]):
                call = partial(one, core, call)
        return call(*args, **kwargs)
    return wrapped


def say_why(kind: type, call: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Around the scheduler's update_from_output(): a step's answers."""
    outputs = call(scheduler, *args, **kwargs)
    connector = own(seam.connector_of(scheduler), kind)
    if connector is not None:
        connector._scheduler.say_why(outputs)
    return outputs


def install(vllm_config: VllmConfig, kind: type) -> None:
    """What this engine can do, and no more. `kind`: the connector's class, by which engines and ranks are known to be ours. May be
    called again."""
    has = features_of(vllm_config)
    seam.wrap_engine_core({name: around(kind, name) for name in AROUNDS if NEEDED_BY.get(name) in (None, *has)}, OPTIONAL)
    seam.wrap_answers(partial(say_why, kind))
