"""NIXL on one GPU, as vLLM's NixlConnector uses it (bench/peers/nixl_side.py): two processes, descriptor lists of all
blocks prepared once, a load made from indices. D reads P's blocks ("nixl"), and writes as many ("nixl-write"): where reads go
another way than writes, only one of the two is NIXL's best. Prints rows like gpu_bench's; one with a note where it cannot be
measured.

    nixl_gpu.py SHAPES SECONDS [host]     SHAPES: a JSON list of gpu_bench's; host: in host memory, whether it runs at all"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

ALIGNMENT = 512  # of a region, as in bench/gpu/pool.c
SHAPE_S, ROUNDS_MIN, ROUNDS_MAX = 0.5, 3, 301
CHECKED_BYTES_MAX = 1 << 30
CHECKED = 4096
CPU_LOADS, PAUSE_S = 20, 0.0002
CLEAR = 0xA5
ROWS = os.dup(1)
"""What NIXL says on standard output goes to standard error: see main()."""
WHEELS = ("nixl_cu13", "nixl_cu12")
DEVICE, MEMORY = ("cpu", "DRAM") if sys.argv[3:] == ["host"] else ("cuda", "VRAM")


def say(**row: Any) -> None:
    os.write(ROWS, (json.dumps(row) + "\n").encode())


def layout(shape: dict) -> tuple[np.ndarray, np.ndarray, int]:
    """Where each block of each region begins, its size, and the size of the pool."""
    at, offsets, sizes = 0, [], []
    for _ in range(shape["layers"]):
        for size in filter(None, shape["block_bytes"]):
            offsets.append(at + np.arange(shape["pool_blocks"], dtype=np.uint64) * np.uint64(size))
            sizes.append(np.full(shape["pool_blocks"], size, dtype=np.uint64))
            at += -(-shape["pool_blocks"] * size // ALIGNMENT) * ALIGNMENT
    return np.stack(offsets), np.stack(sizes), at


def indices(shape: dict, ids: np.ndarray) -> np.ndarray:
    regions = shape["layers"] * len(list(filter(None, shape["block_bytes"])))
    return (ids[:, None] + np.arange(regions)[None, :] * shape["pool_blocks"]).reshape(-1)


def find_nixl() -> Any:
    for name in WHEELS:
        try:
            return importlib.import_module(f"{name}._api")
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(f"neither of {', '.join(WHEELS)}: tools/gpu/pack --nixl")


def finish(torch: Any) -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def pattern(torch: Any, size: int, salt: int = 0) -> Any:
    """Depends on the position; made in pieces, since the numbers take eight times the room."""
    made = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    for at in range(0, size, 1 << 26):
        n = torch.arange(at, min(size, at + (1 << 26)), device=DEVICE, dtype=torch.int64)
        made[at : at + (1 << 26)] = (((n + salt) * 2654435761) >> 13).to(torch.uint8)
    finish(torch)
    return made


def cpu_us() -> float:
    """Of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e6


def make_agent(nixl: Any, name: str, has_thread: bool) -> Any:
    return nixl.nixl_agent(name, nixl.nixl_agent_config(enable_prog_thread=has_thread, num_threads=0))


def register(agent: Any, pool: Any) -> Any:
    return agent.register_memory(agent.get_reg_descs([(pool.data_ptr(), pool.numel(), 0, "")], MEMORY))


def hold(pipe: Connection) -> None:
    """P: a pool for each shape, until the next. Meanwhile it says what it has taken of the processor."""
    import torch

    agent = make_agent(find_nixl(), "hold", True)
    while (size := pipe.recv()) is not None:
        pool = pattern(torch, size)
        registered = register(agent, pool)
        pipe.send((pool.data_ptr(), agent.get_agent_metadata()))
        while pipe.recv() == "cpu":
            pipe.send(cpu_us())
        agent.deregister_memory(registered)
        del pool
        pipe.send(None)


def prepare(agent: Any, who: str, base: int, offsets: np.ndarray, sizes: np.ndarray) -> Any:
    rows = np.zeros((offsets.size, 3), dtype=np.uint64)
    rows[:, 0] = np.uint64(base) + offsets.reshape(-1)
    rows[:, 1] = sizes.reshape(-1)
    return agent.prep_xfer_dlist(who, agent.get_xfer_descs(rows, MEMORY))


def transfer(agent: Any, how: str, source: tuple, pause_s: float) -> None:
    handle = agent.make_prepped_xfer(how, *source)
    agent.transfer(handle)
    while (state := agent.check_xfer_state(handle)) == "PROC":
        if pause_s:
            time.sleep(pause_s)
    agent.release_xfer_handle(handle)
    if state != "DONE":
        raise RuntimeError(f"a transfer ended as {state}")


