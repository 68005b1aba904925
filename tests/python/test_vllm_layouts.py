"""Which bytes of which block a region names: as vLLM's own classes lay out the pool and its kernels look into it, on a GPU
that is not there (meta tensors)."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import sides  # noqa: E402
import torch  # noqa: E402
from fakes import BLOCK_TOKENS, POOL_BLOCKS  # noqa: E402
from kvferry import Region, _kvferry  # noqa: E402
from kvferry.vllm import identity  # noqa: E402
from kvferry.vllm.layout import SCATTERED, LayoutError, check_groups, regions_of  # noqa: E402
from vllm.config import get_current_vllm_config  # noqa: E402
from vllm.v1.attention import selector  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVQuantMode, SlidingWindowSpec  # noqa: E402
from vllm.v1.kv_cache_layout import KVCacheLayout  # noqa: E402
from vllm.v1.worker.utils import allocate_kv_cache, customize_attention_spec, prepare_kernel_block_sizes  # noqa: E402

BACKENDS = {"cpu": "cpu_attn:CPUAttentionBackend", "flash": "flash_attn:FlashAttentionBackend",
            "flashinfer": "flashinfer:FlashInferBackend", "triton": "triton_attn:TritonAttentionBackend",
            "flex": "flex_attention:FlexAttentionBackend", "hpc": "hpc_attn:HpcAttentionBackend",
            "b12x": "b12x:B12xPagedAttentionBackend"}
FLASHINFER = ("flashinfer", "flashinfer.decode", "flashinfer.prefill", "flashinfer.utils")
BLOCKS, LAYERS, HEADS, HEAD_SIZE, RANKS = 5, 3, 2, 16, 4
POOL_AT, ORDINAL = 1 << 40, 1


class StubModule(ModuleType):
    """Has a class of whatever name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def backend_of(name: str) -> Any:
    module, _, cls = BACKENDS[name].partition(":")
    stubs = FLASHINFER if name == "flashinfer" and importlib.util.find_spec("flashinfer") is None else ()
    sys.modules.update({stub: StubModule(stub) for stub in stubs})
    try:
        return getattr(importlib.import_module(f"vllm.v1.attention.backends.{module}"), cls)
    finally:
        for stub in stubs:
            del sys.modules[stub]


class OnGpu(torch.Tensor):
    """A meta tensor that says of itself what one on a GPU would."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", ORDINAL)

    def data_ptr(self) -> int:
        return POOL_AT + self.storage_offset() * self.element_size()


def spec_of(backend: Any, block_tokens: int = 32, quantized: KVQuantMode = KVQuantMode.NONE, **fields: Any) -> Any:
    dtype = torch.bfloat16 if quantized == KVQuantMode.NONE else torch.uint8
    kind = SlidingWindowSpec if "sliding_window" in fields else FullAttentionSpec
    spec = kind(block_size=block_tokens, dtype=dtype, kv_quant_mode=quantized,
                **{"num_kv_heads": HEADS, "head_size": HEAD_SIZE, **fields})
    return customize_attention_spec(backend, spec)


def lay_out(backend: Any, layout: KVCacheLayout, *specs: Any) -> tuple[KVCacheConfig, dict[str, torch.Tensor]]:
    """As an engine core and its worker do; a group for each spec."""
    engine: Any = SimpleNamespace(
        cache_config=SimpleNamespace(get_resolved_kv_cache_layout=lambda: layout, num_gpu_blocks_override=None,
                                     prefix_cache_retention_interval=None),
        attention_config=SimpleNamespace(hisparse_config=None))
    groups = [KVCacheGroupSpec([f"layer.{i}.{j}" for j in range(LAYERS)], spec) for i, spec in enumerate(specs)]
    made = get_kv_cache_config_from_groups(engine, groups, specs[0].page_size_bytes * LAYERS * BLOCKS)
    of_kernels = prepare_kernel_block_sizes(made, [[SimpleNamespace(backend=backend, kv_cache_spec=spec)] for spec in specs])
    caches = allocate_kv_cache(made, torch.device("meta"), layout, of_kernels)
    return made, {name: tensor.as_subclass(OnGpu) for name, tensor in caches.items()}


def seen_by_kernels(tensor: torch.Tensor) -> list[list[set[int]]]:
    """Where the bytes of each block's heads are, as kernels index them: token by token, in blocks of their own size."""
    end = 1 + tensor.storage_offset() + sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride()))
    view = torch.arange(end).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).transpose(1, 2)
    parts, size = len(view) // BLOCKS, tensor.element_size()

    def seen(block: int, head: int) -> set[int]:
        return {POOL_AT + at * size + byte for part in range(parts) for token in range(view.shape[1])
                for at in view[block * parts + part, token, head].tolist() for byte in range(size)}
    return [[seen(block, head) for head in range(view.shape[2])] for block in range(BLOCKS)]


