"""When vLLM's two model runners call the connector, on a GPU that is not there: vLLM's own methods from the engine core's
step to the connector's calls, around stand-ins for what is computed; beneath them the connector, over nodes that remember."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402
from fakes import (  # noqa: E402
    POOL_BLOCKS,
    FakeManager,
    FakeNode,
    add_request,
    event,
    join,
    kv_cache_config,
    step,
    use_nodes,
    vllm_config,
    vllm_scheduler,
)
from kvferry import _kvferry  # noqa: E402
from kvferry.vllm import KVFerryConnector, connector, contract, seam  # noqa: E402
from test_vllm_layouts import ORDINAL, OnGpu  # noqa: E402
from vllm.config import CUDAGraphMode, VllmConfig  # noqa: E402
from vllm.distributed.kv_transfer import kv_transfer_state  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole  # noqa: E402
from vllm.v1.engine.core import EngineCore  # noqa: E402
from vllm.v1.worker import gpu_model_runner as first  # noqa: E402
from vllm.v1.worker.gpu import model_runner as second  # noqa: E402
from vllm.v1.worker.gpu.kv_connector import KVConnector, get_kv_connector  # noqa: E402

TOKENS = 80
BLOCKS = ([5, 6, 7],)
MAIN, ASIDE = 0x71, 0x72
"""Streams: what vLLM calls the connector on, and what work may be given to while a model or a drafter runs."""
POINT = (_kvferry.MEMORY_CUDA, ORDINAL, MAIN)


class Recorder(FakeNode):
    """A rank's node: its calls, among what is given to the device."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.seen = seen

    def register(self, regions: list[Any], parts: list[Any], share: tuple[int, int, int]) -> None:
        assert {(region.memory, region.device) for region in regions} == {(_kvferry.MEMORY_CUDA, ORDINAL)}

    def _batch(self, name: str, items: list[Any], after: Any = None) -> list[int]:
        if items:
            self.seen.append((name, len(items), after) if after is not None else (name, len(items)))
        return super()._batch(name, items, after)


class Device:
    """Work, in the order in which it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seen: list[Any]) -> None:
        self.seen = seen
        self.stream = MAIN
        monkeypatch.setattr(torch.cuda, "current_stream",
                            lambda device: SimpleNamespace(cuda_stream=self.stream) if device == ORDINAL else None)

    def give(self, what: str, returned: Any = None) -> Any:
        def work(*args: Any, **kwargs: Any) -> Any:
            self.stream = ASIDE
            self.seen.append(what)
            self.stream = MAIN
            return returned
        return work


def first_runner(monkeypatch: pytest.MonkeyPatch, device: Device, drafts: bool, graphs: CUDAGraphMode) -> Any:
    """GPUModelRunner.execute_model() and sample_tokens() of vllm/v1/worker, with the mixin's methods."""
    runner = MagicMock()
    for name in ("execute_model", "sample_tokens"):
        setattr(runner, name, getattr(first.GPUModelRunner, name).__get__(runner))
    for name in ("kv_connector_no_forward", "maybe_get_kv_connector_output", "finalize_kv_connector"):
        setattr(runner, name, getattr(first.KVConnectorModelRunnerMixin, name))
    runner.vllm_config = VllmConfig()
    runner.execute_model_state = runner.kv_connector_output = None
    runner.synchronize_input_prep = nullcontext
    runner._update_states = device.give("memory")
    runner.cache_config.kv_sharing_fast_prefill, runner.cache_config.mamba_cache_mode = False, "none"
    runner._prepare_inputs.return_value = (slice(None), None, 1)
    runner._determine_batch_execution_and_padding.return_value = (graphs, MagicMock(), False, None, None)
    runner.kv_cache_config.kv_cache_groups = []
    runner._get_slot_mappings.return_value = runner._build_attention_metadata.return_value = (None, None)
    runner._build_attention_metadata.return_value = (None, MagicMock())
    runner._preprocess.return_value = (None, None, None, None, {}, None)
    runner.model_config.is_encoder_decoder = runner.is_pooling_model = runner.broadcast_pp_output = False
    runner.use_aux_hidden_state_outputs = False
    runner._model_forward = device.give("forward", torch.zeros(1, 1))
    runner._sample = device.give("sample", MagicMock())
    runner._bookkeeping_sync.return_value = (0, None, None, [[1]], {}, ["a"], {"a": 0}, [])
    runner.use_async_scheduling = True
    runner.speculative_config = None
    if drafts:
        runner.speculative_config = MagicMock(disable_padded_drafter_batch=False)
        runner.speculative_config.use_ngram_gpu.return_value = False
        runner.drafter = MagicMock(spec=first.EagleProposer)
        runner.propose_draft_token_ids = device.give("draft")
    group = SimpleNamespace(is_last_rank=True, world_size=1)
    monkeypatch.setattr(first, "get_pp_group", lambda: group)
    monkeypatch.setattr(first, "has_ec_transfer", lambda: False)
    monkeypatch.setattr(first, "maybe_create_ubatch_slices", lambda *args: (None, None))
    monkeypatch.setattr(first, "AsyncGPUModelRunnerOutput", lambda model_runner_output, **rest: MagicMock(
        kv_connector_output=model_runner_output.kv_connector_output))
    return runner


