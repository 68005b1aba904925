"""From TensorRT-LLM's pools to the library's regions and parts."""

from __future__ import annotations

from typing import Any, NamedTuple

from kvferry import Part, Region, _kvferry
from kvferry.engine.config import ConfigError
from kvferry.engine.memory import DTYPES, MEMORY

from .config import Config
from .identity import Model

KINDS = {"key": _kvferry.PART_KEYS, "value": _kvferry.PART_VALUES}
"""By KVCacheManagerV2's roles."""
KEYS_AND_VALUES = ("key", "value")
HEADS_OUTERMOST = ("TRTLLM",)
"""Backends of which it is known how a block lies: heads, then tokens (kvCacheUtils.h). Of others a rank's heads are one
piece, so that P and D need equally many ranks."""


class LayoutError(ConfigError):
    """KV memory that kvferry cannot carry."""


class Pool(NamedTuple):
    """A rank's."""

    regions: list[Region]
    parts: list[Part]
    share: tuple[int, int, int]
    groups: int
    blocks: int
    memory: int
    device: int

    @property
    def block_bytes(self) -> int:
        """Of one block of each group."""
        return sum(region.block_bytes for region in self.regions)


class Heads(NamedTuple):
    """How a rank's heads lie in its part of a block."""

    count: int
    first: int
    total: int
    unit_bytes: int  # of a row of a head
    rows: int


def check_heads(config: Config, model: Model) -> None:
    if model.kv_heads < config.ranks or model.kv_heads % config.ranks:
        raise LayoutError(f"kvferry needs KV heads that {config.ranks} ranks share evenly, and the model has {model.kv_heads}")


def _heads(config: Config, model: Model, rank: int, part_bytes: int) -> Heads:
    total, ranks, tokens = model.kv_heads, config.ranks, config.block_tokens
    check_heads(config, model)
    mine = total // ranks
    if getattr(config.args, "attn_backend", "TRTLLM") not in HEADS_OUTERMOST:
        return Heads(1, rank, ranks, part_bytes, 1)
    if part_bytes % (mine * tokens):
        raise LayoutError(f"{part_bytes} bytes are not {mine} heads of {tokens} tokens")
    return Heads(mine, rank * mine, total, part_bytes // (mine * tokens), tokens)


def _part(heads: Heads, layer: int, kind: int, group: int, region: int, offset: int, block_tokens: int, dtype: int = 0) -> Part:
    return Part(layer, kind, 0, group, dtype, region, offset, heads.unit_bytes, heads.unit_bytes, heads.unit_bytes * heads.rows,
                heads.rows, block_tokens, heads.count, heads.first, heads.total)


def pool_of_tensor(tensor: Any, config: Config, model: Model, rank: int) -> Pool:
    """V1: [blocks, layers, keys and values, heads x tokens x head size], one piece a block."""
    shape, size = tuple(tensor.shape), tensor.element_size()
    if len(shape) != 4 or shape[2] != len(KEYS_AND_VALUES):
        raise LayoutError(f"a pool of shape {shape} is not [blocks, layers, 2, heads x tokens x head size]: kvferry carries "
                          "keys and values, not latents")
    if tuple(tensor.stride()) != (shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1):
        raise LayoutError(f"a pool of strides {tuple(tensor.stride())} has no block in one piece")
    check_heads(config, model)
    expected = (model.layers, model.kv_heads // config.ranks * config.block_tokens * model.head_size)
    if (shape[1], shape[3]) != expected:
        raise LayoutError(f"a pool of {shape[1]} layers with {shape[3]} values each is not all of this rank's KV, which has {expected[0]} with "
                          f"{expected[1]}: kvferry does not carry layers that differ, or scales beside them")
    if tensor.device.type not in MEMORY:
        raise LayoutError(f"the pool is on {tensor.device}, and kvferry carries memory of {' and '.join(MEMORY)}")
    memory, device = MEMORY[tensor.device.type], tensor.device.index or 0
    part_bytes = shape[3] * size
    block_bytes = shape[1] * shape[2] * part_bytes
    heads = _heads(config, model, rank, part_bytes)
    parts = [_part(heads, layer, KINDS[role], 0, 0, (layer * 2 + index) * part_bytes, config.block_tokens,
                   DTYPES.get(str(tensor.dtype).removeprefix("torch."), 0))
             for layer in range(shape[1]) for index, role in enumerate(KEYS_AND_VALUES)]
    region = Region(tensor.data_ptr(), block_bytes, block_bytes, shape[0], 1, 1, 0, memory, device)
    return Pool([region], parts, (heads.first, heads.count, heads.total), 1, shape[0], memory, device)


def pool_of_layout(layout: Any, config: Config, model: Model, rank: int, memory: int, device: int) -> Pool:
    """V2: regions of layer groups, each a run of buffers in every page."""
    if layout.tokens_per_block != config.block_tokens:
        raise LayoutError(f"pages of {layout.tokens_per_block} tokens, where kv_cache_config.tokens_per_block is {config.block_tokens}")
    regions: list[Region] = []
    parts: list[Part] = []
    share = (0, 1, 1)
    for index, group in enumerate(layout.groups):
        if group.layer_group_id != index:  # page ids come by that number
            raise LayoutError(f"layer group {group.layer_group_id} is the {'first' if index == 0 else 'next'} of the pool's, expected {index}")
        if group.window_size is not None:
            raise LayoutError(f"layer group {group.layer_group_id} has a sliding window, which kvferry does not carry on TensorRT-LLM")
        for region, is_replicated in [*((one, False) for one in group.regions), *((one, True) for one in group.replicated_regions)]:
            if len(region.buffers) == 0 or region.size % len(region.buffers) or any(one.expansion != 1 for one in region.buffers):
                raise LayoutError(f"layer group {group.layer_group_id} has a region of {len(region.buffers)} buffers in {region.size} bytes, "
                                  "which are not all of one size")
            part_bytes = region.size // len(region.buffers)
            heads = Heads(1, 0, 1, part_bytes, 1) if is_replicated else _heads(config, model, rank, part_bytes)
            share = share if is_replicated else (heads.first, heads.count, heads.total)
            for place, buffer in enumerate(region.buffers):
                if buffer.role not in KINDS and not is_replicated:
                    raise LayoutError(f"kvferry does not carry {buffer.role!r} of layer {buffer.layer_id}")
                kind = KINDS.get(buffer.role, _kvferry.PART_INDEX)
                parts.append(_part(heads, buffer.layer_id, kind, index, len(regions), place * part_bytes, config.block_tokens))
            regions.append(Region(region.base, region.stride, region.size, region.num_slots, 1, 1, index, memory, device))
    if not regions:
        raise LayoutError("the engine has no KV memory")
    for kind, role in ((_kvferry.PART_KEYS, "key"), (_kvferry.PART_VALUES, "value")):
        there = sorted(part.layer for part in parts if part.kind == kind)
        if there != list(range(model.layers)):
            raise LayoutError(f"the layers that have a {role!r} are {there}, not all {model.layers}: kvferry carries keys and values, not latents")
    blocks = min(region.blocks for region in regions)
    return Pool(regions, parts, share, len(layout.groups), blocks, memory, device)
