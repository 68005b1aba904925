"""What is read, so many blocks of so many layers at random places of a pool; and the two pools: the same pages for all."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, replace

import numpy as np

from .side import PLAN_BLOCKS

KIB = 1024
MIB = 1024 * KIB
POOL_BYTES = 768 * MIB
FILL_BYTES = 64 * MIB
POOL_SEGMENTS_MAX = 16384  # blocks of all layers: NIXL's prepared lists name each of them


@dataclass(frozen=True)
class Shape:
    name: str
    layers: int
    blocks: int
    block_bytes: int
    cut: str = ""

    @property
    def bytes(self) -> int:
        return self.layers * self.blocks * self.block_bytes

    def pool_blocks(self, pool_bytes: int) -> int:
        """Blocks of one layer's pool."""
        return min(pool_bytes // (self.layers * self.block_bytes), max(POOL_SEGMENTS_MAX // self.layers, self.blocks))


SHAPES = (
    Shape("1x4KiB", 1, 1, 4 * KIB),
    Shape("1x16KiB", 1, 1, 16 * KIB),
    Shape("64x16KiB", 1, 64, 16 * KIB),
    Shape("1024x16KiB", 1, 1024, 16 * KIB),
    Shape("256x256KiB", 1, 256, 256 * KIB),
    Shape("64x1MiB", 1, 64, MIB),
    Shape("SmolLM2:30x4x96KiB", 30, 4, 96 * KIB),
    Shape("Llama-3-70B:80x64x64KiB", 80, 64, 64 * KIB),
    # MLA: latents of 576 values of two bytes, 64 tokens a block.
    Shape("deepseek:61x32x72KiB", 61, 32, 72 * KIB),
    # 12 layers with attention and 36 with a state, in pages of one size, which vLLM's groups share: of 2,048 tokens two blocks of
    # attention and three states in each of 12 tensors.
    Shape("qwen3-next:12x5x2112KiB", 12, 5, 2112 * KIB),
)


def pool_bytes_for(available_bytes: int) -> int:
    """Two pools, shared by all implementations, in at most half of the memory that is free."""
    return min(POOL_BYTES, available_bytes // 4 // MIB * MIB)


def fit(shape: Shape, pool_bytes: int) -> Shape:
    """The shape, or as many of its blocks as the pool has room for twice."""
    room = pool_bytes // (2 * shape.layers * shape.block_bytes)
    if shape.blocks == 1 or room >= shape.blocks:
        return shape
    return replace(shape, blocks=max(1, room), cut=f"{max(1, room)} of {shape.blocks} blocks: the memory is too small")


def available_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * KIB
    raise RuntimeError("/proc/meminfo does not say how much memory is available")


class Memory:
    def __init__(self, pool_bytes: int, seed: int):
        self.pool_bytes = pool_bytes
        self.seed = seed
        self.fds = tuple(os.memfd_create(name, 0) for name in ("source", "destination", "plan"))
        sizes = (pool_bytes, pool_bytes, 2 * 4 * PLAN_BLOCKS)
        for fd, size in zip(self.fds, sizes):
            os.ftruncate(fd, size)
        maps = [mmap.mmap(fd, size) for fd, size in zip(self.fds, sizes)]
        self.source, self.destination = (np.frombuffer(pool, dtype=np.uint8) for pool in maps[:2])
        self.plan = np.frombuffer(maps[2], dtype=np.uint32)
        self.fill()

    @property
    def arguments(self) -> list[str]:
        return [*(str(fd) for fd in self.fds), str(self.pool_bytes)]

    def fill(self) -> None:
        """Random bytes: a block that lands at a wrong place differs from what belongs there."""
        random = np.random.default_rng(self.seed)
        for at in range(0, self.pool_bytes, FILL_BYTES):
            part = self.source[at : at + FILL_BYTES]
            part[:] = np.frombuffer(random.bytes(len(part)), dtype=np.uint8)
        self.destination[:] = 0

    def choose(self, shape: Shape) -> None:
        """Different blocks, in random order, on either side; the same for the same seed."""
        random = np.random.default_rng([self.seed, shape.layers, shape.blocks, shape.block_bytes])
        pool_blocks = shape.pool_blocks(self.pool_bytes)
        for side in (0, PLAN_BLOCKS):
            self.plan[side : side + shape.blocks] = random.permutation(pool_blocks)[: shape.blocks]

    def _parts(self, shape: Shape, pool: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
        pool_blocks = shape.pool_blocks(self.pool_bytes)
        used = pool[: shape.layers * pool_blocks * shape.block_bytes]
        return used.reshape(shape.layers, pool_blocks, shape.block_bytes), self.plan[side : side + shape.blocks]

    def clear(self, shape: Shape) -> None:
        pool, ids = self._parts(shape, self.destination, PLAN_BLOCKS)
        pool[:, ids] = 0

    def is_copied(self, shape: Shape) -> bool:
        """Whether each block of the consumer is the producer's."""
        theirs, remote_ids = self._parts(shape, self.source, 0)
        ours, local_ids = self._parts(shape, self.destination, PLAN_BLOCKS)
        return all(
            np.array_equal(ours[layer, local], theirs[layer, remote])
            for layer in range(shape.layers)
            for local, remote in zip(local_ids, remote_ids)
        )
