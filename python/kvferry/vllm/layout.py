"""From vLLM's KV caches to the library's regions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from kvferry import Region, _kvferry

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

SUPPORTED = (FullAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec)
"""Exactly these: kinds derived from them keep other things in their blocks."""
MEMORY = {"cpu": _kvferry.MEMORY_HOST, "cuda": _kvferry.MEMORY_CUDA}
"""By torch's kinds of devices."""
SCATTERED = ("LHBNC", "BHLNC")
"""vLLM's layouts in which a block is several pieces of memory, one for each head."""


DRAFT_MODELS = ("draft_model", "mtp")
"""What vLLM calls a drafter that is a model of its own; others' layers are numbered after the target's."""


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


def _is_draft(name: str, target_layers: int) -> bool:
    parts = name.split(".")
    return parts[0] in DRAFT_MODELS or any(part.isdigit() and int(part) >= target_layers for part in parts)


def without_drafts(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig,
                   carry: bool) -> tuple[KVCacheConfig, list[str]]:
    """What is carried, and the draft layers that are not: all of them if one cannot be carried beside the target's."""
    speculative = vllm_config.speculative_config
    if speculative is None or not speculative.uses_draft_kv_cache():
        return kv_cache_config, []
    target_layers = vllm_config.model_config.get_total_num_hidden_layers()
    ranks = vllm_config.parallel_config.tensor_parallel_size

    def kind(spec: AttentionSpec) -> tuple[object, ...]:
        split = getattr(spec, "max_tp_shards", None)
        return type(spec) in SUPPORTED, spec.block_size, getattr(spec, "num_kv_heads", 0), split is None or split >= ranks

    specs = dict(one for group in kv_cache_config.transfer_groups for one in layer_specs(group))
    drafts = [name for name in specs if _is_draft(name, target_layers)]
    kinds = {kind(spec) for name, spec in specs.items() if name not in drafts}
    if carry and all(kind(specs[name]) in kinds for name in drafts):
        return kv_cache_config, []
    groups = []
    for group in kv_cache_config.kv_cache_groups:
        names = [name for name in group.layer_names if name not in drafts]
        groups.append(replace(group, layer_names=names, enable_kv_transfer=group.enable_kv_transfer and bool(names)))
    return replace(kv_cache_config, kv_cache_groups=groups), drafts


def check_groups(kv_cache_config: KVCacheConfig) -> int:
    """The tokens of a block, the same in all groups."""
    block_tokens, heads = set(), set()
    for group in kv_cache_config.transfer_groups:
        for name, spec in layer_specs(group):
            if type(spec) not in SUPPORTED:
                raise LayoutError(f"kvferry does not carry the state of layer {name} ({type(spec).__name__})")
            block_tokens.add(spec.block_size)
            heads.add(spec.num_kv_heads)
    if len(block_tokens) != 1:
        raise LayoutError(f"kvferry needs KV groups with one block size, not {sorted(block_tokens)}")
    if len(heads) != 1:
        raise LayoutError(f"kvferry needs layers with one number of KV heads, not {sorted(heads)}")
    return block_tokens.pop()


def slots_of(spec: AttentionSpec) -> int | None:
    """What vLLM shows in place of a layer's KV heads, where its kernels keep keys and values apart; else None."""
    return getattr(spec, "num_head_slots", None)


def _first_block(name: str, spec: AttentionSpec, tensor: torch.Tensor, blocks: int) -> torch.Tensor:
    """[parts, heads, tokens, content], in any order of memory. Where kernels take smaller blocks than vLLM's scheduler hands
    out, vLLM shows those: so many parts of each."""
    parts, heads = tensor.shape[0] // blocks, slots_of(spec) or spec.num_kv_heads
    block = tensor[:parts]
    by_stride = sorted(range(block.dim()), key=block.stride, reverse=True)
    if tensor.dim() != 4 or tensor.shape[:2] != (parts * blocks, heads) or not block.permute(by_stride).is_contiguous():
        raise LayoutError(
            f"layer {name}: KV of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not "
            f"[{blocks} blocks, {heads} heads, tokens, content] with every block in one piece")
    # If tokens go on over the parts, it is the same bytes however many there are: that may differ between P and D.
    if parts > 1 and (slots_of(spec) or block.stride(0) != block.shape[2] * block.stride(2)):
        raise LayoutError(f"layer {name}: its kernels keep a block of {spec.block_size} tokens as {parts}: start the engine "
                          f"with --block-size {spec.block_size // parts}")
    return block


def _region(name: str, spec: AttentionSpec, tensor: torch.Tensor, blocks: int, group: int) -> Region:
    """Its `heads` are 1 if they do not lie one after the other in a block: then it cannot be cut for other ranks."""
    block = _first_block(name, spec, tensor, blocks)
    size, memory = tensor.element_size(), MEMORY[tensor.device.type]
    heads = spec.num_kv_heads if block.is_contiguous() and slots_of(spec) is None else 1
    return Region(tensor.data_ptr(), tensor.stride(0) * len(block) * size, block.numel() * size, blocks, heads, heads, group,
                  memory, tensor.device.index or 0)


def _check_page(name: str, spec: AttentionSpec, regions: list[Region]) -> None:
    """What vLLM keeps beside the tensor that it shows (scales, say) would not be carried."""
    carried, page = sum(region.block_bytes for region in regions), spec.real_page_size_bytes
    if carried != page:
        raise LayoutError(f"layer {name}: its blocks are {page} bytes, and the tensor that vLLM shows has {carried} of them")


def _layer_regions(name: str, spec: AttentionSpec, tensor: torch.Tensor, blocks: int, group: int) -> list[Region]:
    if not isinstance(tensor, torch.Tensor):
        raise LayoutError(f"layer {name}: its KV is not one tensor")
    if tensor.device.type not in MEMORY:
        raise LayoutError(f"layer {name}: its KV is on {tensor.device}, and kvferry carries memory of {' and '.join(MEMORY)}")
    halves = tensor if tensor.dim() > 4 and tensor.shape[0] == 2 else [tensor]
    return [_region(name, spec, half, blocks, group) for half in halves]


def regions_of(kv_caches: dict[str, torch.Tensor], kv_cache_config: KVCacheConfig, ranks: int) -> list[Region]:
    """Regions of all layers, in the order of layer_specs(). Layers that share another's KV add none."""
    regions: list[Region] = []
    for index, group in enumerate(kv_cache_config.transfer_groups):
        seen: set[int] = set()
        for name, spec in layer_specs(group):
            if spec.max_tp_shards is not None and spec.max_tp_shards < ranks:
                raise LayoutError(f"layer {name}: its KV heads are replicated over {ranks} ranks, not split")
            of_layer = _layer_regions(name, spec, kv_caches[name], kv_cache_config.num_blocks, index)
            _check_page(name, spec, of_layer)
            for region in of_layer:
                if region.base not in seen:
                    regions.append(region)
                seen.add(region.base)
    # Without heads to cut, a block is one of as many as there are ranks: engines that differ in ranks are incompatible.
    heads = min((region.heads for region in regions), default=1)
    return [region._replace(heads=heads, heads_total=heads * ranks) for region in regions]