def check(torch: Any, pool: Any, theirs: Any, shape: dict, blocks: tuple[np.ndarray, np.ndarray]) -> None:
    """Of `blocks` those of our pool have what `theirs` has, in order."""
    offsets, sizes, _ = layout(shape)
    for to, at in zip(*blocks):
        begin, origin, length = int(offsets.flat[to]), int(offsets.flat[at]), int(sizes.flat[to])
        if not torch.equal(pool[begin : begin + length], theirs[origin : origin + length]):
            raise RuntimeError("wrong bytes")


def measure_way(agent: Any, how: str, source: tuple, shape: dict, pipe: Connection) -> None:
    impl, case = {"READ": "nixl", "WRITE": "nixl-write"}[how], shape["case"]
    times, end = [], time.monotonic() + SHAPE_S
    while len(times) < ROUNDS_MIN or (len(times) < ROUNDS_MAX and time.monotonic() < end):
        begin = time.perf_counter_ns()
        transfer(agent, how, source, 0)
        times.append(time.perf_counter_ns() - begin)
    times.sort()
    single = shape["pieces"] == 1
    median, tail = (t / 1e3 if single else shape["bytes"] / t for t in (times[len(times) // 2], times[len(times) * 99 // 100]))
    say(case=case, impl=impl, unit="us" if single else "GB/s", median=float(f"{median:.4g}"), p99=float(f"{tail:.4g}"), runs=len(times))
    theirs, ours = ask_cpu(pipe), cpu_us()
    for _ in range(CPU_LOADS):
        transfer(agent, how, source, PAUSE_S)
    for side, used in (("consumer", cpu_us() - ours), ("producer", ask_cpu(pipe) - theirs)):
        median = float(f"{used / CPU_LOADS:.4g}")
        say(case=f"{case}/cpu-{side}", impl=impl, unit="us", median=median, p99=median, runs=CPU_LOADS)


def ask_cpu(pipe: Connection) -> float:
    pipe.send("cpu")
    return pipe.recv()


def verify(torch: Any, pool: Any, shape: dict, local: np.ndarray, remote: np.ndarray, run: Callable[[str], None]) -> None:
    """Reads, then writes other bytes, clears, and reads them back."""
    size = layout(shape)[2]
    run("READ")
    check(torch, pool, pattern(torch, size), shape, (local, remote))
    written = pattern(torch, size, salt=1)
    pool.copy_(written)
    finish(torch)
    run("WRITE")
    pool.fill_(CLEAR)
    finish(torch)
    run("READ")
    check(torch, pool, written, shape, (local, local))


def measure(torch: Any, nixl: Any, pipe: Connection, shape: dict) -> None:
    offsets, sizes, size = layout(shape)
    pool = torch.full((size,), CLEAR, dtype=torch.uint8, device=DEVICE)
    finish(torch)
    pipe.send(size)
    base, metadata = pipe.recv()
    agent = make_agent(nixl, f"read-{shape['case']}", False)
    registered = register(agent, pool)
    name = agent.add_remote_agent(metadata)
    name = name.decode() if isinstance(name, bytes) else name
    random = np.random.default_rng(7)
    local, remote = (indices(shape, random.permutation(shape["pool_blocks"])[: shape["blocks"]]) for _ in range(2))
    source = (prepare(agent, "NIXL_INIT_AGENT", pool.data_ptr(), offsets, sizes), local,
              prepare(agent, name, base, offsets, sizes), remote)  # fmt: skip
    if shape["bytes"] <= CHECKED_BYTES_MAX:
        verify(torch, pool, shape, local[:CHECKED], remote[:CHECKED], lambda how: transfer(agent, how, source, 0))
    for how in ("READ", "WRITE"):
        measure_way(agent, how, source, shape, pipe)
    for prepared in (source[0], source[2]):
        agent.release_dlist_handle(prepared)
    agent.remove_remote_agent(name)
    agent.deregister_memory(registered)
    pipe.send("done")
    pipe.recv()


def first_line(error: Exception) -> str:
    return f"not measured: {type(error).__name__}: {error}".splitlines()[0]


def main() -> None:
    shapes, until = json.loads(sys.argv[1]), time.monotonic() + float(sys.argv[2])
    os.dup2(2, 1)
    try:
        import torch

        nixl = find_nixl()
        if DEVICE == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("torch sees no GPU")
    except Exception as error:  # noqa: BLE001 - whatever an import ends with
        say(case="nixl", impl="nixl", note=first_line(error))
        return
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    holder = context.Process(target=hold, args=(theirs,), daemon=True)
    holder.start()
    theirs.close()
    for shape in shapes:
        if time.monotonic() > until:
            say(case=shape["case"], impl="nixl", note="not measured: no time was left")
            continue
        try:
            measure(torch, nixl, pipe, shape)
        except Exception as error:  # noqa: BLE001 - whatever the library throws
            say(case=shape["case"], impl="nixl", note=first_line(error))
            break
    holder.kill()
    holder.join()
    os._exit(0)  # its libraries' ends have been seen to crash


if __name__ == "__main__":
    main()
