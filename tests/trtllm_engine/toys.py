"""Small connectors that share blocks by files, right ones and, by flags, broken ones.

llm_args.model is "name:flags:directory". Flags: async (load), lease (request_finished is True, reported after
LEASE_POLLS), event (waits for the stream of the fake CUDA driver), empty (has no offers), and those of broken ones.
"""

from __future__ import annotations

import ctypes
import os
import zlib
from pathlib import Path
from typing import Any

from tensorrt_llm import __version__
from tensorrt_llm._utils import mpi_allgather, mpi_rank

if __version__ == "newest":
    from tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector import (
        KvCacheConnectorScheduler,
        KvCacheConnectorWorker,
    )
else:
    from tensorrt_llm._torch.pyexecutor.kv_cache_connector import KvCacheConnectorScheduler, KvCacheConnectorWorker

LOAD_POLLS = 3
LEASE_POLLS = 3
CALLS: dict[str, list[Any]] = {}
"""By llm_args.model: what was called, for tests of the order; threads only."""


def settings(llm_args: Any) -> tuple[set[str], Path, list[Any]]:
    _, flags, directory = llm_args.model.split(":")
    return set(flags.split("+")), Path(directory), CALLS.setdefault(llm_args.model, [])


class Scheduler(KvCacheConnectorScheduler):
    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.flags, self.store, self.calls = settings(llm_args)
        self.size = llm_args.kv_cache_config.tokens_per_block
        self.ranks = llm_args.tensor_parallel_size
        self.offers: dict[int, tuple[int, int]] = {}
        self.loads: list[Any] = []
        self.waiting: dict[int, list[Any]] = {}
        self.known: dict[int, Any] = {}
        self.salts: dict[int, Any] = {}
        if "constructor" in self.flags:
            mpi_allgather(0)

    def key(self, request_id: int, tokens: list[int], block: int) -> str:
        identity = None if "salt" in self.flags else self.salts[request_id]
        return f"{zlib.crc32(repr((identity, tokens[:(block + 1) * self.size])).encode())}"

    def has(self, key: str) -> bool:
        return all((self.store / f"{key}-{rank}").exists() for rank in range(self.ranks))

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        self.calls.append(("query", request.request_id, num_computed_tokens))
        self.salts[request.request_id] = (request.cache_salt_id, request.lora_task_id, request.multimodal_hashes)
        if "cache_salt" in self.flags:
            request.cache_salt
        tokens = request.get_tokens(0)
        first = last = num_computed_tokens // self.size
        end = len(tokens) // self.size if "last" in self.flags else (len(tokens) - 1) // self.size
        while last < end and ("lie" in self.flags or self.has(self.key(request.request_id, tokens, last))):
            last += 1
        if "nothing" in self.flags:
            return 0, True
        if "half" in self.flags:
            return (last - first) * self.size - 1, False
        if "empty" in self.flags or last == first or num_computed_tokens % self.size:
            return 0, False
        self.offers[request.request_id] = (first, last)
        return (last - first) * self.size, "async" in self.flags

    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
        self.update_state_after_alloc_by_layer_group(request, [block_ids])

    def update_state_after_alloc_by_layer_group(self, request: Any, ids: list[list[int]]) -> None:
        self.calls.append(("alloc", request.request_id, ids))
        first, last = self.offers.pop(request.request_id, (0, 0))
        tokens = request.get_tokens(0)
        moves = [(self.key(request.request_id, tokens, i), [group[i] for group in ids]) for i in range(first, last)]
        if moves or "async" in self.flags:
            self.loads.append((request.request_id, moves))

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        self.calls.append(("meta", scheduler_output))
        if "pickle" in self.flags:
            return lambda: None
        saves = [move for data in scheduler_output.new_requests + scheduler_output.cached_requests
                 for move in self.saves(data)]
        loads, self.loads = self.loads, []
        return loads, saves

    def saves(self, data: Any) -> list[Any]:
        by_group = getattr(data, "new_block_ids_by_layer_group", None) or [data.new_block_ids]
        tokens, blocks, saved = self.known.setdefault(data.request_id, ([], [[] for _ in by_group], [0]))
        tokens += data.new_tokens
        for known, new in zip(blocks, by_group):
            known += new
        end = min(data.computed_position + data.num_scheduled_tokens, len(tokens)) // self.size
        first, saved[0] = saved[0], max(saved[0], end)
        return [(self.key(data.request_id, tokens, i), [group[i] for group in blocks]) for i in range(first, end)]

    def request_finished(self, request: Any, cache_block_ids: list[int]) -> bool:
        self.calls.append(("finished", request.request_id, cache_block_ids))
        self.known.pop(request.request_id, None)
        return "lease" in self.flags

    def request_finished_by_layer_group(self, request: Any, ids: list[list[int]]) -> bool:
        return self.request_finished(request, ids[0])

    def request_reset(self, request: Any) -> None:
        self.calls.append(("reset", request.request_id))
        self.known.pop(request.request_id, None)
        self.offers.pop(request.request_id, None)

    def cancel_load(self, request: Any, start: int, end: int) -> None:
        self.calls.append(("cancel_load", request.request_id, start, end))
        first, last = self.offers.get(request.request_id, (0, 0))
        start, end = max(start // self.size, first), min(end // self.size, last)
        if start == first:
            first = end
        elif start < last:
            last = start
        self.offers[request.request_id] = (first, max(first, last))

    def wait_for_initialization(self) -> None:
        self.calls.append(("initialized",))


class FlatScheduler(Scheduler):
    """Knows nothing of layer groups."""

    request_finished_by_layer_group = getattr(KvCacheConnectorScheduler, "request_finished_by_layer_group", None)
    update_state_after_alloc_by_layer_group = getattr(
        KvCacheConnectorScheduler, "update_state_after_alloc_by_layer_group", None)

    def update_state_after_alloc(self, request: Any, block_ids: list[int]) -> None:
        Scheduler.update_state_after_alloc_by_layer_group(self, request, [block_ids])


class Worker(KvCacheConnectorWorker):
    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self.flags, self.store, self.calls = settings(llm_args)
        self.rank = mpi_rank()
        self.saving: dict[int, int] = {}
        self.loading: dict[int, int] = {}
        self.parked: dict[int, Any] = {}
        self.regions: list[list[tuple[int, int, int]]] = []

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        self.tensor = kv_cache_tensor
        size = kv_cache_tensor.stride(0) * kv_cache_tensor.element_size()
        self.regions = [[(kv_cache_tensor.data_ptr(), size, size)]]
        if "collective" not in self.flags or self.rank == 0:
            assert mpi_allgather(self.rank) == list(range(self._llm_args.tensor_parallel_size))

    def register_kv_cache_layout(self, layout: Any) -> None:
        self.regions = [[(region.base, region.stride, region.size) for region in group.regions + (
            () if "unreplicated" in self.flags else group.replicated_regions)] for group in layout.groups]

    def read(self, ids: list[int]) -> bytes:
        return b"".join(b"\0" if block < 0 else b"\1" + ctypes.string_at(base + stride * block, size)
                        for regions, block in zip(self.regions, ids) for base, stride, size in regions)

    def write(self, ids: list[int], data: bytes) -> None:
        for regions, block in zip(self.regions, ids):
            for base, stride, size in regions:
                has, data = data[0], data[1:]
                if has and block >= 0:
                    ctypes.memmove(base + stride * block, data[:size], size)
                data = data[size:] if has else data

    def settle(self) -> None:
        """What is on the stream is done when this returns; without it memory is as it was."""
        if "event" in self.flags:
            library = ctypes.CDLL(os.environ["KVFERRY_FAKE_CUDA_LIBRARY"])
            assert library.cuStreamSynchronize(ctypes.c_void_p(self.stream.cuda_stream)) == 0

    def load(self, moves: list[Any]) -> None:
        self.settle()
        for key, ids in moves:
            rank = (self.rank + 1) % self._llm_args.tensor_parallel_size if "foreign" in self.flags else self.rank
            path = self.store / f"{key}-{rank}"
            if path.exists() and "lost" not in self.flags and ("lost on 1" not in self.flags or self.rank != 1):
                self.write(ids, path.read_bytes())

    def start_load_kv(self, stream: Any) -> None:
        self.calls.append(("start_load", self.rank))
        self.stream = stream
        if "start" in self.flags and self.rank == self._llm_args.tensor_parallel_size - 1:
            raise OSError("start_load_kv")
        loads, _ = self.get_connector_meta()
        if "async" in self.flags:
            self.parked.update(loads)
        else:
            for _, moves in loads:
                self.load(moves)

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        self.calls.append(("layer", self.rank, layer_idx))

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        self.calls.append(("layer saved", self.rank, layer_idx))

    def wait_for_save(self, stream: Any) -> None:
        self.calls.append(("wait_for_save", self.rank))
        if "forward" in self.flags and self.rank == self._llm_args.tensor_parallel_size - 1:
            raise OSError("wait_for_save")
        self.settle()
        for key, ids in self.get_connector_meta()[1]:
            (self.store / f"{key}-{self.rank}").write_bytes(self.read(ids))

    def get_finished(self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]) -> tuple[list, list]:
        self.calls.append(("get_finished", self.rank, list(finished_gen_req_ids), list(started_loading_req_ids)))
        if "poll" in self.flags and self.rank == self._llm_args.tensor_parallel_size - 1:
            raise OSError("get_finished")
        if "unknown" in self.flags:
            return [4711], []
        if "gather" in self.flags and self.rank == 0:
            mpi_allgather("only here")
        if "several" in self.flags:
            (mpi_allgather if self.rank == 0 else self.gather)("not the same")
        self.saving.update(dict.fromkeys(finished_gen_req_ids, LEASE_POLLS + self.rank))
        self.loading.update(dict.fromkeys(started_loading_req_ids, LOAD_POLLS + self.rank))
        saved, loaded = self.ended(self.saving), self.ended(self.loading)
        for request_id in loaded:
            self.load(self.parked.pop(request_id, []))
        return saved, loaded + loaded if "twice" in self.flags else loaded

    def gather(self, value: Any) -> None:
        mpi_allgather(value)

    @staticmethod
    def ended(counts: dict[int, int]) -> list[int]:
        for each in counts:
            counts[each] -= 1
        ended = [each for each, count in counts.items() if count <= 0]
        for each in ended:
            del counts[each]
        return ended


class Unfinished(KvCacheConnectorWorker):
    """Has none of what it must have."""
