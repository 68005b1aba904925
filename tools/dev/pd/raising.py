"""kvferry's connector with hooks that raise when they are told to, while the engine runs. A file in the folder that the
environment variable names arms one, once: `Worker.publish.1` is that of rank 1. It says when the hook raises:

    before   it has done its work
    after    it has; what it would have answered is then in the file's place, as `….told`
    ends     before it ends the first lease
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvferry.vllm import KVFerryConnector
from kvferry.vllm.scheduler import Scheduler
from kvferry.vllm.worker import Worker

FOLDER = "KVFERRY_TEST_RAISING"
HOOKS: dict[type, tuple[str, ...]] = {
    Scheduler: ("arrive", "offer", "admit", "finish", "orders", "update", "ending"),
    Worker: ("before_forward", "start_loads", "publish", "last_words", "answer", "news", "end_transfers"),
}


class Planted(Exception):
    pass


def _raising(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(work)
    def hook(side: Any, *args: Any) -> Any:
        armed = Path(os.environ[FOLDER]) / f"{name}.{getattr(side, '_rank', 0)}"
        when = armed.read_text() if armed.exists() else ""
        if not when or when == "ends" and not args[0].end:
            return work(side, *args)
        armed.unlink()
        if when == "after":
            armed.with_name(armed.name + ".told").write_text(json.dumps(work(side, *args), default=str))
        raise Planted(name)
    return hook


for cls, names in HOOKS.items():
    for each in names:
        method = getattr(cls, each)
        bounded = hasattr(method, "__wrapped__")
        raising = _raising(f"{cls.__name__}.{each}", method.__wrapped__ if bounded else method)
        setattr(method if bounded else cls, "__wrapped__" if bounded else each, raising)

__all__ = ["KVFerryConnector"]
