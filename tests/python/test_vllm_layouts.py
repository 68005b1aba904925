"""Which bytes of which block a part names: as vLLM's own classes lay out the pool and its kernels look into it, on a GPU
that is not there (meta tensors)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import fakes  # noqa: E402
import sides  # noqa: E402
import torch  # noqa: E402
from fakes import POOL_BLOCKS, kv_cache_config, spec  # noqa: E402
from kvferry import _kvferry  # noqa: E402
from kvferry.vllm.content import identity  # noqa: E402
from kvferry.vllm.groups import Groups  # noqa: E402
from kvferry.vllm.layout import FIRST_APART, SCATTERED, LayoutError, Pool, layer_number, pool_of  # noqa: E402
from kvferry.vllm.split import LATENT, Split, heads_of_all_layers  # noqa: E402
from vllm.config import get_current_vllm_config  # noqa: E402
from vllm.v1.attention import selector  # noqa: E402
from vllm.v1 import kv_cache_interface as interface  # noqa: E402
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    AttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVQuantMode,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.kv_cache_layout import KVCacheLayout  # noqa: E402
from vllm.v1.worker.utils import allocate_kv_cache, prepare_kernel_block_sizes  # noqa: E402

try:
    from vllm.v1.core.kv_cache_planning import get_kv_cache_config_from_groups
except ImportError:  # before 0.33
    from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups
try:
    from vllm.v1.worker.utils import customize_attention_spec
except ImportError:  # before 0.32
    def customize_attention_spec(backend: Any, spec: Any) -> Any:
        return backend.customize_spec(spec)

BACKENDS = {"cpu": "cpu_attn:CPUAttentionBackend", "flash": "flash_attn:FlashAttentionBackend",
            "flashinfer": "flashinfer:FlashInferBackend", "triton": "triton_attn:TritonAttentionBackend",
            "flex": "flex_attention:FlexAttentionBackend", "hpc": "hpc_attn:HpcAttentionBackend",
            "b12x": "b12x:B12xPagedAttentionBackend"}
FLASHINFER = ("flashinfer", "flashinfer.decode", "flashinfer.prefill", "flashinfer.utils")
BLOCKS, LAYERS, HEADS, HEAD_SIZE, RANKS = 5, 3, 2, 16, 4
POOL_AT, ORDINAL = 1 << 40, 1
OF_FOUR = Split(1, RANKS, HEADS * RANKS)
ALONE = Split(0, 1, HEADS)


class StubModule(ModuleType):
    """Has a class of whatever name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def backend_of(name: str) -> Any:
    if importlib.util.find_spec(f"vllm.v1.attention.backends.{BACKENDS[name].partition(':')[0]}") is None:
        pytest.skip(f"vLLM has no backend {name}")
    return backend_at(BACKENDS[name])


def backend_at(path: str) -> Any:
    module, _, cls = path.partition(":")
    stubs = FLASHINFER if "flashinfer" in module and importlib.util.find_spec("flashinfer") is None else ()
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
    made.kv_cache_layout = layout.name
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


def named_by(pool: Pool, index: int, block: int, head: int) -> set[int]:
    """Where the bytes of one of a part's heads are in a block."""
    part = pool.parts[index]
    region = pool.regions[part.region]
    at = region.base + block * region.stride_bytes + part.offset_bytes + head * part.head_bytes
    return {at + row * part.row_bytes + byte for row in range(part.rows) for byte in range(part.unit_bytes)}


HND, NHD = ("LBHNC", "BLHNC"), ("LBNHC", "BLNHC")
CASES = [("cpu", "LBHNC", 32, KVQuantMode.NONE)]
CASES += [(name, layout, 32, KVQuantMode.NONE) for name in ("flash", "triton", "flashinfer") for layout in (*HND, *NHD)]
CASES += [("triton", layout, 16, KVQuantMode.INT8_PER_TOKEN_HEAD) for layout in ("LBHNC", "LBNHC")]
CASES += [("flash", "LBHNC", 128, KVQuantMode.FP8_PER_TENSOR), ("flashinfer", "LBNHC", 128, KVQuantMode.NONE),
          ("flex", "LBNHC", 16, KVQuantMode.NONE), ("hpc", "LBNHC", 128, KVQuantMode.NONE)]
