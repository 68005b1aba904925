"""A worker of vLLM's that saves what the blocks hold that it has handed over last: for pd.kv."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator

import torch

from kvferry import Part, Region
from kvferry._kvferry import BLOCK_NONE
from kvferry.engine.memory import DTYPES
from kvferry.vllm import worker
from kvferry.vllm.layout import Pool

from .zero import Zero

TYPES = {number: getattr(torch, name) for name, number in DTYPES.items()}
pool_of = worker.pool_of
POOLS: list[Pool] = []


def keep_pool(*args: object) -> Pool:
    POOLS.append(pool_of(*args))
    return POOLS[-1]


worker.pool_of = keep_pool


class Keep(Zero):
    """In the order in which the library pairs it with another engine's: by part, block, head, row."""

    def save(self, path: str) -> None:
        torch.save({f"layer {part.layer} kind {part.kind} index {part.index}": torch.stack(
            [units.clone().view(TYPES[part.dtype]) for units in self._units(part)]) for part in POOLS[-1].parts}, path)

    def exchange_positions(self) -> None:
        """The first two of each block: where the kernels know what is inside of a head's tokens, as if it were tokens."""
        for part in POOLS[-1].parts:
            for units in self._units(part) if part.block_tokens else ():
                positions = units if part.rows > 1 else units.unflatten(-1, (part.block_tokens, -1))[:, 0]
                positions[:, :2] = positions[:, :2].flip(1)

    def _units(self, part: Part) -> Iterator[torch.Tensor]:
        """Of each block, where it lies: bytes, by head and row."""
        region: Region = POOLS[-1].regions[part.region]
        for block in array("I", self._handed_over[part.group]):
            if block != BLOCK_NONE:
                memory = (ctypes.c_char * region.block_bytes).from_address(region.base + block * region.stride_bytes)
                yield torch.frombuffer(memory, dtype=torch.uint8).as_strided(
                    (part.heads, part.rows, part.unit_bytes), (part.head_bytes, part.row_bytes, 1), part.offset_bytes)
