"""The scheduler side of a prefill engine: leases follow their requests, and vLLM hears of each end once."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

pytest.importorskip("vllm")

from fakes import ASKS, POOL_BLOCKS, TOKENS, FakeManager, FakeNode, kv_cache_config, prompts, request, step, vllm_config  # noqa: E402
from kvferry import _kvferry  # noqa: E402
from kvferry.engine.messages import RankReport, StepOrders  # noqa: E402
from kvferry.engine.metrics import Counters  # noqa: E402
from kvferry.vllm.producer import Producer  # noqa: E402
from kvferry.vllm.seam import Pool  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402

SLID = ([5, 6, 7], [0, 9, 10])
"""Of a full and a sliding group."""


def make(ranks: int = 1, sliding: bool = False) -> tuple[FakeNode, Producer]:
    node = FakeNode()
    node.ranks = ranks
    producer = Producer(node, prompts(), Counters(), vllm_config(ranks=ranks), kv_cache_config(sliding=sliding))
    producer.manager = FakeManager()
    producer.manager.groups = SLID if sliding else ([5, 6, 7],)
    producer.pool = Pool(producer.manager)
    return node, producer


def run_step(producer: Producer, **arguments: Any) -> StepOrders:
    orders = StepOrders()
    producer.follow(orders, step(**arguments))
    producer.collect(orders)
    return orders


def ids(blocks: list[Any]) -> list[int]:
    return [block.block_id for block in blocks]


def reasons(producer: Producer) -> dict[str, int]:
    """Why there were no tickets."""
    return producer._counters.take().get("no_tickets", {})


def asking(producer: Producer, **fields: Any) -> Any:
    """A request that is to get a ticket."""
    a = request("a", TOKENS, params=ASKS, **fields)
    producer.arrive(a)
    return a


def finish(producer: Producer, a: Any, status: RequestStatus = RequestStatus.FINISHED_LENGTH_CAPPED) -> dict[str, Any] | None:
    a.status = status
    return producer.finish(a)


def why_none(producer: Producer, a: Any, status: RequestStatus = RequestStatus.FINISHED_LENGTH_CAPPED) -> dict[str, int]:
    """Why it ends without a ticket."""
    assert finish(producer, a, status) is None
    return reasons(producer)


def published(producer: Producer, **fields: Any) -> tuple[Any, int]:
    """A request whose prompt has just been published, and its lease's id."""
    a = asking(producer, **fields)
    (publication,) = run_step(producer, tokens={"a": TOKENS}).publish
    a.num_computed_tokens = TOKENS
    return a, publication[2]


def test_an_ordinary_request_is_left_alone() -> None:
    node, producer = make()
    a = request("a", TOKENS)
    producer.arrive(a)
    assert run_step(producer, tokens={"a": TOKENS}) == StepOrders()
    assert producer.finish(a) is None
    assert node.calls == []


def test_published_with_the_last_prompt_tokens() -> None:
    node, producer = make()
    a = asking(producer)
    assert not run_step(producer, tokens={"a": 48}).publish
    a.num_computed_tokens = 48
    assert not run_step(producer, tokens={"other": 1}).publish
    orders = run_step(producer, tokens={"a": 32})
    assert [(lease, blocks) for lease, _, _, blocks in orders.publish] == [
        (b"lease 101", (array("I", [5, 6, 7]).tobytes(),))]
    assert node.of("lease_reserve_blocks") == [(orders.publish[0].blocks, POOL_BLOCKS)]
    a.num_computed_tokens = TOKENS
    assert not run_step(producer, tokens={"a": 1}).publish


def test_the_ticket_leaves_with_the_request_and_the_blocks_come_back_once() -> None:
    node, producer = make()
    a, lease_id = published(producer)
    assert producer.busy
    params = finish(producer, a)
    assert params is not None
    assert params["kvferry_ticket"] == "ticket of lease 101"
    assert params["do_remote_prefill"] is True and params["do_remote_decode"] is False
    assert ids(producer.manager.touched) == [5, 6, 7] and producer.manager.freed == []
    producer.receive(RankReport(0, ended={lease_id}))
    producer.receive(RankReport(0, ended={lease_id}))
    assert ids(producer.manager.freed) == [7, 6, 5]
    assert node.of("lease_ended") == [(lease_id, 0)]
    assert not producer.busy


def test_an_engine_that_is_woken_steps_only_for_what_there_is_to_say() -> None:
    """Leases alone are no reason, but where the engine ends: it stays until they are over."""
    _, producer = make()
    producer.is_woken = True
    a, lease_id = published(producer)
    assert finish(producer, a) is not None
    assert producer.has_leases and not producer.busy
    producer.has_news = True
    assert producer.busy
    orders = StepOrders()
    producer.collect(orders)
    assert not producer.busy
    producer.drains = True
    assert producer.busy
    producer.drains = False
    producer.give_up("a")
    assert producer.busy  # the ranks are to be told
    producer.collect(orders)
    assert not producer.busy and producer.live([lease_id]) == [lease_id]
    producer.stop()
    producer.has_news = True  # its listener goes on, and no step takes it any more
    assert not producer.busy


