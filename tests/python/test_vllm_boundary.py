"""An exception of ours in each hook in turn, under vLLM's own schedulers: what it costs, and that no answer is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from engines import Log  # noqa: E402
from fakes import join, request, step, vllm_scheduler  # noqa: E402
from kvferry import _kvferry  # noqa: E402
from kvferry.engine import worker as engine_worker  # noqa: E402
from kvferry.engine.boundary import NotStoppedError  # noqa: E402
from kvferry.engine.metrics import Meter, merge_data, no_data  # noqa: E402
from kvferry.vllm import seam, worker  # noqa: E402
from kvferry.vllm.content import adapters  # noqa: E402
from kvferry.vllm.scheduler import Scheduler  # noqa: E402
from kvferry.vllm.worker import Worker  # noqa: E402
from model_engine import ModelEngine, right_answer  # noqa: E402
from test_vllm_engine_core import Engine, wrapped  # noqa: E402
from test_vllm_scheduler import ASKS, KINDS, PROMPT, carry, decode, prefill, run, stat, used  # noqa: E402
from vllm.v1.outputs import KVConnectorOutput  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402

WHEN = pytest.mark.parametrize("after", [False, True], ids=["before its work", "after it"])
OTHER = [7, *PROMPT[1:]]
LAST = [8, *PROMPT[1:]]


class Mistake(Exception):
    pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, closes: Callable[[Any], Any]) -> Callable[..., ModelEngine]:
    return lambda *args, **kwargs: closes(ModelEngine(monkeypatch, *args, **kwargs))


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Of two ranks, without vLLM."""
    return Engine(monkeypatch)


