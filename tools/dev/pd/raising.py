"""kvferry's connector with hooks that raise when they are told to, while the engine runs. A file in the folder that the
environment variable names arms one, once: `Worker.publish.1` is that of rank 1. It says when the hook raises:

    before   it does its work
    after    it has done it
    ends     before it ends a lease
    ticket   of a request that has finished: before it does its work, and the ticket is in the file's place, as `ticket`
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvferry.vllm import KVFerryConnector
from kvferry.vllm.scheduler import Scheduler
from kvferry.vllm.worker import Worker

from .connector import RAISING

HOOKS: dict[type, tuple[str, ...]] = {
    Scheduler: ("arrive", "offer", "admit", "finish", "orders", "update", "ending"),
    Worker: ("before_forward", "start_loads", "publish", "finished", "answer", "report", "end_transfers"),
}


class Planted(Exception):
    pass


def _ticket(side: Scheduler, key: str) -> str:
    producer = side._producer
    return str(producer._ticket(key, producer._by_request[key], is_read=True))


def _raising(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(work)
    def hook(side: Any, *args: Any) -> Any:
        armed = Path(os.environ[RAISING]) / f"{name}.{getattr(side, '_rank', 0)}"
        when = armed.read_text() if armed.exists() else ""
        if not when or when == "ends" and not args[0].end:
            return work(side, *args)
        armed.unlink()
        if when == "after":
            work(side, *args)
        if when == "ticket":
            armed.with_name("ticket").write_text(_ticket(side, args[0].request_id))
        raise Planted(name)
    return hook


for cls, names in HOOKS.items():
    for each in names:
        method = getattr(cls, each)
        bounded = hasattr(method, "__wrapped__")
        raising = _raising(f"{cls.__name__}.{each}", method.__wrapped__ if bounded else method)
        setattr(method if bounded else cls, "__wrapped__" if bounded else each, raising)

__all__ = ["KVFerryConnector"]