def second_runner(monkeypatch: pytest.MonkeyPatch, device: Device, drafts: bool, graphs: CUDAGraphMode) -> Any:
    """The same of vllm/v1/worker/gpu, with its ActiveKVConnector."""
    runner = MagicMock()
    for name in ("execute_model", "sample_tokens"):
        setattr(runner, name, getattr(second.GPUModelRunner, name).__get__(runner))
    runner._merge_ec_connector_no_forward = lambda scheduler_output, output: output
    runner.vllm_config = VllmConfig()
    runner.kv_connector = get_kv_connector(runner.vllm_config, caches())
    runner.update_requests = device.give("memory")
    runner.aux_output_connector = runner.lora_config = runner.pp_handler = runner.pcp_manager = runner.adaptive_verification = None
    runner.is_encoder_decoder = runner.uses_inputs_embeds = runner.use_aux_hidden_state_outputs = False
    runner.dcp_size = 1
    runner.gather_batch_req_state.return_value = (MagicMock(num_tokens=TOKENS), None)
    runner.prepare_inputs.return_value = MagicMock(req_ids=["a"], num_tokens=TOKENS)
    runner.prepare_attn.return_value = (MagicMock(), MagicMock())
    runner.model_state.prepare_inputs.return_value = {}
    forward = device.give("forward", torch.zeros(1, 1))
    runner.model.side_effect = forward
    runner.cudagraph_manager.run_fullgraph = runner.cudagraph_manager.run_pw_graph = forward
    runner.sample = device.give("sample", (MagicMock(), None, None))
    runner.prompt_logprobs_worker.compute_prompt_logprobs.return_value = {}
    runner.num_speculative_steps, runner.speculator = 0, None
    if drafts:
        runner.num_speculative_steps, runner.speculator = 1, MagicMock()
        runner.speculator.propose = device.give("draft", MagicMock())
    batch = SimpleNamespace(num_tokens=TOKENS, num_ubatches=1, cg_mode=graphs, num_active_loras=0)
    monkeypatch.setattr(second, "dispatch_cg_and_sync_dp", lambda *args, **kwargs: (batch, None))
    monkeypatch.setattr(second, "build_slot_mappings_by_layer", lambda *args: None)
    monkeypatch.setattr(second, "get_drafter_hidden_states", lambda *args: None, raising=False)  # 0.29 has it not
    monkeypatch.setattr(second, "use_workspace_lane", lambda lane: nullcontext())
    monkeypatch.setattr(second, "AsyncOutput", lambda model_runner_output, **rest: model_runner_output)
    return runner


