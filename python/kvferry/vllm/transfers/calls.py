"""Around vLLM's calls between steps: what each does to leases and loads. `call` is vLLM's own method."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from kvferry.engine.boundary import all_of

from .. import seam
from .core import Core


def join_first(core: Core, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Before the first request, at the first call of any kind. Of the start: an exception goes through."""
    side, engine = core.side, core.engine
    if not side.joined:
        side.join(core.scheduler, core.on_ranks("address"), partial(core.on_ranks, "stop"), all(core.on_ranks("loads_first")))
        if seam.can_be_woken(engine):
            side.be_woken(partial(seam.wake, engine), lambda address: all(core.on_ranks("notify", address)))
    return call(*args, **kwargs)


def reset_prefix_cache(core: Core, call: Callable[..., bool], *args: Any, **kwargs: Any) -> bool:
    with all_of(core.side, "reset_prefix_cache"):
        core.end_all()
    return call(*args, **kwargs)


def pause_scheduler(core: Core, call: Callable[..., Any], mode: str = "abort", clear_cache: bool = True) -> Any:
    side = core.side
    before = side.paused, seam.pause_state(core.engine)
    try:
        with all_of(side, "pause_scheduler"):
            side.pause(True)
            if mode == "abort":
                side.aborting()
            core.end_transfers(loads=mode != "wait")  # that mode lets requests end that have begun
        paused = call(mode, clear_cache)
    except BaseException:
        _unpause(core, *before)
        raise
    if isinstance(paused, Future):  # it is complete later
        paused.add_done_callback(lambda it: _unpause(core, *before) if it.cancelled() or it.exception() else None)
    return paused


def _unpause(core: Core, paused: bool, state: Any) -> None:
    """A pause has failed, and its caller knows: vLLM would stand still until somebody resumes it."""
    core.side.pause(paused)
    seam.go_back_to(core.engine, state)


def resume_scheduler(core: Core, call: Callable[..., None]) -> None:
    call()
    with all_of(core.side, "resume_scheduler"):
        core.side.pause(False)


def handle_shutdown(core: Core, call: Callable[..., bool]) -> bool:
    """vLLM calls it before each step, and before the first request."""
    with all_of(core.side, "_handle_shutdown"):
        if seam.is_shutting_down(core.engine):
            core.side.shutting_down()
        if seam.is_shut_down_at_once(core.engine):
            core.side.aborting()
    return call()
