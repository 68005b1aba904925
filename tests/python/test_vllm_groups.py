"""Which blocks of a prompt are handed over, loaded, and kept of a load that fails: by the rules of vLLM's own managers."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402
from fakes import ASKS, FakeManager, FakeNode, prompts, request, spec, stand_in, step, vllm_config  # noqa: E402
from kvferry import _kvferry  # noqa: E402
from kvferry.engine.messages import NotCarried, StepOrders  # noqa: E402
from kvferry.engine.metrics import Counters  # noqa: E402
from kvferry.vllm import seam  # noqa: E402
from kvferry.vllm.groups import ALL_OR_NONE, SUPPORTED, Groups, first_needed_block  # noqa: E402
from kvferry.vllm.layout import LayoutError  # noqa: E402
from kvferry.vllm.producer import Producer  # noqa: E402
from kvferry.vllm.requests import shorten  # noqa: E402
from kvferry.vllm.seam import Pool  # noqa: E402
from vllm.config import ModelConfig, SpeculativeConfig  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.request import Request  # noqa: E402

NONE = _kvferry.BLOCK_NONE
MAX_LEN = 1024
HEADS = {"num_kv_heads": 2, "head_size": 16, "dtype": torch.float32}


def window(tokens: int, block_size: int = 32) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size=block_size, sliding_window=tokens, **HEADS)


def chunks(tokens: int) -> ChunkedLocalAttentionSpec:
    return ChunkedLocalAttentionSpec(block_size=32, attention_chunk_size=tokens, **HEADS)


def state(block_size: int = MAX_LEN, mode: str = "none") -> MambaSpec:
    return MambaSpec(block_size=block_size, shapes=((2, 8),), dtypes=(torch.float32,), mamba_cache_mode=mode)


def config(*specs: Any) -> KVCacheConfig:
    return KVCacheConfig(num_blocks=100, kv_cache_tensors=[],
                         kv_cache_groups=[KVCacheGroupSpec([f"l.{i}"], one) for i, one in enumerate(specs)])


@pytest.mark.parametrize(("specs", "block_tokens", "by_group"), [
    ((spec(),), "32", ""), ((spec(), window(64)), "32", ""), ((spec(), spec(block_size=64)), "64", "32,64"),
    ((spec(block_size=16), state()), "16", "16,0"), ((spec(block_size=16), state(48, "align")), "16", "16,0"),
    ((state(),), str(1 << 24), "0"), ((state(48, "align"),), str(1 << 24), "0")])
def test_options_of_the_node(specs: tuple[Any, ...], block_tokens: str, by_group: str) -> None:
    groups = Groups(config(*specs))
    assert groups.options() == {"block_tokens": block_tokens, "group_block_tokens": by_group}
    settings = groups.options() | {"listen": "127.0.0.1"}
    assert {name for name, *_ in _kvferry.options()} >= settings.keys()


SHAPES = [(spec(),), (window(64),), (spec(), window(64)), (spec(), window(40)), (spec(block_size=64), window(100, 32)),
          (spec(), chunks(64)), (chunks(96),), (spec(block_size=64), spec(block_size=16)), (window(33), window(300))]


@pytest.mark.parametrize("specs", SHAPES)
def test_a_prefix_is_kept_if_all_that_it_looks_at_is_there(specs: tuple[Any, ...]) -> None:
    """Of lengths of whole blocks in all groups: as vLLM would find blocks for the token that comes next."""
    groups, alone = Groups(config(*specs)), [KVCacheGroupSpec(["l"], one) for one in specs]
    unit = max(one.block_size for one in specs)
    for tokens in range(1, 600, 7):
        def serves(length: int) -> bool:
            """vLLM has given the request blocks for all of its tokens, and null where their last one looks no more."""
            return all(first_needed_block(group, length) >= first_needed_block(group, tokens - groups.left_out) for group in alone)  # noqa: B023
        keep_from = groups.keep_from(tokens)
        for length in range(0, tokens, unit):
            assert (length >= keep_from) == serves(length), (tokens, length)


def test_of_a_state_all_or_nothing_is_kept() -> None:
    assert Groups(config(spec(block_size=16), state())).keep_from(100) == ALL_OR_NONE


def test_of_blocks_that_are_not_carried_all_or_nothing_is_kept() -> None:
    """Unless what is kept is whole ones of them: vLLM zeroes the rest."""
    for size, keep_from in ((64, ALL_OR_NONE), (16, 0)):
        given = config(spec(block_size=32), spec(block_size=size))
        given.kv_cache_groups[1].enable_kv_transfer = False
        assert Groups(given).keep_from(100) == keep_from


@pytest.mark.parametrize("method, modules, has_kv, lookahead", [
    ("ngram", None, False, 0), ("draft_model", None, True, 0), ("extract_hidden_states", None, True, 0), ("eagle", None, True, 1),
    ("mtp", 1, True, 1), ("mtp", 2, True, 3)])
def test_what_a_drafter_has_and_reads(method: str, modules: int | None, has_kv: bool, lookahead: int) -> None:
    """Asked of vLLM's own classes: 0.29 says neither in one word."""
    engine = vllm_config()
    assert (seam.has_draft_kv(engine), seam.prefill_lookahead(engine)) == (False, 0)
    draft = modules and stand_in(ModelConfig, hf_config=SimpleNamespace(num_nextn_predict_layers=modules))
    engine.speculative_config = stand_in(SpeculativeConfig, method=method, num_speculative_tokens=3, draft_model_config=draft)
    assert (seam.has_draft_kv(engine), seam.prefill_lookahead(engine)) == (has_kv, lookahead)