APART = [("flashinfer", layout, 32, KVQuantMode.NVFP4) for layout in (*HND, *NHD)]
APART += [("b12x", layout, 64, KVQuantMode.NONE) for layout in HND]
"""Keys and values apart: a block cannot be cut by heads."""


@pytest.mark.parametrize("name, layout, block_tokens, quantized", CASES + APART)
def test_every_byte_of_every_block(name: str, layout: str, block_tokens: int, quantized: KVQuantMode) -> None:
    backend = backend_of(name)
    assert KVCacheLayout[layout] in (backend.supported_kv_cache_layouts() or KVCacheLayout)
    made, caches = lay_out(backend, KVCacheLayout[layout], spec_of(backend, block_tokens, quantized))
    pool = pool_of(caches, made, OF_FOUR)
    assert len(pool.regions) == len(pool.parts) == LAYERS and Groups(made).block_tokens == block_tokens
    heads = HEADS if (name, layout, block_tokens, quantized) not in APART else 1
    assert pool.share == (heads, heads, heads * RANKS)
    taken: set[int] = set()
    for index, (part, tensor) in enumerate(zip(pool.parts, caches.values())):
        region = pool.regions[part.region]
        assert (part.heads, part.first_head, part.heads_total) == pool.share and region.blocks == BLOCKS
        assert (region.memory, region.device) == (_kvferry.MEMORY_CUDA, ORDINAL)
        for block, by_head in enumerate(seen_by_kernels(tensor)):
            expected = by_head if heads > 1 else [set.union(*by_head)]
            assert [named_by(pool, index, block, head) for head in range(heads)] == expected
            assert not taken & set.union(*by_head)
            taken |= set.union(*by_head)
    assert taken == set(range(POOL_AT, POOL_AT + BLOCKS * LAYERS * pool.regions[0].block_bytes))


NAMES_INDEX, NAMES_SHARDS = hasattr(interface, "SparseCacheRole"), hasattr(AttentionSpec, "max_tp_shards")
"""Whether this vLLM marks an indexer's cache, and says how many ranks have different pieces of a layer: 0.29 does neither."""
ON_ALL_RANKS = {"max_tp_shards": 1} if NAMES_SHARDS else {}
MLA = {"latent": (MLAAttentionSpec, {}), "fp8": (MLAAttentionSpec, {"cache_dtype_str": "fp8_ds_mla", "state_content_bytes": 656}),
       "index": (MLAAttentionSpec, {"cache_role": interface.SparseCacheRole.INDEXER} if NAMES_INDEX else {}), "window": (SlidingWindowMLASpec, {"sliding_window": 128})}
OF_MLA = {"flashmla": "flashmla:FlashMLABackend", "sparse": "flashmla_sparse:FlashMLASparseBackend", "indexer": "indexer:DeepseekV32IndexerBackend",
          "flashinfer": "flashinfer_mla:FlashInferMLABackend",
          "triton": "triton_mla:TritonMLABackend", "cpu": "cpu_mla:CPUMLABackend", "amx": "amx_mla:AMXMLABackend"}


@pytest.mark.parametrize("layout", ["LBHNC", "BLHNC"])
@pytest.mark.parametrize("name, what, block_tokens", [
    ("flashmla", "latent", 64), ("sparse", "fp8", 64), ("indexer", "index", 64), ("flashinfer", "latent", 32), ("triton", "latent", 16), ("triton", "window", 16), ("cpu", "latent", 16), ("amx", "latent", 32)])
def test_every_byte_of_mla(name: str, what: str, block_tokens: int, layout: str) -> None:
    """A latent is the same on all ranks, and one piece."""
    backend, (kind, fields) = backend_at("mla." + OF_MLA[name]), MLA[what]
    dtype = torch.uint8 if what in ("fp8", "index") else torch.bfloat16
    spec = customize_attention_spec(backend, kind(block_size=block_tokens, num_kv_heads=1, dtype=dtype,
                                                  head_size=132 if what == "index" else 576, **ON_ALL_RANKS, **fields))
    made, caches = lay_out(backend, KVCacheLayout[layout], spec)
    pool = pool_of(caches, made, OF_FOUR)
    assert pool.share == ((0, 1, 1) if NAMES_SHARDS else (1, 1, RANKS)) and Groups(made).block_tokens == block_tokens
    assert {part.kind for part in pool.parts} == {_kvferry.PART_INDEX if what == "index" and NAMES_INDEX else _kvferry.PART_LATENT}
    for index, tensor in enumerate(caches.values()):
        for block, by_head in enumerate(seen_by_kernels(tensor)):
            assert [named_by(pool, index, block, 0)] == by_head


