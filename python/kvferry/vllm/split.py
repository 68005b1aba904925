"""How a model's KV heads are split over the ranks of an engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_cache_interface import AttentionSpec, MambaSpec, MLAAttentionSpec, SlidingWindowMLASpec

from . import seam

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

LATENT = (MLAAttentionSpec, SlidingWindowMLASpec)
NUMBERS_OF_HEADS = re.compile("key_value_head|kv_head|head_kv|heads_in_group|attention_groups|query_group")
"""Names under which models' configurations say how many KV heads some of their layers have."""


@dataclass(frozen=True)
class Split:
    """How the KV heads of a model are split over tensor-parallel ranks, and which rank this is."""

    rank: int
    ranks: int
    heads: int | None  # of each layer; None: they differ, or that is not known
    groups: int | None = None  # of B and C in each state-space layer; None: that is not known
    layers: int = 0  # of the model, without those that draft; 0: not known

    def pieces(self, spec: AttentionSpec) -> int:
        """Different ones that the ranks have of the layer's KV: with more ranks, neighbours have the same. A layer of which
        that is not known counts as one that no two ranks have the same of: engines of other sizes cannot load it then."""
        shards = seam.max_tp_shards(spec)
        if shards is None and spec.num_kv_heads == 1 and not isinstance(spec, LATENT):
            shards = self.heads
        return min(shards or self.ranks, self.ranks)

    def heads_of(self, spec: AttentionSpec, in_one_piece: bool) -> tuple[int, int, int]:
        """The rank's: how many, the first, and of how many; or the same of pieces."""
        pieces, heads = self.pieces(spec), 1 if in_one_piece else spec.num_kv_heads
        return heads, self.rank * pieces // self.ranks * heads, pieces * heads

    def explains(self, spec: AttentionSpec | MambaSpec) -> bool:
        """Whether the rank has as many heads of the layer as it would."""
        if isinstance(spec, (*LATENT, MambaSpec)) or self.heads is None:
            return True
        return spec.num_kv_heads == max(1, self.heads // self.ranks)


def heads_of_all_layers(model: ModelConfig) -> int | None:
    """How many KV heads each layer has; None: the model's configuration does not say it, or names several numbers."""
    def named(config: Any, is_of_heads: bool) -> Iterator[int]:
        for name, value in config.items() if isinstance(config, dict) else ((None, one) for one in config):
            is_named = is_of_heads if name is None else bool(NUMBERS_OF_HEADS.search(str(name)))
            if isinstance(value, dict | list | tuple):
                yield from named(value, is_named)
            elif is_named and isinstance(value, int) and not isinstance(value, bool):
                yield value

    heads: int = model.get_total_num_kv_heads()
    return heads if set(named(model.hf_text_config.to_dict(), False)) == {heads} else None


def ranks_of(vllm_config: VllmConfig) -> int:
    """Of the engine, as vLLM numbers them: all tensor-parallel ranks of a pipeline's stage before those of the next one."""
    parallel = vllm_config.parallel_config
    return int(parallel.pipeline_parallel_size * parallel.tensor_parallel_size)