def named_by(region: Region, block: int, head: int) -> set[int]:
    share = region.block_bytes // region.heads
    begin = region.base + block * region.stride_bytes + head * share
    return set(range(begin, begin + share))


HND, NHD = ("LBHNC", "BLHNC"), ("LBNHC", "BLNHC")
CASES = [("cpu", "LBHNC", 32, KVQuantMode.NONE)]
CASES += [(name, layout, 32, KVQuantMode.NONE) for name in ("flash", "triton", "flashinfer") for layout in (*HND, *NHD)]
CASES += [("triton", layout, 16, KVQuantMode.INT8_PER_TOKEN_HEAD) for layout in ("LBHNC", "LBNHC")]
CASES += [("flash", "LBHNC", 128, KVQuantMode.FP8_PER_TENSOR), ("flashinfer", "LBNHC", 128, KVQuantMode.NONE),
          ("flex", "LBNHC", 16, KVQuantMode.NONE), ("hpc", "LBNHC", 128, KVQuantMode.NONE)]
APART = [("flashinfer", layout, 32, KVQuantMode.NVFP4) for layout in (*HND, *NHD)]
APART += [("b12x", layout, 64, KVQuantMode.NONE) for layout in HND]
"""Keys and values apart: no region has one head of both."""


@pytest.mark.parametrize("name, layout, block_tokens, quantized", CASES + APART)
def test_every_byte_of_every_block(name: str, layout: str, block_tokens: int, quantized: KVQuantMode) -> None:
    backend = backend_of(name)
    assert KVCacheLayout[layout] in (backend.supported_kv_cache_layouts() or KVCacheLayout)
    made, caches = lay_out(backend, KVCacheLayout[layout], spec_of(backend, block_tokens, quantized))
    regions = regions_of(caches, made, RANKS)
    assert len(regions) == LAYERS and check_groups(made) == block_tokens
    heads = HEADS if layout in HND and (name, layout, block_tokens, quantized) not in APART else 1
    taken: set[int] = set()
    for region, tensor in zip(regions, caches.values()):
        assert (region.heads, region.heads_total, region.blocks) == (heads, heads * RANKS, BLOCKS)
        assert (region.memory, region.device) == (_kvferry.MEMORY_CUDA, ORDINAL)
        for block, by_head in enumerate(seen_by_kernels(tensor)):
            expected = by_head if heads > 1 else [set.union(*by_head)]
            assert [named_by(region, block, head) for head in range(heads)] == expected
            assert not taken & set.union(*by_head)
            taken |= set.union(*by_head)
    assert taken == set(range(POOL_AT, POOL_AT + BLOCKS * LAYERS * regions[0].block_bytes))


@pytest.mark.parametrize("layout", ["LBHNC", "BLHNC", "BLNHC"])
def test_groups_that_overlay_each_other(layout: str) -> None:
    """vLLM gives a block to one group at a time: the same bytes are in regions of both."""
    backend = backend_of("flash")
    made, caches = lay_out(backend, KVCacheLayout[layout], spec_of(backend), spec_of(backend, sliding_window=64))
    regions = regions_of(caches, made, 1)
    assert [region.group for region in regions] == [0] * LAYERS + [1] * LAYERS
    assert [region[:6] for region in regions[:LAYERS]] == [region[:6] for region in regions[LAYERS:]]


def test_one_head_is_the_same_in_any_order() -> None:
    backend = backend_of("triton")
    one = spec_of(backend, num_kv_heads=1)
    by_layout = [regions_of(caches, made, 2) for made, caches in (lay_out(backend, KVCacheLayout[name], one) for name in ("LBHNC", "LBNHC"))]
    assert by_layout[0] == by_layout[1] and {region.heads_total for region in by_layout[0]} == {2}


def test_layers_that_cannot_be_cut_are_whole_in_all() -> None:
    backend = backend_of("flash")
    made, caches = lay_out(backend, KVCacheLayout.LBHNC, spec_of(backend))
    caches["layer.0.1"] = lay_out(backend, KVCacheLayout.LBNHC, spec_of(backend))[1]["layer.0.1"]
    assert {(region.heads, region.heads_total) for region in regions_of(caches, made, RANKS)} == {(1, RANKS)}