@pytest.mark.parametrize("layout", ["LBHNC", "BLHNC", "BLNHC"])
def test_groups_that_overlay_each_other(layout: str) -> None:
    """vLLM gives a block to one group at a time: the same bytes are in regions of both."""
    backend = backend_of("flash")
    made, caches = lay_out(backend, KVCacheLayout[layout], spec_of(backend), spec_of(backend, sliding_window=64))
    pool = pool_of(caches, made, ALONE)
    assert [part.group for part in pool.parts] == [0] * LAYERS + [1] * LAYERS
    assert [region[:6] for region in pool.regions[:LAYERS]] == [region[:6] for region in pool.regions[LAYERS:]]


def test_one_head_is_the_same_in_any_order() -> None:
    backend = backend_of("triton")
    one = spec_of(backend, num_kv_heads=1)
    by_layout = [pool_of(caches, made, Split(1, 2, 2))
                 for made, caches in (lay_out(backend, KVCacheLayout[name], one) for name in ("LBHNC", "LBNHC"))]
    assert by_layout[0].regions == by_layout[1].regions and by_layout[0].share == by_layout[1].share == (1, 1, 2)


def test_layers_that_differ() -> None:
    """In heads, head sizes, and in whether a block can be cut."""
    flash, flashinfer = backend_of("flash"), backend_of("flashinfer")
    specs = [spec_of(flash, 64), spec_of(flash, 64, num_kv_heads=4, head_size=32), spec_of(flashinfer, 64, KVQuantMode.NVFP4)]
    made, caches = KVCacheConfig(BLOCKS, [], []), {}
    for number, (backend, one) in enumerate(zip((flash, flash, flashinfer), specs)):
        alone = lay_out(backend, KVCacheLayout.LBHNC, one)[1]["layer.0.0"]
        caches[f"layers.{number}"] = alone
        made.kv_cache_groups.append(KVCacheGroupSpec([f"layers.{number}"], one))
    pool = pool_of(caches, made, Split(3, RANKS, None))
    assert [(part.layer, part.heads, part.first_head, part.heads_total) for part in pool.parts] == [
        (0, 2, 6, 8), (1, 4, 12, 16), (2, 1, 3, 4)]
    assert pool.share == (12, 4, 16)


@pytest.mark.parametrize("heads, ranks, shards, expected", [
    (8, 4, None, [(0, 1, 4), (1, 1, 4), (2, 1, 4), (3, 1, 4)]), (2, 4, None, [(0, 1, 2), (0, 1, 2), (1, 1, 2), (1, 1, 2)]),
    (1, 2, None, [(0, 1, 1), (0, 1, 1)]), (8, 2, None, [(0, 1, 2), (1, 1, 2)]), (None, 2, None, [(0, 1, 2), (1, 1, 2)]),
    pytest.param(8, 2, 1, [(0, 1, 1), (0, 1, 1)], marks=pytest.mark.skipif(not NAMES_SHARDS, reason="AttentionSpec has no max_tp_shards"))])
def test_ranks_beyond_the_heads_have_the_same(heads: int | None, ranks: int, shards: int | None, expected: list[tuple[int, ...]]) -> None:
    """Where layers differ, ranks with one head of a layer each count as having different ones."""
    backend = backend_of("flash")
    made, caches = lay_out(backend, KVCacheLayout.LBHNC, spec_of(backend, num_kv_heads=1, **({"max_tp_shards": shards} if shards else {})))
    assert [pool_of(caches, made, Split(rank, ranks, heads)).share for rank in range(ranks)] == expected


@pytest.mark.parametrize("named, heads", [
    ({"num_key_value_heads": 8}, 8), ({}, None), ({"multi_query": True}, None), ({"num_attention_groups": 8, "other": {"num_attention_groups": 4}}, None),
    ({"num_kv_heads_per_layer": [8, 8]}, 8), ({"num_kv_heads_per_layer": [[8], [2]]}, None), ({"num_key_value_heads": 8, "num_global_key_value_heads": 2}, None),
    ({"num_key_value_heads": [8, 8, 4]}, None), ({"block_configs": [{"attention": {"n_heads_in_group": 8}}, {"attention": {"n_heads_in_group": 4}}]}, None),
    ({"num_key_value_heads": None, "kv_heads": 8}, 8)])
