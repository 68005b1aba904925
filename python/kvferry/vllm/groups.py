"""Which blocks of a prompt vLLM's KV groups keep, and what of them a ticket names."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vllm.utils.math_utils import cdiv
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)

from kvferry import _kvferry
from kvferry.engine.messages import pack_blocks

from . import seam
from .layout import LayoutError, is_numbered_apart, layer_specs, one_spec
from .states import keeps_more

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec

SUPPORTED = (FullAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec, MLAAttentionSpec, SlidingWindowMLASpec, MambaSpec)
"""Exactly these: kinds derived from them keep other things in their blocks."""
ALL_OR_NONE = 0xffffffff
"""As the least number of tokens that are kept of a failed load."""
LONGEST_PROMPT = 1 << 24
"""As the tokens of a block where there are only states: the most that the library's block_tokens can be."""


def is_supported(spec: KVCacheSpec) -> bool:
    """A window that is replayed, or a state, has more than its blocks."""
    is_replayed = getattr(spec, "bounded_replay", False) or (isinstance(spec, MambaSpec) and keeps_more(spec))
    return type(spec) in SUPPORTED and not is_replayed


def is_state(group: KVCacheGroupSpec) -> bool:
    """Whether a request has one block of it that counts: what all of its tokens have left."""
    return isinstance(one_spec(group), MambaSpec)


def slides(group: KVCacheGroupSpec) -> bool:
    """Whether blocks of the group leave a request while it runs."""
    return not isinstance(one_spec(group), FullAttentionSpec)


def first_needed_block(group: KVCacheGroupSpec, tokens: int) -> int:
    """Of a request with this many computed tokens: the position of the first block that its next token, or another one
    that vLLM keeps for, looks at. As in get_num_skipped_tokens() of vLLM's managers."""
    spec = one_spec(group)
    return _skipped_tokens(spec, tokens) // spec.block_size


def _skipped_tokens(spec: KVCacheSpec, tokens: int) -> int:
    if isinstance(spec, SlidingWindowSpec):
        return max(0, tokens - spec.sliding_window + 1 - spec.extra_retained_tokens)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return tokens // spec.attention_chunk_size * spec.attention_chunk_size
    if isinstance(spec, MambaSpec):
        return max(0, tokens - 1)
    return 0


def _is_draft(name: str, spec: KVCacheSpec, target_layers: int) -> bool:
    """vLLM knows no drafter that has a state, but models that number their states after their attention (Falcon-H1)."""
    is_numbered_after = any(part.isdigit() and int(part) >= target_layers for part in name.split("."))
    return not isinstance(spec, MambaSpec) and (is_numbered_apart(name) or is_numbered_after)


def without_drafts(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig,
                   carry: bool) -> tuple[KVCacheConfig, list[str]]:
    """What is carried, and the draft layers that are not: all of them if one is of a kind that cannot be carried."""
    if not seam.has_draft_kv(vllm_config):
        return kv_cache_config, []
    if vllm_config.speculative_config.method == "extract_hidden_states":
        raise LayoutError("kvferry does not carry hidden states: take extract_hidden_states out of speculative_config, or "
                          "kvferry out of kv_transfer_config")
    target_layers = vllm_config.model_config.get_total_num_hidden_layers()
    specs = dict(one for group in kv_cache_config.transfer_groups for one in layer_specs(group))
    marked = seam.draft_layers(kv_cache_config)
    drafts = [name for name, spec in specs.items() if name in marked or _is_draft(name, spec, target_layers)]
    block_tokens = {spec.block_size for name, spec in specs.items() if name not in drafts}
    if carry and all(is_supported(specs[name]) and specs[name].block_size in block_tokens for name in drafts):
        return kv_cache_config, []
    # All stages of a pipeline must number the groups alike, and only the last one knows of drafts.
    stays = vllm_config.parallel_config.pipeline_parallel_size > 1
    groups = []
    for group in kv_cache_config.kv_cache_groups:
        names = [name for name in group.layer_names if name not in drafts]
        groups.append(replace(group, layer_names=names, enable_kv_transfer=group.enable_kv_transfer and (stays or bool(names))))
    return replace(kv_cache_config, kv_cache_groups=groups), drafts


