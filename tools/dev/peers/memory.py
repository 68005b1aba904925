"""The two pools and the lists of blocks: the same pages for all implementations."""

from __future__ import annotations

import mmap
import os

import numpy as np

from .shapes import Shape
from .side import PLAN_BLOCKS

FILL_BYTES = 64 << 20


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

    def _parts(self, shape: Shape, pool: np.ndarray, side: int) -> np.ndarray:
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
