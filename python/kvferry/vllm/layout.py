"""From vLLM's KV caches to the library's regions and parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from vllm.v1.kv_cache_interface import AttentionSpec, MambaSpec, UniformTypeKVCacheSpecs

from kvferry import Part, Region, _kvferry
from kvferry.engine.memory import DTYPES, MEMORY

from . import seam
from .split import LATENT, Split, heads_of_all_layers
from .states import groups_of_all_layers, keeps_more, states_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

SCATTERED = ("LHBNC", "BHLNC")
"""vLLM's layouts in which a block is several pieces of memory, one for each head."""
DRAFT_MODELS = ("draft_model", "mtp")
"""What vLLM calls a drafter that is a model of its own; others' layers are numbered after the target's."""
FIRST_APART = 32768
"""Where the numbers of layers begin that a drafter counts from 0: beyond all others, as they are on the last stage of a
pipeline."""
APART = 128
"""Where the indexes begin of parts whose keys and values the kernels keep apart: they pair with their like only."""


class LayoutError(ValueError):
    """KV memory that kvferry cannot carry; the text says which layer and why."""


def split_of(vllm_config: VllmConfig, rank: int) -> Split:
    ranks = vllm_config.parallel_config.tensor_parallel_size
    model = vllm_config.model_config
    return Split(rank % ranks, ranks, heads_of_all_layers(model), groups_of_all_layers(model), model.get_total_num_hidden_layers())


class Pool(NamedTuple):
    """A rank's."""

    regions: list[Region]
    parts: list[Part]
    share: tuple[int, int, int]


def layer_specs(group: KVCacheGroupSpec) -> Iterator[tuple[str, AttentionSpec]]:
    """The layers of a group, in an order that is the same on every rank and engine of the model."""
    spec = group.kv_cache_spec
    for name in group.layer_names:
        yield name, spec.kv_cache_specs[name] if isinstance(spec, UniformTypeKVCacheSpecs) else spec


def one_spec(group: KVCacheGroupSpec) -> AttentionSpec:
    """Any layer's: a scheduler has no more of a group whose layers differ, and their windows do not. It may be
    another stage's of the pipeline."""
    spec = group.kv_cache_spec
    return next(iter(spec.kv_cache_specs.values())) if isinstance(spec, UniformTypeKVCacheSpecs) else spec


def is_numbered_apart(name: str) -> bool:
    """From 0 on, though it is not of the target."""
    return any(part in DRAFT_MODELS for part in name.split("."))


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
        raise LayoutError(f"layer {name}: its kernels keep a block of {spec.block_size} tokens as {parts}: set --block-size "
                          f"{spec.block_size // parts}")
    return block


def _bytes_of_states(name: str, spec: MambaSpec, tensor: torch.Tensor, blocks: int) -> int:
    """Of a block, in which vLLM shows all states of a layer as bytes, one after the other."""
    if keeps_more(spec):
        raise LayoutError(f"layer {name}: kvferry does not carry states that are replayed: start the engine without "
                          "--use-replayssm")
    if tensor.dim() != 4 or tensor.shape[:3] != (blocks, 1, 1) or not tensor[:1].is_contiguous():
        raise LayoutError(f"layer {name}: a state of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not "
                          f"[{blocks} blocks, 1, 1, bytes] with every block in one piece")
    return tensor.shape[3] * tensor.element_size()


def _is_one_piece(spec: AttentionSpec) -> bool:
    return isinstance(spec, LATENT) or slots_of(spec) is not None


def _cut(spec: AttentionSpec, block: torch.Tensor, tokens_outermost: bool) -> tuple[bool, int, int, int, int]:
    """Whether a block is one piece, which other ranks cannot have some heads of, and (unit, row and head bytes, rows)."""
    size, (parts, heads, rows, content) = block.element_size(), block.shape
    whole = block.numel() * size
    if _is_one_piece(spec) or spec.block_size % (parts * rows) != 0:
        return True, whole, whole, whole, 1
    if not tokens_outermost and (heads == 1 or (parts == 1 and block.is_contiguous())):
        # What is inside of a head's tokens only the kernels know.
        return False, whole // heads, whole // heads, whole // heads, 1
    return False, content * size, block.stride(2) * size, block.stride(1) * size, parts * rows


def _kind(spec: AttentionSpec, half: int | None) -> int:
    if getattr(spec, "cache_role", None) == "indexer":
        return _kvferry.PART_INDEX
    if isinstance(spec, LATENT):
        return _kvferry.PART_LATENT
    return _kvferry.PART_KV if half is None else (_kvferry.PART_KEYS, _kvferry.PART_VALUES)[half]


def layer_number(name: str) -> int:
    number = next((int(part) for part in name.split(".") if part.isdigit()), 0)
    return number + FIRST_APART if is_numbered_apart(name) else number


