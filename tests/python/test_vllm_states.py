"""The memory of state-space layers: which bytes of a block a part names, and that engines of other sizes find theirs, as
vLLM's own calculators, layers and loaders share out a model's states."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from math import prod
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402
from engines import Nodes, make_prompt, pack  # noqa: E402
from fakes import spec as attention_spec  # noqa: E402
from kvferry import Node, _kvferry  # noqa: E402
from kvferry.vllm.layout import APART, LayoutError, Pool, check_checksums, pool_of  # noqa: E402
from kvferry.vllm.split import Split  # noqa: E402
from kvferry.vllm.states import groups_of_all_layers  # noqa: E402
from sides import of_stage  # noqa: E402
from test_vllm_layouts import BLOCKS, LAYERS, backend_of, lay_out, named_by, spec_of  # noqa: E402
from vllm.model_executor.layers.mamba import mamba_utils  # noqa: E402
from vllm.model_executor.layers.mamba.abstract import MambaBase  # noqa: E402
from vllm.model_executor.layers.mamba.mamba_mixer2 import mamba_v2_sharded_weight_loader  # noqa: E402
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator as Shapes  # noqa: E402
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum as Kind  # noqa: E402
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MambaSpec  # noqa: E402
from vllm.v1.kv_cache_layout import KVCacheLayout  # noqa: E402

DTYPES = (torch.bfloat16, torch.float32)
ORDERS = ["DS", "SD"]
KERNEL, STATE_SIZE = 4, 6


@dataclass(frozen=True)
class Model:
    """A kind of state-space layers, of a model as a whole."""

    kind: Any
    shapes: Callable[[int], Any]
    """Of a rank, of so many."""
    projections: tuple[tuple[int, int], ...] = ()
    """Of the convolution: channels and heads."""
    heads: int = 0
    """Of the recurrence, outermost in its state."""
    groups: int | None = None

    def spec(self, ranks: int, **fields: Any) -> MambaSpec:
        shapes = self.shapes(ranks)
        return MambaSpec(block_size=32, shapes=shapes, dtypes=DTYPES[:len(shapes)] if self.projections else DTYPES[1:],
                         mamba_type=self.kind, **fields)

    def is_one_for_all(self, projection: int) -> bool:
        return projection > 0 and self.groups == 1


def mamba2(groups: int) -> Model:
    heads, size = 8, 10
    return Model(Kind.MAMBA2, lambda ranks: Shapes.mamba2_state_shape(ranks, heads * size, groups, heads, size, STATE_SIZE, KERNEL),
                 ((heads * size, heads), *[(groups * STATE_SIZE, groups)] * 2), heads, groups)


MODELS = {
    "mamba 1": Model(Kind.MAMBA1, lambda ranks: Shapes.mamba1_state_shape(ranks, 72, STATE_SIZE, KERNEL), ((72, 24),), 24),
    "mamba 2, a group": mamba2(1), "mamba 2, two": mamba2(2), "mamba 2, four": mamba2(4),
    "gated delta": Model(Kind.GDN_ATTN, lambda ranks: Shapes.gated_delta_net_state_shape(ranks, 4, 8, STATE_SIZE, 10, KERNEL),
                         ((24, 4), (24, 4), (80, 8)), 8),
    "Kimi's": Model(Kind.GDN_ATTN, lambda ranks: Shapes.kda_state_shape(ranks, 8, 10), ((80, 8),) * 3, 8),
    "short": Model(Kind.SHORT_CONV, lambda ranks: Shapes.short_conv_state_shape(ranks, 128, KERNEL), ((128, 64),)),
    "linear": Model(Kind.LINEAR, lambda ranks: Shapes.linear_attention_state_shape(8, ranks, 10), (), 8)}


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Of channels and widths in a convolution's state."""
    def choose(name: str) -> None:
        monkeypatch.setattr(mamba_utils, "get_conv_state_layout", lambda: name)
    return choose