def test_options_go_with_the_ticket() -> None:
    """The decode engine reads them; a router knows only what comes back from the prefill engine."""
    _, producer = make()
    a, _ = published(producer)
    a.kv_transfer_params = {**a.kv_transfer_params, "kvferry_options": {"policy": "fail"}, "else": 1}
    params = finish(producer, a)
    assert params is not None and params["kvferry_options"] == {"policy": "fail"} and "else" not in params


def test_every_rank_has_to_end_it() -> None:
    node, producer = make(ranks=2)
    a, lease_id = published(producer)
    finish(producer, a, RequestStatus.FINISHED_STOPPED)
    producer.receive(RankReport(1, ended={lease_id}))
    producer.receive(RankReport(1, ended={lease_id}))
    assert producer.manager.freed == [] and node.of("lease_ended") == [(lease_id, 1)] * 2
    producer.receive(RankReport(0, ended={lease_id}))
    assert ids(producer.manager.freed) == [7, 6, 5]


@pytest.mark.parametrize("status", [RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_ERROR])
def test_a_request_that_nobody_reads_gets_no_ticket(status: RequestStatus) -> None:
    node, producer = make()
    a, lease_id = published(producer)
    assert why_none(producer, a, status) == {"aborted": 1}
    assert node.of("ticket_make") == []
    assert run_step(producer).end == [b"lease 101"]
    assert run_step(producer).end == []
    assert ids(producer.manager.touched) == [5, 6, 7]
    producer.receive(RankReport(0, ended={lease_id}))
    assert ids(producer.manager.freed) == [7, 6, 5]


def test_an_abort_before_the_last_tokens() -> None:
    node, producer = make()
    a = asking(producer)
    run_step(producer, tokens={"a": 10})
    assert why_none(producer, a, RequestStatus.FINISHED_ABORTED) == {"aborted": 1}
    assert not run_step(producer, tokens={"a": TOKENS}).publish


def test_a_lease_that_ended_first_holds_no_blocks() -> None:
    """It expired while the request went on decoding."""
    node, producer = make()
    a, lease_id = published(producer, max_tokens=9)
    producer.receive(RankReport(0, ended={lease_id}))
    assert not run_step(producer, tokens={"a": 1}).publish
    assert finish(producer, a) is None
    assert producer.manager.touched == []


def test_a_lease_that_ended_on_one_rank_makes_no_ticket() -> None:
    node, producer = make(ranks=2)
    a, lease_id = published(producer, max_tokens=9)
    producer.receive(RankReport(0, ended={lease_id}))
    assert finish(producer, a) is None
    assert run_step(producer).end == [b"lease 101"]
    producer.receive(RankReport(1, ended={lease_id}))
    assert ids(producer.manager.freed) == [7, 6, 5]


def test_preemption_ends_the_lease_in_that_step_and_a_new_one_follows() -> None:
    node, producer = make()
    a, lease_id = published(producer, max_tokens=9)
    a.num_computed_tokens = 0
    orders = run_step(producer, preempted={"a"})
    assert orders.end == [b"lease 101"] and not orders.publish
    orders = run_step(producer, tokens={"a": TOKENS + 4})
    assert [publication[0] for publication in orders.publish] == [b"lease 102"]
    producer.receive(RankReport(0, ended={lease_id}))
    assert producer.manager.touched == []
    params = finish(producer, a, RequestStatus.FINISHED_STOPPED)
    assert params is not None and params["kvferry_ticket"] == "ticket of lease 102"


def test_preempted_and_scheduled_again_in_one_step() -> None:
    node, producer = make()
    a, _ = published(producer, max_tokens=9)
    a.num_computed_tokens = 0
    orders = run_step(producer, tokens={"a": TOKENS + 2}, preempted={"a"})
    assert orders.end == [b"lease 101"]
    assert [publication[0] for publication in orders.publish] == [b"lease 102"]


def test_preempted_and_ended_by_the_step_under_way() -> None:
    """Its blocks may have other owners."""
    node, producer = make()
    a, _ = published(producer, max_tokens=2)
    a.num_computed_tokens = 0
    run_step(producer, preempted={"a"})
    assert why_none(producer, a) == {"preempted": 1}


def test_computed_again_without_a_word_of_preemption() -> None:
    node, producer = make()
    a, _ = published(producer, max_tokens=9)
    a.num_computed_tokens = 0
    assert run_step(producer, tokens={"a": 16}).end == [b"lease 101"]