class _Pool:
    """One that is being put together."""

    def __init__(self, split: Split, blocks: int, layout: str | None) -> None:
        self.regions: list[Region] = []
        self.parts: list[Part] = []
        self._split = split
        self._blocks = blocks
        self._tokens_outermost = layout is not None and layout.index("N") < layout.index("H")
        self._seen: set[tuple[int, int]] = set()
        self._places: dict[tuple[int, int], int] = {}  # taken, by layer and kind

    def add(self, name: str, spec: AttentionSpec, tensor: torch.Tensor, group: int, half: int | None) -> int:
        """Bytes of a block. Layers that share another's KV add nothing."""
        if isinstance(spec, MambaSpec):
            return self._add_states(name, spec, tensor, group)
        block = _first_block(name, spec, tensor, self._blocks)
        size, device = tensor.element_size(), tensor.device
        block_bytes = block.numel() * size
        if (group, tensor.data_ptr()) in self._seen:
            return block_bytes
        self._seen.add((group, tensor.data_ptr()))
        in_one_piece, unit, row, head, rows = _cut(spec, block, self._tokens_outermost)
        layer, kind = layer_number(name), _kind(spec, half)
        place = self._places[layer, kind] = self._places.get((layer, kind), -1) + 1
        place += APART if slots_of(spec) is not None else 0
        heads, first, total = self._split.heads_of(spec, in_one_piece)
        self.parts.append(Part(layer, kind, place, group, DTYPES.get(str(tensor.dtype).removeprefix("torch."), 0),
                               len(self.regions), 0, unit, row, head, rows, spec.block_size, heads, first, total))
        self.regions.append(Region(tensor.data_ptr(), tensor.stride(0) * len(block) * size, block_bytes, self._blocks, 1, 1,
                                   group, MEMORY[device.type], device.index or 0))
        return block_bytes

    def _add_states(self, name: str, spec: MambaSpec, tensor: torch.Tensor, group: int) -> int:
        block_bytes = _bytes_of_states(name, spec, tensor, self._blocks)
        layer = layer_number(name)
        if 0 < self._split.layers <= layer < FIRST_APART:
            layer -= self._split.layers  # Falcon-H1 has them beside attention, and numbers them after all of that
        for state in states_of(spec, self._split):
            place = self._places[layer, state.kind] = self._places.get((layer, state.kind), -1) + 1
            place += APART if state.is_whole else 0
            self.parts.append(Part(layer, state.kind, place, group, DTYPES.get(str(state.dtype).removeprefix("torch."), 0),
                                   len(self.regions), state.offset, state.unit, state.row, state.head, state.rows, 0,
                                   state.heads, state.first, state.total))
        self.regions.append(Region(tensor.data_ptr(), tensor.stride(0) * tensor.element_size(), block_bytes, self._blocks, 1, 1,
                                   group, MEMORY[tensor.device.type], tensor.device.index or 0))
        return block_bytes

    def _shares(self, spec: AttentionSpec | MambaSpec) -> list[tuple[int, int, int]]:
        if isinstance(spec, MambaSpec):
            return [(state.heads, state.first, state.total) for state in states_of(spec, self._split)]
        return [self._split.heads_of(spec, _is_one_piece(spec))]

    def share(self, groups: Iterable[KVCacheGroupSpec]) -> tuple[int, int, int]:
        """Of the layers with most heads; of other stages of the pipeline, as far as their groups' kinds tell."""
        shares = [(part.heads, part.first_head, part.heads_total) for part in self.parts]
        shares += [share for group in groups for share in self._shares(one_spec(group))]
        heads, first, total = max(shares, key=lambda share: share[2])
        return first, heads, total


def _check_page(name: str, spec: AttentionSpec, carried: int) -> None:
    """What vLLM keeps beside the tensor that it shows (scales, say) would not be carried."""
    expected = seam.page_bytes(spec)
    if carried != expected:
        raise LayoutError(f"layer {name}: its blocks have {expected} bytes, and vLLM's tensor has {carried}")


def _halves(name: str, tensor: torch.Tensor) -> list[tuple[int | None, torch.Tensor]]:
    """One, or keys and values."""
    if not isinstance(tensor, torch.Tensor):
        raise LayoutError(f"layer {name}: its KV is not one tensor")
    if tensor.device.type not in MEMORY:
        raise LayoutError(f"layer {name}: its KV is on {tensor.device}, not on {' or '.join(MEMORY)}")
    return list(enumerate(tensor)) if tensor.dim() > 4 and tensor.shape[0] == 2 else [(None, tensor)]


def check_checksums(pool: Pool, layout: str | None) -> None:
    """They are of a head's bytes in one piece."""
    if any(part.rows > 1 and part.kind == _kvferry.PART_CONVOLUTION for part in pool.parts):
        raise LayoutError("checksum = on needs each head of a convolution's state in one piece: set "
                          "VLLM_SSM_CONV_STATE_LAYOUT=DS, or leave checksum out")
    if any(part.rows > 1 for part in pool.parts):
        raise LayoutError(f"checksum = on needs each head of a block in one piece, unlike {layout}: leave VLLM_KV_CACHE_LAYOUT "
                          "unset, or checksum out")


def pool_of(kv_caches: dict[str, torch.Tensor], kv_cache_config: KVCacheConfig, split: Split) -> Pool:
    """All layers, in the order of layer_specs()."""
    specs = [spec for group in kv_cache_config.transfer_groups for name, spec in layer_specs(group) if name in kv_caches]
    if not all(map(split.explains, specs)):
        split = replace(split, heads=None)
    pool = _Pool(split, kv_cache_config.num_blocks, kv_cache_config.kv_cache_layout)
    for index, group in enumerate(kv_cache_config.transfer_groups):
        for name, spec in layer_specs(group):
            _check_page(name, spec, sum(pool.add(name, spec, half, index, which)
                                        for which, half in _halves(name, kv_caches[name])))
    return Pool(pool.regions, pool.parts, pool.share(kv_cache_config.transfer_groups))
