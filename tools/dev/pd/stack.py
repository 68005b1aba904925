"""P, D and a router, up together and gone together."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from .connector import Connector
from .engine import Engine, EngineSpec, Router, split_cores
from .paths import LOGS
from .progress import say, wait_until

START_LIMIT_S = 600.0
IDLE_LIMIT_S = 60.0
ERROR_FILES = Path(f"/dev/shm/kvferry-{os.geteuid()}")


def run_to_end(main: Callable[[], int]) -> NoReturn:
    """SIGTERM and Ctrl-C are an ordinary exit, also where a shell started us in the background, so that the stack is
    taken down on the way out."""
    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    sys.exit(main())


def remove_error_files(folder: Path) -> None:
    """Those of dead engines: they hold a lock on theirs while they live. The next engine would, but after the last none comes."""
    for path in folder.glob("[!.]*"):
        with suppress(OSError):  # its engine lives, or it is none
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(descriptor)


class Stack:
    """The three processes. Use it as a context manager: they end with the block, however it is left."""

    def __init__(self, specs: list[EngineSpec], logs: Path, router_port: int | None = None,
                 with_router: bool = True) -> None:
        self.logs = logs
        self.engines = [Engine(spec, logs) for spec in specs]
        self.prefill, self.decode = self.engines[0], self.engines[1]
        self.router = Router([self.prefill.url], self.decode.url, logs, router_port) if with_router else None

    @property
    def members(self) -> list[Engine | Router]:
        return [*self.engines, *([self.router] if self.router else [])]

    def start(self) -> None:
        start = time.monotonic()
        say(f"starting {', '.join(m.name for m in self.members)} (logs in {self.logs}) …")
        for engine in self.engines:
            engine.start()
        for engine in self.engines:
            wait_until(f"waiting for {engine.name}", engine.healthy, START_LIMIT_S)
        if self.router:
            self.router.start()
            wait_until("waiting for the router", self.router.healthy, START_LIMIT_S)
        say(f"all up after {time.monotonic() - start:.0f} s")

    def add(self, spec: EngineSpec) -> Engine:
        """One more engine, which ends with the others."""
        engine = Engine(spec, self.logs)
        self.engines.append(engine)
        engine.start()
        wait_until(f"waiting for {engine.name}", engine.healthy, START_LIMIT_S)
        return engine

    def stop(self) -> None:
        for member in reversed(self.members):
            member.process.resume()
        for member in reversed(self.members):
            member.stop()
        remove_error_files(ERROR_FILES)

    def restart(self, engine: Engine) -> None:
        """Kills an engine, if it still runs, and starts it anew on the same ports."""
        engine.process.kill()
        engine.start()
        wait_until(f"waiting for {engine.name}, started anew", engine.healthy, START_LIMIT_S)

    def wait_idle(self, limit_s: float = IDLE_LIMIT_S) -> float:
        """Waits until no engine holds a block; says how long that took."""
        start = time.monotonic()
        wait_until("waiting for both engines' blocks to come back",
                   lambda: all(engine.usage() == 0.0 for engine in self.engines), limit_s)
        return time.monotonic() - start

    def forget_prompts(self) -> None:
        """Empties the prefix caches, so that the next request is computed or loaded from its first token."""
        for engine in self.engines:
            wait_until(f"emptying the prefix cache of {engine.name}", engine.reset_prefix_cache, IDLE_LIMIT_S)

    def __enter__(self) -> Stack:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@contextmanager
def serving(spec: EngineSpec, logs: Path) -> Iterator[Engine]:
    """An engine of no stack: what others hold does not concern it. It ends with the block."""
    engine = Engine(spec, logs)
    try:
        engine.start()
        wait_until(f"waiting for {engine.name}", engine.healthy, START_LIMIT_S)
        yield engine
    finally:
        engine.stop()


def log_folder(name: str) -> Path:
    return LOGS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def pair(model: Path, connector: Connector, p_blocks: int, d_blocks: int,
         p_connector: Connector | None = None) -> list[EngineSpec]:
    """A prefill and a decode engine of one model, each on its own cores."""
    p_cores, d_cores = split_cores()
    return [EngineSpec("P", model, p_connector or connector, p_cores, p_blocks),
            EngineSpec("D", model, connector, d_cores, d_blocks)]