def shown(spec: MambaSpec, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What a layer makes of the blocks that it gets: its states."""
    layer: Any = SimpleNamespace(get_state_shape=lambda: spec.shapes, get_state_dtype=lambda: spec.dtypes)
    MambaBase.bind_kv_cache(layer, tensor)
    return layer.kv_cache


def by_channels(state: torch.Tensor) -> torch.Tensor:
    """[blocks, channels, width], in whatever order."""
    return state if mamba_utils.is_conv_state_dim_first() else state.transpose(1, 2)


def places(view: torch.Tensor) -> set[int]:
    """Of a view's bytes in memory."""
    size = view.element_size()
    at = sum(torch.arange(n).mul(stride * size).view(n, *[1] * (view.dim() - i - 1)) for i, (n, stride) in
             enumerate(zip(view.shape, view.stride())))
    return set((at.unsqueeze(-1) + torch.arange(size) + view.data_ptr()).flatten().tolist())


def heads_shown(model: Model, spec: MambaSpec, tensor: torch.Tensor, ranks: int) -> list[tuple[int, int, int, list[torch.Tensor]]]:
    """Each part's kind and index, the model's heads of it, and the rank's in all blocks."""
    states = list(shown(spec, tensor))
    found, at = [], 0
    for index, (channels, heads) in enumerate(model.projections):
        own_heads = heads if model.is_one_for_all(index) else heads // ranks
        width = channels // heads
        of_channels = by_channels(states[0])
        found.append((_kvferry.PART_CONVOLUTION, index, heads, [of_channels[:, at + i * width:at + (i + 1) * width] for i in range(own_heads)]))
        at += own_heads * width
    if model.heads:
        found.append((_kvferry.PART_STATE, 0, model.heads, list(states[-1].chunk(model.heads // ranks, 1))))
    return found


SIZES = [(name, ranks) for name in MODELS for ranks in (1, 2, 4) if (name, ranks) != ("mamba 2, two", 4)]
"""vLLM has no ranks without a group of their own, unless all have the same one."""


@pytest.mark.parametrize("layout", ["LBHNC", "BLHNC"])
@pytest.mark.parametrize("name, ranks", SIZES)
@pytest.mark.parametrize("axes", ORDERS)
def test_every_byte_of_every_block(order: Callable[[str], None], name: str, axes: str, ranks: int, layout: str) -> None:
    """Beside an attention's group, whose blocks are the same memory and larger."""
    order(axes)
    model, rank, backend = MODELS[name], ranks - 1, backend_of("flash")
    beside = spec_of(backend, head_size=256)
    spec = model.spec(ranks, page_size_padded=beside.page_size_bytes)
    made, caches = lay_out(backend, KVCacheLayout[layout], beside, spec)
    pool = pool_of(caches, made, Split(rank, ranks, 2 * ranks, model.groups))
    numbers = iter(range(LAYERS, len(pool.parts)))
    for layer in range(LAYERS):
        states = heads_shown(model, spec, caches[f"layer.1.{layer}"], ranks)
        taken: set[int] = set()
        for kind, index, total, heads in states:
            number = next(numbers)
            part = pool.parts[number]
            # All layers of these names are of number 1.
            index += sum(kind == other for other, *_ in states) * layer
            assert (part.kind, part.index, part.group, part.block_tokens) == (kind, index, 1, 0)
            assert part[-3:] == (len(heads), rank * total // ranks, total)
            for block in range(0, BLOCKS, BLOCKS - 1):
                by_head = [places(view[block]) for view in heads]
                assert [named_by(pool, number, block, head) for head in range(part.heads)] == by_head
                taken |= set().union(*by_head)
        assert len(taken) == 2 * spec.state_content_size_bytes
    assert next(numbers, None) is None and {region.blocks for region in pool.regions} == {BLOCKS}


# ---- engines of other sizes, on real nodes ----

TOKENS, POOL_BLOCKS = 80, 8
SOURCE, TARGET = [1, 2, 3], [4, 5, 6]
KV_HEADS = 2
PADDING = 16
NAMES = ["model.layers.0.mixer", "model.layers.1.attn"]


def channels_of(model: Model, rank: int, ranks: int) -> torch.Tensor:
    """The rank's of the convolution, as vLLM's loader takes them from the model's weights."""
    def shard(channels: int, is_one_for_all: bool) -> tuple[int, int, bool]:
        copies = ranks if is_one_for_all else 1
        return channels * copies, channels * (copies - 1), is_one_for_all

    shards = [shard(channels, model.is_one_for_all(i)) for i, (channels, _) in enumerate(model.projections)]
    all_channels = torch.arange(sum(channels for channels, _ in model.projections)).unsqueeze(-1)
    own = torch.full((sum(channels for channels, *_ in shards) // ranks, 1), -1)
    mamba_v2_sharded_weight_loader(shards, ranks, rank)(own, all_channels)
    return own.squeeze(-1)


def padded(blocks: torch.Tensor) -> torch.Tensor:
    """The same, with something that is not the layer's behind each."""
    raw = torch.full((POOL_BLOCKS, blocks[0].numel() + PADDING), 77, dtype=torch.int8)
    view = raw[:, :-PADDING].view(blocks.shape)
    view[:] = blocks
    return view


def behind(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.as_strided((POOL_BLOCKS, PADDING), (blocks.stride(0), 1), blocks.shape[-1])


class Whole:
    """What a model keeps in each block, on one rank that has it all."""

    def __init__(self, model: Model) -> None:
        torch.manual_seed(1)
        self.model = model
        self.convolution = torch.rand(POOL_BLOCKS, sum(channels for channels, _ in model.projections), KERNEL - 1).to(DTYPES[0])
        shapes = model.shapes(1)
        self.state = torch.rand(POOL_BLOCKS, *(shapes[-1] if model.heads else (0,)))
        self.kv = torch.rand(POOL_BLOCKS, KV_HEADS, 32, 32)

    def of_rank(self, spec: MambaSpec, rank: int, ranks: int) -> torch.Tensor:
        """Blocks of a state-space layer."""
        rank, ranks = (0, 1) if spec.tp_replicated else (rank, ranks)
        tensor = padded(torch.zeros(POOL_BLOCKS, 1, 1, spec.state_content_size_bytes, dtype=torch.int8))
        states = shown(spec, tensor)
        if self.model.projections:
            by_channels(states[0])[:] = self.convolution[:, channels_of(self.model, rank, ranks)]
        if self.model.heads:
            own = states[-1].shape[1]
            states[-1][:] = self.state[:, rank * own:(rank + 1) * own]
        return tensor

    def kv_of_rank(self, rank: int, ranks: int) -> torch.Tensor:
        own = max(1, KV_HEADS // ranks)
        first = rank * KV_HEADS // ranks
        return self.kv[:, first:first + own].contiguous()


class Engine(Nodes):
    """With a state-space layer and one of attention, of fewer heads. Of two stages each has one of them."""

    def __init__(self, whole: Whole, ranks: int, is_empty: bool, groups: int | None = None, stages: int = 1, **fields: Any) -> None:
        spec = replace(whole.model.spec(ranks), **fields)
        kv = KVCacheConfig(POOL_BLOCKS, [], [KVCacheGroupSpec([NAMES[0]], spec), KVCacheGroupSpec(
            [NAMES[1]], attention_spec(num_kv_heads=max(1, KV_HEADS // ranks)))], kv_cache_layout="LBHNC")
        options = {"ranks": str(ranks * stages), "block_tokens": "32", "policy": "fail"}
        control = Node({**options, "listen": ""}, {"model": "toy"})
        nodes: list[Node] = []
        self.expected: list[dict[str, torch.Tensor]] = []
        self.memory: list[dict[str, torch.Tensor]] = []
        for number in range(ranks * stages):
            stage, rank = divmod(number, ranks)
            names = NAMES if stages == 1 else [NAMES[stage]]
            right = {NAMES[0]: whole.of_rank(spec, rank, ranks), NAMES[1]: whole.kv_of_rank(rank, ranks)}
            self.expected.append({name: right[name] for name in names})
            found = {name: torch.full_like(one, 5) if is_empty else one for name, one in self.expected[-1].items()}
            self.memory.append({name: padded(one) if name == NAMES[0] else one for name, one in found.items()})
            nodes.append(Node({**options, "rank": str(number)}, {"model": "toy"}))
            nodes[-1].register(*pool_of(self.memory[-1], of_stage(kv, names), Split(rank, ranks, KV_HEADS, groups)))
        super().__init__(control, nodes)

    def check(self, is_loaded: bool) -> None:
        """Every byte of the pool."""
        for own, expected in zip(self.memory, self.expected):
            for name, right in expected.items():
                before = torch.full_like(right, 5)
                if is_loaded:
                    before[TARGET] = right[SOURCE]
                assert torch.equal(own[name], before)
            assert NAMES[0] not in own or (behind(own[NAMES[0]]) == 77).all()


def status_of_load(p: Engine, d: Engine) -> int:
    """And everything is where it belongs."""
    with closing(p), closing(d):
        prompt = make_prompt(TOKENS)
        _, _, ticket = p.lend(prompt, pack(SOURCE, SOURCE), POOL_BLOCKS)
        status: int = d.verdict(d.fetch(ticket, prompt, pack(TARGET, TARGET))).status
        d.check(status == _kvferry.OK)
        return status


def status_between(model: Model, ranks: tuple[int, int], groups: int | None = None, stages: tuple[int, int] = (1, 1), **fields: Any) -> int:
    """From P to D."""
    whole = Whole(model)
    p, d = (Engine(whole, ranks[at], at == 1, groups, stages[at], **fields) for at in (0, 1))
    return status_of_load(p, d)


ENGINES = [(1, 1), (2, 2), (4, 4), (1, 2), (2, 1), (2, 4), (4, 2), (1, 4), (4, 1)]


@pytest.mark.parametrize("axes", ORDERS)
@pytest.mark.parametrize("name, ranks_of_p, ranks_of_d", [
    (name, p, d) for name in MODELS for p, d in ENGINES if {(name, p), (name, d)} <= set(SIZES)])
def test_engines_of_other_sizes(order: Callable[[str], None], name: str, ranks_of_p: int, ranks_of_d: int, axes: str) -> None:
    order(axes)
    model = MODELS[name]
    assert status_between(model, (ranks_of_p, ranks_of_d), model.groups) == _kvferry.OK


@pytest.mark.parametrize("stages_of_p, stages_of_d", [(2, 1), (1, 2)])
@pytest.mark.parametrize("name, ranks_of_p, ranks_of_d", [
    (name, p, d) for name in MODELS for p, d in [(1, 1), (2, 1)] if {(name, p), (name, d)} <= set(SIZES)])
def test_pipelines(name: str, ranks_of_p: int, ranks_of_d: int, stages_of_p: int, stages_of_d: int) -> None:
    model = MODELS[name]
    assert status_between(model, (ranks_of_p, ranks_of_d), model.groups, (stages_of_p, stages_of_d)) == _kvferry.OK


@pytest.mark.parametrize("ranks_of_p, ranks_of_d", ENGINES)
@pytest.mark.parametrize("name, changes", [
    ("gated delta", {"kind": Kind.CUSTOM}), ("linear", {"kind": Kind.CUSTOM}), ("mamba 2, a group", {})], ids=str)
def test_only_as_many_ranks_load_what_is_not_known(name: str, changes: dict[str, Any], ranks_of_p: int, ranks_of_d: int) -> None:
    """How a state is split; or whether all ranks have the same group, which the model's configuration would say."""
    status = status_between(replace(MODELS[name], **changes), (ranks_of_p, ranks_of_d))
    assert status == (_kvferry.OK if ranks_of_p == ranks_of_d else _kvferry.INCOMPATIBLE)


@pytest.mark.parametrize("axes", ORDERS)
@pytest.mark.parametrize("ranks_of_p, ranks_of_d", ENGINES)
def test_states_that_all_ranks_have(order: Callable[[str], None], ranks_of_p: int, ranks_of_d: int, axes: str) -> None:
    order(axes)
    model = MODELS["short"]
    assert status_between(model, (ranks_of_p, ranks_of_d), tp_replicated=True, shapes=model.shapes(1)) == _kvferry.OK


def test_orders_of_channels_that_differ(order: Callable[[str], None]) -> None:
    whole = Whole(MODELS["short"])
    order("DS")
    p = Engine(whole, 1, False)
    order("SD")
    assert status_of_load(p, Engine(whole, 1, True)) == _kvferry.INCOMPATIBLE


# ---- what is not known, or not carried ----

ALONE = Split(0, 1, KV_HEADS)


def pool_with(split: Split, kind: Any, *shapes: tuple[int, ...], name: str = NAMES[0], **fields: Any) -> Pool:
    """Of one state-space layer."""
    spec = MambaSpec(block_size=32, shapes=shapes, dtypes=(torch.float32,) * len(shapes), mamba_type=kind, **fields)
    tensor = torch.zeros(POOL_BLOCKS, 1, 1, spec.state_content_size_bytes, dtype=torch.int8)
    return pool_of({name: tensor}, KVCacheConfig(POOL_BLOCKS, [], [KVCacheGroupSpec([name], spec)]), split)


@pytest.mark.parametrize(("name", "layers", "number"), [
    ("model.7.mixer", 4, 3), ("model.layers.3.mixer", 4, 3), ("model.7.mixer", 0, 7)])
def test_states_that_are_numbered_after_all_attention(name: str, layers: int, number: int) -> None:
    """As Falcon-H1's: a stage of its pipeline has neighbours."""
    pool = pool_with(replace(ALONE, layers=layers), Kind.SHORT_CONV, (3, 44), name=name)
    assert {part.layer for part in pool.parts} == {number}


@pytest.mark.parametrize("kind, shapes, whole", [
    (Kind.GDN_ATTN, [(3, 128), (8, 10, 6)], []), (Kind.GDN_ATTN, [(3, 80), (8, 10, 6)], [0]), (Kind.GDN_ATTN, [(3, 129), (8, 10, 6)], [0]),
    (Kind.GDN_ATTN, [(3, 130), (8, 10, 6)], [0]), (Kind.GDN_ATTN, [(384,), (8, 10, 6)], [0]), (Kind.GDN_ATTN, [(3, 128), (8, 60)], [0, 1]),
    (Kind.GDN_ATTN, [(3, 128)], [0]), (Kind.GDN_ATTN, [(3, 128), (8, 10, 6), (8, 2, 10)], [4]), (Kind.MAMBA1, [(3, 66), (66, 6)], []),
    (Kind.MAMBA1, [(3, 66), (11, 6, 6)], [1]), (Kind.LINEAR, [(8, 10, 10), (8, 10, 10)], [1]), (Kind.LINEAR, [(8, 100)], [0]),
    (Kind.CUSTOM, [(3, 66), (8, 10, 6)], [0, 1])])
def test_states_of_other_shapes_than_expected(order: Callable[[str], None], kind: Any, shapes: list[tuple[int, ...]], whole: list[int]) -> None:
    """They are carried to as many ranks, as a part that pairs with its like only, and every byte is in one part."""
    order("SD")
    pool = pool_with(Split(1, 2, KV_HEADS), kind, *shapes)
    assert [i for i, part in enumerate(pool.parts) if part.index >= APART] == whole
    assert all(pool.parts[i][-3:] == (1, 1, 2) for i in whole)
    assert sum(part.rows * part.heads * part.unit_bytes for part in pool.parts) == sum(map(prod, shapes)) * 4


def test_channels_that_ranks_do_not_divide_evenly() -> None:
    """They would have to be one part each."""
    for ranks, index in ((2, 0), (11, APART)):
        pool = pool_with(Split(1, ranks, KV_HEADS), Kind.SHORT_CONV, (3, 44 // ranks))
        assert [(part.index, part.heads_total) for part in pool.parts] == [(index, ranks if index else 4)]


def test_ranks_with_several_groups_do_not_share_a_group() -> None:
    """Whatever the model's configuration names so."""
    model = mamba2(4)
    pool = pool_with(Split(1, 2, KV_HEADS, 1), model.kind, *model.shapes(2))
    assert [part[-3:] for part in pool.parts] == [(4, 4, 8), (2, 2, 4), (2, 2, 4), (4, 4, 8)]


def test_a_stage_without_a_layer_of_states_has_the_share_of_one_with() -> None:
    spec = MODELS["gated delta"].spec(2)
    groups = [KVCacheGroupSpec([NAMES[1]], attention_spec(num_kv_heads=1)), KVCacheGroupSpec([], spec)]
    caches = {NAMES[1]: torch.zeros(POOL_BLOCKS, 1, 32, 32)}
    assert pool_of(caches, KVCacheConfig(POOL_BLOCKS, [], groups, kv_cache_layout="LBHNC"), Split(1, 2, KV_HEADS)).share == (4, 4, 8)


@pytest.mark.parametrize("change", [lambda blocks: blocks[..., ::2], lambda blocks: blocks[1:], lambda blocks: blocks.flatten(1),
                                    lambda blocks: blocks.view(POOL_BLOCKS, 1, 2, -1)])
def test_blocks_of_states_that_are_not_as_expected(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    spec = MODELS["linear"].spec(1)
    tensor = change(torch.zeros(POOL_BLOCKS, 1, 1, 2 * spec.state_content_size_bytes, dtype=torch.int8))
    with pytest.raises(LayoutError, match=rf"layer {NAMES[0]}: a state of shape .* with every block in one piece"):
        pool_of({NAMES[0]: tensor}, KVCacheConfig(POOL_BLOCKS, [], [KVCacheGroupSpec([NAMES[0]], spec)]), ALONE)


def test_bytes_that_are_not_shown() -> None:
    spec = MODELS["linear"].spec(1)
    tensor = torch.zeros(POOL_BLOCKS, 1, 1, spec.state_content_size_bytes - 4, dtype=torch.int8)
    with pytest.raises(LayoutError, match=r"its blocks have 3200 bytes, and vLLM's tensor has 3196"):
        pool_of({NAMES[0]: tensor}, KVCacheConfig(POOL_BLOCKS, [], [KVCacheGroupSpec([NAMES[0]], spec)]), ALONE)


def test_states_that_are_replayed() -> None:
    """Where a sequence is in its rings vLLM keeps elsewhere."""
    with pytest.raises(LayoutError, match=f"layer {NAMES[0]}: .* start the engine without --use-replayssm"):
        pool_with(ALONE, Kind.MAMBA2, (3, 92), (8, 10, 6), (8, 4, 10), (8, 4), (1, 4, 6))


def test_checksums_of_convolutions(order: Callable[[str], None]) -> None:
    order("DS")
    check_checksums(pool_with(ALONE, Kind.SHORT_CONV, (64, 3)), None)
    order("SD")
    with pytest.raises(LayoutError, match="set VLLM_SSM_CONV_STATE_LAYOUT=DS"):
        check_checksums(pool_with(ALONE, Kind.SHORT_CONV, (3, 64)), None)


@pytest.mark.parametrize("named, groups", [({"n_groups": 8}, 8), ({"mamba_n_groups": 1, "n_group": 4}, 1), ({"mamba_ngroups": 2, "n_groups": None}, 2),
                                           ({"n_groups": 8, "mamba_n_groups": 1}, None), ({"n_groups": [8]}, None), ({}, None)])
def test_groups_that_a_model_s_configuration_names(named: dict[str, Any], groups: int | None) -> None:
    model: Any = SimpleNamespace(hf_text_config=SimpleNamespace(**named))
    assert groups_of_all_layers(model) == groups
