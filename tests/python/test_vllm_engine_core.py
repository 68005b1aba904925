"""Between steps: what is lent or loaded has ended on every rank before vLLM resets, pauses or changes weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from fakes import ASKS, BRINGS, TOKENS, FakeBlocks, FakeEngine, FakeNode, event, request, step, vllm_config  # noqa: E402
from kvferry import _kvferry  # noqa: E402
from kvferry.engine import worker as engine_worker  # noqa: E402
from kvferry.engine.messages import Ending  # noqa: E402
from kvferry.vllm import KVFerryConnector, engine_core  # noqa: E402
from kvferry.vllm.content import state, updates  # noqa: E402
from kvferry.vllm.transfers.core import Core, TransfersError  # noqa: E402
from vllm.v1.core.sched.interface import PauseState  # noqa: E402
from vllm.v1.engine.core import EngineCore, EngineCoreProc  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402


class Engine(FakeEngine):
    """Of two ranks, whose nodes confirm after some polls, or never (None)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, polls: tuple[int | None, int | None] = (0, 2),
                 options: dict[str, Any] | None = None) -> None:
        monkeypatch.setattr(engine_worker, "CONFIRM_S", 0.05)
        super().__init__(monkeypatch, 2, options)
        self.polls = dict(zip(map(id, self.nodes), polls))
        for node in self.nodes:
            node.poll = partial(self.poll, node)  # type: ignore[method-assign]
        self.recomputed: list[bool] = []
        """Whether other connectors' caches were emptied, when all was to be computed anew."""

    def poll(self, node: FakeNode) -> list[Any]:
        left = self.polls[id(node)]
        if left is None or left < 0:
            return []
        self.polls[id(node)] = left - 1
        if left > 0:
            return []
        leases = [int(lease.split()[1]) for lease in node.of("lease_end")]
        return [*(event(_kvferry.EVENT_LEASE_ENDED, id_, cause=3) for id_ in leases),
                *(event(_kvferry.EVENT_RELEASED, id_) for id_ in node.of("load_abort"))]

    def reset(self, reset_connector: bool, reset_running_requests: bool = False) -> bool:
        if reset_running_requests:
            assert not self.held, "vLLM would raise an exception"
            self.recomputed.append(reset_connector)
        return self.ok

    @property
    def freed(self) -> list[Any]:
        return [getattr(block, "block_id", block) for block in self.manager.freed]

    def lend(self) -> Any:
        """A request that has finished, and whose blocks are under a lease."""
        a = request("a", TOKENS, params=ASKS)
        self.side.arrive(a)
        self.side.orders(step(tokens={"a": TOKENS}))
        a.num_computed_tokens, a.status = TOKENS, RequestStatus.FINISHED_LENGTH_CAPPED
        assert self.side.finish(a)[1] is not None and self.held == [5, 6, 7]
        return a

    @property
    def held(self) -> list[int]:
        """Blocks that only leases keep from vLLM."""
        return [block.block_id for block in self.manager.touched if block not in self.manager.freed]

    def load(self, status: RequestStatus = RequestStatus.WAITING_FOR_REMOTE_KVS) -> Any:
        b = self.scheduler.requests["b"] = request("b", TOKENS, params=BRINGS, status=status)
        self.side.arrive(b)
        self.side.admit(b, FakeBlocks([1, 2, 3]), self.side.offer(b, 0)[0])
        assert self.side.orders(step()).load
        return b

    def offers(self) -> bool:
        c = request("c", TOKENS, params=BRINGS)
        self.side.arrive(c)
        offered = self.side.offer(c, 0)[1]
        self.side.finish(c)
        return offered


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(monkeypatch)


def wrapped(name: str, engine: Engine, *args: Any, result: Any = None, **kwargs: Any) -> tuple[Any, list[str]]:
    """What vLLM's method would have found: who still holds blocks when it runs."""
    found: list[str] = []

    def call(core: Any, *args: Any, **kwargs: Any) -> Any:
        found.extend([*map(str, core.held), *sorted(set(core.scheduler.requests) - core.scheduler.finished_recving_kv_req_ids)])
        return result
    return engine.around(name, call, *args, **kwargs), found


def test_all_of_vllm_s_classes_are_wrapped() -> None:
    config = vllm_config()
    config.lora_config, config.model_config.enable_sleep_mode = object(), True
    engine_core.install(config, KVFerryConnector)
    engine_core.install(config, KVFerryConnector)
    for cls in (EngineCore, EngineCoreProc):
        for name in engine_core.AROUNDS.keys() - ({"_handle_shutdown"} if cls is EngineCore else set()):
            assert hasattr(getattr(cls, name), "of_kvferry")
            assert not hasattr(getattr(cls, name).__wrapped__, "of_kvferry")