@pytest.mark.parametrize("layout", SCATTERED)
def test_heads_that_are_scattered(layout: str) -> None:
    backend = backend_of("flash")
    made, caches = lay_out(backend, KVCacheLayout[layout], spec_of(backend))
    with pytest.raises(LayoutError, match=r"layer layer\.0\.0: KV of shape .* with every block in one piece"):
        regions_of(caches, made, 1)


@pytest.mark.parametrize("name, layout, quantized", [
    ("flashinfer", "LBHNC", KVQuantMode.NONE), ("flashinfer", "LBNHC", KVQuantMode.NVFP4)])
def test_blocks_that_kernels_divide(name: str, layout: str, quantized: KVQuantMode) -> None:
    """Another GPU's kernels may divide them otherwise: nothing else would tell such pages apart."""
    backend = backend_of(name)
    made, caches = lay_out(backend, KVCacheLayout[layout], spec_of(backend, 128, quantized))
    with pytest.raises(LayoutError, match=r"keep a block of 128 tokens as 2: start the engine with --block-size 64"):
        regions_of(caches, made, 1)
    made, caches = lay_out(backend, KVCacheLayout[layout], spec_of(backend, 64, quantized))
    assert len(regions_of(caches, made, 1)) == LAYERS


def tokens_outermost() -> torch.Tensor:
    return torch.zeros(POOL_BLOCKS, BLOCK_TOKENS, sides.HEADS, 2 * sides.HEAD_SIZE).transpose(1, 2)


@pytest.mark.parametrize("ranks_of_d, fails", [(2, False), (1, True)])
def test_whole_blocks_go_to_as_many_ranks_only(monkeypatch: pytest.MonkeyPatch, ranks_of_d: int, fails: bool) -> None:
    p, d = (sides.Sides(monkeypatch, ranks, memory=tokens_outermost) for ranks in (2, ranks_of_d))
    try:
        for tensor in p.memory:
            tensor.copy_(torch.rand(tensor.shape))
        assert d.until_received(d.begin(p.prefill())) == fails
        assert d.stat("loads_failed", "incompatible") == (ranks_of_d if fails else 0)
        for ours, theirs in zip(d.memory, p.memory):
            assert torch.equal(ours[sides.TARGET], 0 * theirs[sides.SOURCE] if fails else theirs[sides.SOURCE])
    finally:
        p.close()
        d.close()


# ---- what tells pages apart between two engines ----

def groups_digest(spec: Any) -> str:
    return identity._groups(KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["l0"], spec)]))


def test_pages_with_other_contents_have_another_identity() -> None:
    flash, triton, flashinfer, b12x = map(backend_of, ("flash", "triton", "flashinfer", "b12x"))
    digests = [groups_digest(spec) for spec in (
        spec_of(flash), spec_of(b12x), spec_of(flash, quantized=KVQuantMode.FP8_PER_TENSOR),
        spec_of(triton, quantized=KVQuantMode.FP8_PER_TOKEN_HEAD), spec_of(triton, quantized=KVQuantMode.INT8_PER_TOKEN_HEAD),
        spec_of(flashinfer, quantized=KVQuantMode.NVFP4), spec_of(flash, head_size_v=32))]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("name, quantized", [("flash", KVQuantMode.NONE), ("b12x", KVQuantMode.NONE), ("flashinfer", KVQuantMode.NVFP4)])
def test_the_number_of_ranks_is_not_in_the_identity(name: str, quantized: KVQuantMode) -> None:
    backend = backend_of(name)
    assert len({groups_digest(spec_of(backend, quantized=quantized, num_kv_heads=heads)) for heads in (1, 2, 8)}) == 1


def test_a_gpu_engine_is_named_by_its_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever GPU it is; asked as vLLM asks where it has no layers, in the engine's configuration."""
    asked: list[Any] = []

    def choose(*arguments: Any) -> Any:
        asked.append((get_current_vllm_config(), *arguments))
        return backend_of("triton")

    monkeypatch.setattr(identity, "current_platform", SimpleNamespace(is_cpu=lambda: False, device_name="NVIDIA H200"))
    monkeypatch.setattr(selector, "get_attn_backend", choose)
    engine = SimpleNamespace(model_config=SimpleNamespace(get_head_size=lambda: 64, dtype=torch.bfloat16),
                             cache_config=SimpleNamespace(cache_dtype="fp8"))
    assert identity._attention(engine, None) == "TRITON_ATTN"
    assert asked == [(engine, 64, torch.bfloat16, "fp8")]