def caches() -> dict[str, torch.Tensor]:
    return {name: torch.zeros(POOL_BLOCKS, 2, 32, 32, device="meta").as_subclass(OnGpu)
            for group in kv_cache_config().kv_cache_groups for name in group.layer_names}


class Engine:
    """An engine core of one rank, its executor in the same process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, runner: Any, drafts: bool = False,
                 graphs: CUDAGraphMode = CUDAGraphMode.NONE, batches: int = 1, is_known: bool = True) -> None:
        """Of a vLLM that does all in the order that kvferry knows, or else has another."""
        self.seen: list[Any] = []
        self.control, self.rank = FakeNode(), Recorder(self.seen)
        use_nodes(monkeypatch, self.control, self.rank)
        self.connector = KVFerryConnector(vllm_config(), KVConnectorRole.SCHEDULER, kv_cache_config())
        manager = FakeManager()
        manager.groups = BLOCKS
        if not is_known:
            monkeypatch.setattr(connector, "check_start", lambda engine: [contract.LOADS_FIRST])
        of_rank = KVFerryConnector(vllm_config(), KVConnectorRole.WORKER, kv_cache_config())
        monkeypatch.setattr(kv_transfer_state, "_KV_CONNECTOR_AGENT", of_rank)
        self.runner = runner(monkeypatch, Device(monkeypatch, self.seen), drafts, graphs)
        of_rank.register_kv_caches(caches())  # as the first runner does, and the second's ActiveKVConnector
        of_rank.get_handshake_metadata()
        join(self.connector._scheduler, vllm_scheduler(manager), [b"address"], loads_first=of_rank._worker.loads_first())
        self.steps: deque[Any] = deque()
        self.requests: dict[str, Any] = {}
        self.core = MagicMock(is_mm_encoder_only=False, is_pooling_model=False, check_for_draft_tokens=False,
                              batch_queue=deque(maxlen=batches), batch_queue_size=batches)
        self.core.scheduler = SimpleNamespace(
            has_requests=lambda: bool(self.steps), schedule=lambda *throttle: self._schedule(), get_grammar_bitmask=lambda output: None,
            update_from_output=self._update)
        self.core.model_executor = SimpleNamespace(execute_model=self._execute, sample_tokens=self._sample)

    def add(self, params: dict[str, Any], name: str = "a") -> Any:
        one = self.requests[name] = add_request(self.connector, name, TOKENS, params, *BLOCKS)
        return one

    def run(self, *steps: Any, syncs: bool = False) -> list[Any]:
        """What is seen meanwhile."""
        begin = len(self.seen)
        for one in steps:
            vars(one).update(total_num_scheduled_tokens=sum(one.num_scheduled_tokens.values()), finished_req_ids=set(),
                             has_sync_kv_loads=syncs, scheduled_encoder_inputs={}, pending_structured_output_tokens=False,
                             num_spec_tokens_to_schedule=1)
            self.steps.append(one)
        while self.steps or self.core.batch_queue:
            EngineCore.step_with_batch_queue(self.core)
        return self.seen[begin:]

    # ---- what the core calls ----

    def _schedule(self) -> Any:
        output = self.steps.popleft()
        output.kv_connector_metadata = self.connector.build_connector_meta(output)
        for name, tokens in output.num_scheduled_tokens.items():  # vLLM's does so before the step has run
            self.requests[name].num_computed_tokens += tokens
        self.seen.append("schedule")
        return output

    def _update(self, scheduler_output: Any, output: Any) -> dict[int, Any]:
        self.seen.append("output")
        self.connector.update_connector_output(output.kv_connector_output)
        return {}

    def _execute(self, scheduler_output: Any, non_block: bool) -> Future[Any]:
        self.runner.input_batch.req_ids = list(scheduler_output.num_scheduled_tokens)
        return done(self.runner.execute_model(scheduler_output))

    def _sample(self, grammar_output: Any, non_block: bool) -> Future[Any]:
        return done(self.runner.sample_tokens(grammar_output))


def done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


def prompt(name: str = "a", **fields: Any) -> Any:
    return step({name: TOKENS}, **fields)


P, D = {"do_remote_decode": True}, {"do_remote_prefill": True, "kvferry_ticket": "a ticket"}
ANOTHER_D = D | {"kvferry_ticket": "another ticket"}
PUBLISH, LOAD = ("lease_publish", 1, POINT), ("load_start", 1, POINT)
RUNNERS = pytest.mark.parametrize("runner", [first_runner, second_runner])
GRAPHS = pytest.mark.parametrize("graphs", [CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL])


def among(seen: list[Any], *chosen: Any) -> list[Any]:
    return [one for one in seen if one in chosen or (isinstance(one, tuple) and one[0] in chosen)]


@RUNNERS
@GRAPHS
@pytest.mark.parametrize("drafts", [False, True])
def test_a_step_publishes_once_after_all_its_work(monkeypatch: pytest.MonkeyPatch, runner: Any, drafts: bool,
                                                  graphs: CUDAGraphMode) -> None:
    engine = Engine(monkeypatch, runner, drafts, graphs)
    engine.add(P)
    seen = among(engine.run(prompt()), "forward", "draft", "lease_publish")
    assert seen == ["forward", *(["draft"] if drafts else []), PUBLISH]
    assert among(engine.run(step({"a": 1})), "forward", "draft", "lease_publish", "lease_end") == seen[:-1]


@RUNNERS
@GRAPHS
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("batches", [1, 2])
def test_loads_start_after_memory_work_and_before_the_model(monkeypatch: pytest.MonkeyPatch, runner: Any, drafts: bool,
                                                            graphs: CUDAGraphMode, batches: int) -> None:
    """With asynchronous scheduling, too, and the step before has been given to the device by then, with its drafter's work."""
    engine = Engine(monkeypatch, runner, drafts, graphs, batches)
    for name, params in (("p", P), ("q", P), ("d", D)):
        engine.add(params, name)
    draft = ["draft"] if drafts else []
    seen = among(engine.run(prompt("p"), prompt("q")), "memory", "forward", "draft", "load_start", "lease_publish")
    assert seen == ["memory", LOAD, "forward", *draft, PUBLISH, "memory", "forward", *draft, PUBLISH]
    engine.add(ANOTHER_D, "e")
    seen = among(engine.run(step({"p": 1}), step()), "memory", "forward", "draft", "load_start")
    assert seen == ["memory", LOAD, "forward", *draft, "memory"]


