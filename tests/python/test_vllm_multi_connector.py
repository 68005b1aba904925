"""In vLLM's MultiConnector: what is shared with other connectors stays theirs, and each request ends once for vLLM."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from fakes import (  # noqa: E402
    ASKS,
    BRINGS,
    TOKENS,
    FakeManager,
    FakeNode,
    add_request,
    event,
    join,
    kv_cache_config,
    request,
    step,
    take_errors,
    use_nodes,
    vllm_config,
    vllm_scheduler,
)
from kvferry import _kvferry, vllm_entry, vllm_plugin  # noqa: E402
from kvferry.engine.log import logger  # noqa: E402
from kvferry.vllm import KVFerryConnector, config, scheduler, worker  # noqa: E402
from kvferry.vllm.metrics import Stats  # noqa: E402
from kvferry.vllm.transfers.core import own  # noqa: E402
from sides import host_memory  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import (  # noqa: E402
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.outputs import KVConnectorOutput  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402


class Sibling(KVConnectorBase_V1, SupportsHMA):
    """Keeps each request that ends until it has saved it, and says so when it is told to."""

    def __init__(self) -> None:
        self.saved: set[str] = set()
        self.loaded: set[str] = set()
        self.hits = 0
        self.keeps = True

    def start_load_kv(self, *arguments: Any, **kwargs: Any) -> None: ...
    def wait_for_layer_load(self, layer_name: str) -> None: ...
    def save_kv_layer(self, *arguments: Any, **kwargs: Any) -> None: ...
    def wait_for_save(self) -> None: ...
    def update_state_after_alloc(self, *arguments: Any) -> None: ...
    def bind_connector_metadata(self, metadata: Any) -> None: ...

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return self.hits, bool(self.hits)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        results = self.saved, self.loaded
        self.saved, self.loaded = set(), set()
        return results

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return self.keeps, None


def multi(children: list[Any]) -> MultiConnector:
    made = object.__new__(MultiConnector)
    vars(made).update(_connectors=children, _extra_async_saves={}, _requests_to_connector={}, _all_support_hma=True,
                      _connector_metadata=None)
    return made


def ours(side: Any) -> KVFerryConnector:
    made = object.__new__(KVFerryConnector)
    vars(made).update(_side=side, _scheduler=side, _worker=side, _kv_cache_config=kv_cache_config(), _connector_metadata=None)
    return made


class Engine:
    """vLLM's code around a MultiConnector of ours and a sibling, in either order."""

    _update_from_kv_xfer_finished = Scheduler._update_from_kv_xfer_finished

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: bool) -> None:
        self.control, self.rank = FakeNode(), FakeNode()
        use_nodes(monkeypatch, self.control, self.rank)
        self.side = scheduler.Scheduler(vllm_config(), kv_cache_config())
        self.manager = FakeManager()
        self.manager.groups = ([5, 6, 7],)
        self.sibling = Sibling()
        order = slice(None) if first else slice(None, None, -1)
        self.connector = multi([ours(self.side), self.sibling][order])
        self.worker = multi([ours(worker.Worker(vllm_config(), kv_cache_config())), self.sibling][order])
        self.requests: dict[str, Any] = {}
        self.finished_recving_kv_req_ids: set[str] = set()
        self.freed: list[str] = []
        self.vllm = vllm_scheduler(self.manager, self.connector)
        join(self.side, self.vllm, [b"address"], loads_first=True)

    def _set_kv_fetch_stage(self, *arguments: Any) -> None: ...

    def _free_blocks(self, one: Any) -> None:
        self.freed.append(one.request_id)
        del self.requests[one.request_id]

    def add(self, name: str, params: dict[str, Any]) -> Any:
        one = self.requests[name] = add_request(self.connector, name, TOKENS, params, [5, 6, 7])
        return one

    def end(self, one: Any, status: RequestStatus) -> Any:
        waits = one.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        one.status = status
        delayed, params = self.connector.request_finished_all_groups(one, ([5, 6, 7],))
        if not (delayed or waits):
            self._free_blocks(one)
        return params

    def step(self, output: Any = None) -> None:
        meta = self.connector.build_connector_meta(output or step())
        self.worker.bind_connector_metadata(meta)
        self.worker.handle_preemptions(meta)
        self.worker.start_load_kv(None)
        self.worker.wait_for_save()
        sent, received = self.worker.get_finished(set())
        heard = KVConnectorOutput(finished_sending=sent, finished_recving=received,
                                  kv_connector_worker_meta=self.worker.build_connector_worker_meta())
        for name in take_errors(self.vllm):
            if not RequestStatus.is_finished(self.requests[name].status):
                self.end(self.requests[name], RequestStatus.FINISHED_ERROR)
        self._update_from_kv_xfer_finished(heard)

    def released(self) -> None:
        self.rank.events.append(event(_kvferry.EVENT_RELEASED, self.control.opened[-1]))