@pytest.mark.parametrize(("specs", "lookahead", "left_out"), [
    ((spec(),), 1, 0), ((spec(), window(64)), 1, 1), ((spec(),), 3, 2), ((spec(), window(64)), 3, 2)])
def test_what_several_mtp_modules_have_read_ahead_is_computed_again(specs: tuple[Any, ...], lookahead: int, left_out: int) -> None:
    groups = Groups(config(*specs), lookahead)
    assert groups.left_out == left_out and groups.not_handed_over == 0


def ids(packed: tuple[bytes, ...]) -> list[list[int]]:
    return [array("I", group).tolist() for group in packed]


def test_what_a_ticket_names() -> None:
    groups = Groups(config(spec(), window(64)))
    assert ids(groups.pack(([1, 2, 3, 4, 99], [5, 6, 7, 8]), 0, groups.handed_over(128))) == [[1, 2, 3, 4], [NONE, NONE, 7, 8]]
    assert ids(groups.pack(([1, 2, 3, 4], [0, 6, 7, 8]), 0, groups.missing(128, 64))) == [[NONE, NONE, 3, 4], [NONE, NONE, 7, 8]]


@pytest.mark.parametrize(("mode", "size", "table"), [("none", MAX_LEN, [9]), ("align", 48, [0, 8, 9]), ("all", 48, [7, 8, 9])])
@pytest.mark.parametrize("tokens", [97, 128, 143, 144])
def test_of_a_state_it_names_the_last_block(mode: str, size: int, table: list[int], tokens: int) -> None:
    """And of the others what the token after the ticket's looks at."""
    groups = Groups(config(spec(block_size=16), window(64, 16), state(size, mode)))
    assert (groups.left_out, groups.not_handed_over) == (1, 1)
    blocks = list(range(1, 10))
    named = ids(groups.pack((blocks, blocks, [*table, 99]), 0, groups.handed_over(tokens)))
    count, first = -(-tokens // 16), (tokens - 63) // 16
    assert named == [blocks[:count], [NONE] * first + blocks[first:count], [9]]
    missing = ids(groups.pack((blocks, blocks, table), 0, groups.missing(tokens, 96)))
    assert missing == [[NONE] * 6 + blocks[6:count]] * 2 + [[9]]


def kinds(of: type = KVCacheSpec) -> Iterator[type]:
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


def test_all_other_kinds_of_vllm_are_refused_by_name() -> None:
    others = {kind for kind in kinds() if kind.__module__ == KVCacheSpec.__module__} - {*SUPPORTED, AttentionSpec, UniformTypeKVCacheSpecs}
    assert {kind.__name__ for kind in others} >= {"CrossAttentionSpec", "EncoderOnlyAttentionSpec", "RSWASpec", "SinkFullAttentionSpec"}
    for kind in others:
        with pytest.raises(LayoutError, match=rf"layer l.0 \({kind.__name__}\)"):
            Groups(config(object.__new__(kind)))


def test_nothing_is_written_to_a_block_in_part() -> None:
    groups = Groups(config(spec(block_size=16), spec(block_size=64), state(48, "align")))
    assert [tokens for tokens in range(200) if groups.are_whole_blocks(tokens)] == [0, 64, 128, 192]


def test_a_request_is_shortened() -> None:
    given = list(range(100, 140))
    made = Request("a", given, SamplingParams(max_tokens=5), None)
    shorten(made, 1)
    assert (made.num_prompt_tokens, made.num_tokens, made.max_tokens) == (39, 39, 1)
    assert made.prompt_token_ids == list(made.all_token_ids) == given[:-1] and len(given) == 40


def producer() -> tuple[FakeNode, Producer]:
    node = FakeNode()
    made = Producer(node, prompts(), Counters(), vllm_config(), config(spec(), state()))
    made.manager = FakeManager()
    made.manager.groups = ([5, 6, 7], [9])
    made.pool = Pool(made.manager)
    return node, made


def a_request(tokens: int, **fields: Any) -> Any:
    return request("a", tokens, params=ASKS, _all_token_ids=list(range(tokens)), **fields)


def test_the_last_token_is_not_computed() -> None:
    node, made = producer()
    a = a_request(81)
    prompt = prompts().of(a, 80)
    made.arrive(a)
    assert (a.num_prompt_tokens, a.max_tokens) == (80, 1)
    orders = StepOrders()
    made.follow(orders, step(tokens={"a": 80}))
    (publication,) = orders.publish
    assert publication.prompt == prompt and ids(publication.blocks) == [[5, 6, 7], [9]]
    assert [block.block_id for block in made._leases[publication.user].held] == [9]  # the engine will write to its table


def test_a_prompt_of_more_blocks_than_a_lease_has_gets_no_ticket() -> None:
    node, made = producer()
    a, most = a_request(81), _kvferry.BLOCKS_PER_LEASE_MAX
    made.arrive(a)
    for positions, refused in ((most, False), (most + 1, True)):
        orders = StepOrders()
        made.publish(orders, "a", b"", (bytes(4 * (positions - 1)), bytes(4)))
        assert bool(orders.publish) != refused
    assert made._counters.take() == {"no_tickets": {"limit": 1}}


@pytest.mark.parametrize(("fields", "reason"), [
    ({"tokens": 1}, NotCarried.TOO_SHORT), ({"tokens": 40, "skip_reading_prefix_cache": True}, NotCarried.PROMPT_LOGPROBS),
    ({"tokens": 40, "resumable": True}, NotCarried.NO_TOKEN_IDS)])
def test_what_is_not_handed_over_is_computed_whole(fields: dict[str, Any], reason: NotCarried) -> None:
    node, made = producer()
    a = a_request(**fields)
    made.arrive(a)
    assert a.num_prompt_tokens == fields["tokens"]
    orders = StepOrders()
    made.follow(orders, step(tokens={"a": fields["tokens"]}))
    assert not orders.publish and made._counters.take() == {"no_tickets": {reason.value: 1}}
