"""From vLLM's KV caches to the library's regions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

Region = tuple[int, int, int, int, int, int, int]
SUPPORTED = (FullAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec)
"""Exactly these: kinds derived from them keep other things in their blocks."""


class LayoutError(ValueError):
    """KV memory that kvferry cannot carry; the text says which layer and why."""


def layer_specs(group: KVCacheGroupSpec) -> Iterator[tuple[str, AttentionSpec]]:
    """The layers of a group, in an order that is the same on every rank and engine of the model."""
    spec = group.kv_cache_spec
    for name in group.layer_names:
        yield name, spec.kv_cache_specs[name] if isinstance(spec, UniformTypeKVCacheSpecs) else spec


def slides(group: KVCacheGroupSpec) -> bool:
    """Whether blocks of the group leave a request while it runs."""
    return any(type(spec) is not FullAttentionSpec for _, spec in layer_specs(group))


def first_needed_block(group: KVCacheGroupSpec, tokens: int) -> int:
    """Of a request with this many computed tokens: the position of the first block that its next token, or another one
    that vLLM keeps for, looks at. As in get_num_skipped_tokens() of vLLM's managers."""
    return min(_skipped_tokens(spec, tokens) // spec.block_size for _, spec in layer_specs(group))


def _skipped_tokens(spec: AttentionSpec, tokens: int) -> int:
    if isinstance(spec, SlidingWindowSpec):
        return max(0, tokens - spec.sliding_window + 1 - spec.extra_retained_tokens)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return tokens // spec.attention_chunk_size * spec.attention_chunk_size
    return 0


def check_groups(kv_cache_config: KVCacheConfig) -> int:
    """The tokens of a block, the same in all groups."""
    block_tokens = set()
    for group in kv_cache_config.transfer_groups:
        for name, spec in layer_specs(group):
            if type(spec) not in SUPPORTED:
                raise LayoutError(f"kvferry does not carry the state of layer {name} ({type(spec).__name__})")
            block_tokens.add(spec.block_size)
    if len(block_tokens) != 1:
        raise LayoutError(f"kvferry needs KV groups with one block size, not {sorted(block_tokens)}")
    return block_tokens.pop()


def _pool(name: str, tensor: torch.Tensor, blocks: int, heads: int, heads_total: int, group: int) -> Region:
    """One region: block i is tensor[i], its heads one after the other."""
    block = tensor[0]
    if tensor.shape[0] != blocks or block.shape[0] != heads or not block.is_contiguous():
        raise LayoutError(
            f"layer {name}: KV of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not "
            f"[{blocks} blocks, {heads} heads, ...] with every block in one piece and its heads outermost")
    size = tensor.element_size()
    return (tensor.data_ptr(), tensor.stride(0) * size, block.numel() * size, blocks, heads, heads_total, group)


def _check_page(name: str, spec: AttentionSpec, regions: list[Region]) -> None:
    """What vLLM keeps beside the tensor that it shows (scales, say) would not be carried."""
    carried, page = sum(region[2] for region in regions), spec.real_page_size_bytes
    if carried != page:
        raise LayoutError(f"layer {name}: its blocks are {page} bytes, and the tensor that vLLM shows has {carried} of them")


def _layer_regions(name: str, tensor: torch.Tensor, blocks: int, heads: int, heads_total: int,
                   group: int) -> list[Region]:
    if not isinstance(tensor, torch.Tensor):
        raise LayoutError(f"layer {name}: its KV is not one tensor")
    if tensor.device.type != "cpu":
        raise LayoutError(f"layer {name}: its KV is on {tensor.device}, and kvferry carries host memory only")
    if tensor.dim() > 2 and tensor.shape[0] == 2 and tensor.shape[1] == blocks:
        return [_pool(name, half, blocks, heads, heads_total, group) for half in tensor]
    return [_pool(name, tensor, blocks, heads, heads_total, group)]


def regions_of(kv_caches: dict[str, torch.Tensor], kv_cache_config: KVCacheConfig, ranks: int) -> list[Region]:
    """Regions of all layers, in the order of layer_specs(). Layers that share another's KV add none."""
    regions: list[Region] = []
    for index, group in enumerate(kv_cache_config.transfer_groups):
        seen: set[int] = set()
        for name, spec in layer_specs(group):
            if spec.max_tp_shards is not None and spec.max_tp_shards < ranks:
                raise LayoutError(f"layer {name}: its KV heads are replicated over {ranks} ranks, not split")
            of_layer = _layer_regions(name, kv_caches[name], kv_cache_config.num_blocks, spec.num_kv_heads,
                                      spec.num_kv_heads * ranks, index)
            _check_page(name, spec, of_layer)
            for region in of_layer:
                if region[0] not in seen:
                    regions.append(region)
                seen.add(region[0])
    return regions