@pytest.mark.parametrize("name, args", [
    ("reset_prefix_cache", ()), ("pause_scheduler", ("abort",)), ("pause_scheduler", ("keep",)),
    ("collective_rpc", ("reload_weights",)), ("collective_rpc", ("start_weight_update",)),
    ("collective_rpc", ("update_named_params",)), ("collective_rpc", (print,))])
def test_nothing_is_lent_or_loaded_when_it_runs(engine: Engine, name: str, args: tuple[Any, ...]) -> None:
    engine.lend()
    b = engine.load()
    assert wrapped(name, engine, *args, result=True) == (True, [])
    assert engine.freed == [7, 6, 5, "b"] and b.num_computed_tokens == 0
    assert engine.scheduler.finished_recving_kv_req_ids == {"b"}


@pytest.mark.parametrize("name, args", [("pause_scheduler", ("abort",)), ("_handle_shutdown", ())])
def test_requests_that_vllm_aborts_leave_their_leases(engine: Engine, name: str, args: tuple[Any, ...]) -> None:
    engine.shutdown_state, engine.vllm_config.shutdown_timeout = SimpleNamespace(name="REQUESTED"), 0
    engine.load()
    wrapped(name, engine, *args)
    calls = [call for call, _ in engine.side._node.calls if call in ("request_detach", "request_cancel")]
    assert calls[:1] == ["request_detach"] and engine.node.of("request_detach") == engine.node.opened


@pytest.mark.parametrize("state, timeout", [("RUNNING", 0), ("REQUESTED", 20), ("SHUTTING_DOWN", 0)])
def test_an_engine_that_drains_keeps_its_leases(engine: Engine, state: str, timeout: int) -> None:
    engine.shutdown_state, engine.vllm_config.shutdown_timeout = SimpleNamespace(name=state), timeout
    engine.load()
    wrapped("_handle_shutdown", engine)
    assert engine.side._node.of("request_detach") == []


def test_a_pause_that_waits_lets_loads_come(engine: Engine) -> None:
    engine.lend()
    engine.load()
    assert wrapped("pause_scheduler", engine, "wait") == (None, ["b"])


def test_blocks_of_a_client_that_has_left_are_freed(engine: Engine) -> None:
    b = engine.load()
    b.status = RequestStatus.FINISHED_ABORTED
    assert engine.side.finish(b)[0]
    assert engine.freed == []
    wrapped("reset_prefix_cache", engine)
    assert engine.freed == ["block 2", "block 1"]


@pytest.mark.parametrize("name, args", [("reset_prefix_cache", ()), ("pause_scheduler", ()),
                                        ("collective_rpc", ("reload_weights",))])
def test_a_rank_that_does_not_confirm_makes_it_fail(monkeypatch: pytest.MonkeyPatch, name: str,
                                                    args: tuple[Any, ...]) -> None:
    engine = Engine(monkeypatch, polls=(0, None))
    engine.lend()
    start = time.monotonic()
    with pytest.raises(TransfersError, match="1 leases, 0 loads"):
        wrapped(name, engine, *args)
    assert time.monotonic() - start < 1.0
    assert engine.freed == []


@pytest.mark.parametrize("name, args", [("_handle_shutdown", ()), ("add_request", ("a request",))])
def test_joined_before_the_first_request(engine: Engine, name: str, args: tuple[Any, ...]) -> None:
    engine.shutdown_state = SimpleNamespace(name="RUNNING")
    ranks: list[list[bytes]] = []
    engine.side._node.set_ranks, engine.side.joined = ranks.append, False
    content = engine.side.content
    content.knows_calls, content._keep_weights = False, set()
    for _ in range(2):
        wrapped(name, engine, *args)
    assert ranks == [[b"address 0", b"address 1"]]
    assert content.knows_calls and content.keeps_weights("profile")


def test_a_rank_that_knows_nothing_of_it_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, polls=(0, None))
    engine.nodes[1].status = dict.fromkeys(("lease_end", "load_abort"), _kvferry.NOT_FOUND)
    engine.lend()
    engine.load()
    assert wrapped("reset_prefix_cache", engine, result=True) == (True, [])


def test_confirmations_of_a_step_are_not_lost(engine: Engine) -> None:
    engine.workers[0]._report.released.add(77)
    assert engine.workers[0].end_transfers(Ending(loads=[5])).released == {77, 5}