def test_heads_that_a_model_s_configuration_names(named: dict[str, Any], heads: int | None) -> None:
    model: Any = SimpleNamespace(get_total_num_kv_heads=lambda: 8, hf_text_config=SimpleNamespace(to_dict=lambda: named))
    assert heads_of_all_layers(model) == heads


def test_layers_are_numbered_by_their_names() -> None:
    names = ("model.layers.12.self_attn.attn", "mtp.layers.3.attn", "model.mtp.layers.0.attn", "draft_model.model.layers.1.attn", "decoder.attn")
    assert [layer_number(name) for name in names] == [12, FIRST_APART + 3, FIRST_APART, FIRST_APART + 1, 0]
    backend = backend_of("flash")
    made, caches = lay_out(backend, KVCacheLayout.LBHNC, spec_of(backend), spec_of(backend))
    by_layer = [(part.layer, part.index) for part in pool_of(caches, made, ALONE).parts]
    assert by_layer == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)], "a name's first number; several of one are told apart"


@pytest.mark.parametrize("half", [True, False])
def test_keys_and_values_apart(half: bool) -> None:
    tensor = torch.zeros(2, POOL_BLOCKS, HEADS, 32, 16)
    made = KVCacheConfig(POOL_BLOCKS, [], [KVCacheGroupSpec(["l.0", "l.1"], fakes.spec())])
    pool = pool_of({"l.0": tensor, "l.1": tensor}, made, ALONE)
    assert [(part.layer, part.kind, region.base) for part, region in zip(pool.parts, pool.regions)] == [
        (0, _kvferry.PART_KEYS, tensor[0].data_ptr()), (0, _kvferry.PART_VALUES, tensor[1].data_ptr())], "l.1 shares it"


@pytest.mark.parametrize("tensor, said", [(torch.zeros(POOL_BLOCKS + 1, 2, 32, 32), "blocks"),
                                          (torch.zeros(POOL_BLOCKS, 2, 32, 64)[..., ::2], "in one piece")])