@RUNNERS
@GRAPHS
@pytest.mark.parametrize("drafts", [False, True])
def test_where_vllm_s_order_is_another_loads_start_behind_the_model(monkeypatch: pytest.MonkeyPatch, runner: Any, drafts: bool,
                                                                    graphs: CUDAGraphMode) -> None:
    """Memory work, then the model; the second runner of some versions has the drafter run, too, before it starts them."""
    said = MagicMock()
    monkeypatch.setattr(seam, "say_off", said)
    engine = Engine(monkeypatch, runner, drafts, graphs, is_known=False)
    said.assert_called_once_with(contract.LOADS_FIRST)
    engine.add(P, "p")
    engine.add(D, "d")
    seen = among(engine.run(prompt("p")), "memory", "forward", "draft", "load_start", "lease_publish")
    draft = ["draft"] if drafts else []
    behind = [LOAD, *draft] if runner is first_runner or hasattr(KVConnector, "finalize_step") else [*draft, LOAD]
    assert seen == ["memory", "forward", *behind, PUBLISH]


@RUNNERS
@GRAPHS
def test_loads_of_a_step_that_needs_them_start_before_its_model(monkeypatch: pytest.MonkeyPatch, runner: Any,
                                                               graphs: CUDAGraphMode) -> None:
    """As a sibling in a MultiConnector may have it."""
    engine = Engine(monkeypatch, runner, graphs=graphs)
    engine.add(P, "p")
    engine.add(D, "d")
    seen = among(engine.run(prompt("p"), syncs=True), "memory", "forward", "load_start", "lease_publish")
    assert seen == ["memory", LOAD, "forward", PUBLISH]