def test_paused_there_are_no_leases(engine: Engine) -> None:
    wrapped("pause_scheduler", engine, "wait")
    engine.side.arrive(a := request("a", TOKENS, params=ASKS))
    assert not engine.side.orders(step(tokens={"a": TOKENS})).publish
    assert engine.side.finish(a) == (False, None)
    wrapped("resume_scheduler", engine)
    engine.lend()


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("was", [PauseState.UNPAUSED, PauseState.PAUSED_NEW])
def test_a_pause_that_fails_is_none(engine: Engine, was: PauseState, later: bool) -> None:
    engine.scheduler.pause_state = was
    engine.scheduler.set_pause_state = lambda state: vars(engine.scheduler).update(pause_state=state)
    engine.side.pause(was is not PauseState.UNPAUSED)
    future: Future[None] = Future()

    def pause(core: Any, *_: Any) -> Any:
        core.scheduler.set_pause_state(PauseState.PAUSED_ALL)
        if later:
            return future
        raise RuntimeError("of vLLM's")
    around = partial(engine.around, "pause_scheduler")
    if later:
        around(pause, "keep")
        assert engine.side.paused and engine.scheduler.pause_state is PauseState.PAUSED_ALL
        future.set_exception(RuntimeError("of vLLM's"))
    else:
        with pytest.raises(RuntimeError):
            around(pause, "keep")
    assert engine.scheduler.pause_state is was and engine.side.paused == (was is not PauseState.UNPAUSED)


# ---- weights ----

def test_an_update_by_a_trainer(engine: Engine) -> None:
    assert engine.offers()
    for method in ("start_weight_update", "update_weights", "finish_weight_update"):
        wrapped("collective_rpc", engine, method)
        assert not engine.offers()
    wrapped("set_weight_version", engine, "step 7")
    assert engine.offers()
    wrapped("collective_rpc", engine, "compute_weight_checksums")
    assert engine.offers()


UNKNOWN = ["update_named_params", "apply_model", "get_model", "reset_weights", "update_config", "sleep", print]


@pytest.mark.parametrize("method", UNKNOWN)
def test_a_call_that_nobody_knows_to_leave_the_weights_alone(engine: Engine, method: Any) -> None:
    for _ in range(2):
        wrapped("collective_rpc", engine, method)
        assert not engine.offers()
    wrapped("set_weight_version", engine, "step 7")
    assert engine.offers()


def test_named_among_its_arguments(engine: Engine) -> None:
    given: list[dict[str, Any]] = []
    around = partial(engine.around, "collective_rpc")
    around(lambda core, method, timeout, args, kwargs: given.append(kwargs), "update_named_params", None, (),
           {"names": ["a"], "weights_id": "step 7"})
    assert engine.offers() and given == [{"names": ["a"]}]


def test_a_call_that_fails_has_perhaps_changed_them(engine: Engine) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("of a worker's")
    around = partial(engine.around, "collective_rpc")
    with pytest.raises(RuntimeError):
        around(fail, "update_named_params", None, (), {"weights_id": "step 7"})
    assert not engine.offers()
    wrapped("collective_rpc", engine, "update_named_params", kwargs={"weights_id": "step 7"})
    assert engine.offers()


def test_a_call_within_an_update_does_not_end_it(engine: Engine) -> None:
    wrapped("collective_rpc", engine, "start_weight_update")
    wrapped("collective_rpc", engine, "update_named_params", kwargs={"weights_id": "step 6"})
    wrapped("set_weight_version", engine, "step 6")
    assert not engine.offers()
    wrapped("collective_rpc", engine, "finish_weight_update", kwargs={"weights_id": "step 7"})
    assert engine.offers()


def test_weights_that_sleep_has_dropped_come_by_any_call(engine: Engine) -> None:
    wrapped("sleep", engine, 2)
    assert not engine.offers()
    wrapped("collective_rpc", engine, "update_named_params", kwargs={"weights_id": "step 7"})
    assert engine.offers()