@pytest.fixture
def tracebacks(internal_errors: list[str], log: Log) -> Iterator[list[str]]:
    """Of which hooks the log has one. Internal errors are expected."""
    yield log.tracebacks
    internal_errors.clear()


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What /metrics would show."""
    shown = no_data()
    read = Meter.read

    def note(meter: Meter) -> Any:
        data = read(meter)
        merge_data(shown, data or no_data())
        return data
    monkeypatch.setattr(Meter, "read", note)
    return shown


def breaks(monkeypatch: pytest.MonkeyPatch, hook: Any, on: Any, name: str = "", after: bool = False) -> list[str]:
    """The hook raises once, on this side, for this request. Holds its name when it has."""
    raised: list[str] = []
    owner, method = (Scheduler, "collect") if after and hook is Scheduler.orders else (hook, "__wrapped__")  # what follows cannot fail
    work = getattr(owner, method)

    def broken(side: Any, *args: Any) -> Any:
        if raised or side is not on or name and args[0].request_id != name:
            return work(side, *args)
        if after:
            work(side, *args)
        raised.append(hook.__name__)
        raise Mistake("planted")
    monkeypatch.setattr(owner, method, broken)
    return raised


def is_right(engine: ModelEngine, name: str, prompt: list[int], tokens: int = 5) -> bool:
    return engine.answers[name] == right_answer(prompt, tokens)


def worker_of(engine: ModelEngine, rank: int = 0) -> Worker:
    return engine.ranks[rank].connector._worker


def gauge(engine: ModelEngine, name: str) -> int:
    return sum(value for rank in engine.ranks for what, _, value, _ in rank.connector._worker._node.stats() if what == name)


def holds_back(monkeypatch: pytest.MonkeyPatch, p: ModelEngine) -> Callable[[], None]:
    """This engine publishes nothing before it is told to: loads stay under way."""
    held: list[tuple[Any, Any]] = []
    own = [worker_of(p, rank) for rank in range(len(p.ranks))]
    work = engine_worker.Worker.publish

    def publish(side: Worker, orders: Any) -> None:
        if side in own:
            held.append((side, orders))
        else:
            work(side, orders)
    monkeypatch.setattr(Worker.publish, "__wrapped__", publish)

    def go_on() -> None:
        for side, orders in held:
            work(side, orders)
        held.clear()
        monkeypatch.setattr(Worker.publish, "__wrapped__", work)
    return go_on


# ---- hooks of one request ----

@KINDS
@WHEN
@pytest.mark.parametrize("of", "pd")
@pytest.mark.parametrize("hook", [Scheduler.arrive, Scheduler.offer, Scheduler.admit, Scheduler.finish],
                         ids=lambda hook: hook.__name__)
def test_one_request_goes_on_without_a_transfer(engine: Callable[..., ModelEngine], monkeypatch: pytest.MonkeyPatch, hook: Any,
                                                of: str, after: bool, asynchronous: bool, tracebacks: list[str],
                                                numbers: dict[str, Any]) -> None:
    p, d = engine("p", asynchronous, lease_ttl_ms=1000), engine("d", asynchronous)
    carry(p, d, "before", PROMPT)
    d.reset()
    raised = breaks(monkeypatch, hook, {"p": p, "d": d}[of].side, "a", after)
    tickets = {"a": prefill(p, "a", OTHER), "b": prefill(p, "b", LAST)}
    assert (tickets["a"] is None) == (of == "p")
    for name, prompt in (("a", OTHER), ("b", LAST)):
        d.ask(name, prompt, 5, tickets[name])
    run([p, d], lambda: d.finished.keys() >= {"a", "b"})
    assert is_right(d, "a", OTHER) and is_right(d, "b", LAST)
    assert raised == tracebacks == [hook.__name__]
    is_carried = hook is Scheduler.finish and of == "d"
    assert stat(d, "verdicts", "use") == 2 + is_carried
    run([p, d], lambda: used(p) == used(d) == 0)
    assert numbers["counters"]["internal_errors"] == {hook.__name__: 1}
    assert not p.scheduler.requests and not d.scheduler.requests and not p.side.busy and not d.side.busy
    assert gauge(p, "leases_live") == gauge(d, "loads_open") == 0
    carry(p, d, "after", PROMPT)
    assert stat(d, "verdicts", "use") == 3 + is_carried


@KINDS
def test_a_lease_ends_before_its_blocks_are_another_s(engine: Callable[..., ModelEngine], monkeypatch: pytest.MonkeyPatch,
                                                      asynchronous: bool, tracebacks: list[str]) -> None:
    """The ticket was made, and is lost: whoever has it all the same is told."""
    p, d = engine("p", asynchronous, blocks=8), engine("d", asynchronous)
    tickets: list[Any] = []
    work = Scheduler.finish.__wrapped__

    def finish(side: Scheduler, one: Any) -> Any:
        if one.request_id != "a" or side is not p.side:
            return work(side, one)
        tickets.append(work(side, one)[1])
        raise Mistake("planted")
    monkeypatch.setattr(Scheduler.finish, "__wrapped__", finish)
    assert prefill(p, "a", PROMPT) is None and tickets[0]
    p.ask("over it", OTHER, 60)
    run([p], lambda: "over it" in p.finished)
    decode(p, d, "a", PROMPT, tickets[0])
    assert stat(d, "verdicts", "recompute") == 1


@KINDS
@WHEN
def test_a_client_leaves_under_its_load(engine: Callable[..., ModelEngine], monkeypatch: pytest.MonkeyPatch,
                                        asynchronous: bool, after: bool, tracebacks: list[str]) -> None:
    p, d = engine("p", asynchronous), engine("d", asynchronous)
    go_on = holds_back(monkeypatch, p)
    tickets = {name: prefill(p, name, prompt) for name, prompt in (("a", OTHER), ("b", LAST))}
    for name, prompt in (("a", OTHER), ("b", LAST)):
        d.ask(name, prompt, 5, tickets[name])
    d.steps(4)
    assert gauge(d, "loads_open") == 2 and (before := used(d)) > 0
    breaks(monkeypatch, Scheduler.finish, d.side, "a", after)
    d.abort("a")
    assert used(d) == before, "a load may still write to them"
    go_on()
    run([p, d], lambda: "b" in d.finished and used(d) == 0)
    assert is_right(d, "b", LAST) and stat(d, "verdicts", "use") == 1
    assert tracebacks == ["finish"] and not d.scheduler.requests


class Broken:
    """A node of which a call raises once, or always."""

    def __init__(self, node: Any, call: str, times: int = 1) -> None:
        self._node, self._call, self.left = node, call, times

    def __getattr__(self, name: str) -> Any:
        if name == self._call and self.left:
            self.left -= 1
            raise Mistake("planted")
        return getattr(self._node, name)


@pytest.mark.parametrize("call", ["take_blocks", "request_cancel"])
def test_an_end_that_fails_halfway(engine: Callable[..., ModelEngine], monkeypatch: pytest.MonkeyPatch, call: str,
                                   tracebacks: list[str]) -> None:
    """Whatever is left of it is done."""
    p, d = engine("p"), engine("d")
    holds_back(monkeypatch, p)
    d.ask("a", OTHER, 5, prefill(p, "a", OTHER))
    d.steps(4)
    before = used(d)
    if call == "request_cancel":
        d.side._consumer._node = Broken(d.side._node, call)
    else:
        take = d.side._consumer.take_blocks
        monkeypatch.setattr(d.side._consumer, "take_blocks", lambda one: [take, _raise][not tracebacks](one))
    d.abort("a")
    assert used(d) == before and tracebacks == ["finish"] and not d.side.stopped
    run([d], lambda: used(d) == 0 and not d.scheduler.requests)


def _raise(*_: Any) -> Any:
    raise Mistake("planted")


@WHEN
def test_a_client_leaves_before_vllm_hears_that_there_is_no_load(engine: Callable[..., ModelEngine], after: bool,
                                                                 monkeypatch: pytest.MonkeyPatch, tracebacks: list[str]) -> None:
    p, d = engine("p"), engine("d")
    d.ask("a", OTHER, 5, prefill(p, "a", OTHER))
    breaks(monkeypatch, Scheduler.admit, d.side, "a", after)
    scheduled = d.scheduler.schedule()
    assert d.scheduler.requests["a"].status == RequestStatus.WAITING_FOR_REMOTE_KVS and tracebacks == ["admit"]
    d.abort("a")
    d._take(d.scheduler.update_from_output(scheduled, d._execute(scheduled)))
    run([p, d], lambda: used(p) == used(d) == 0 and not d.scheduler.requests)


def test_giving_up_that_fails_stops_all(engine: Callable[..., ModelEngine], monkeypatch: pytest.MonkeyPatch,
                                        tracebacks: list[str]) -> None:
    p, d = engine("p"), engine("d")
    ticket = prefill(p, "a", OTHER)
    breaks(monkeypatch, Scheduler.admit, d.side, "a", after=True)
    monkeypatch.setattr(d.side, "give_up", _raise)
    decode(p, d, "a", OTHER, ticket)
    assert d.side.stopped and tracebacks == ["admit", "give_up"]
    run([p, d], lambda: used(p) == used(d) == 0)


# ---- hooks of all, and of ranks ----

IN_A_STEP = [Scheduler.orders, Scheduler.update, Worker.before_forward, Worker.start_loads, Worker.publish, Worker.finished,
             Worker.answer, Worker.report]
OF_ALL = pytest.mark.parametrize("hook", IN_A_STEP, ids=lambda hook: hook.__qualname__)


SHAPES = pytest.mark.parametrize("ranks, asynchronous", [(1, False), (2, True)], ids=["plain", "two ranks, asynchronous"])


def side_of(engine: ModelEngine, hook: Any) -> Any:
    """Of the ranks the last one alone."""
    return engine.side if getattr(Scheduler, hook.__name__, None) is hook else worker_of(engine, len(engine.ranks) - 1)


def is_stopped(engine: ModelEngine, numbers: dict[str, Any], hook: str) -> None:
    for rank in engine.ranks:
        rank.connector.get_kv_connector_stats()
    assert numbers["counters"]["internal_errors"] == {hook: 1}
    assert numbers["gauges"]["transfers_stopped"] == {"control": 1}
    assert all(worker_of(engine, rank).stopped for rank in range(len(engine.ranks))) and engine.side.stopped
    assert gauge(engine, "leases_live") == gauge(engine, "loads_open") == 0
    assert [value for name, _, value, _ in engine.side._node.stats() if name == "leases_reserved"] == [0]
    assert not engine.side.busy and not engine.scheduler.requests


@SHAPES
@WHEN
@OF_ALL
def test_all_leases_end_before_vllm_goes_on(engine: Callable[..., ModelEngine], monkeypatch: pytest.MonkeyPatch, hook: Any,
                                            after: bool, ranks: int, asynchronous: bool, tracebacks: list[str],
                                            numbers: dict[str, Any]) -> None:
    p, d = engine("p", asynchronous, blocks=16, ranks=ranks), engine("d", asynchronous, ranks=ranks)
    ticket, own = prefill(p, "a", OTHER), side_of(p, hook)
    assert gauge(p, "leases_live") == ranks
    raised = breaks(monkeypatch, hook, own, after=after)
    live: list[int] = []
    follow = p._follow

    def forward(scheduled: Any) -> None:
        live.extend([gauge(p, "leases_live")] if raised and not live else [])
        follow(scheduled)
    monkeypatch.setattr(p, "_follow", forward)
    p.ask("b", LAST, 1, ASKS)
    while not raised:
        p.step()
    if hook in (Scheduler.orders, Worker.before_forward):
        p.step() if not live else None
        assert live == [0 if own is p.side else ranks - 1], "their blocks may be overwritten in that step"
    run([p], lambda: "b" in p.finished and used(p) == 0)
    assert p.answers["b"] == right_answer(LAST, 1)
    assert tracebacks == [hook.__name__]
    is_stopped(p, numbers, hook.__name__)
    for number in range(3):
        p.ask(f"over it {number}", [number, *PROMPT[1:]], 5)
    assert prefill(p, "c", LAST) is None, "no tickets"
    d.ask("a", OTHER, 5, ticket)
    d.ask("b", LAST, 5, p.finished["b"][1])
    run([p, d], lambda: d.finished.keys() >= {"a", "b"})
    assert is_right(d, "a", OTHER) and is_right(d, "b", LAST)
    assert stat(d, "verdicts", "use") == 0 and stat(d, "verdicts", "recompute") >= 1
    run([p, d], lambda: used(p) == used(d) == 0)


@SHAPES
@WHEN
@OF_ALL
def test_all_loads_are_stopped(engine: Callable[..., ModelEngine], monkeypatch: pytest.MonkeyPatch, hook: Any, after: bool,
                               ranks: int, asynchronous: bool, tracebacks: list[str], numbers: dict[str, Any]) -> None:
    """In whatever state: not admitted yet, under way, over, left by its client."""
    p = engine("p", asynchronous, ranks=ranks, lease_ttl_ms=4000)  # D repeats the end of an unpublished lease after a third
    d = engine("d", asynchronous, ranks=ranks)
    prompts = {name: [number, *PROMPT[1:]] for number, name in enumerate(["before", "under way", "left", "new"], 20)}
    carry(p, d, "before", prompts.pop("before"))
    holds_back(monkeypatch, p)
    tickets = {name: prefill(p, name, prompt) for name, prompt in prompts.items()}
    for name in ("under way", "left"):
        d.ask(name, prompts[name], 5, tickets[name])
    d.steps(4)
    assert gauge(d, "loads_open") == 2 * ranks
    raised = breaks(monkeypatch, hook, side_of(d, hook), after=after)
    d.abort("left")
    d.ask("new", prompts["new"], 5, tickets["new"])
    run([p, d], lambda: d.finished.keys() >= {"under way", "new"})
    assert all(is_right(d, name, prompts[name]) for name in ("under way", "new"))
    assert raised == tracebacks == [hook.__name__]
    run([p, d], lambda: used(d) == 0 and not d.scheduler.requests)
    is_stopped(d, numbers, hook.__name__)
    assert p.reset()
    run([p, d], lambda: not [value for name, _, value, _ in d.side._node.stats() if name == "requests_open" and value])
    carry(p, d, "after", OTHER)
    assert gauge(d, "loads_open") == 0
    assert p.reset()
    run([p, d], lambda: used(p) == used(d) == 0)


@pytest.mark.parametrize("inside", ["_settle", "settle", "take_given_back"])
def test_what_an_update_has_begun_is_ended(engine: Callable[..., ModelEngine], monkeypatch: pytest.MonkeyPatch, inside: str,
                                           tracebacks: list[str]) -> None:
    """Of two loads that are over, one is off the books already, and vLLM has not heard of it."""
    p, d = engine("p"), engine("d")
    tickets = {name: prefill(p, name, prompt) for name, prompt in (("a", OTHER), ("b", LAST))}
    for name, prompt in (("a", OTHER), ("b", LAST)):
        d.ask(name, prompt, 5, tickets[name])
    work = getattr(d.side._consumer, inside)

    def broken(*args: Any) -> Any:
        if d.side.stopped:
            return work(*args)
        if d.side._consumer._unreleased:  # both are to end in one step
            if inside == "_settle":
                d.side._consumer._by_id[args[0].id] = args[0]
                d.side._consumer._ready[args[0].id] = True
                return False
            return work(*args) if inside == "take_given_back" else work([])
        work(*args)
        raise Mistake("planted")
    monkeypatch.setattr(d.side._consumer, inside, broken)
    run([p, d], lambda: d.finished.keys() >= {"a", "b"})
    assert is_right(d, "a", OTHER) and is_right(d, "b", LAST) and tracebacks == ["update"]
    run([p, d], lambda: used(p) == used(d) == 0 and not d.scheduler.requests)


@KINDS
def test_no_rank_calls_another(engine: Callable[..., ModelEngine], monkeypatch: pytest.MonkeyPatch, asynchronous: bool,
                               tracebacks: list[str]) -> None:
    """Not by itself: the others go on with their step, and are stopped by the scheduler's side."""
    import torch.distributed
    for name in ("all_reduce", "all_gather", "all_gather_object", "broadcast", "broadcast_object_list", "barrier"):
        monkeypatch.setattr(torch.distributed, name, _raise)
    p = engine("p", asynchronous, ranks=2)
    prefill(p, "a", OTHER)
    breaks(monkeypatch, Worker.before_forward, worker_of(p, 1))
    stopped: list[bool] = []
    follow = p._follow
    monkeypatch.setattr(p, "_follow", lambda scheduled: (stopped.append(worker_of(p, 0).stopped), follow(scheduled))[1])
    p.ask("b", LAST, 3)
    run([p], lambda: "b" in p.finished)
    assert stopped[0] is False and stopped[-1] is True and is_right(p, "b", LAST, 3) and tracebacks == ["before_forward"]


