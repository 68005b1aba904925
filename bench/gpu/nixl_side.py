"""NIXL on one GPU, as vLLM's NixlConnector uses it (bench/peers/nixl_side.py): two processes, descriptor lists of all
blocks prepared once, a load made from indices. The argument is a JSON list of gpu_bench's shapes. Prints rows like
gpu_bench's; one with a note where it cannot be measured."""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

ALIGNMENT = 512  # of a region, as in bench/gpu/pool.c
SHAPE_S, ROUNDS_MIN, ROUNDS_MAX = 0.5, 3, 301
CHECKED_BYTES_MAX = 1 << 30
CLEAR = 0xA5


def say(**row: Any) -> None:
    print(json.dumps(row), flush=True)


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


def pattern(torch: Any, size: int) -> Any:
    """Depends on the position; made in pieces, since the numbers take eight times the room."""
    made = torch.empty(size, dtype=torch.uint8, device="cuda")
    for at in range(0, size, 1 << 26):
        n = torch.arange(at, min(size, at + (1 << 26)), device="cuda", dtype=torch.int64)
        made[at : at + (1 << 26)] = ((n * 2654435761) >> 13).to(torch.uint8)
    torch.cuda.synchronize()
    return made


def make_agent(nixl: Any, name: str, has_thread: bool) -> Any:
    return nixl.nixl_agent(name, nixl.nixl_agent_config(enable_prog_thread=has_thread, num_threads=0))


def register(agent: Any, pool: Any) -> Any:
    return agent.register_memory(agent.get_reg_descs([(pool.data_ptr(), pool.numel(), 0, "")], "VRAM"))


def hold(pipe: Connection) -> None:
    """P: a pool for each shape, until the next."""
    import torch
    from nixl_cu12 import _api as nixl

    agent = make_agent(nixl, "hold", True)
    while (size := pipe.recv()) is not None:
        pool = pattern(torch, size)
        registered = register(agent, pool)
        pipe.send((pool.data_ptr(), agent.get_agent_metadata()))
        pipe.recv()
        agent.deregister_memory(registered)
        del pool
        torch.cuda.empty_cache()
        pipe.send(None)


def prepare(agent: Any, who: str, base: int, offsets: np.ndarray, sizes: np.ndarray) -> Any:
    rows = np.zeros((offsets.size, 3), dtype=np.uint64)
    rows[:, 0] = np.uint64(base) + offsets.reshape(-1)
    rows[:, 1] = sizes.reshape(-1)
    return agent.prep_xfer_dlist(who, agent.get_xfer_descs(rows, "VRAM"))


def load(agent: Any, source: tuple) -> None:
    handle = agent.make_prepped_xfer("READ", *source)
    agent.transfer(handle)
    while (state := agent.check_xfer_state(handle)) == "PROC":
        pass
    agent.release_xfer_handle(handle)
    if state != "DONE":
        raise RuntimeError(f"a transfer ended as {state}")


def check(torch: Any, pool: Any, shape: dict, local: np.ndarray, remote: np.ndarray) -> None:
    offsets, sizes, size = layout(shape)
    theirs = pattern(torch, size)
    for to, at in zip(local, remote):
        begin, origin, length = int(offsets.flat[to]), int(offsets.flat[at]), int(sizes.flat[to])
        if not torch.equal(pool[begin : begin + length], theirs[origin : origin + length]):
            raise RuntimeError("wrong bytes")


def measure(torch: Any, nixl: Any, pipe: Connection, shape: dict) -> None:
    offsets, sizes, size = layout(shape)
    pool = torch.full((size,), CLEAR, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
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
    load(agent, source)
    if shape["bytes"] <= CHECKED_BYTES_MAX:
        check(torch, pool, shape, local[:4096], remote[:4096])
    times, end = [], time.monotonic() + SHAPE_S
    while len(times) < ROUNDS_MIN or (len(times) < ROUNDS_MAX and time.monotonic() < end):
        begin = time.perf_counter_ns()
        load(agent, source)
        times.append(time.perf_counter_ns() - begin)
    times.sort()
    single = shape["pieces"] == 1
    median, tail = (t / 1e3 if single else shape["bytes"] / t for t in (times[len(times) // 2], times[len(times) * 99 // 100]))
    say(case=shape["case"], impl="nixl", unit="us" if single else "GB/s", median=float(f"{median:.4g}"),
        p99=float(f"{tail:.4g}"), runs=len(times))  # fmt: skip
    for prepared in (source[0], source[2]):
        agent.release_dlist_handle(prepared)
    agent.remove_remote_agent(name)
    agent.deregister_memory(registered)
    pipe.send("done")
    pipe.recv()


def main() -> None:
    shapes = json.loads(sys.argv[1])
    try:
        import torch
        from nixl_cu12 import _api as nixl

        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no GPU")
    except Exception as error:  # noqa: BLE001 - whatever an import ends with
        say(case="nixl", impl="nixl", note=f"not measured: {type(error).__name__}: {error}".splitlines()[0])
        return
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    holder = context.Process(target=hold, args=(theirs,), daemon=True)
    holder.start()
    theirs.close()
    for shape in shapes:
        try:
            measure(torch, nixl, pipe, shape)
            torch.cuda.empty_cache()
        except Exception as error:  # noqa: BLE001 - whatever the library throws
            say(case=shape["case"], impl="nixl", note=f"not measured: {type(error).__name__}: {error}".splitlines()[0])
            break
    holder.kill()


if __name__ == "__main__":
    main()