@pytest.mark.parametrize("method", ["check_health", "list_loras", "ours"])
def test_calls_that_leave_the_weights_alone(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    engine = Engine(monkeypatch, options={"rpcs_that_keep_weights": ["ours"]})
    engine.lend()
    assert wrapped("collective_rpc", engine, method, result=True)[0] and engine.offers() and engine.held
    wrapped("collective_rpc", engine, "theirs")
    assert not engine.offers()


@pytest.mark.parametrize("method", ["start_weight_update", "sleep", "reload_weights"])
def test_no_option_makes_a_known_change_harmless(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    engine = Engine(monkeypatch, options={"rpcs_that_keep_weights": [method]})
    wrapped("collective_rpc", engine, method, kwargs={"weights_iterator": "tensors"})
    assert not engine.offers()


def test_a_function_of_the_same_name_is_no_call_of_vllm_s(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has written is in no files."""
    def reload_weights() -> None: ...
    reloaded: list[Any] = []
    monkeypatch.setattr(engine.side.content, "weights_reloaded", lambda *args: reloaded.append(args))
    wrapped("collective_rpc", engine, reload_weights)
    assert reloaded == [] and not engine.offers()


def test_whose_methods_a_worker_has() -> None:
    worker = type("Worker", (), {"__module__": "vllm.v1.worker", "check_health": print, "list_loras": print, "load": print})
    extended = type("Extended", (worker, type("Extension", (), {"__module__": "users", "profile": print})), {
        "__module__": "vllm.v1.worker"})
    replaced = type("Replaced", (worker,), {"__module__": "users", "list_loras": print})
    for cls, names in ((worker, {"check_health", "list_loras"}), (extended, {"check_health", "list_loras"}),
                       (replaced, {"check_health"})):
        assert updates.own_methods(cls()) == updates.own_methods(SimpleNamespace(worker=cls())) == names


def test_a_call_is_logged_once(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("one", "two", "one", "reload_weights", *map(str, range(100))):
        wrapped("collective_rpc", engine, name)
    lines = [record.getMessage() for record in caplog.records if "may change the weights" in record.getMessage()]
    assert len(lines) == state.SAID_MAX and "'one'" in lines[0] and "rpcs_that_keep_weights" in lines[0]


@pytest.mark.parametrize("method", ["finish_weight_update", "reload_weights"])
def test_blocks_of_the_old_weights_may_be_cached(engine: Engine, method: str) -> None:
    engine.ok = False
    wrapped("collective_rpc", engine, method, kwargs={"weights_iterator": "tensors"})
    wrapped("set_weight_version", engine, "step 7")
    assert not engine.offers()
    wrapped("reset_prefix_cache", engine, result=False)
    assert not engine.offers()
    wrapped("reset_prefix_cache", engine, result=True)
    assert engine.offers()


def test_other_connectors_may_have_blocks_of_the_old_weights(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Core, "is_alone", False)
    asked = []
    engine.scheduler.reset_prefix_cache = lambda reset_connector: bool(asked.append(reset_connector))
    wrapped("collective_rpc", engine, "finish_weight_update")
    wrapped("set_weight_version", engine, "step 7")
    assert asked == [True] and not engine.offers()
    wrapped("reset_prefix_cache", engine, result=True)
    assert not engine.offers()
    wrapped("reset_prefix_cache", engine, False, True, result=True)
    assert engine.offers()


def test_a_reset_during_an_update_is_no_end_of_it(engine: Engine) -> None:
    wrapped("collective_rpc", engine, "start_weight_update")
    wrapped("set_weight_version", engine, "step 7")
    wrapped("reset_prefix_cache", engine, result=True)
    assert not engine.offers()


@pytest.mark.parametrize("kwargs", [{}, {"weights_path": "elsewhere"}])
def test_reloaded_from_files(engine: Engine, monkeypatch: pytest.MonkeyPatch, kwargs: dict[str, str]) -> None:
    begun = []
    monkeypatch.setattr(engine.side._weights, "reload", lambda since_ns, path: begun.append(path))
    wrapped("collective_rpc", engine, "reload_weights", kwargs=kwargs)
    assert begun == [kwargs.get("weights_path")] and not engine.offers()


@pytest.mark.parametrize("method, kwargs", [
    ("reload_weights", {"weights_path": "elsewhere", "weights_id": "step 7"}),
    ("update_weights", {"update_info": {"names": ["a layer"], "weights_id": "step 7"}})])
def test_a_weights_id_with_the_update(engine: Engine, monkeypatch: pytest.MonkeyPatch, method: str, kwargs: dict[str, Any]) -> None:
    """Neither vLLM nor its workers know it; the next update has another name, or none."""
    wrapped("collective_rpc", engine, method, kwargs=kwargs)
    wrapped("collective_rpc", engine, "finish_weight_update") if method == "update_weights" else None
    assert engine.offers() and "weights_id" not in kwargs | kwargs.get("update_info", {})
    named = Engine(monkeypatch)
    wrapped("collective_rpc", named, "update_weights", kwargs={"update_info": {"weights_id": "given up"}})
    wrapped("collective_rpc", named, "start_weight_update")
    wrapped("collective_rpc", named, "finish_weight_update")
    assert not named.offers()
    wrapped("set_weight_version", named, "step 7")
    assert named.side._weights.digest == engine.side._weights.digest
    wrapped("collective_rpc", engine, "finish_weight_update")
    assert not engine.offers()


@pytest.mark.parametrize("level, known", [(1, True), (2, False)])
def test_asleep_weights_may_be_lost(engine: Engine, level: int, known: bool) -> None:
    wrapped("sleep", engine, level)
    assert engine.offers() == known


# ---- weights that a file of digests names wrongly ----

def disprove(engine: Engine) -> None:
    """As the thread that reads them."""
    weights = engine.side._weights
    weights._disprove(weights._generation, ValueError("one byte"))


def of_a_step(engine: Engine, name: str = "_handle_shutdown") -> None:
    engine.shutdown_state = SimpleNamespace(name="RUNNING")
    wrapped(name, engine, *(("a request",) if name == "add_request" else ()))


@pytest.mark.parametrize("name", ["_handle_shutdown", "add_request"])
def test_disproved_weights_end_all_leases_and_loads(engine: Engine, name: str) -> None:
    engine.lend()
    b = engine.load()
    of_a_step(engine, name)
    assert engine.held and engine.recomputed == []
    disprove(engine)
    assert engine.side._weights.digest is None, "before the engine is told, too"
    of_a_step(engine, name)
    for node in engine.nodes:
        assert node.of("lease_end") and node.of("load_abort")
    assert engine.held == [] and b.request_id in engine.scheduler.finished_recving_kv_req_ids and b.num_computed_tokens == 0
    assert engine.recomputed == [False] and not engine.side.content.has_other_weights
    of_a_step(engine, name)
    assert engine.recomputed == [False], "once"
    assert engine.side.stats()["counters"]["weights_digest_mismatches"] == {"": 1}


def test_disproved_weights_stay_without_an_identity_until_others_are_loaded(engine: Engine) -> None:
    disprove(engine)
    of_a_step(engine)
    wrapped("reset_prefix_cache", engine, result=True)
    wrapped("set_weight_version", engine, "step 7")
    assert not engine.offers()
    wrapped("collective_rpc", engine, "update_named_params", kwargs={"weights_id": "step 8"})
    assert engine.offers()


def test_disproved_before_a_call_that_changes_weights(engine: Engine) -> None:
    engine.lend()
    disprove(engine)
    wrapped("collective_rpc", engine, "update_named_params", kwargs={"weights_id": "step 7"})
    of_a_step(engine)
    assert engine.offers() and engine.recomputed == [False]
    assert engine.side.stats()["counters"]["weights_digest_mismatches"] == {"": 1}


def test_disproved_and_a_rank_does_not_confirm(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is taken from vLLM: the engine goes on, and the blocks come back later."""
    engine = Engine(monkeypatch, polls=(0, None))
    engine.lend()
    engine.load()
    disprove(engine)
    of_a_step(engine)
    assert engine.recomputed == [] and not engine.offers()
    assert any("has not been reset (1 leases, 1 loads)" in record.getMessage() for record in caplog.records)
    engine.polls[id(engine.nodes[1])] = 0
    engine.side.receive([engine.workers[1].report()])
    assert engine.held == [] and engine.side.settle() == {"b"}


def test_disproved_and_another_connector_uses_blocks(engine: Engine, monkeypatch: pytest.MonkeyPatch,
                                                     caplog: pytest.LogCaptureFixture) -> None:
    def raises(reset_connector: bool, reset_running_requests: bool) -> bool:
        raise RuntimeError("Failed to reset KV cache even when all the running requests are preempted")
    monkeypatch.setattr(Core, "is_alone", False)
    engine.scheduler.reset_prefix_cache = raises
    disprove(engine)
    of_a_step(engine)
    assert any("another connector uses blocks" in record.getMessage() for record in caplog.records) and not engine.offers()


def test_an_idle_engine_is_woken(engine: Engine, closes: Callable[[Any], Any]) -> None:
    woken: list[bool] = []
    engine.side.be_woken(lambda: woken.append(engine.side._producer.busy), lambda address: True)
    closes(engine.side._listener)
    disprove(engine)
    assert woken == [True]


def test_an_engine_that_ends_asks_no_more(engine: Engine) -> None:
    engine.side._node.close = engine.side._failures.close = lambda: None
    generation = engine.side._weights._generation
    engine.side.close()
    engine.side._weights._disprove(generation, ValueError("one byte"))
    assert not engine.side.content.has_other_weights
