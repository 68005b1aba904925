"""What a test asks vLLM's workers to do to their pools, to see that the answer shows it.

    --worker-extension-cls pd.zero.Zero, and then POST /collective_rpc
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

ARGS = ("--worker-extension-cls", "pd.zero.Zero")


class Zero:
    """Of a worker. What it answers is text or a list: vLLM makes text of all else."""

    vllm_config: Any

    def kv_layers(self) -> list[str]:
        return [name for name, _ in self._kv_caches()]

    def wipe_kv(self) -> None:
        """So that what is not zero afterwards is of the next prompt. Nobody else may have blocks."""
        for _, tensors in self._kv_caches():
            for tensor in tensors:
                tensor.zero_()

    def zero_block(self, layer: str) -> list[int]:
        """The first block of the layer that has anything in it; none if there is none, or no such layer here."""
        for tensors in (tensors for name, tensors in self._kv_caches() if name == layer):
            used = sorted({block for tensor in tensors for block in tensor.flatten(1).any(1).nonzero().flatten().tolist()} - {0})
            for tensor in tensors:
                tensor[used[:1]] = 0
            return used[:1]
        return []

    def _kv_caches(self) -> Iterator[tuple[str, list[Any]]]:
        """A layer's tensors: several of one that keeps a state."""
        for name, layer in self.vllm_config.compilation_config.static_forward_context.items():
            kept = getattr(layer, "kv_cache", None)
            if kept is not None and len(kept):
                yield name, list(kept) if isinstance(kept, list | tuple) else [kept]