def test_a_rank_that_cannot_publish_ends_the_others() -> None:
    node, producer = make(ranks=2)
    a, lease_id = published(producer)
    producer.receive(RankReport(1, unpublished={lease_id}, ended={lease_id}))
    assert run_step(producer).end == [b"lease 101"]
    assert why_none(producer, a) == {"lease_ended": 1}


@pytest.mark.parametrize("fields", [{"prompt_embeds": object()}, {"prompt_token_ids": None}, {"resumable": True}])
def test_a_prompt_without_an_identity(fields: dict[str, Any]) -> None:
    node, producer = make()
    asking(producer, **fields)
    assert not run_step(producer, tokens={"a": TOKENS}).publish
    assert node.calls == []


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 20}])
def test_blocks_of_a_window(fields: dict[str, Any]) -> None:
    """vLLM gives them back as the request goes on; the lease has its own reference until all ranks have ended it."""
    node, producer = make(ranks=2, sliding=True)
    a = asking(producer, **fields)
    (publication,) = run_step(producer, tokens={"a": TOKENS}).publish
    assert [array("I", group).tolist() for group in publication[3]] == [[5, 6, 7], [_kvferry.BLOCK_NONE, 9, 10]]
    assert node.of("lease_reserve_blocks") == [(publication.blocks, POOL_BLOCKS)]
    assert producer.manager is not None
    assert ids(producer.manager.touched) == [9, 10]
    assert finish(producer, a) is not None
    assert ids(producer.manager.touched) == [9, 10, 5, 6, 7]
    producer.receive(RankReport(0, ended={publication[2]}))
    assert producer.manager.freed == []
    producer.receive(RankReport(1, ended={publication[2]}))
    assert ids(producer.manager.freed) == [7, 6, 5, 10, 9]


def test_blocks_before_the_window_are_not_leased() -> None:
    """Those that only earlier tokens of the step look at."""
    _, producer = make(sliding=True)
    assert producer.manager is not None
    producer.manager.groups = ([5, 6, 7], [8, 9, 10])
    producer.arrive(request("a", 96, params=ASKS))
    (publication,) = run_step(producer, tokens={"a": 96}).publish
    assert [array("I", group).tolist() for group in publication[3]] == [[5, 6, 7], [_kvferry.BLOCK_NONE, 9, 10]]
    assert ids(producer.manager.touched) == [9, 10]


def test_unknown_leases_are_ignored() -> None:
    node, producer = make()
    producer.receive(RankReport(0, ended={7}, unpublished={8}))
    assert producer.manager.freed == [] and node.calls == []


def test_paused_it_makes_no_lease() -> None:
    node, producer = make()
    producer.paused = True
    a = asking(producer)
    assert not run_step(producer, tokens={"a": TOKENS}).publish
    assert producer.finish(a) is None and node.calls == []
    assert reasons(producer) == {"paused": 1}


def test_all_leases_end_for_a_caller() -> None:
    _, producer = make()
    a, lease_id = published(producer)
    assert producer.end_all() == {lease_id: b"lease %d" % lease_id}
    assert not run_step(producer).end
    assert producer.live([lease_id, 7]) == [lease_id]
    producer.receive(RankReport(0, ended={lease_id}))
    assert producer.live([lease_id]) == [] and not producer.busy
    assert why_none(producer, a) == {"lease_ended": 1}


def test_a_prompt_of_two_versions_gets_no_ticket() -> None:
    _, producer = make()
    a, b = (request(name, TOKENS, params=ASKS) for name in "ab")
    producer.arrive(a)
    producer.arrive(b)
    a.num_computed_tokens = 48
    producer.forget_started()
    orders = run_step(producer, tokens={"a": 32, "b": TOKENS})
    assert [lease.key for lease in producer._leases.values()] == ["b"] and len(orders.publish) == 1
    assert reasons(producer) == {"weights_changed": 1}


@pytest.mark.parametrize("call, status, reason", [
    ("lease_reserve_blocks", _kvferry.NO_LEASE, "no_lease"), ("lease_reserve_blocks", _kvferry.NO_MEMORY, "no_memory"),
    ("ticket_make", _kvferry.LIMIT, "limit"), ("ticket_make", _kvferry.NOT_FOUND, "not_found")])
def test_without_a_ticket_the_lease_ends(call: str, status: int, reason: str) -> None:
    node, producer = make()
    node.status[call] = status
    a = asking(producer)
    publications = run_step(producer, tokens={"a": TOKENS}).publish
    assert bool(publications) == (call == "ticket_make")
    assert why_none(producer, a) == {reason: 1}
    assert run_step(producer).end == [b"lease 101"] * len(publications)
