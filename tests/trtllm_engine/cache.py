"""The KV cache of one rank: blocks, who uses them, and the tree of those that later requests can use again."""

from __future__ import annotations

import ctypes
import itertools
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from .collectives import RuleBroken
from .device import Host
from .model import CODES, INDEX_CODE, MIXED, POISON, Identity, Shape

BAD_PAGE_INDEX = -1
"""In place of a block that the window has passed."""


class LayerGroup:
    """The blocks of the layers that have the same window, with this rank's heads."""

    def __init__(self, index: int, layers: list[int], window: int | None, blocks: int, shape: Shape,
                 tokens_per_block: int, rank: int, ranks: int, has_index: bool, device: Host) -> None:
        self.index, self.layers, self.window, self.blocks = index, layers, window, blocks
        self.tokens_per_block = tokens_per_block
        heads = shape.heads // ranks
        self.kv_elements = len(layers) * 2 * heads * tokens_per_block * shape.head_dim
        self.index_elements = len(layers) * tokens_per_block if has_index else 0
        self.memory = device.memory(blocks, self.kv_elements + self.index_elements)
        self._device = device
        rows = self.memory.numpy()
        # Heads outermost inside K or V of a layer. (kv_cache_manager_v2.py: HND; kvCacheManager.cpp: allocatePools)
        self._kv = _split(rows, 0, (len(layers), 2, heads, tokens_per_block, shape.head_dim))
        self._index = _split(rows, self.kv_elements, (len(layers), tokens_per_block)) if has_index else None
        self._codes = np.array([[[((layer * 2 + kv) * shape.heads + rank * heads + head + 1) for head in range(heads)]
                                 for kv in range(2)] for layer in layers], np.float32)[..., None, None]
        assert shape.layers * 2 * shape.heads < INDEX_CODE and INDEX_CODE + shape.layers < CODES
        rows[:] = POISON

    def write(self, layer: int, block: int, offset: int, number: int) -> None:
        at = self.layers.index(layer)
        self._kv[block, at, :, :, offset] = number * CODES + self._codes[at, :, :, 0]
        if self._index is not None:
            self._index[block, at, offset] = number * CODES + INDEX_CODE + layer

    def number(self, layer: int, block: int, offset: int) -> int:
        """Of one token; MIXED where K, V and the heads do not agree, or nothing was written."""
        at = self.layers.index(layer)
        found = (self._kv[block, at, :, :, offset] - self._codes[at, :, :, 0]).ravel().tolist()
        if self._index is not None:
            found.append(float(self._index[block, at, offset]) - INDEX_CODE - layer)
        low = found[0]
        return int(low) // CODES if found.count(low) == len(found) and low >= 0 and low % CODES == 0 else MIXED

    def numbers(self, blocks: Sequence[int]) -> list[int]:
        """Of these blocks' tokens; MIXED where the layers do not agree, either."""
        tokens = len(blocks) * self.tokens_per_block
        rows = (self._kv[blocks] - self._codes).transpose(0, 4, 1, 2, 3, 5).reshape(tokens, -1)
        if self._index is not None:
            index = self._index[blocks] - (INDEX_CODE + np.array(self.layers))[:, None]
            rows = np.concatenate([rows, index.transpose(0, 2, 1).reshape(tokens, -1)], 1)
        low, high = rows.min(1), rows.max(1)
        there = np.repeat(np.array(blocks) != BAD_PAGE_INDEX, self.tokens_per_block)
        good = there & (low == high) & (low >= 0) & (low % CODES == 0)
        return [int(number) for number in np.where(good, low // CODES, MIXED)]

    def copy(self, source: int, target: int) -> None:
        self._device.stream.run(lambda: self.memory[target].copy_(self.memory[source]))

    def poison(self, block: int) -> None:
        self._device.stream.run(lambda: self.memory[block].fill_(POISON))


def _split(rows: np.ndarray, first: int, shape: tuple[int, ...]) -> np.ndarray:
    inner = [rows.itemsize * int(np.prod(shape[i + 1:])) for i in range(len(shape))]
    return np.lib.stride_tricks.as_strided(rows[:, first:], (len(rows), *shape), (rows.strides[0], *inner))


@dataclass(eq=False)
class Node:
    """Of the tree: the block that holds the last tokens of this prefix, in each group that still has it."""

    key: tuple[Identity, tuple[int, ...]]
    blocks: list[int]


@dataclass
class _Sequence:
    tables: list[list[int]]
    committed: int = 0
    """Blocks that have been offered to the tree."""


@dataclass
class Match:
    nodes: list[Node] = field(default_factory=list)
    partial: Node | None = None
    partial_tokens: int = 0

    def tokens(self, tokens_per_block: int) -> int:
        return len(self.nodes) * tokens_per_block + self.partial_tokens


class Cache:
    """Blocks are handed out in an order that the seed draws; what is given back is poisoned, and had again soon."""

    def __init__(self, groups: list[LayerGroup], tokens_per_block: int, seed: int, reuse: bool, partial_reuse: bool,
                 is_v2: bool) -> None:
        self.groups, self.tokens_per_block, self.is_v2 = groups, tokens_per_block, is_v2
        self.reuse, self.partial_reuse = reuse, partial_reuse
        self.held = 0
        """So many blocks are not to be had: a fault of a test. Whoever has begun on V1 gets what it was promised all the same."""
        self._random = random.Random(seed)
        self._free = [self._random.sample(range(group.blocks), group.blocks) for group in groups]
        self._uses: list[Counter[int]] = [Counter() for _ in groups]
        self._of_tree: list[dict[int, Node]] = [{} for _ in groups]
        self._tree: OrderedDict[tuple[Identity, tuple[int, ...]], Node] = OrderedDict()
        self._sequences: dict[int, _Sequence] = {}
        self._pins: dict[int, list[list[int]]] = {}

    # ---- what there is ----

    def free_blocks(self) -> int:
        """That nobody uses, whether the tree has them or not. Of the group that has the fewest."""
        return min(group.blocks - len(self._used(group.index)) for group in self.groups)

    def available(self, group: int) -> int:
        return self.groups[group].blocks - len(self._used(group)) - self.held

    def _used(self, group: int) -> set[int]:
        return {block for block, uses in self._uses[group].items() if uses > 0}

    def has(self, request_id: int) -> bool:
        return request_id in self._sequences

    def ids(self, request_id: int) -> list[list[int]]:
        """By layer group. A KeyError where the request has none."""
        return [list(table) for table in self._sequences[request_id].tables]

    def pinned(self) -> set[int]:
        return set(self._pins)

    def block_of(self, request_id: int, group: int, position: int) -> int:
        return self._sequences[request_id].tables[group][position // self.tokens_per_block]

    # ---- the tree ----

    def match(self, identity: Identity, tokens: Sequence[int]) -> Match:
        """The longest prefix of whole blocks that is there, without the last token, which is always computed."""
        size, found = self.tokens_per_block, Match()
        if not self.reuse:
            return found
        for end in range(size, len(tokens), size):
            node = self._tree.get((identity, tuple(tokens[:end])))
            if node is None:
                break
            found.nodes.append(node)
        while found.nodes and not self._has_windows(found.nodes):
            found.nodes.pop()
        if self.partial_reuse:
            self._match_partly(identity, tokens, found)
        return found

    def _has_windows(self, nodes: list[Node]) -> bool:
        return all(node.blocks[group.index] != BAD_PAGE_INDEX
                   for group in self.groups for i, node in enumerate(nodes)
                   if not self._has_slid(group, i, len(nodes) * self.tokens_per_block))

    def _match_partly(self, identity: Identity, tokens: Sequence[int], found: Match) -> None:
        start = len(found.nodes) * self.tokens_per_block
        before, after = tuple(tokens[:start]), tokens[start:len(tokens) - 1]
        for (of, known), node in self._tree.items():
            if of != identity or len(known) != start + self.tokens_per_block or known[:start] != before:
                continue
            pairs = zip(known[start:], after)
            same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            if same > found.partial_tokens and BAD_PAGE_INDEX not in node.blocks:
                found.partial, found.partial_tokens = node, same

    def commit(self, request_id: int, identity: Identity, tokens: Sequence[int]) -> None:
        """The blocks that these tokens fill are there for others from now on."""
        sequence = self._sequences[request_id]
        if not self.reuse:
            return
        while (sequence.committed + 1) * self.tokens_per_block <= len(tokens):
            end = (sequence.committed + 1) * self.tokens_per_block
            key = (identity, tuple(tokens[:end]))
            blocks = [table[sequence.committed] for table in sequence.tables]
            sequence.committed += 1
            if key in self._tree:
                self._tree.move_to_end(key)
                continue
            node = self._tree[key] = Node(key, blocks)
            for of_tree, block in zip(self._of_tree, blocks):
                if block != BAD_PAGE_INDEX:
                    of_tree[block] = node

    def _evict(self, group: int) -> None:
        for node in self._tree.values():
            block = node.blocks[group]
            if block != BAD_PAGE_INDEX and self._uses[group][block] == 0:
                node.blocks[group] = BAD_PAGE_INDEX
                del self._of_tree[group][block]
                self._give_back(group, block)
                if all(each == BAD_PAGE_INDEX for each in node.blocks) or not self.is_v2:
                    del self._tree[node.key]
                return
        raise AssertionError("blocks were counted that are not there")

    # ---- sequences ----

    def add(self, request_id: int, match: Match) -> None:
        assert request_id not in self._sequences
        tables: list[list[int]] = [[] for _ in self.groups]
        end = len(match.nodes) * self.tokens_per_block
        for i, node in enumerate(match.nodes):
            self._tree.move_to_end(node.key)
            for group, table in zip(self.groups, tables):
                table.append(BAD_PAGE_INDEX if self._has_slid(group, i, end) else node.blocks[group.index])
        self._sequences[request_id] = _Sequence(tables, len(match.nodes))
        self._use(tables, 1)
        if match.partial is not None:
            self._copy_partly(tables, match.partial)

    def take_over(self, request_id: int, match: Match, first: int, end: int) -> None:
        """These blocks of the tree instead of the request's own ones."""
        tables = self._sequences[request_id].tables
        for i in range(first, end):
            for group, table in zip(self.groups, tables):
                shared = match.nodes[i].blocks[group.index]
                self._use([[shared] if each is group else [] for each in self.groups], 1)
                self._leave(group.index, table[i])
                table[i] = shared
        self._sequences[request_id].committed = max(self._sequences[request_id].committed, end)

    def _copy_partly(self, tables: list[list[int]], node: Node) -> None:
        self._use([[block] for block in node.blocks], 1)
        for group, table, source in zip(self.groups, tables, node.blocks):
            table.append(self._take(group.index))
            group.copy(source, table[-1])
        self._use([[block] for block in node.blocks], -1)

    def missing(self, request_id: int, tokens: int) -> int:
        """Blocks without which so many tokens have no room, in the group that needs the most."""
        return max(-(-tokens // self.tokens_per_block) - len(table) for table in self._sequences[request_id].tables)

    def grow(self, request_id: int, tokens: int, history: int = 0) -> bool:
        """Room for so many tokens, of which the first are history. False: there is not enough, and nothing is taken."""
        tables = self._sequences[request_id].tables
        wanted = -(-tokens // self.tokens_per_block)
        needs = [[i for i in range(len(table), wanted) if not self._has_slid(group, i, history)]
                 for group, table in zip(self.groups, tables)]
        promised = 0 if self.is_v2 else self.held
        if any(len(need) > self.available(group.index) + promised for group, need in zip(self.groups, needs) if need):
            return False
        for group, table, need in zip(self.groups, tables, needs):
            table += [self._take(group.index) if i in need else BAD_PAGE_INDEX for i in range(len(table), wanted)]
        return True

    def shrink(self, request_id: int, tokens: int) -> None:
        """What is beyond these tokens is given back."""
        first = -(-tokens // self.tokens_per_block)
        tables = self._sequences[request_id].tables
        self._use([table[first:] for table in tables], -1)
        for table in tables:
            del table[first:]

    def slide(self, request_id: int, history: int) -> None:
        """Blocks that no later token attends to are given back."""
        for group, table in zip(self.groups, self._sequences[request_id].tables):
            for i, block in enumerate(table):
                if block != BAD_PAGE_INDEX and self._has_slid(group, i, history):
                    table[i] = BAD_PAGE_INDEX
                    self._leave(group.index, block)

    def _has_slid(self, group: LayerGroup, block: int, history: int) -> bool:
        return group.window is not None and (block + 1) * self.tokens_per_block <= history + 1 - group.window

    def release(self, request_id: int) -> None:
        self._use(self._sequences.pop(request_id).tables, -1)

    def pin(self, request_id: int) -> None:
        """They stay until unpin(), whatever becomes of the request."""
        self._pins[request_id] = self.ids(request_id)
        self._use(self._pins[request_id], 1)

    def unpin(self, request_id: int) -> None:
        self._use(self._pins.pop(request_id), -1)

    # ---- blocks ----

    def _use(self, tables: list[list[int]], change: int) -> None:
        for group, block in self._each(tables):
            if change > 0:
                self._uses[group][block] += 1
            else:
                self._leave(group, block)

    @staticmethod
    def _each(tables: list[list[int]]) -> Iterator[tuple[int, int]]:
        return ((group, block) for group, table in enumerate(tables) for block in table if block != BAD_PAGE_INDEX)

    def _take(self, group: int) -> int:
        if not self._free[group]:
            self._evict(group)
        free = self._free[group]
        block = free.pop(-1 if self._random.random() < 0.5 else self._random.randrange(len(free)))
        self._uses[group][block] += 1
        return block

    def _leave(self, group: int, block: int) -> None:
        self._uses[group][block] -= 1
        if self._uses[group][block] < 0:
            raise RuleBroken(f"block {block} of group {group} is given back twice")
        if self._uses[group][block] == 0 and block not in self._of_tree[group]:
            self._give_back(group, block)

    def _give_back(self, group: int, block: int) -> None:
        self.groups[group].poison(block)
        self._free[group].append(block)


# ---- KVCacheManagerV2's description of its memory (kv_cache_layout.py) ----


@dataclass(frozen=True)
class KvCacheBufferRef:
    layer_id: int
    role: str
    expansion: int = 1


@dataclass(frozen=True)
class KvCacheRegion:
    base: int
    size: int
    stride: int
    num_slots: int
    buffers: tuple[KvCacheBufferRef, ...]

    shown: Callable[[torch.Tensor], object] = field(default=lambda tensor: tensor, compare=False)

    def address_of(self, slot_id: int) -> int:
        if not 0 <= slot_id < self.num_slots:
            raise IndexError(f"slot {slot_id} of {self.num_slots}")
        return self.base + self.stride * slot_id

    def as_tensor(self, dtype: torch.dtype = torch.uint8) -> object:
        """[slots, elements], of the bytes where they are. (kv_cache_layout.py)"""
        size = torch.tensor([], dtype=dtype).element_size()
        whole = (ctypes.c_char * (self.stride * (self.num_slots - 1) + self.size)).from_address(self.base)
        view = torch.frombuffer(whole, dtype=dtype).as_strided((self.num_slots, self.size // size), (self.stride // size, 1))
        return self.shown(view)


@dataclass(frozen=True)
class KvCacheLayerGroupLayout:
    layer_group_id: int
    layer_ids: tuple[int, ...]
    window_size: int | None
    regions: tuple[KvCacheRegion, ...]
    replicated_regions: tuple[KvCacheRegion, ...] = ()


class KvCacheLayout:
    """With several groups, several regions or a stride that is not the size there is no single tensor."""

    def __init__(self, tokens_per_block: int, groups: tuple[KvCacheLayerGroupLayout, ...],
                 single: object = None) -> None:
        self.tokens_per_block, self.groups = tokens_per_block, groups
        self.gpu_pool_mapping_bytes: int | None = None
        self._single = single

    def as_single_pool_tensor(self) -> object:
        return self._single

    def group(self, layer_group_id: int) -> KvCacheLayerGroupLayout:
        return {group.layer_group_id: group for group in self.groups}[layer_group_id]


def layout_of(groups: list[LayerGroup], tokens_per_block: int, device: Host) -> KvCacheLayout:
    layouts = tuple(_group_layout(group, device) for group in groups)
    single = device.shown(pool_tensor(groups[0])) if len(groups) == 1 and not groups[0].index_elements else None
    return KvCacheLayout(tokens_per_block, layouts, single)


def pool_tensor(group: LayerGroup) -> torch.Tensor:
    """[blocks, layers, K and V, heads * tokens * head size] (kvCacheManager.cpp: allocatePools)"""
    return group.memory.view(group.blocks, len(group.layers), 2, -1)


def _group_layout(group: LayerGroup, device: Host) -> KvCacheLayerGroupLayout:
    item, base, stride = group.memory.element_size(), group.memory.data_ptr(), group.memory.stride(0) * 4
    keys = tuple(KvCacheBufferRef(layer, role) for layer in group.layers for role in ("key", "value"))
    regions = (KvCacheRegion(base, group.kv_elements * item, stride, group.blocks, keys, device.shown),)
    replicated: tuple[KvCacheRegion, ...] = ()
    if group.index_elements:
        refs = tuple(KvCacheBufferRef(layer, "index_key") for layer in group.layers)
        base, size = base + group.kv_elements * item, group.index_elements * item
        replicated = (KvCacheRegion(base, size, stride, group.blocks, refs, device.shown),)
    return KvCacheLayerGroupLayout(group.index, tuple(group.layers), group.window, regions, replicated)