@pytest.fixture(params=[True, False], ids=["first", "last"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(monkeypatch, request.param)


def test_what_the_sibling_has_loaded_or_saved_stays_told(engine: Engine) -> None:
    engine.sibling.hits = TOKENS
    loading = engine.add("loading", {})
    engine.sibling.hits = 0
    saving = engine.add("saving", {})
    engine.end(saving, RequestStatus.FINISHED_STOPPED)
    b = engine.add("b", BRINGS)
    engine.step()
    engine.control.report(engine.control.opened[-1])
    engine.released()
    engine.sibling.loaded, engine.sibling.saved = {"loading"}, {"saving"}
    engine.step()
    assert engine.finished_recving_kv_req_ids == {"loading", "b"} and engine.freed == ["saving"]
    assert {loading.status, b.status} == {RequestStatus.WAITING_FOR_REMOTE_KVS}


def test_a_load_leaves_it_when_the_sibling_s_loads_start(engine: Engine) -> None:
    """vLLM starts all of a step before its forward, or none."""
    engine.add("b", BRINGS)
    output = step()
    engine.step(output)
    assert engine.rank.of("load_start") and not output.has_sync_kv_loads


def test_blocks_wait_for_both(engine: Engine) -> None:
    """The lease's references, and the sibling's hold on the request."""
    a = engine.add("a", ASKS)
    engine.step(step({"a": TOKENS}, {"a": ([5, 6, 7],)}))
    params = engine.end(a, RequestStatus.FINISHED_LENGTH_CAPPED)
    assert params["kvferry_ticket"]
    engine.sibling.saved = {"a"}
    engine.step()
    assert engine.freed == ["a"] and engine.manager.freed == []
    assert engine.connector.has_pending_push_work(), "vLLM would stop stepping"
    engine.rank.events = [event(_kvferry.EVENT_LEASE_ENDED, engine.control.next_id, cause=3)]
    engine.step()
    assert [block.block_id for block in engine.manager.freed] == [7, 6, 5]
    engine.step()
    assert not engine.connector.has_pending_push_work()


@pytest.mark.parametrize("room", [True, False])
def test_a_prompt_that_waits_for_its_lease_is_the_siblings_afterwards(engine: Engine, room: bool) -> None:
    """When there is room, or no more patience."""
    engine.side._producer._wait_s = 60.0 if room else 0.05
    engine.sibling.hits = 32
    engine.control.status["lease_reserve"] = _kvferry.NO_LEASE
    a = engine.requests["a"] = request("a", TOKENS, params=ASKS)
    engine.connector.on_new_request(a)
    for _ in range(3):
        assert engine.connector.get_num_new_matched_tokens(a, 0) == (None, False)
    if room:
        del engine.control.status["lease_reserve"]
    else:
        time.sleep(0.06)
    assert engine.connector.get_num_new_matched_tokens(a, 0) == (32, True)


@pytest.mark.skipif(not hasattr(MultiConnector, "has_pending_block_frees"), reason="vLLM has no has_pending_block_frees()")
def test_blocks_of_leases_are_waited_for(engine: Engine) -> None:
    a = engine.add("a", ASKS)
    engine.step(step({"a": TOKENS}, {"a": ([5, 6, 7],)}))
    assert not engine.connector.has_pending_block_frees()
    engine.end(a, RequestStatus.FINISHED_LENGTH_CAPPED)
    assert engine.connector.has_pending_block_frees()


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("sibling_soon", [True, False])
def test_a_client_that_leaves_while_it_is_loaded(engine: Engine, keeps: bool, sibling_soon: bool) -> None:
    """vLLM dies of the second word about a request that it has freed with the first one."""
    engine.sibling.keeps = keeps
    b = engine.add("b", BRINGS)
    engine.step()
    engine.end(b, RequestStatus.FINISHED_ABORTED)
    assert engine.manager.popped == ["b"]
    if keeps and sibling_soon:
        engine.sibling.saved = {"b"}
    engine.step()
    if keeps and not sibling_soon:
        assert engine.freed == []
        engine.sibling.saved = {"b"}
        engine.step()
    assert engine.freed == ["b"] and engine.manager.freed == []
    engine.released()
    engine.step()
    assert engine.manager.freed == ["block 2", "block 1"]


@pytest.mark.parametrize("keeps", [True, False])
def test_a_load_that_fails(engine: Engine, keeps: bool) -> None:
    """Whatever vLLM's policy is: that is for the others."""
    engine.sibling.keeps = keeps
    engine.control.policy = "fail"
    b = engine.add("b", BRINGS)
    engine.step()
    engine.control.report(engine.control.opened[-1], _kvferry.LEASE_EXPIRED)
    engine.released()
    engine.step()
    assert set(engine.vllm.grammar_compile_error_reqs) == {"b"}
    engine.step()
    assert b.status == RequestStatus.FINISHED_ERROR and engine.freed == []
    engine.sibling.saved = {"b"} if keeps else set()
    engine.step()
    assert engine.freed == ["b"] and engine.finished_recving_kv_req_ids == set()


def test_our_side_is_found_by_the_engine_core(engine: Engine) -> None:
    found = own(engine.connector, KVFerryConnector)
    assert found is not None and found._scheduler is engine.side and not engine.side._alone


def test_stats_are_found_by_name() -> None:
    stats = Stats()
    stats.data["counters"] = {"loads_done": {"": 2}}
    again = MultiConnector.build_kv_connector_stats({"KVFerryConnector": getattr(stats, "to_dict", lambda: asdict(stats))()})
    assert again is not None and again["KVFerryConnector"].data == stats.data


# ---- configuration ----

def transfer(*children: dict[str, Any], policy: str = "recompute") -> KVTransferConfig:
    return KVTransferConfig(kv_connector="MultiConnector", kv_role="kv_both", kv_load_failure_policy=policy,
                            kv_connector_extra_config={"connectors": list(children)})


OWN = {"kv_connector": "KVFerryConnector", "kv_role": "kv_both"}
AS_NIXL = {"kv_connector": "NixlConnector", "kv_connector_module_path": "kvferry.nixl", "kv_role": "kv_both"}
OTHER = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}


OPTION = {"kv_connector_extra_config": {"policy": "auto"}}


@pytest.mark.parametrize("given, policy, setting", [
    (transfer(OTHER, OWN), "recompute", "the MultiConnector's kv_load_failure_policy (default: fail)"),
    (transfer(AS_NIXL, OTHER, policy="fail"), "fail", "the MultiConnector's kv_load_failure_policy (default: fail)"),
    (transfer(OTHER, OWN | {"kv_load_failure_policy": "fail"}), "fail",
     "kv_load_failure_policy of kvferry's entry in the MultiConnector"),
    (transfer(OTHER, OWN | {"kv_load_failure_policy": "fail"} | OPTION), "auto", "kvferry's option policy"),
    (KVTransferConfig(**OWN), "fail", "vLLM's kv_load_failure_policy (default: fail)"),
    (KVTransferConfig(**AS_NIXL, kv_load_failure_policy="recompute"), "recompute",
     "vLLM's kv_load_failure_policy (default: fail)"),
    (KVTransferConfig(**OWN | OPTION, kv_load_failure_policy="recompute"), "auto", "kvferry's option policy")])
def test_the_policy_that_rules_is_used_and_said(engine: Engine, monkeypatch: pytest.MonkeyPatch, given: KVTransferConfig,
                                                policy: str, setting: str) -> None:
    said: list[str] = []
    monkeypatch.setattr(logger, "info", said.append)
    join(engine.side, vllm_scheduler(engine.manager, engine.connector, given), [])
    assert said == [f"kvferry: policy {policy}, from {setting}: if a request's load fails, {config.FAILED_LOAD[policy]}"]
    engine.control.status["request_open"] = _kvferry.BAD_TICKET
    engine.add("b", BRINGS)
    assert engine.control.of("request_refused") == [(_kvferry.BAD_TICKET, TOKENS, {"policy": policy})]


def test_each_policy_has_its_words() -> None:
    (allowed,) = [allowed for name, _, _, allowed, _ in _kvferry.options() if name == "policy"]
    assert set(re.split(", | or ", allowed)) == config.FAILED_LOAD.keys()


@pytest.mark.parametrize("children, said", [
    ((OWN, {"kv_connector": "NixlConnector", "kv_role": "kv_both"}), "beside NixlConnector"),
    (({"kv_connector": "MooncakeConnector", "kv_role": "kv_both"}, AS_NIXL), "beside MooncakeConnector"),
    ((OWN, AS_NIXL), "beside kvferry")])
def test_two_that_give_tickets_do_not_start(children: tuple[dict[str, Any], ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        vllm_plugin._begin_to_read(SimpleNamespace(kv_transfer_config=transfer(*children)))


@pytest.mark.parametrize("children", [(OWN, OTHER), (OTHER, AS_NIXL)])
def test_one_is_found_among_others(children: tuple[dict[str, Any], ...]) -> None:
    own = vllm_entry.own_config(transfer(*children))
    assert own is not None and own["kv_connector"] in ("KVFerryConnector", "NixlConnector")
    assert vllm_entry.own_config(transfer(OTHER, {"kv_connector": "NixlConnector", "kv_role": "kv_both"})) is None


# ---- beside OffloadingConnector ----

def test_it_is_told_which_blocks_a_load_overwrites(engine: Engine) -> None:
    """Else it stores what the load brings under the keys of the blocks' last owner."""
    offloading = object.__new__(OffloadingConnector)
    offloading.connector_scheduler = SimpleNamespace(_current_batch_allocated_block_ids=set())
    join(engine.side, vllm_scheduler(engine.manager, multi([offloading])), [])
    engine.add("b", BRINGS)
    assert offloading.connector_scheduler._current_batch_allocated_block_ids == {5, 6, 7}


# ---- beside LMCache ----

@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_a_sibling_that_moves_the_kv(monkeypatch: pytest.MonkeyPatch, first: bool) -> None:
    """As LMCache does on a CPU, so that its server sees it."""
    engine = Engine(monkeypatch, first)
    layers = [name for group in kv_cache_config().kv_cache_groups for name in group.layer_names]
    caches = {name: host_memory(0, 0) for name in layers}
    moved = {name: host_memory(0, 0) for name in layers}
    engine.sibling.register_kv_caches = lambda kv: [kv[name].set_(moved[name]) for name in layers]
    regions: list[Any] = []
    engine.rank.register = lambda given, parts, share: regions.extend(given)
    engine.worker.register_kv_caches(caches)
    assert engine.worker.get_handshake_metadata() is None
    assert sorted({region[0] for region in regions}) == sorted({memory.data_ptr() for memory in moved.values()})