def test_metrics_go_on(engine: Callable[..., ModelEngine], monkeypatch: pytest.MonkeyPatch, tracebacks: list[str]) -> None:
    """They are of hooks, too, and the last ones that an engine should lose."""
    p, read = engine("p"), Meter.read
    prefill(p, "a", OTHER)
    monkeypatch.setattr(Meter, "read", _raise)
    for connector in (p.scheduler.connector, p.ranks[0].connector):
        assert connector.get_kv_connector_stats() is None
        assert connector.get_kv_connector_stats() is None
    assert tracebacks == ["stats"] and p.side.stopped, "the rank was stopped by the scheduler's side"
    monkeypatch.setattr(Meter, "read", read)
    assert p.scheduler.connector.get_kv_connector_stats().data["gauges"]["transfers_stopped"] == {"control": 1}
    run([p], lambda: used(p) == 0)


def test_what_engines_are_scaled_by(engine: Callable[..., ModelEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    read, shown = Meter.read, {}

    def record(meter: Meter) -> Any:
        data = read(meter)
        for name, nodes in (data or {"gauges": {}})["gauges"].items():
            shown[id(meter), name] = nodes.get("control")
        return data

    monkeypatch.setattr(Meter, "read", record)
    p, d = engine("p"), engine("d")
    began_s = time.time()
    ticket = prefill(p, "a", OTHER)
    p.side.stats()
    assert shown[id(p.side._meter), "pinned_bytes"] > 0 and shown[id(p.side._meter), "pinned_tokens"] >= len(OTHER) - 1
    assert began_s <= shown[id(p.side._meter), "oldest_lease"] <= time.time()
    later_s = time.time()
    later_ticket = prefill(p, "b", LAST)
    d.ask("a", OTHER, 5, ticket)
    d.side.stats()
    assert began_s <= shown[id(d.side._meter), "oldest_waiting"] <= time.time()
    p.side.stats()
    assert shown[id(p.side._meter), "oldest_lease"] < later_s
    run([p, d], lambda: "a" in d.finished and p.side._producer.leases == 1)
    d.side.stats()
    assert shown[id(d.side._meter), "oldest_waiting"] == 0
    p.side.stats()
    assert later_s <= shown[id(p.side._meter), "oldest_lease"] <= time.time()
    d.ask("b", LAST, 5, later_ticket)
    run([p, d], lambda: "b" in d.finished and used(p) == 0)
    p.side.stats()
    assert [shown[id(p.side._meter), name] for name in ("oldest_lease", "pinned_tokens", "pinned_bytes")] == [0, 0, 0]


# ---- between steps: stand-ins of nodes ----

BETWEEN = {
    "reset": ("reset_prefix_cache", (), "ending"),
    "reset, afterwards": ("reset_prefix_cache", (), "cache_is_empty"),
    "pause": ("pause_scheduler", ("abort",), "pause"),
    "pause, its end": ("pause_scheduler", ("keep",), "ending"),
    "resume": ("resume_scheduler", (), "pause"),
    "shutdown": ("_handle_shutdown", (), "aborting"),
    "sleep": ("sleep", (2,), "weights_change"),
    "reload": ("collective_rpc", ("reload_weights",), "weights_change"),
    "reload, its end": ("collective_rpc", ("reload_weights",), "weights_reloaded"),
    "update": ("collective_rpc", ("start_weight_update",), "weights_change"),
    "update, its end": ("collective_rpc", ("finish_weight_update",), "weights_changed"),
    "an unknown call": ("collective_rpc", ("update_named_params",), "weights_change"),
    "an unknown call, its end": ("collective_rpc", ("update_named_params",), "weights_changed"),
    "a configuration": ("collective_rpc", ("update_config",), "loads_configured"),
    "a version": ("set_weight_version", ("7",), "weights_named"),
    "an adapter": ("add_lora", (SimpleNamespace(),), "adapter_called"),
    "an adapter's news": ("remove_lora", (1,), "receive"),
}
BEFORE_IT = {"reset", "pause", "pause, its end", "shutdown", "sleep", "reload", "update", "an unknown call"}
"""What goes wrong does so before vLLM's own method runs."""


RETURN_NOTHING = {"resume_scheduler", "set_weight_version"}


@pytest.mark.parametrize("case", BETWEEN)
def test_what_wraps_vllm_s_methods(core: Engine, monkeypatch: pytest.MonkeyPatch, case: str, tracebacks: list[str],
                                   numbers: dict[str, Any]) -> None:
    name, args, inside = BETWEEN[case]
    core.shutdown_state, core.vllm_config.shutdown_timeout = SimpleNamespace(name="REQUESTED"), 0
    core.vllm_config.lora_config = object() if "lora" in name else None
    core.lend()
    b = core.load()
    monkeypatch.setattr(core.side.content if hasattr(core.side.content, inside) else core.side, inside, _raise)
    result, found = wrapped(name, core, *args, result=True)
    assert (result or name in RETURN_NOTHING) and (found == [] if case in BEFORE_IT else found is not None)
    assert core.side.stopped and all(node.of("unregister") for node in core.nodes) and len(tracebacks) == 1
    assert core.held == [] and b.num_computed_tokens == 0
    assert core.scheduler.finished_recving_kv_req_ids == {"b"} and "b" in core.freed
    core.side.stats()
    assert sum(numbers["counters"]["internal_errors"].values()) == 1
    assert numbers["gauges"]["transfers_stopped"] == {"control": 1}
    monkeypatch.undo()
    assert not core.offers()
    a = request("again", 80, params=ASKS)
    core.side.arrive(a)
    assert not core.side.orders(step(tokens={"again": 80})).publish and core.side.finish(a) == (False, None)


def test_a_rank_that_fails_between_steps(core: Engine, monkeypatch: pytest.MonkeyPatch, tracebacks: list[str]) -> None:
    core.lend()
    core.load()
    breaks(monkeypatch, Worker.end_transfers, core.workers[1])
    assert wrapped("reset_prefix_cache", core, result=True) == (True, [])
    assert tracebacks == ["end_transfers"] and core.side.stopped and core.workers[0].stopped


def test_blocks_of_reads_that_have_not_ended_stay_aside(core: Engine, monkeypatch: pytest.MonkeyPatch, tracebacks: list[str]) -> None:
    """A stopped rank is slow once, not in each of its hooks."""
    b = core.load()
    core.nodes[1].status["unregister"] = _kvferry.AGAIN
    breaks(monkeypatch, Scheduler.orders, core.side)
    core.side.orders(step())
    assert core.manager.popped == ["b"] and "block 1" not in core.freed and b.num_computed_tokens == 0
    assert core.scheduler.finished_recving_kv_req_ids == {"b"} and tracebacks == ["orders"]
    waits: list[float] = []
    monkeypatch.setattr(engine_worker.time, "sleep", waits.append)
    monkeypatch.setattr(engine_worker, "CONFIRM_S", 10.0)
    for _ in range(3):
        core.workers[1].before_forward(core.side.orders(step()))
    assert len(waits) <= 3
    with pytest.raises(RuntimeError, match="has not ended"):
        core.workers[1].leave()
    assert core.workers[0].leave() is None


def test_frees_soon(core: Engine, monkeypatch: pytest.MonkeyPatch, tracebacks: list[str]) -> None:
    core.lend()
    breaks(monkeypatch, Scheduler.frees_soon, core.side)
    assert core.side.frees_soon() is False and core.side.stopped and core.held == [] and tracebacks == ["frees_soon"]


def test_an_end_that_nobody_can_be_sure_of_goes_through(core: Engine, monkeypatch: pytest.MonkeyPatch, tracebacks: list[str]) -> None:
    """And again in each later hook: vLLM answers a call that has failed, and lives."""
    a = core.lend()
    core.load()
    core.nodes[1].unregister = _raise  # type: ignore[method-assign]
    monkeypatch.setattr(core.side, "ending", _raise)
    for _ in range(2):
        with pytest.raises(NotStoppedError):
            wrapped("reset_prefix_cache", core, result=True)
    for hook, args in [("arrive", (a,)), ("offer", (a, 0)), ("admit", (a, None, 0)), ("finish", (a,)), ("frees_soon", ()),
                       ("orders", (step(),)), ("update", (KVConnectorOutput(),))]:
        with pytest.raises(NotStoppedError):
            getattr(core.side, hook)(*args)
    assert core.held == [5, 6, 7] and tracebacks == ["reset_prefix_cache"]
    with pytest.raises(Mistake):
        core.workers[1].stop("why")
    for hook in ("before_forward", "start_loads", "publish", "finished", "answer"):
        with pytest.raises(Mistake):
            getattr(core.workers[1], hook)(None)


# ---- where adapters are read ----

def test_adapters_of_which_nobody_knows(core: Engine, monkeypatch: pytest.MonkeyPatch, tracebacks: list[str]) -> None:
    """vLLM's own call is none the worse; the rank's next hook stops all."""
    known, manager = core.workers[0]._adapters, SimpleNamespace(lora_config=None)
    monkeypatch.setattr(adapters, "loaded_adapters", lambda config: known)
    monkeypatch.setattr(adapters, "digest_of", lambda *lora: b"digest")
    monkeypatch.setattr(seam, "adapters_in_memory", _raise)
    lora = SimpleNamespace(id=1)
    assert adapters._load_adapter(lambda *args: lora, manager, SimpleNamespace(lora_name="x")) is lora
    assert core.workers[0].report().stopped and tracebacks == ["report"]


# ---- the start ----

def test_the_start_has_no_boundary(core: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    core.shutdown_state = SimpleNamespace(name="RUNNING")
    for name in ("_handle_shutdown", "add_request"):
        core.side.joined = False
        with monkeypatch.context() as broken:
            broken.setattr(core.side._node, "set_ranks", _raise)
            with pytest.raises(Mistake):
                wrapped(name, core)
    side = core.workers[0]
    monkeypatch.setattr(worker, "pool_of", _raise)
    side.register({"layer": None})
    for call in (side.open, side.address):
        with pytest.raises(Mistake):
            call()
    with pytest.raises(Exception, match="requests that fail"):
        scheduler = vllm_scheduler()
        scheduler.grammar_compile_error_reqs = []
        join(core.side, scheduler, [])
    assert not core.side.stopped and not side.stopped