class Groups:
    def __init__(self, kv_cache_config: KVCacheConfig, lookahead: int = 0) -> None:
        """`lookahead`: vLLM's num_prefill_lookahead_tokens."""
        self._config = kv_cache_config
        self._groups = kv_cache_config.transfer_groups
        self._check_layers()
        self._sizes = [one_spec(group).block_size for group in self._groups]
        by_token = [size for group, size in zip(self._groups, self._sizes) if not is_state(group)]
        self.block_tokens = max(by_token, default=LONGEST_PROMPT)
        if any(self.block_tokens % size for size in by_token):
            raise LayoutError(f"block sizes of KV groups must divide the largest one, not {sorted(set(by_token))}: "
                              "set another --block-size")
        self._keeps_parts = not any(map(is_state, self._groups)) and all(
            self.block_tokens % group.kv_cache_spec.block_size == 0 for group in kv_cache_config.kv_cache_groups)
        """Of a failed load: vLLM takes a prefix that is whole blocks of all groups, also of those that are not carried."""
        # vLLM computes a prompt's last token again. To what it takes for loaded it applies the windows: of all N tokens they
        # leave what token N looks at, not token N-1. A state that has seen token N must not see it again.
        # Several MTP modules, each of which reads one token further ahead, have no right KV of the last ones where a prompt ends.
        self.left_out = max(int(any(map(slides, self._groups))), lookahead - 1)
        """Tokens at a prompt's end that a load leaves to be computed."""
        self.not_handed_over = int(any(map(is_state, self._groups)))
        """Tokens at a prompt's end that the ticket is not of: the producer does not compute them either."""

    def _check_layers(self) -> None:
        if not 0 < len(self._groups) <= _kvferry.GROUPS_MAX:
            raise LayoutError(f"kvferry carries 1 to {_kvferry.GROUPS_MAX} KV groups, not {len(self._groups)}: if they are too many, "
                              "--disable-hybrid-kv-cache-manager may make them one")
        for group in self._groups:
            for name, spec in layer_specs(group):
                if not is_supported(spec):
                    raise LayoutError(f"kvferry does not carry the state of layer {name} ({type(spec).__name__})")
                if getattr(spec, "num_speculative_blocks", 0) > 0:
                    raise LayoutError(f"kvferry does not carry the state of layer {name} with speculative decoding: "
                                      "vLLM keeps a state for each drafted token")

    def options(self) -> dict[str, str]:
        """Of the node."""
        sizes = [0 if is_state(group) else size for group, size in zip(self._groups, self._sizes)]
        alike = all(size == self.block_tokens for size in sizes)
        return {"block_tokens": str(self.block_tokens), "group_block_tokens": "" if alike else ",".join(map(str, sizes))}

    def block_bytes(self) -> int:
        """Of a rank: what a block of the pool takes, which all groups share."""
        return max(group.kv_cache_spec.page_size_bytes * len(group.layer_names) for group in self._groups)

    def bytes_per_token(self) -> float:
        """Of a rank at most. A state counts as if it were one of a block's tokens."""
        return sum(group.kv_cache_spec.page_size_bytes * len(group.layer_names) / (self.block_tokens if is_state(group) else size)
                   for group, size in zip(self._groups, self._sizes))

    def _firsts(self, tokens: int) -> list[int]:
        return [first_needed_block(group, tokens) for group in self._groups]

    def _ends(self, tokens: int) -> list[int]:
        return [cdiv(tokens, size) for size in self._sizes]

    def handed_over(self, tokens: int) -> list[range]:
        """The positions in each group's table of what a ticket of so many tokens names: what D's last token looks at."""
        return list(map(range, self._firsts(tokens + self.not_handed_over - 1), self._ends(tokens)))

    def missing(self, tokens: int, computed: int) -> list[range]:
        """The positions of what a ticket of so many tokens names and a request lacks that has computed some itself."""
        return [range(end - 1 if is_state(group) else computed // size, end)
                for group, size, end in zip(self._groups, self._sizes, self._ends(tokens))]

    def are_whole_blocks(self, tokens: int) -> bool:
        return all(is_state(group) or tokens % size == 0 for group, size in zip(self._groups, self._sizes))

    def pack(self, block_ids: Sequence[Sequence[int]], null_block: int, positions: list[range]) -> tuple[bytes, ...]:
        """As a ticket, a lease and a load name them: all of a group from its first position on, but of a state the one."""
        tables = seam.transferred(self._config, block_ids)
        begins = [wanted.start if is_state(group) else 0 for group, wanted in zip(self._groups, positions)]
        return pack_blocks((table[begin:] for table, begin in zip(tables, begins)), null_block,
                           [wanted.stop - begin for wanted, begin in zip(positions, begins)],
                           [wanted.start - begin for wanted, begin in zip(positions, begins)])

    def by_id(self, positions: list[range]) -> list[tuple[int, bool, range]]:
        """vLLM's number of each group, whether it slides, and its positions."""
        return list(zip(self._config.transfer_group_ids, map(slides, self._groups), positions))

    def keep_from(self, tokens: int) -> int:
        """The shortest useful prefix of a failed load of a prompt. After a shorter one, the next token to compute looks at
        blocks that vLLM does not have for the whole prompt."""
        if not self._keeps_parts:
            return ALL_OR_NONE
        held = self._firsts(tokens - self.left_out)
        lengths = range(0, tokens, self.block_tokens)
        index = bisect_left(lengths, True, key=lambda length: all(
            first >= have for first, have in zip(self._firsts(length), held)))
        return lengths[index] if index < len(lengths) else ALL_OR_NONE