@RUNNERS
@pytest.mark.parametrize("drafts", [False, True])
def test_a_step_without_tokens(monkeypatch: pytest.MonkeyPatch, runner: Any, drafts: bool) -> None:
    """It ends leases, starts loads, and brings news back; there is nothing that it could publish."""
    engine = Engine(monkeypatch, runner, drafts)
    engine.add(P, "p")
    engine.run(prompt("p"))
    engine.add(D, "d")
    lease_id = engine.control.next_id
    engine.rank.events = [event(_kvferry.EVENT_LEASE_ENDED, lease_id)]
    seen = engine.run(step(preempted={"p"}))
    assert among(seen, "forward", "draft", "lease_publish") == []
    assert among(seen, "lease_end", "load_start", "output") == [("lease_end", 1), LOAD, "output"]
    assert engine.control.of("lease_ended") == [(lease_id, 0)]
    load_id = engine.rank.of("load_start")[0].request_id
    engine.control.report(load_id)
    engine.rank.events = [event(_kvferry.EVENT_RELEASED, load_id)]
    engine.run(step())
    assert engine.control.of("request_released") == [(load_id, 0)]


@RUNNERS
@GRAPHS
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("batches", [1, 2])
def test_leases_of_what_is_preempted_end_before_the_model_runs(monkeypatch: pytest.MonkeyPatch, runner: Any, drafts: bool,
                                                               graphs: CUDAGraphMode, batches: int) -> None:
    """The second runner has zeroed and copied blocks by then. They may be those that were preempted, which nobody reads: a
    request that has not finished has no ticket."""
    engine = Engine(monkeypatch, runner, drafts, graphs, batches)
    engine.add(P, "p")
    engine.add(P, "q")
    seen = among(engine.run(prompt("p"), prompt("q", preempted={"p"})), "memory", "lease_end", "forward", "lease_publish")
    ended = [("lease_end", 1), "memory"] if runner is first_runner else ["memory", ("lease_end", 1)]
    assert seen == ["memory", "forward", PUBLISH, *ended, "forward", PUBLISH]


@RUNNERS
@GRAPHS
@pytest.mark.parametrize("drafts", [False, True])
def test_a_step_that_is_scheduled_before_the_last_one_s_output(monkeypatch: pytest.MonkeyPatch, runner: Any, drafts: bool,
                                                               graphs: CUDAGraphMode) -> None:
    """Asynchronous scheduling: the same calls, each once, at the same places of the device's work."""
    by_batches = []
    for batches in (1, 2):
        engine = Engine(monkeypatch, runner, drafts, graphs, batches)
        for name, params in (("p", P), ("q", P), ("d", D), ("r", P)):
            engine.add(params, name)
        seen = engine.run(prompt("p"), step({"p": 1, "q": TOKENS}), prompt("r", preempted={"q"}), step({"r": 1}))
        order = among(seen, "schedule", "output")
        assert order == (["schedule", "output"] * 4 if batches == 1 else ["schedule", *["schedule", "output"] * 3, "output"])
        assert len({publication.user for publication in engine.rank.of("lease_publish")}) == 3
        by_batches.append([one for one in seen if one not in ("schedule", "output")])
    one, two = by_batches
    assert one == two and (one.count("forward"), one.count(PUBLISH), one.count(LOAD), one.count(("lease_end", 1))) == (4, 3, 1, 1)


def test_no_call_of_a_dummy_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second runner's, for a graph's capture or beside other ranks' steps."""
    engine = Engine(monkeypatch, second_runner)
    engine.runner.kv_connector.set_disabled(True)
    output = step()
    vars(output).update(finished_req_ids=set())
    assert engine.runner.kv_connector.no_forward(output).kv_connector_output is None
    engine.runner.kv_connector.pre_forward(output)
    assert engine.runner.kv_connector.post_forward(set()) is None and engine.seen == []
