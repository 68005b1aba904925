"""The line protocol of bench/peers/peer.h, for implementations that are driven from Python."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

PLAN_BLOCKS = 4096  # PEER_BLOCKS_MAX


@dataclass(frozen=True)
class Job:
    layers: int
    blocks: int
    block_bytes: int
    pool_blocks: int
    parts: int  # producers that share the blocks out
    pool: int  # address of this side's pool: the producer's source, the consumer's destination
    pool_bytes: int
    remote_ids: np.ndarray
    local_ids: np.ndarray

    def segments(self, ids: np.ndarray, part: int = 0) -> np.ndarray:
        """Of one part's blocks: each block in each layer, as an index into the pool in units of a block: block by block, across all layers."""
        layers = np.arange(self.layers, dtype=np.int64) * self.pool_blocks
        count = self.blocks // self.parts
        return (ids[part * count : (part + 1) * count, None].astype(np.int64) + layers[None, :]).reshape(-1)


class Driver(Protocol):
    def version(self) -> str: ...
    def hold(self, job: Job) -> str: ...
    def read(self, job: Job, offer: str) -> None: ...
    def read_once(self) -> None: ...
    def end(self) -> None: ...


def map_fd(fd: int, size: int) -> tuple[mmap.mmap, int]:
    memory = mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def run(driver: Driver, text: str) -> str:
    warm_up, rounds = map(int, text.split())
    for _ in range(warm_up):
        driver.read_once()
    return timed(driver.read_once, rounds)


def timed(act: Callable[[], None], rounds: int) -> str:
    ns = []
    for _ in range(rounds):
        begin = time.perf_counter_ns()
        act()
        ns.append(time.perf_counter_ns() - begin)
    return "ns " + " ".join(map(str, ns))


def watch(driver: Driver, limit_ms: int) -> str:
    end = time.monotonic() + limit_ms / 1e3
    while time.monotonic() < end:
        try:
            driver.read_once()
        except Exception as error:  # noqa: BLE001 - whatever the library throws
            return f"failed {time.monotonic_ns()} {error}".replace("\n", " ")
    return "fine"


def main(make) -> None:  # type: ignore[no-untyped-def]
    """`make(role, variant, options)` makes the driver. Whatever else prints to standard output goes to standard error."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it dies with its parent
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    role, variant, source_fd, destination_fd, plan_fd, pool_bytes, *options = sys.argv[1:]
    size = int(pool_bytes)
    _pool, address = map_fd(int(source_fd if role == "hold" else destination_fd), size)
    plan, _ = map_fd(int(plan_fd), 2 * 4 * PLAN_BLOCKS)
    ids = np.frombuffer(plan, dtype=np.uint32)
    driver: Driver = make(role, variant, dict(option.split("=", 1) for option in options))
    for line in sys.stdin:
        command, _, rest = line.strip().partition(" ")
        answer = "done"
        if command == "version":
            answer = f"version {driver.version()}"
        elif command == "begin":
            *numbers, offer = (*rest.split(" ", 5), "")[:6]
            job = Job(*map(int, numbers), address, size, ids[:PLAN_BLOCKS], ids[PLAN_BLOCKS:])
            if role == "hold":
                answer = f"offer {driver.hold(job)}"
            else:
                driver.read(job, offer)
        elif command == "run":
            answer = run(driver, rest)
        elif command == "watch":
            answer = watch(driver, int(rest))
        elif command == "start":
            for _ in range(int(rest)):
                driver.start()  # type: ignore[attr-defined]
        elif command == "step":
            answer = timed(driver.step, int(rest))  # type: ignore[attr-defined]
        elif command == "end":
            driver.end()
        print(answer, file=answers, flush=True)
    os._exit(0)  # the peers' threads are no longer of interest
