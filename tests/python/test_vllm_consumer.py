"""The scheduler side of a decode engine: a request is reported to vLLM once, and only when its blocks are released."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

pytest.importorskip("vllm")

from fakes import (  # noqa: E402
    BRINGS,
    TOKENS,
    FakeBlocks,
    FakeFailures,
    FakeManager,
    FakeNode,
    event,
    kv_cache_config,
    prompts,
    request,
    verdict,
    vllm_config,
    vllm_scheduler,
)
from vllm.v1.request import RequestStatus  # noqa: E402

from kvferry import _kvferry  # noqa: E402
from kvferry.engine.messages import RankReport, StepOrders  # noqa: E402
from kvferry.engine.metrics import Counters  # noqa: E402
from kvferry.vllm import consumer as vllm_consumer  # noqa: E402
from kvferry.vllm.consumer import Consumer  # noqa: E402
from kvferry.vllm.seam import Pool  # noqa: E402

RECOMPUTE, FAIL = _kvferry.ACTION_RECOMPUTE, _kvferry.ACTION_FAIL
NONE = _kvferry.BLOCK_NONE
NO_OPTION = '"bad" is not an option of a request: those are policy, auto_max_recompute_tokens, and load_timeout_ms'
NO_TEXT, NO_OBJECT = "in vllm_xargs they are JSON text of at most 512 characters", "not an object of names and values"


class Side:
    """A consumer with one request, `a`."""

    def __init__(self, ranks: int = 1, groups: int = 1, params: dict[str, Any] = BRINGS,
                 open_status: int = _kvferry.OK, refusal: Any = None, sliding: bool = False,
                 tokens: int = TOKENS, options: dict[str, Any] | None = None, xargs: dict[str, Any] | None = None,
                 policy: str = "recompute") -> None:
        self.node = FakeNode()
        self.node.policy = policy
        self.node.ranks = ranks
        self.node.refusal = refusal or self.node.refusal
        self.node.status["request_open"] = open_status
        self.node.positions = [(tokens + 31) // 32] * (groups + sliding)
        self.failures = FakeFailures()
        self.counters = Counters()
        self.consumer = Consumer(self.node, prompts(), self.counters, self.failures, vllm_config(ranks=ranks, options=options),
                                 kv_cache_config(groups, sliding))
        self.manager = FakeManager()
        self.consumer.pool, self.consumer.scheduler = Pool(self.manager), vllm_scheduler()
        self.a = request("a", tokens, params=params)
        self.a.sampling_params.extra_args = xargs
        self.consumer.arrive(self.a)
        self.id = self.node.opened[-1] if self.node.opened else 0

    @property
    def errors(self) -> set[str]:
        return set(self.consumer.scheduler.grammar_compile_error_reqs)

    def orders(self) -> StepOrders:
        orders = StepOrders()
        self.consumer.collect(orders)
        return orders

    def admit(self, computed: int = 0) -> StepOrders:
        external, is_async = self.consumer.offer(self.a, computed)
        assert (external, is_async) == (TOKENS - computed, True)
        self.consumer.admit(self.a, FakeBlocks([5, 6, 7]), external)
        self.a.num_computed_tokens = TOKENS
        return self.orders()

    def poll(self) -> None:
        for one in self.node.poll():
            self.consumer.on_event(one)

    def report(self, status: int = _kvferry.OK, good_tokens: int = 0) -> None:
        self.node.report(self.id, status, good_tokens)
        self.poll()

    def decide(self, action: int, status: int, id_: int = 0) -> None:
        self.node.decide(id_ or self.id, action, status)
        self.poll()

    def release(self, *ranks: int, **news: Any) -> None:
        for rank in ranks or (0,):
            self.consumer.receive(RankReport(rank, released={self.id}, **news))
        self.poll()

    def stuck(self, id_: int | None = None) -> None:
        self.consumer.receive(RankReport(0, stuck={id_ or self.id}))
        self.poll()

    def settle(self) -> set[str]:
        return self.consumer.settle(self.consumer.settled())

    def end(self, status: int = _kvferry.OK, good_tokens: int = 0) -> None:
        """Of the load: vLLM hears of it."""
        self.report(status, good_tokens)
        self.release()
        assert self.settle() == {"a"}


def admitted(**fields: Any) -> Side:
    side = Side(**fields)
    side.admit()
    return side


def test_an_ordinary_request_is_left_alone() -> None:
    side = Side(params={"do_remote_decode": True})
    assert side.node.calls == []
    assert side.consumer.offer(side.a, 0) == (0, False)
    side.consumer.admit(side.a, FakeBlocks([1]), 0)
    side.consumer.finish(side.a)
    assert side.orders() == StepOrders() and side.settle() == set()


def test_offering_changes_nothing() -> None:
    side = Side()
    before = list(side.node.calls)
    for _ in range(3):
        assert side.consumer.offer(side.a, 32) == (TOKENS - 32, True)
    assert side.consumer.offer(side.a, TOKENS) == (0, False)
    assert side.node.calls == before


def test_a_load_is_used() -> None:
    side = Side()
    (load,) = side.admit(computed=32).load
    assert load[:2] == (side.id, "a ticket")
    assert [array("I", group).tolist() for group in load.destination] == [[NONE, 6, 7]]
    assert side.node.of("request_begin") == [side.id]
    assert side.consumer.busy
    assert side.consumer.offer(side.a, 0) == (0, False)
    side.report()
    assert side.settle() == set()
    side.release()
    assert side.settle() == {"a"}
    assert side.settle() == set()
    assert not side.consumer.busy
    assert side.a.num_computed_tokens == TOKENS
    side.consumer.admit(side.a, FakeBlocks([5, 6, 7]), 0)
    side.consumer.finish(side.a)
    assert side.node.of("request_cancel") == []


def test_all_ranks_have_to_be_released() -> None:
    side = admitted(ranks=2)
    side.report()
    side.release(1)
    side.release(1)
    assert side.settle() == set()
    side.release(0)
    assert side.settle() == {"a"}


def test_reports_go_to_the_library() -> None:
    side = Side()
    side.consumer.receive(RankReport(1, reports=[b"x", b"y"], released={7}))
    assert side.node.of("request_report") == [b"x", b"y"] and side.node.of("request_released") == [(7, 1)]


def test_what_another_adapter_leaves_out_is_no_failed_load() -> None:
    """The library would count a release without a report as one, and take it from the budget."""
    side = admitted()
    side.consumer.receive(RankReport(0, released={side.id}, refused={side.id}))
    calls = [call for call, _ in side.node.calls]
    assert calls.index("request_cancel") < calls.index("request_released")


@pytest.mark.parametrize("status, kept_tokens, freed", [(_kvferry.LEASE_EXPIRED, 64, []), (_kvferry.PEER_DOWN, 0, ["a"])])
def test_a_prefix_is_kept(status: int, kept_tokens: int, freed: list[str]) -> None:
    side = admitted()
    side.end(status, kept_tokens)
    assert side.a.num_computed_tokens == kept_tokens
    assert side.manager.freed == freed and side.manager.zeroed == []
    assert side.consumer.offer(side.a, 0) == (0, False)


def test_a_failed_load_is_ended_by_vllm() -> None:
    side = admitted(policy="fail")
    side.report(_kvferry.LEASE_EXPIRED)
    side.release()
    assert side.failures.recorded == [] and side.errors == set()
    assert side.settle() == set()
    (name, said, peer), = side.failures.recorded
    assert (name, said.action, said.status, peer) == ("a", FAIL, _kvferry.LEASE_EXPIRED, side.node.peer)
    assert side.errors == {"a"} and side.consumer.busy
    assert side.consumer.finish(side.a)
    assert side.manager.freed == ["a"]
    assert side.settle() == set() and not side.consumer.busy
    assert side.node.of("request_cancel") == []


def test_cancelled_before_admission() -> None:
    side = Side()
    assert not side.consumer.finish(side.a)
    assert side.node.of("request_cancel") == [side.id]
    assert side.orders() == StepOrders() and side.settle() == set()
    side.report()


def test_cancelled_while_loading() -> None:
    side = admitted(ranks=2)
    assert side.consumer.finish(side.a)
    assert side.node.of("request_cancel") == [side.id]
    assert side.orders().abort == [side.id]
    side.release(0)
    assert side.consumer.busy and side.manager.popped == ["a"] and side.manager.freed == []
    side.report()  # crossed the cancel
    side.release(1)
    assert side.manager.freed == ["block 2", "block 1"]
    assert side.settle() == set() and not side.consumer.busy


def test_cancelled_when_it_is_released() -> None:
    side = admitted()
    side.release()
    assert side.consumer.finish(side.a)
    assert side.settle() == set()
    assert side.manager.freed == ["block 2", "block 1"] and not side.consumer.busy


@pytest.mark.parametrize("computed, counted", [(0, {"not_loaded": {"not_taken": 1}}), (TOKENS, {})])
def test_vllm_decides_not_to_load(computed: int, counted: dict[str, dict[str, int]]) -> None:
    side = Side()
    side.consumer.offer(side.a, computed)
    side.consumer.admit(side.a, FakeBlocks([5, 6, 7]), 0)
    assert side.node.of("request_cancel") == [side.id]
    assert side.orders() == StepOrders() and side.counters.take() == counted


@pytest.mark.parametrize("status", [_kvferry.BAD_TICKET, _kvferry.INCOMPATIBLE, _kvferry.NO_MEMORY])
def test_a_refused_ticket_is_computed_here(status: int) -> None:
    side = Side(open_status=status)
    assert side.consumer.offer(side.a, 0) == (0, False)
    side.consumer.finish(side.a)
    assert side.orders() == StepOrders() and side.node.of("request_cancel") == []
    assert side.node.of("request_refused") == [(status, TOKENS, {})] and side.failures.recorded == []


def test_a_refused_ticket_fails_without_a_read() -> None:
    refusal = verdict(FAIL, _kvferry.BAD_TICKET, retry_after_ms=700)
    side = Side(open_status=_kvferry.BAD_TICKET, refusal=refusal)
    assert side.failures.recorded == [("a", refusal, None)]
    assert side.errors == {"a"} and side.consumer.busy
    assert side.consumer.offer(side.a, 0) == (None, False)
    assert not side.consumer.finish(side.a)
    assert not side.consumer.busy and side.orders() == StepOrders() and side.manager.freed == []


def test_a_missing_ticket_is_a_bad_one() -> None:
    side = Side(params={"do_remote_prefill": True}, open_status=_kvferry.BAD_TICKET)
    assert side.node.of("request_open") == [""]


def test_decided_before_admission() -> None:
    side = Side()
    side.decide(RECOMPUTE, _kvferry.LEASE_EXPIRED)
    assert side.consumer.offer(side.a, 0) == (0, False)
    side = Side()
    side.decide(FAIL, _kvferry.LEASE_EXPIRED)
    assert side.errors == {"a"} and side.consumer.offer(side.a, 0) == (None, False)
    assert [failure[0] for failure in side.failures.recorded] == ["a"]


@pytest.mark.parametrize("stuck, status", [(True, _kvferry.TRANSFER_STALLED), (False, _kvferry.RANK_LOST)])
def test_a_load_that_is_not_released_is_quarantined(stuck: bool, status: int) -> None:
    side = admitted(ranks=2)
    if stuck:
        side.report(status, 64)
        side.release(0, stuck={side.id})
    else:
        side.release(0)
        side.node.decide(side.id, RECOMPUTE, status)
        side.node.events.append(event(_kvferry.EVENT_REQUEST_STUCK, side.id))
        side.poll()
    assert side.settle() == {"a"}
    assert side.a.num_computed_tokens == 0
    assert side.manager.popped == ["a"] and side.orders().abort == [side.id]
    assert side.manager.freed == ["a"] and side.consumer.busy  # "a" holds no block any more
    side.manager.freed.clear()
    side.release(1)
    assert side.manager.freed == ["block 2", "block 1"]
    side.release(1)
    assert not side.consumer.busy


def test_a_load_is_waited_for_whatever_others_do() -> None:
    side = admitted()
    side.stuck(side.id + 1)
    side.report(_kvferry.TRANSFER_STALLED, 32)
    assert side.settle() == set() and side.manager.popped == []
    side.release()
    assert side.settle() == {"a"} and side.a.num_computed_tokens == 32


def test_a_discarded_load_that_is_not_released_is_quarantined() -> None:
    side = admitted()
    side.consumer.discard_all()
    assert side.settle() == set()
    side.stuck()
    assert side.settle() == {"a"}
    assert side.a.num_computed_tokens == 0 and side.manager.popped == ["a"]
    side.manager.freed.clear()
    side.release()
    assert side.manager.freed == ["block 2", "block 1"] and not side.consumer.busy


def test_a_failed_load_that_is_not_released_is_quarantined() -> None:
    side = admitted(policy="fail")
    side.stuck()
    side.report(_kvferry.DEADLINE)
    assert side.settle() == set() and side.errors == {"a"} and side.manager.popped == ["a"]
    assert side.consumer.finish(side.a)


def another(side: Side, name: str, ticket: str = "another ticket") -> Any:
    """A request with a ticket, and its id in side.node.opened[-1]."""
    made = request(name, TOKENS, params=BRINGS | {"kvferry_ticket": ticket})
    side.consumer.arrive(made)
    return made


# ---- requests with one ticket ----


def with_the_same_ticket(side: Side, name: str) -> Any:
    return another(side, name, BRINGS["kvferry_ticket"])


def waits(side: Side, waiting: Any) -> bool:
    return side.consumer.offer(waiting, 0) == (None, False)


def test_requests_with_one_ticket_wait_for_the_first_load() -> None:
    side = Side()
    b, c = with_the_same_ticket(side, "b"), with_the_same_ticket(side, "c")
    assert side.consumer.offer(b, 0) == (TOKENS, True)  # nothing is under way
    side.admit()
    side.a.status = RequestStatus.WAITING_FOR_REMOTE_KVS
    assert waits(side, b) and waits(side, b) and waits(side, c)
    assert side.node.of("request_wait") == [side.id + 1, side.id + 2]
    assert side.consumer.offer(b, 64) == (16, True)  # of what is missing the first one loads nothing
    side.end()
    assert side.node.of("request_wait_over") == [side.id + 1, side.id + 2]
    assert waits(side, b)  # vLLM caches the blocks when it takes the request up
    assert side.node.of("request_wait") == [side.id + 1, side.id + 2]  # and nobody's time runs meanwhile
    side.a.status = RequestStatus.RUNNING
    assert side.consumer.offer(b, 64) == (16, True)
    side.consumer.admit(b, FakeBlocks([5, 6, 7]), 16)
    assert side.consumer.offer(c, 0) == (TOKENS, True)  # its blocks are not in the cache any more, and it waits for no other


@pytest.mark.parametrize("how", ["cancelled", "failed", "discarded"])
def test_the_next_one_loads_if_the_first_load_is_of_no_use(how: str) -> None:
    side = Side()
    b, c = with_the_same_ticket(side, "b"), with_the_same_ticket(side, "c")
    side.admit()
    assert waits(side, b) and waits(side, c)
    if how == "cancelled":
        side.consumer.finish(side.a)
    else:
        if how == "discarded":
            side.consumer.discard_all()
        else:
            side.report(_kvferry.TRANSFER_STALLED)
        side.release()
        assert side.settle() == {"a"}
    assert sorted(side.node.of("request_wait_over")) == [side.id + 1, side.id + 2]
    assert side.consumer.offer(c, 0) == (TOKENS, True)
    side.consumer.admit(c, FakeBlocks([5, 6, 7]), TOKENS)
    assert waits(side, b)
    assert side.node.of("request_wait")[2:] == [side.id + 1]


def test_a_wait_is_taken_from_the_time_of_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    side = Side()
    params = BRINGS | {"kvferry_options": {"load_timeout_ms": "5000"}}
    b = request("b", TOKENS, params=params)
    side.consumer.arrive(b)
    side.admit()
    assert waits(side, b)
    now_s[0] += 3
    side.consumer.finish(side.a)
    now_s[0] += 60  # waits for a place, and not for a load
    assert side.consumer.offer(b, 0) == (TOKENS, True)
    side.consumer.admit(b, FakeBlocks([5, 6, 7]), TOKENS)
    (load,) = side.orders().load
    assert load.timeout_ms == 2000


def test_who_has_waited_too_long_is_decided() -> None:
    side = Side()
    b = with_the_same_ticket(side, "b")
    side.admit()
    assert waits(side, b)
    side.decide(FAIL, _kvferry.DEADLINE, side.id + 1)
    assert side.errors == {"b"}
    side.consumer.finish(b)
    side.consumer.finish(side.a)  # nobody waits for it
    assert side.node.of("request_wait_over") in ([], [side.id + 1])


@pytest.mark.parametrize("what", ["no cache", "skips it", "another ticket"])
def test_who_would_find_nothing_cached_loads(what: str) -> None:
    side = Side()
    b = another(side, "b") if what == "another ticket" else with_the_same_ticket(side, "b")
    side.consumer._caches = what != "no cache"
    b.skip_reading_prefix_cache = what == "skips it"
    side.admit()
    assert side.consumer.offer(b, 0) == (TOKENS, True)


@pytest.mark.parametrize("options", [{"loads_in_flight": 1}, {"load_bytes_in_flight": 1}])
def test_loads_beyond_the_bound_wait(options: dict[str, Any]) -> None:
    side = Side(options=options)
    b = another(side, "b")
    assert side.consumer.offer(b, 0) == (TOKENS, True)  # nothing is under way
    side.admit()
    assert side.consumer.offer(b, 0) == (None, False)
    side.report()
    assert side.settle() == set() and side.consumer.offer(b, 0) == (None, False)
    side.release()
    assert side.settle() == {"a"} and side.consumer.offer(b, 0) == (TOKENS, True)


def test_what_a_stuck_or_cancelled_load_held_of_the_bound_is_free() -> None:
    side = Side(options={"loads_in_flight": 1})
    b = another(side, "b")
    side.admit()
    side.consumer.finish(side.a)
    assert side.consumer.offer(b, 0) == (TOKENS, True)
    side.consumer.admit(b, FakeBlocks([5, 6, 7]), TOKENS)
    c = another(side, "c")
    assert side.consumer.offer(c, 0) == (None, False)
    id_ = side.node.opened[-2]
    side.stuck(id_)
    side.node.report(id_, _kvferry.DEADLINE)
    side.poll()
    assert side.settle() == {"b"} and side.consumer.offer(c, 0) == (TOKENS, True)


def test_bytes_are_those_of_what_is_missing() -> None:
    config = kv_cache_config()
    block_bytes = 2 * config.kv_cache_groups[0].kv_cache_spec.page_size_bytes  # two layers
    side = Side(options={"load_bytes_in_flight": 4 * block_bytes})
    b = another(side, "b")
    side.admit()  # 3 blocks
    assert side.consumer.offer(b, 0) == (None, False)
    assert side.consumer.offer(b, 64) == (TOKENS - 64, True)
    assert side.consumer.offer(b, 65) == (0, False)  # nothing is written to a block that vLLM has a part of


def test_preempted_after_its_load() -> None:
    """Its lease has ended: it is computed here, and counted, once for each time."""
    side = admitted()
    side.end()
    side.consumer.start({"a"}, ())
    assert side.counters.take() == {}
    side.consumer.start((), {"a", "somebody else"})
    assert side.counters.take() == {"not_loaded": {"preempted": 1}}
    assert side.consumer.offer(side.a, 0) == (0, False)


def test_several_groups() -> None:
    side = Side(groups=2)
    external, _ = side.consumer.offer(side.a, 0)
    side.consumer.admit(side.a, FakeBlocks([5, 6, 7, 99], [0, 8, 9]), external)
    (load,) = side.orders().load
    assert [array("I", group).tolist() for group in load.destination] == [[5, 6, 7], [NONE, 8, 9]]


@pytest.mark.parametrize("said", [True, False])
def test_another_prompt_of_the_same_ticket_does_not_disturb(said: bool) -> None:
    """vLLM makes up such a request, and aborts it at once, when a client has hung up."""
    side = admitted()
    made_up = request("made up", 1, params=dict(BRINGS), abort_immediately=said)
    side.node.status["request_open"] = _kvferry.BAD_TICKET
    side.consumer.arrive(made_up)
    side.consumer.finish(made_up)
    assert len(side.node.of("request_open")) == (1 if said else 2)
    assert side.node.of("request_cancel") == [] and side.orders() == StepOrders()
    side.end()


def test_a_request_has_options_of_its_own() -> None:
    side = Side(params={**BRINGS, "kvferry_options": {"load_timeout_ms": 1500}})
    (load,) = side.admit().load
    assert load[3] == 1500
    refused = Side(params={**BRINGS, "kvferry_options": {"policy": "fail", "auto_max_recompute_tokens": 7}},
                   open_status=_kvferry.BAD_TICKET)
    assert refused.node.of("request_refused") == [
        (_kvferry.BAD_TICKET, TOKENS, {"policy": "fail", "auto_max_recompute_tokens": "7"})]


@pytest.mark.parametrize("options, said", [
    ({"bad": 1}, f"kvferry_options: {NO_OPTION}"),
    (["policy", "fail"], "kvferry_options: not an object of names and values"),
    ("fail", "kvferry_options: not an object of names and values"),
    ({1: "fail"}, "kvferry_options: not an object of names and values"),
])
def test_bad_options_are_the_clients_mistake(options: Any, said: str) -> None:
    refusal = verdict(FAIL, _kvferry.INVALID)
    side = Side(params={**BRINGS, "kvferry_options": options}, refusal=refusal)
    assert side.errors == {"a"}
    assert side.failures.recorded == [("a", refusal, None)] and side.failures.mistakes == [said]
    assert side.node.of("request_refused") == [(_kvferry.INVALID, TOKENS, {})]
    errors = side.consumer.scheduler.grammar_compile_error_reqs
    if isinstance(errors, dict):  # from 0.33 on: its own HTTP 400
        assert (errors["a"].code, errors["a"].message) == ("validation_error", f"{said} (kvferry:invalid:retry=0)")
    assert not side.consumer.finish(side.a) and not side.consumer.busy


def test_options_come_through_routers_that_overwrite_the_parameters() -> None:
    """As text beside them. What the router itself says rules."""
    xargs = {"kvferry_options": '{"policy": "fail", "load_timeout_ms": 1500}', "else": 1}
    (load,) = Side(xargs=xargs).admit().load
    assert load[3] == 1500
    refused = Side(params={**BRINGS, "kvferry_options": {"policy": "recompute"}}, xargs=xargs, open_status=_kvferry.BAD_TICKET)
    assert refused.node.of("request_refused") == [
        (_kvferry.BAD_TICKET, TOKENS, {"policy": "recompute", "load_timeout_ms": "1500"})]


@pytest.mark.parametrize("given, said", [
    ('{"bad": 1}', NO_OPTION), ("policy=fail", NO_OBJECT), ('["policy", "fail"]', NO_OBJECT),
    ("7", NO_OBJECT), ('{"policy": ', NO_OBJECT), ("[" * 512, NO_OBJECT), ('{"policy": "%s"}' % ("x" * 500), NO_TEXT),
    ({"policy": "fail"}, NO_TEXT), (["policy"], NO_TEXT), (1, NO_TEXT), (None, NO_TEXT)], ids=lambda value: str(value)[:20])
def test_bad_options_in_text(given: Any, said: str) -> None:
    refusal = verdict(FAIL, _kvferry.INVALID)
    side = Side(xargs={"kvferry_options": given}, refusal=refusal)
    assert side.failures.recorded == [("a", refusal, None)] and side.failures.mistakes == [f"kvferry_options: {said}"]


def test_reasons_of_requests_that_nobody_asks_for_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_consumer, "STOP_REASONS_MAX", 2)
    side = Side(params={**BRINGS, "kvferry_options": "x"}, refusal=verdict(FAIL, _kvferry.INVALID))
    for name in "bc":
        side.consumer.arrive(request(name, TOKENS, params=side.a.kv_transfer_params))
    assert side.consumer.stop_reasons == dict.fromkeys("bc", "kvferry:invalid:retry=0")


# ---- windows ----

@pytest.mark.parametrize("tokens, computed", [(80, 0), (96, 0), (97, 0), (97, 64), (2, 0)])
def test_with_windows_all_but_the_last_token_is_offered(tokens: int, computed: int) -> None:
    """vLLM keeps what it takes for computed looks at, and computes the last token again."""
    side = Side(groups=2, sliding=True, tokens=tokens)
    assert side.consumer.offer(side.a, computed) == (tokens - 1 - computed, True)
    count = (tokens - 1 + 31) // 32
    window = [0] * (max(0, tokens - 64) // 32)
    side.consumer.admit(side.a, FakeBlocks(*[[5, 6, 7, 8][:count]] * 2, [*window, 6, 7, 8][:count]), tokens - 1 - computed)
    groups = side.orders().load[0].destination
    first = computed // 32
    expected = [*[NONE] * first, *[5, 6, 7, 8][first:count]]
    assert array("I", groups[0]).tolist()[:count] == expected
    assert all(block == NONE for block in array("I", groups[2])[:len(window)])


def test_with_windows_a_prompt_of_one_token_is_computed() -> None:
    side = Side(groups=2, sliding=True, tokens=1)
    assert side.consumer.offer(side.a, 0) == (0, False)


def test_a_discarded_load_is_computed_when_it_is_released() -> None:
    side = admitted()
    assert side.consumer.discard_all() == [side.id] and side.node.of("request_cancel") == [side.id]
    side.report(_kvferry.CANCELLED)
    assert side.settle() == set() and side.consumer.unreleased([side.id]) == [side.id]
    side.release()
    assert side.consumer.unreleased([side.id]) == []
    assert side.settle() == {"a"} and side.settle() == set()
    assert side.a.num_computed_tokens == 0 and side.manager.freed == ["a"]
    assert side.failures.recorded == []
    assert side.counters.take() == {"not_loaded": {"discarded": 1}}


def test_a_discarded_load_whose_client_leaves() -> None:
    side = admitted()
    side.consumer.discard_all()
    assert side.consumer.finish(side.a)
    assert side.consumer.discard_all() == [side.id] == side.consumer.unreleased([side.id])
    side.release()
    assert side.settle() == set() and side.manager.freed == ["block 2", "block 1"]
    assert side.consumer.discard_all() == [] == side.consumer.unreleased([side.id])


def test_what_waits_with_a_ticket_of_old_weights_is_computed() -> None:
    side = Side()
    side.consumer.forget_waiting()
    assert side.counters.take() == {"not_loaded": {"weights_changed": 1}}
    assert side.consumer.offer(side.a, 0) == (0, False) and side.node.of("request_cancel") == [side.id]
