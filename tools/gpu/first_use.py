"""What vLLM's engines need of a GPU, tried in seconds before they are started; and their model.

    first_use.py gpu|cpu MODEL        prints a JSON line a row; MODEL is a folder that is made
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import sizes
from sizes import Size

TOKENS, BLOCKS = 70, 16


def say(name: str, judge: Callable[[], dict[str, Any]]) -> bool:
    begin = time.monotonic()
    try:
        figures = judge()
    except Exception as error:
        figures = {"right": False, "why": f"{type(error).__name__}: {error}"}
    print(json.dumps({"row": name, **figures, "seconds": round(time.monotonic() - begin, 1)}), flush=True)
    return bool(figures["right"])


def load_library() -> dict[str, Any]:
    import vllm
    import vllm._C_stable_libtorch  # noqa: F401
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON
    return {"right": current_platform.is_cuda() and HAS_TRITON, "vllm": vllm.__version__, "torch": torch.__version__,
            "device": torch.cuda.get_device_name(0)}


class Trial:
    """Keys and values of one sequence, in blocks that are not in order."""

    def __init__(self, size: Size) -> None:
        torch.manual_seed(sizes.SEED)
        shape = (TOKENS, size.kv_heads, size.head)
        self.size = size
        self.key, self.value = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self.query = torch.randn((TOKENS, size.heads, size.head), device="cuda", dtype=torch.bfloat16)
        # as kvferry asks vLLM to lay them out: a block's heads outermost, keys and values side by side
        pool = torch.zeros((BLOCKS, size.kv_heads, size.block_tokens, 2 * size.head), device="cuda", dtype=torch.bfloat16)
        self.keys, self.values = pool.transpose(1, 2).split(size.head, dim=-1)
        used = -(-TOKENS // size.block_tokens)
        self.table = torch.arange(BLOCKS - 1, BLOCKS - 1 - used, -1, device="cuda", dtype=torch.int32)
        token = torch.arange(TOKENS, device="cuda")
        self.slots = self.table[token // size.block_tokens].long() * size.block_tokens + token % size.block_tokens
        self.one = torch.ones((), device="cuda")
        self.descale = self.one.expand(1, size.kv_heads)

    def reshape_and_cache(self) -> dict[str, Any]:
        from vllm._custom_ops import reshape_and_cache_flash
        reshape_and_cache_flash(self.key, self.value, self.keys, self.values, self.slots, "auto", self.one, self.one)
        torch.cuda.synchronize()
        return {"right": self._is_in(self.keys, self.key) and self._is_in(self.values, self.value)}

    def _is_in(self, cache: torch.Tensor, tokens: torch.Tensor) -> bool:
        return bool(torch.equal(cache[self.slots // self.size.block_tokens, self.slots % self.size.block_tokens], tokens))

    def attention(self) -> dict[str, Any]:
        from vllm.v1.attention.ops.triton_reshape_and_cache_flash import triton_reshape_and_cache_flash
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention
        triton_reshape_and_cache_flash(self.key, self.value, self.keys, self.values, self.slots, "auto", self.one, self.one)
        out, scale = torch.empty_like(self.query), self.size.head ** -0.5
        ends = torch.tensor([0, TOKENS], device="cuda", dtype=torch.int32)
        unified_attention(q=self.query, k=self.keys, v=self.values, out=out, cu_seqlens_q=ends, max_seqlen_q=TOKENS,
                          seqused_k=ends[1:], max_seqlen_k=TOKENS, softmax_scale=scale, causal=True, window_size=(-1, -1),
                          block_table=self.table[None], softcap=0.0, q_descale=None, k_descale=self.descale,
                          v_descale=self.descale)
        groups = self.size.heads // self.size.kv_heads
        query, key, value = (part.float().transpose(0, 1) for part in (
            self.query, self.key.repeat_interleave(groups, 1), self.value.repeat_interleave(groups, 1)))
        expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
        apart = float((out.float() - expected.transpose(0, 1)).abs().max())
        return {"right": apart < 0.05, "apart": round(apart, 4)}


def write_model(size: Size, folder: Path, device: str) -> dict[str, Any]:
    """Random, always the same on one kind of device. Its tokens depend on what its attention reads: large weights."""
    from safetensors.torch import save_file
    folder.mkdir(parents=True, exist_ok=True)
    chance = torch.Generator(device).manual_seed(sizes.SEED)
    dtype = getattr(torch, size.dtype)

    def weight(rows: int, columns: int, scale: float) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=chance, device=device) * scale).to(dtype).cpu()

    std = 2.26 * size.hidden ** -0.5
    queries, content = size.heads * size.head, size.kv_heads * size.head
    shapes = {"self_attn.q_proj": (queries, size.hidden), "self_attn.k_proj": (content, size.hidden),
              "self_attn.v_proj": (content, size.hidden), "self_attn.o_proj": (size.hidden, queries),
              **{f"mlp.{name}_proj": (size.hidden, size.hidden) for name in ("gate", "up", "down")}}
    tensors = {"model.embed_tokens.weight": weight(size.vocabulary, size.hidden, 1.0),
               "lm_head.weight": weight(size.vocabulary, size.hidden, 1.0),
               "model.norm.weight": torch.ones(size.hidden, dtype=dtype)}
    for layer in range(size.layers):
        for name, shape in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = weight(*shape, std)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.ones(size.hidden, dtype=dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(sizes.model_config(size)))
    return {"right": True, "mib": sum(tensor.nbytes for tensor in tensors.values()) >> 20}


def main(device: str, folder: Path) -> int:
    if device == "cpu":
        return 0 if say("first use/model", lambda: write_model(sizes.CPU, folder, "cpu")) else 1
    good = say("first use/library", load_library)
    trial = Trial(sizes.GPU) if good else None
    good = trial is not None and say("first use/reshape_and_cache", trial.reshape_and_cache)
    good = trial is not None and good and say("first use/attention", trial.attention)
    return 0 if good and say("first use/model", lambda: write_model(sizes.GPU, folder, "cuda")) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
