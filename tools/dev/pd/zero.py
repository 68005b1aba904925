"""What a test asks vLLM's workers to do to their pools, to see that the answer shows it.

    --worker-extension-cls pd.zero.Zero, and then POST /collective_rpc
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

from kvferry._kvferry import BLOCK_NONE

ARGS = ("--worker-extension-cls", "pd.zero.Zero")
CALLS = ("kv_layers", "wipe_kv", "zero_block")
"""For Connector.with_rank_calls()."""


class Zero:
    """Of a worker. What it answers is text or a list: vLLM makes text of all else."""

    vllm_config: Any
    _handed_over: tuple[bytes, ...]

    def kv_layers(self) -> list[str]:
        """Not those that take their KV from another."""
        return [name for name, _ in self._kv_caches() if any(name in group.layer_names for group in self._groups())]

    def wipe_kv(self) -> None:
        """So that what a prompt's blocks hold is of the prompt that comes next. Nobody else may have blocks."""
        for _, tensors in self._kv_caches():
            for tensor in tensors:
                tensor.zero_()
        side = self._side()
        side.publish = self._watch_published

    def zero_block(self, layer: str, after: int = 0) -> list[int]:
        """The first block of the layer that has been handed over since, or one `after` it; none if there is no such layer here."""
        for tensors in (tensors for name, tensors in self._kv_caches() if name == layer):
            group = next(i for i, one in enumerate(self._groups()) if layer in one.layer_names)
            block = [one for one in array("I", self._handed_over[group]) if one != BLOCK_NONE][after]
            for tensor in tensors:
                tensor[block] = 0
            return [block]
        return []

    def _side(self) -> Any:
        """The connector's."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group
        return get_kv_transfer_group()._worker

    def _groups(self) -> Any:
        return self._side()._kv_cache_config.transfer_groups

    def _watch_published(self, orders: Any) -> None:
        for publication in orders.publish:
            self._handed_over = publication.blocks
        type(self._side()).publish(self._side(), orders)

    def _kv_caches(self) -> Iterator[tuple[str, list[Any]]]:
        """A layer's tensors: several of one that keeps a state."""
        for name, layer in self.vllm_config.compilation_config.static_forward_context.items():
            kept = getattr(layer, "kv_cache", None)
            if kept is not None and len(kept):
                yield name, list(kept) if isinstance(kept, list | tuple) else [kept]
