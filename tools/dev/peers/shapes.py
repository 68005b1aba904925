"""What is read: so many blocks of so many layers, at random places of a pool."""

from __future__ import annotations

from dataclasses import dataclass, replace

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
POOL_BYTES = 768 * MIB
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
