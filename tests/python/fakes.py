"""Stand-ins for a node and for vLLM's objects, as far as the connector looks at them."""

from __future__ import annotations

import functools
import inspect
import re
import socket
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.config import CacheConfig, KVTransferConfig, LoadConfig, ModelConfig, ParallelConfig, VllmConfig
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.request import Request, RequestStatus

from engines import IDENTITY, pack
from kvferry import Node, _kvferry
from kvferry.vllm import engine_core, scheduler, worker
from kvferry.vllm.content import updates
from kvferry.vllm.content.prompts import Prompts
from kvferry.vllm.content.weights import Weights
from kvferry.vllm.contract import source_of
from kvferry.vllm.transfers import core

BLOCK_TOKENS = 32
POOL_BLOCKS = 100
TOKENS = 80
"""Of a prompt of most requests."""
ASKS = {"do_remote_decode": True}
BRINGS = {"do_remote_prefill": True, "kvferry_ticket": "a ticket"}
OF_NODES = {"block_tokens": str(BLOCK_TOKENS), "handshake_timeout_ms": "60000"}


def event(kind: int, id_: int, cause: int | None = None, report: bytes | None = None, verdict: Any = None) -> Any:
    return _kvferry.Event((kind, id_, 0, cause, report, verdict))


def verdict(action: int, status: int = _kvferry.OK, keep_tokens: int = 0, retry_after_ms: int = 0) -> Any:
    return _kvferry.Verdict((action, status, keep_tokens // BLOCK_TOKENS, keep_tokens, 0, retry_after_ms))


@functools.cache
def lender() -> tuple[Node, socket.socket]:
    """The control node of a prefill engine, and what listens in place of its rank: it never answers, so that nobody but the test
    says what becomes of a ticket."""
    silent = socket.create_server(("127.0.0.1", 0))
    rank = Node({"listen": "127.0.0.1", "advertise": f"127.0.0.1:{silent.getsockname()[1]}"} | OF_NODES, IDENTITY)
    control = Node({"listen": "", "lease_ttl_ms": "600000"} | OF_NODES, IDENTITY)
    control.set_ranks([rank.address()])
    return control, silent


@functools.cache
def ticket_of(name: str, prompt: bytes, positions: tuple[int, ...]) -> str:
    """One for each name."""
    lent, (control, _) = pack(*[list(range(1, count + 1)) for count in positions]), lender()
    status, lease, _ = control.lease_reserve_blocks(lent, 1 << 20)
    assert status == _kvferry.OK and lease is not None
    return str(control.ticket_make(lease, prompt, lent)[1])


class FakeNode:
    """Remembers what it was asked. What becomes of requests a real node decides, from what the test's ranks say; all else it answers
    as told. A ticket has any name, and is the lender's."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.after: list[tuple[str, Any]] = []
        """The ordering point of each batch."""
        self.events: list[Any] = []
        self.ranks = 1
        self.policy = "recompute"
        self.opened: list[int] = []
        self.status: dict[str, int] = {}
        self.next_id = 100
        self.ended: dict[int, set[int]] = {}
        self.stuck: set[int] = set()
        self.numbers: list[Any] = []
        self.distributions: list[tuple[str, list[tuple[int, int, int]]]] = []
        self.listed: list[Any] = []
        self.positions = [3]
        self.refusal = verdict(_kvferry.ACTION_RECOMPUTE, _kvferry.BAD_TICKET)

    def of(self, name: str) -> list[Any]:
        """The arguments of all calls of this name; those of a batch one after the other."""
        return [argument for call, argument in self.calls if call == name]

    def _batch(self, name: str, items: list[Any], after: Any = None) -> list[int]:
        self.after.append((name, after))
        self.calls += [(name, item) for item in items]
        return [self.status.get(name, _kvferry.OK)] * len(items)

    def __getattr__(self, name: str) -> Any:
        if name in ("lease_release", "lease_publish", "lease_end", "request_report", "load_start", "load_abort"):
            return lambda items, after=None: self._batch(name, items, after)
        if name in ("request_begin", "request_cancel", "request_detach", "request_stuck"):
            return lambda ids: self._batch(name, ids) and self._ask(name, ids)
        raise AttributeError(name)

    def lease_ended(self, ids: list[int], rank: int) -> list[int]:
        self.calls += [("lease_ended", (id_, rank)) for id_ in ids]
        for id_ in ids:
            self.ended.setdefault(id_, set()).add(rank)
        return [_kvferry.OK if len(self.ended[id_]) == self.ranks else _kvferry.AGAIN for id_ in ids]

    # ---- requests: a real node's ----

    @functools.cached_property
    def real(self) -> Node:
        return Node({"listen": "", "ranks": str(self.ranks), "policy": self.policy} | OF_NODES, IDENTITY)

    def request_open(self, ticket: str, prompt: bytes, user: int, options: dict[str, str],
                     keep_from_tokens: int, name: str) -> tuple[int, Any]:
        self.calls += [("request_open", ticket), ("keep_from", keep_from_tokens)]
        if (status := self.status.get("request_open", _kvferry.OK)) != _kvferry.OK:
            return status, None
        status, info = self.real.request_open(ticket_of(ticket, prompt, tuple(self.positions)), prompt, user, options, keep_from_tokens)
        assert info is not None, _kvferry.status_name(status)
        self.opened.append(info.id)
        self.peer = info.peer
        return status, info

    def request_refused(self, status: int, tokens: int, options: dict[str, str]) -> Any:
        self.calls.append(("request_refused", (status, tokens, options)))
        return self.refusal

    def _ask(self, name: str, ids: list[int], *arguments: Any) -> list[int]:
        getattr(self.real, name)([id_ for id_ in ids if id_ in self.opened], *arguments)
        return [_kvferry.OK] * len(ids)

    def request_wait(self, ids: list[int], waits: bool) -> list[int]:
        self._batch("request_wait" if waits else "request_wait_over", ids)
        return self._ask("request_wait", ids, waits)

    def request_released(self, ids: list[int], rank: int) -> list[int]:
        self._batch("request_released", [(id_, rank) for id_ in ids])
        return self._ask("request_released", ids, rank)

    def report(self, id_: int, status: int = _kvferry.OK, good_tokens: int = 0) -> None:
        """All ranks', of a load that has begun."""
        good = max(self.positions) if status == _kvferry.OK else good_tokens // BLOCK_TOKENS
        self.real.request_report([_kvferry.report(id_, rank, sum(self.positions), good, status) for rank in range(self.ranks)])

    def decide(self, id_: int, action: int, status: int) -> None:
        """What no report says: a lease's end, a deadline, a rank that is gone."""
        self.events.append(event(_kvferry.EVENT_VERDICT, id_, verdict=verdict(action, status)))

    # ---- leases ----

    def leases_end_lingering(self) -> None:
        self.calls.append(("leases_end_lingering", None))

    def lease_reserve(self, blocks: int, pool_blocks: int) -> tuple[int, bytes | None, int]:
        return self._reserve("lease_reserve", blocks, pool_blocks)

    def lease_reserve_blocks(self, blocks: tuple[bytes, ...], pool_blocks: int) -> tuple[int, bytes | None, int]:
        return self._reserve("lease_reserve_blocks", blocks, pool_blocks)

    def _reserve(self, call: str, *arguments: Any) -> tuple[int, bytes | None, int]:
        self.calls.append((call, arguments))
        if (status := self.status.get(call, _kvferry.OK)) != _kvferry.OK:
            return status, None, 0
        self.next_id += 1
        return status, b"lease %d" % self.next_id, self.next_id

    def ticket_make(self, lease: bytes, prompt: bytes, blocks: tuple[bytes, ...]) -> tuple[int, str | None]:
        self.calls.append(("ticket_make", lease))
        status = self.status.get("ticket_make", _kvferry.OK)
        return status, "ticket of " + lease.decode() if status == _kvferry.OK else None

    def poll(self) -> list[Any]:
        events, self.events = self.events, []
        return events + (self.real.poll() if self.opened else [])

    def stats(self) -> list[Any]:
        return [_kvferry.Number(number) for number in self.numbers]

    def histograms(self) -> list[tuple[str, list[tuple[int, int, int]]]]:
        return self.distributions

    def peers(self) -> list[Any]:
        return [_kvferry.Peer((*peer[:4], list(map(_kvferry.Link, peer[4])), list(map(_kvferry.Number, peer[5]))))
                for peer in self.listed]

    def healthy(self) -> bool:
        return not self.stuck

    def set_ranks(self, records: list[bytes]) -> None:
        self.calls.append(("set_ranks", records))

    def unregister(self) -> int:
        self.calls.append(("unregister", None))
        return self.status.get("unregister", _kvferry.OK)

    def load_stuck(self, request_ids: list[int]) -> list[int]:
        return [_kvferry.OK if id_ in self.stuck else _kvferry.NOT_FOUND for id_ in request_ids]


def spec(**fields: Any) -> FullAttentionSpec:
    return FullAttentionSpec(**{"block_size": BLOCK_TOKENS, "num_kv_heads": 2, "head_size": 16,
                                "dtype": torch.float32, **fields})


def kv_cache_config(groups: int = 1, sliding: bool = False) -> KVCacheConfig:
    made = [KVCacheGroupSpec([f"layer.{g}.{i}" for i in range(2)], spec()) for g in range(groups)]
    if sliding:
        window = SlidingWindowSpec(block_size=BLOCK_TOKENS, num_kv_heads=2, head_size=16, dtype=torch.float32,
                                   sliding_window=64)
        made.append(KVCacheGroupSpec(["layer.sliding"], window))
    return KVCacheConfig(num_blocks=POOL_BLOCKS, kv_cache_tensors=[], kv_cache_groups=made, kv_cache_layout="LBHNC")


@functools.cache
def names_in(cls: type) -> frozenset[str]:
    """What its source declares, sets or defines."""
    return frozenset(re.findall(r"\b(\w+)\s*[:=(]", source_of(cls)))


def stand_in(cls: type, **fields: Any) -> Any:
    """Of vLLM's own class, and with these of its attributes alone. One that the installed vLLM does not name is refused: a
    test must not offer what no engine has."""
    assert fields.keys() <= names_in(cls), f"vLLM's {cls.__name__} has no {', '.join(fields.keys() - names_in(cls))}"
    computed = {name: value for name, value in fields.items() if isinstance(getattr(cls, name, None), property)}
    made = object.__new__(type(cls.__name__, (cls,), computed) if computed else cls)
    for name in fields.keys() - computed.keys():
        object.__setattr__(made, name, fields[name])
    return made


def vllm_config(policy: str = "recompute", ranks: int = 1, options: dict[str, Any] | None = None, kv_heads: int = 8,
                stages: int = 1) -> Any:
    return stand_in(
        VllmConfig,
        kv_transfer_config=stand_in(
            KVTransferConfig, kv_load_failure_policy=policy, kv_buffer_device="cpu",
            kv_connector_extra_config={"weights_id": "toy"} | (options or {}), engine_id="engine"),
        parallel_config=stand_in(
            ParallelConfig, tensor_parallel_size=ranks, pipeline_parallel_size=stages, decode_context_parallel_size=1,
            prefill_context_parallel_size=1, data_parallel_rank_local=None),
        model_config=stand_in(
            ModelConfig, get_total_num_kv_heads=lambda: kv_heads, get_total_num_hidden_layers=lambda: 2,
            hf_text_config=SimpleNamespace(to_dict=lambda: {"num_key_value_heads": kv_heads}),
            model="toy", multimodal_config=None, use_mla=False, enable_sleep_mode=False),
        cache_config=stand_in(CacheConfig, enable_prefix_caching=True), load_config=stand_in(LoadConfig, load_format="dummy"),
        speculative_config=None, lora_config=None)


ERRORS = {"set": set, "dict": dict}[re.findall(r"self\.grammar_compile_error_reqs: (\w+)", inspect.getsource(Scheduler))[0]]
"""By which the installed vLLM keeps the requests that are to fail."""


def vllm_scheduler(manager: Any = None, connector: Any = None, transfer: Any = None) -> Any:
    """Of vLLM's own class, with what kvferry looks at."""
    return stand_in(Scheduler, grammar_compile_error_reqs=ERRORS(), finished_recving_kv_req_ids=set(), requests={},
                    kv_cache_manager=manager or FakeManager(), connector=connector, pause_state=PauseState.UNPAUSED,
                    vllm_config=stand_in(VllmConfig, kv_transfer_config=transfer))


def take_errors(scheduler: Any) -> set[str]:
    """As update_from_output() does at the end of a step."""
    errors = scheduler.grammar_compile_error_reqs
    if ERRORS is dict:
        scheduler.grammar_compile_error_reqs = {}
        return set(errors)
    taken = set(errors)
    errors.clear()
    return taken


def join(side: Any, scheduler: Any, addresses: list[bytes], ranks: Sequence[Any] = (), loads_first: bool = False) -> None:
    side.join(scheduler, addresses, lambda why: [rank.stop(why) for rank in ranks], loads_first)
    side.content.learn_calls(set(updates.KEEP_WEIGHTS))


def image_feature(identifier: str) -> MultiModalFeatureSpec:
    """In a prompt."""
    return stand_in(MultiModalFeatureSpec, identifier=identifier, mm_position=PlaceholderRange(offset=1, length=2))


def request(name: str, tokens: int, **fields: Any) -> Any:
    """A request of so many prompt tokens; `params` are its kv_transfer_params."""
    made = Request(name, list(range(tokens)), SamplingParams(max_tokens=1), None)
    made.kv_transfer_params = fields.pop("params", None)
    assert fields.keys() <= vars(made).keys(), f"vLLM's Request has not all of {', '.join(fields)}"
    vars(made).update(fields)
    return made


def step(tokens: dict[str, int] | None = None, preempted: set[str] | None = None) -> Any:
    """A scheduler's output: tokens scheduled by request."""
    made = SchedulerOutput.make_empty()
    made.num_scheduled_tokens, made.preempted_req_ids = tokens or {}, preempted
    made.total_num_scheduled_tokens = sum(made.num_scheduled_tokens.values())
    return made


class FakeFailures:
    def __init__(self) -> None:
        self.recorded: list[tuple[str, tuple[int, ...], str | None]] = []
        self.mistakes: list[str] = []
        self.folder = None

    def record(self, request_id: str, verdict: tuple[int, ...], peer: str | None, mistake: str | None = None) -> None:
        self.recorded.append((request_id, verdict, peer))
        if mistake is not None:
            self.mistakes.append(mistake)


class FakeBlocks(KVCacheBlocks):
    def __init__(self, *groups: list[int]) -> None:
        super().__init__(tuple([KVCacheBlock(block, is_null=block == 0) for block in group] for group in groups))


class FakeManager:
    """A KVCacheManager and its pool."""

    def __init__(self) -> None:
        self.block_pool = stand_in(BlockPool, null_block=KVCacheBlock(0), free_blocks=lambda blocks: self.freed.extend(blocks),
                                   touch=lambda blocks: self.touched.extend(blocks))
        self.groups: tuple[list[int], ...] = ()
        """Block ids of whichever request."""
        self.touched: list[Any] = []
        self.freed: list[Any] = []
        self.popped: list[str] = []
        self.evicted: set[int] = set()
        self.zeroed: list[tuple[str, int]] = []

    usage = 1.0

    def reset_prefix_cache(self) -> bool:
        return self.usage == 0

    def evict_blocks(self, block_ids: set[int]) -> None:
        self.evicted |= block_ids

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return self.groups

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        return FakeBlocks(*self.groups)

    def free(self, request: Any) -> None:
        self.freed.append(request.request_id)

    def pop_blocks_for_free(self, request: Any) -> list[str]:
        self.popped.append(request.request_id)
        return ["block 1", "block 2"]

    def record_blocks_for_zeroing(self, request_id: str, start: int) -> None:
        self.zeroed.append((request_id, start))


assert {name for name in vars(FakeManager) if name[0] != "_"} <= vars(KVCacheManager).keys()


def prompts(weights_id: str = "toy") -> Prompts:
    """Of an engine whose weights have this name."""
    weights = Weights(None, None, weights_id)
    weights.begin()
    return Prompts(vllm_config(), weights)


def use_nodes(monkeypatch: pytest.MonkeyPatch, control: Any = None, rank: Any = None, index: int = 0) -> None:
    """For the sides that are made next: the scheduler's, and that of a rank."""
    monkeypatch.setattr(scheduler, "open_node", lambda *arguments: control)
    monkeypatch.setattr(scheduler, "Failures", lambda http_status: FakeFailures())
    monkeypatch.setattr(worker, "open_node", lambda *arguments: rank)
    monkeypatch.setattr(worker, "rank_of_worker", lambda engine: index)


def add_request(connector: Any, name: str, tokens: int, params: dict[str, Any], *groups: list[int]) -> Any:
    """As vLLM does; it gets these blocks."""
    one = request(name, tokens, params=params)
    connector.on_new_request(one)
    external, _ = connector.get_num_new_matched_tokens(one, 0)
    connector.update_state_after_alloc(one, FakeBlocks(*groups), external)
    one.status = RequestStatus.WAITING_FOR_REMOTE_KVS if external else RequestStatus.RUNNING
    return one


class FakeConnector(SimpleNamespace):
    """Ours, as the wrapped methods of EngineCore know it."""


class FakeEngine:
    """An EngineCore with both of our sides, over nodes that do as they are told. `ok`: vLLM's own reset finds its pool empty."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ranks: int = 1, options: dict[str, Any] | None = None) -> None:
        self.node: Any = FakeNode()
        self.node.ranks = ranks
        use_nodes(monkeypatch, self.node)
        self.side = scheduler.Scheduler(vllm_config(ranks=ranks, options=options), kv_cache_config())
        self.nodes = [FakeNode() for _ in range(ranks)]
        self.workers = []
        for rank, node in enumerate(self.nodes):
            use_nodes(monkeypatch, None, node, rank)
            self.workers.append(worker.Worker(vllm_config(ranks=ranks, options=options), kv_cache_config()))
        self.manager = FakeManager()
        self.manager.groups = ([5, 6, 7],)
        self.ok = True
        self.scheduler = vllm_scheduler(self.manager, FakeConnector(_scheduler=self.side))
        self.scheduler.reset_prefix_cache = self.reset
        self.model_executor = SimpleNamespace(collective_rpc=self.rpc)
        self.vllm_config = SimpleNamespace(lora_config=None)
        join(self.side, self.scheduler, [b"address"] * ranks, self.workers)

    def reset(self, reset_connector: bool, reset_running_requests: bool = False) -> bool:
        return self.ok

    def rpc(self, method: Any, args: tuple[Any, ...] = ()) -> list[Any]:
        if method is updates.own_methods:
            return [set(updates.KEEP_WEIGHTS) for _ in self.workers]
        assert method is core.on_worker and args[0] is FakeConnector
        if args[1] == "address":
            return [b"address %d" % rank for rank, _ in enumerate(self.workers)]
        return [getattr(one, args[1])(*args[2:]) for one in self.workers]

    def around(self, name: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """vLLM's method, which is `call` here, as it is wrapped."""
        return engine_core.around(FakeConnector, name)(call, self, *args, **kwargs)