def test_tensors_that_are_no_pool(tensor: torch.Tensor, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        pool_of({"l": tensor}, KVCacheConfig(POOL_BLOCKS, [], [KVCacheGroupSpec(["l"], fakes.spec())]), ALONE)


@pytest.mark.parametrize("layout", SCATTERED)
def test_heads_that_are_scattered(layout: str) -> None:
    backend = backend_of("flash")
    made, caches = lay_out(backend, KVCacheLayout[layout], spec_of(backend))
    with pytest.raises(LayoutError, match=r"layer layer\.0\.0: KV of shape .* with every block in one piece"):
        pool_of(caches, made, ALONE)


@pytest.mark.parametrize("name, layout, quantized", [
    ("flashinfer", "LBHNC", KVQuantMode.NONE), ("flashinfer", "LBNHC", KVQuantMode.NVFP4)])
def test_blocks_that_kernels_divide(name: str, layout: str, quantized: KVQuantMode) -> None:
    """Another GPU's kernels may divide them otherwise: nothing else would tell such pages apart."""
    backend = backend_of(name)
    made, caches = lay_out(backend, KVCacheLayout[layout], spec_of(backend, 128, quantized))
    with pytest.raises(LayoutError, match=r"keep a block of 128 tokens as 2: set --block-size 64"):
        pool_of(caches, made, ALONE)
    made, caches = lay_out(backend, KVCacheLayout[layout], spec_of(backend, 64, quantized))
    assert len(pool_of(caches, made, ALONE).parts) == LAYERS


# ---- engines of other sizes, on real nodes ----

def latent(kind: Any = MLAAttentionSpec, head_size: int = 64, dtype: torch.dtype = torch.float32, **fields: Any) -> tuple[Any, bool]:
    return kind(block_size=32, num_kv_heads=1, head_size=head_size, dtype=dtype, **ON_ALL_RANKS, **fields), False


SHAPES = {"heads outermost": (spec(num_kv_heads=4), False), "tokens outermost": (spec(num_kv_heads=4), True), "few heads": (spec(), False),
          "MLA": latent(), "MLA with windows": latent(SlidingWindowMLASpec, sliding_window=128),
          "sparse MLA": latent(head_size=576, dtype=torch.uint8, **MLA["fp8"][1]),
          "index": latent(head_size=132, dtype=torch.uint8, **MLA["index"][1])}
LAYERS_OF_SIDES = 2


class Engine:
    """Its ranks' parts of what the whole model's layers have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ranks: int, shapes: list[str], full: list[torch.Tensor], empty: bool,
                 stages: int = 1) -> None:
        self.ranks, self.full = ranks, full
        self.shapes = [SHAPES[shape] for shape in shapes]
        groups = [KVCacheGroupSpec(["model.layers.0.attn", "model.layers.1.attn"], self._of_rank(0))] if len(set(shapes)) == 1 else [
            KVCacheGroupSpec([f"model.layers.{layer}.attn"], self._of_rank(layer)) for layer in range(LAYERS_OF_SIDES)]
        heads = {shape.num_kv_heads for shape, _ in self.shapes}
        self._empty = empty
        layout = "LBNHC" if self.shapes[0][1] else "LBHNC"
        self.sides = sides.Sides(monkeypatch, ranks, memory=self._memory, kv=KVCacheConfig(POOL_BLOCKS, [], groups, kv_cache_layout=layout),
                                 kv_heads=max(heads), stages=stages)

    def _of_rank(self, layer: int) -> Any:
        whole = self.shapes[layer][0]
        return replace(whole, num_kv_heads=max(1, whole.num_kv_heads // self.ranks))

    def expected(self, layer: int, rank: int) -> torch.Tensor:
        total, own = self.shapes[layer][0].num_kv_heads, self._of_rank(layer).num_kv_heads
        first = rank * total // self.ranks
        return self.full[layer][:, first:first + own]

    def _memory(self, layer: int, rank: int) -> torch.Tensor:
        made = self.expected(layer, rank) * (not self._empty)
        if not self.shapes[layer][1]:
            return made.contiguous()
        return made.transpose(1, 2).contiguous().transpose(1, 2)


Engines = Callable[..., list[Engine]]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch, closes: Callable[[Any], Any]) -> Engines:
    """Of P's and D's numbers of ranks and stages."""
    def make(ranks: tuple[int, int], shapes: list[str], stages: tuple[int, int] = (1, 1)) -> list[Engine]:
        torch.manual_seed(1)
        specs = [SHAPES[shape][0] for shape in shapes]
        full = [torch.rand(POOL_BLOCKS, spec.num_kv_heads, 32, spec.state_content_size_bytes // 4) for spec in specs]
        made = [Engine(monkeypatch, ranks[at], shapes, full, at == 1, stages[at]) for at in (0, 1)]
        for one in made:
            closes(one.sides)
        return made
    return make


def is_latent_apart(shapes: list[str], ranks_of_p: int, ranks_of_d: int) -> bool:
    """Nobody says that all ranks have the same latent."""
    return not NAMES_SHARDS and ranks_of_p != ranks_of_d and any(isinstance(SHAPES[shape][0], LATENT) for shape in shapes)


@pytest.mark.parametrize("ranks_of_p, ranks_of_d", [(1, 1), (2, 1), (1, 2), (2, 4), (4, 2)])
@pytest.mark.parametrize("shapes", [["heads outermost"] * 2, ["tokens outermost"] * 2, ["few heads"] * 2, ["MLA"] * 2, ["heads outermost", "MLA"],
                                    ["few heads", "heads outermost"], ["sparse MLA", "index"], ["MLA with windows"] * 2], ids="+".join)
def test_other_numbers_of_ranks(engines: Engines, shapes: list[str], ranks_of_p: int, ranks_of_d: int) -> None:
    """Every rank of D gets its heads of every layer, from a rank that has them. Where layers differ, vLLM does not say which
    ranks have the same head of one with fewer heads than ranks."""
    fails = shapes == ["few heads", "heads outermost"] and max(ranks_of_p, ranks_of_d) > SHAPES["few heads"][0].num_kv_heads
    fails |= is_latent_apart(shapes, ranks_of_p, ranks_of_d)
    p, d = engines((ranks_of_p, ranks_of_d), shapes)
    assert d.sides.until_received(d.sides.begin(p.sides.prefill())) == fails
    assert d.sides.stat("loads_failed", "incompatible") == (ranks_of_d if fails else 0)
    for index, found in enumerate(d.sides.memory):
        rank, layer = divmod(index, LAYERS_OF_SIDES)
        assert torch.equal(found[sides.TARGET], d.expected(layer, rank)[sides.SOURCE]) != fails


@pytest.mark.parametrize("stages_of_p, stages_of_d", [(2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("ranks_of_p, ranks_of_d", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("shapes", [["heads outermost"] * 2, ["MLA"] * 2, ["heads outermost", "MLA"], ["sparse MLA", "index"],
                                    ["MLA with windows"] * 2], ids="+".join)
def test_pipelines(engines: Engines, shapes: list[str], ranks_of_p: int, ranks_of_d: int, stages_of_p: int, stages_of_d: int) -> None:
    """Each stage has a layer, and where layers are of two kinds, of one group only."""
    p, d = engines((ranks_of_p, ranks_of_d), shapes, (stages_of_p, stages_of_d))
    fails = is_latent_apart(shapes, ranks_of_p, ranks_of_d)
    assert d.sides.until_received(d.sides.begin(p.sides.prefill())) == fails
    by_rank = iter(d.sides.memory)
    for rank in range(ranks_of_d * stages_of_d):
        for layer in range(LAYERS_OF_SIDES) if stages_of_d == 1 else [rank // ranks_of_d]:
            assert torch.equal(next(by_rank)[sides.TARGET], d.expected(layer, rank % ranks_of_d)[sides.SOURCE]) or fails


def test_whole_blocks_go_to_as_many_ranks_only(monkeypatch: pytest.MonkeyPatch, closes: Callable[[Any], Any]) -> None:
    p, d = (closes(sides.Sides(monkeypatch, ranks, kv=kv_cache_config(), kv_heads=1)) for ranks in (2, 1))
    assert d.until_received(d.begin(p.prefill()))
    assert d.stat("loads_failed", "incompatible") == 1


# ---- what tells pages apart between two engines ----

def groups_digest(*specs: Any) -> str:
    return identity._groups(KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["l0"], spec) for spec in specs]))


def test_groups_that_keep_other_blocks_have_another_identity() -> None:
    backend = backend_of("flash")
    full, window, wider = spec_of(backend), spec_of(backend, sliding_window=64), spec_of(backend, sliding_window=128)
    kept = spec_of(backend, sliding_window=64, extra_retained_tokens=2)
    digests = [groups_digest(*specs) for specs in ([full], [window], [wider], [kept], [full, window], [window, full], [full, full])]
    assert len(set(digests)) == len(digests)


def test_all_nodes_of_an_engine_have_one_identity() -> None:
    """The scheduler knows one layer's kind of a group whose layers differ, a stage of a pipeline some of the layers, and ranks
    fewer heads than the model."""
    backend, latent = backend_of("flash"), MLAAttentionSpec(block_size=32, num_kv_heads=1, head_size=64, dtype=torch.float32)
    specs = {"l0": spec_of(backend), "l1": spec_of(backend, num_kv_heads=4), "l2": latent}
    worker = KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(list(specs), UniformTypeKVCacheSpecs(block_size=32, kv_cache_specs=specs))])
    stage = KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["l2"], UniformTypeKVCacheSpecs(block_size=32, kv_cache_specs={"l2": latent}))])
    scheduler = generate_scheduler_kv_cache_config([worker])
    assert identity._groups(worker) == identity._groups(scheduler) == identity._groups(stage)
    assert len({groups_digest(spec_of(backend, num_kv_heads=heads)) for heads in (1, 2, 8)}) == 1


def test_a_gpu_engine_is_named_by_its_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever GPU it is; asked as vLLM asks where it has no layers, in the engine's configuration."""
    asked: list[Any] = []

    def choose(*arguments: Any, **kinds: bool) -> Any:
        asked.append((get_current_vllm_config(), *arguments, kinds))
        return backend_of("triton")

    monkeypatch.setattr(identity, "current_platform", SimpleNamespace(is_cpu=lambda: False, device_name="NVIDIA H200"))
    monkeypatch.setattr(selector, "get_attn_backend", choose)
    engine = SimpleNamespace(model_config=SimpleNamespace(get_head_size=lambda: 64, dtype=torch.bfloat16, use_mla=False, hf_text_config=object()),
                             cache_config=SimpleNamespace(cache_dtype="fp8"))
    assert identity._attention(engine, None) == "TRITON_ATTN"
    assert asked == [(engine, 64, torch.bfloat16, "fp8", {"use_mla": False, "use_sparse": False})]
