"""The two sides' messages, the worker, and what they make of vLLM's configuration, layout and metrics."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402
from engines import Log, wait_until  # noqa: E402
from fakes import (  # noqa: E402
    FakeBlocks,
    FakeNode,
    event,
    image_feature,
    join,
    kv_cache_config,
    prompts,
    request,
    spec,
    stand_in,
    step,
    use_nodes,
    vllm_config,
    vllm_scheduler,
)
from kvferry import Load, Node, Publication, Region, _kvferry, check  # noqa: E402
from kvferry.engine import config as engine_config  # noqa: E402
from kvferry.engine import boundary, consumer, producer  # noqa: E402
from kvferry.engine.messages import IN_A_LIST, LORA_CHANGED, NotCarried, RankReport, log_left_out, pack_blocks  # noqa: E402
from kvferry.vllm import KVFerryConnector, config, scheduler, worker  # noqa: E402
from kvferry.vllm.content import identity  # noqa: E402
from kvferry.vllm.groups import first_needed_block, without_drafts  # noqa: E402
from kvferry.vllm.layout import Pool, layer_specs  # noqa: E402
from kvferry.vllm.content.prompts import Prompts  # noqa: E402
from kvferry.vllm.scheduler import RankReports, StepMetadata  # noqa: E402
from kvferry.vllm.content.weights import Weights  # noqa: E402
from vllm.config import MultiModalConfig, SpeculativeConfig  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1  # noqa: E402
from vllm.v1.core.single_type_kv_cache_manager import (  # noqa: E402
    ChunkedLocalAttentionManager,
    FullAttentionManager,
    MambaManager,
    SlidingWindowManager,
)
from vllm.v1.kv_cache_interface import (  # noqa: E402
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    MambaSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.outputs import KVConnectorOutput  # noqa: E402

DOCS = Path(__file__).resolve().parents[2] / "docs"
PARAMS = {"do_remote_prefill": True, "kvferry_ticket": "a ticket"}


# ---- messages ----

def test_news_of_ranks_are_kept_apart() -> None:
    """What they mean together is the library's to say."""
    a, b = RankReport(0, reports=[b"a"], released={5}), RankReport(1, reports=[b"b"], stuck={5})
    merged = RankReports([a]).aggregate(RankReports([b]))
    assert merged.ranks == [a, b]
    assert (a.reports, b.reports) == ([b"a"], [b"b"])


def test_an_empty_answer_reaches_the_scheduler_side() -> None:
    assert RankReport(1).is_empty() and not RankReport(1, stuck={5}).is_empty()
    assert not KVConnectorOutput(kv_connector_worker_meta=RankReports()).is_empty()


# ---- the worker ----

@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeNode, worker.Worker]:
    node = FakeNode()
    use_nodes(monkeypatch, None, node, 1)
    return node, worker.Worker(vllm_config(ranks=2), kv_cache_config())


def test_a_worker_answers_only_when_asked_or_with_news(rank: tuple[FakeNode, worker.Worker]) -> None:
    node, side = rank
    connector = SimpleNamespace(_worker=side, _orders=StepMetadata())
    answer = KVFerryConnector.build_connector_worker_meta
    assert answer(connector) is None
    connector._orders = StepMetadata(answer=True)
    assert answer(connector) == RankReports([RankReport(1)])
    connector._orders = StepMetadata()
    node.events = [event(_kvferry.EVENT_LEASE_ENDED, 9, cause=3)]
    assert answer(connector) == RankReports([RankReport(1, ended={9})])
    assert answer(connector) is None


def test_a_load_on_a_worker(rank: tuple[FakeNode, worker.Worker]) -> None:
    node, side = rank
    loads = [Load(id_, "ticket", b"prompt", 0, 0, pack_blocks([[1, 2]], 0, [2], [0])) for id_ in (5, 6)]
    side.start_loads(StepMetadata(load=loads))
    node.stuck = {5, 7}
    assert side.report() == RankReport(1, stuck={5}, healthy=False)
    node.stuck = set()
    node.events = [event(_kvferry.EVENT_LOAD, 5, report=b"report"), event(_kvferry.EVENT_RELEASED, 5)]
    assert side.report() == RankReport(1, reports=[b"report"], released={5})


def test_a_load_that_cannot_start_is_reported(rank: tuple[FakeNode, worker.Worker]) -> None:
    node, side = rank
    node.status["load_start"] = _kvferry.NO_MEMORY
    side.start_loads(StepMetadata(load=[Load(5, "ticket", b"prompt", 0, 3, pack_blocks([[1, 2], [3]], 0, [2, 1], [0, 0]))]))
    assert side.report() == RankReport(1, reports=[_kvferry.report(5, 1, 3, 0, _kvferry.NO_MEMORY)], released={5})


def test_a_lease_that_cannot_be_published_has_ended(rank: tuple[FakeNode, worker.Worker]) -> None:
    node, side = rank
    node.status["lease_publish"] = _kvferry.NO_MEMORY
    side.publish(StepMetadata(publish=[Publication(b"lease", b"prompt", 9, ())]))
    assert side.report() == RankReport(1, ended={9}, unpublished={9})


def test_host_memory_has_nothing_to_wait_for(rank: tuple[FakeNode, worker.Worker]) -> None:
    node, side = rank
    side.start_loads(StepMetadata(load=[Load(6, "", b"", 0, 0, ())]))
    side.publish(StepMetadata(publish=[Publication(b"lease", b"prompt", 9, ())]))
    assert node.after == [("load_start", None), ("lease_publish", None)]
    assert not side.loads_first()


def test_a_gpu_s_bytes_are_complete_with_its_stream_s_work(rank: tuple[FakeNode, worker.Worker],
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the stream that is current then: vLLM may have another one at the next step."""
    node, side = rank
    registered: list[Any] = []
    streams = iter((0, 0x77))
    pool = Pool([Region(4096, 1, 1, 1, 1, 1, 0, _kvferry.MEMORY_CUDA, 3)], [], (0, 1, 1))
    monkeypatch.setattr(node, "register", lambda *given: registered.append(given), raising=False)
    monkeypatch.setattr(worker, "pool_of", lambda *arguments: pool)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=(device, next(streams))))
    side.register({"l0": torch.zeros(1)})
    side.open()
    side.start_loads(StepMetadata(load=[Load(6, "", b"", 0, 0, ())]))
    side.publish(StepMetadata(publish=[Publication(b"lease", b"prompt", 9, ())]))
    assert node.after == [("load_start", (_kvferry.MEMORY_CUDA, 3, (3, 0))),
                          ("lease_publish", (_kvferry.MEMORY_CUDA, 3, (3, 0x77)))]
    assert registered == [tuple(pool)]
    assert side.loads_first()


def test_ends_and_aborts_come_before_the_forward(rank: tuple[FakeNode, worker.Worker]) -> None:
    node, side = rank
    side.before_forward(StepMetadata(end=[b"lease"], abort=[5], load=[Load(6, "", b"", 0, 0, ())]))
    assert node.calls == [("lease_end", b"lease"), ("load_abort", 5)]


def test_only_what_has_finished_is_told_to_vllm(rank: tuple[FakeNode, worker.Worker]) -> None:
    connector = SimpleNamespace(_orders=StepMetadata(finished=["a"]), _worker=rank[1])
    assert KVFerryConnector.get_finished(connector, set()) == ({"a"}, None)


# ---- the scheduler ----

def test_a_load_through_the_scheduler_side(monkeypatch: pytest.MonkeyPatch) -> None:
    node = FakeNode()
    node.positions = [1]
    use_nodes(monkeypatch, node)
    side = scheduler.Scheduler(vllm_config(), kv_cache_config())
    side.unload_waiting()  # a reset may come before the first request
    join(side, vllm_scheduler(), [])
    assert side.orders(step()) == StepMetadata()
    side.arrive(request("images", 20, params=PARAMS, prompt_embeds="some"))
    stats = side.stats()
    assert stats is not None and stats["counters"] == {"not_loaded": {"no_token_ids": 1}}
    assert side.stats() is None
    a = request("a", 20, params=PARAMS)
    side.arrive(a)
    side.admit(a, FakeBlocks([4]), side.offer(a, 0)[0])
    side.admit(stranger := request("stranger", 20), FakeBlocks([5]), 16)
    orders = side.orders(step())
    assert len(orders.load) == 1 and orders.answer
    node.report(*node.opened)
    output = KVConnectorOutput(kv_connector_worker_meta=RankReports([RankReport(0, released=set(node.opened))]), finished_recving={"stranger"},
                               finished_sending={"stranger"})
    side.update(output)
    assert output.finished_recving == {"a", "stranger"} and output.finished_sending == {"stranger"}
    assert side.finish(stranger) == (False, None)
    output = KVConnectorOutput()
    side.update(output)
    assert output.finished_recving == set() and output.finished_sending is None
    assert not side.orders(step()).answer


@pytest.mark.parametrize("fields", [{"sliding_window": 64}, {"sliding_window": 48, "extra_retained_tokens": 3}])
def test_windows_are_those_of_vllm_s_managers(fields: dict[str, int]) -> None:
    window = SlidingWindowSpec(block_size=32, num_kv_heads=2, head_size=16, dtype=torch.float32, **fields)
    chunks = ChunkedLocalAttentionSpec(block_size=32, num_kv_heads=2, head_size=16, dtype=torch.float32,
                                       attention_chunk_size=64)
    managers = [(window, SlidingWindowManager, fields | {"extra_retained_tokens": window.extra_retained_tokens}),
                (chunks, ChunkedLocalAttentionManager, {"attention_chunk_size": 64}), (spec(), FullAttentionManager, {}),
                (MambaSpec(block_size=32, shapes=((2, 8),), dtypes=(torch.float32,)), MambaManager, {})]
    for kind, manager, state in managers:
        for tokens in range(300):
            skipped = manager.get_num_skipped_tokens(SimpleNamespace(**state), tokens)
            assert first_needed_block(KVCacheGroupSpec(["layer"], kind), tokens) == max(0, skipped) // 32


@pytest.mark.parametrize("draft, carry, left_out", [
    (spec(), True, False), (spec(), False, True), (spec(num_kv_heads=4), True, False), (spec(block_size=64), True, True),
    (MLAAttentionSpec(block_size=32, num_kv_heads=1, head_size=64, dtype=torch.float32), True, False),
    (CrossAttentionSpec(block_size=32, num_kv_heads=2, head_size=16, dtype=torch.float32), True, True),
], ids=["alike", "by option", "other heads", "other blocks", "MLA", "no attention to the prompt"])
@pytest.mark.parametrize("drafter", ["draft_model.model.layers.0.attn", "model.layers.2.attn", "mtp.layers.0.attn"])
def test_draft_layers(drafter: str, draft: Any, carry: bool, left_out: bool) -> None:
    """They are carried beside the target's, or left out, be it in a group of their own or among the target's."""
    engine = vllm_config()
    target = [f"model.layers.{i}.attn" for i in range(2)]
    both = UniformTypeKVCacheSpecs(block_size=32, kv_cache_specs={name: spec() for name in target} | {drafter: draft})
    apart = [KVCacheGroupSpec(target, spec()), KVCacheGroupSpec([drafter], draft)]
    for groups in (apart, [KVCacheGroupSpec([*target, drafter], both)]):
        given = KVCacheConfig(num_blocks=4, kv_cache_tensors=[], kv_cache_groups=groups)
        assert without_drafts(engine, given, carry) == (given, []), "no drafter"
        engine.speculative_config = stand_in(SpeculativeConfig, method="mtp")
        carried, drafts = without_drafts(engine, given, carry)
        engine.speculative_config = None
        assert drafts == ([drafter] if left_out else [])
        names = [name for group in carried.transfer_groups for name, _ in layer_specs(group)]
        assert names == target + [drafter] * (not left_out)
        assert len(carried.select_transfer_block_ids([[1]] * len(groups))) == len(carried.transfer_groups)
        if left_out:
            assert identity._groups(carried) == identity._groups(KVCacheConfig(4, [], [KVCacheGroupSpec(target, spec())]))


def test_states_are_not_a_drafter_s() -> None:
    """Falcon-H1 numbers them after its attention layers."""
    state = MambaSpec(block_size=1024, shapes=((2, 8),), dtypes=(torch.float32,))
    given = KVCacheConfig(4, [], [KVCacheGroupSpec(["model.layers.0.attn"], spec()), KVCacheGroupSpec(["model.2.mixer"], state)])
    engine = vllm_config()
    engine.speculative_config = stand_in(SpeculativeConfig, method="draft_model")
    assert without_drafts(engine, given, False) == (given, [])


def test_draft_layers_that_are_left_out_are_said_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said()
    monkeypatch.setattr(scheduler, "logger", said)
    use_nodes(monkeypatch, FakeNode())
    assert scheduler.Scheduler(vllm_config(), kv_cache_config()).stats() is None and not said
    stats = scheduler.Scheduler(vllm_config(), kv_cache_config(), 3).stats()
    assert stats is not None and stats["gauges"] == {"draft_layers_not_carried": {"control": 3}}
    assert len(said) == 1 and "the KV of 3 draft layers is NOT carried" in said[0]


# ---- requests ----

def test_what_changes_a_prompt_s_kv_changes_its_identity() -> None:
    image = image_feature("i")
    found = [prompts().of(request("a", tokens, **fields)) for tokens, fields in [
        (20, {}), (21, {}), (20, {"cache_salt": "s"}), (20, {"mm_features": [image]}),
        (20, {"mm_features": [image, image]})]]
    found.append(prompts("other weights").of(request("a", 20)))
    elsewhere = vllm_config()
    elsewhere.model_config.model = "/elsewhere/toy"
    found.append(Prompts(elsewhere, prompts()._weights).of(request("a", 20, mm_features=[image])))
    assert Prompts(elsewhere, prompts()._weights).of(request("a", 20)) == found[0]
    assert len(set(found)) == len(found)
    assert prompts().of(request("b", 20)) == found[0]


class Said(list[str]):
    """A logger that remembers its warnings."""

    def warning(self, text: str, *arguments: object, **fields: object) -> None:
        self.append(text % arguments)


def test_images_that_vllm_only_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their ids are equal on two engines, whatever they show. The log says so when the engine starts, and no more."""
    said = Said()
    monkeypatch.setattr("kvferry.vllm.content.prompts.logger", said)
    monkeypatch.setattr("kvferry.engine.messages.limited", said)
    image = image_feature("renderer0-mm-1-image-0")
    for cache_gb, caching, hashed in [(0, False, False), (4, False, True), (0, True, True)]:
        engine = vllm_config()
        engine.model_config.multimodal_config = stand_in(MultiModalConfig, mm_processor_cache_gb=cache_gb)
        engine.cache_config.enable_prefix_caching = caching
        found = Prompts(engine, prompts()._weights).of(request("a", 20, mm_features=[image]))
        assert (found is not NotCarried.IMAGES_UNHASHED) == hashed
        if isinstance(found, NotCarried):
            log_left_out("request %s: %s", "a", found.value)
    assert len(said) == 1 and "prompts with images are neither handed over nor loaded (images_unhashed)" in said[0]
    assert isinstance(Prompts(engine, prompts()._weights).of(request("a", 20)), bytes)


def test_no_identity_without_weights() -> None:
    weights = Weights(None, None, "toy")
    assert Prompts(vllm_config(), weights).of(request("a", 20)) is NotCarried.WEIGHTS_UNKNOWN
    weights.begin()
    known = Prompts(vllm_config(), weights).of(request("a", 20))
    assert isinstance(known, bytes)
    weights.forget()
    assert Prompts(vllm_config(), weights).of(request("a", 20)) is NotCarried.WEIGHTS_UNKNOWN
    weights.name("step 7")
    assert Prompts(vllm_config(), weights).of(request("a", 20)) not in (known, NotCarried.WEIGHTS_UNKNOWN)


def test_causes_are_documented() -> None:
    table = (DOCS / "reasons.md").read_text().partition("| cause |")[2]
    own = {LORA_CHANGED, producer.PAUSED, producer.WEIGHTS_CHANGED, producer.LEASE_ENDED, consumer.WEIGHTS_CHANGED,
           boundary.INTERNAL_ERROR, producer.PREEMPTED, producer.ABORTED, IN_A_LIST, consumer.DISCARDED, consumer.NOT_TAKEN, consumer.PREEMPTED}
    trtllm = set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if "| TensorRT-LLM: " in line)))
    assert set(re.findall(r"^\| `(\w+)`", table, re.M)) - trtllm == own | {cause.value for cause in NotCarried} - {NotCarried.UNSEEN.value}


# ---- configuration ----

def open_rank(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> Node:
    monkeypatch.setattr(config, "identity_fields", lambda *arguments: {})
    return config.open_node(vllm_config(options=options), kv_cache_config(), 0)


def test_options_reach_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    open_rank(monkeypatch, {"lease_ttl_ms": 2000, "transports": ["tcp", "local"], "chunk_bytes": "65536"}).close()


def test_an_option_that_is_gone_is_warned_of(monkeypatch: pytest.MonkeyPatch, log: Log) -> None:
    open_rank(monkeypatch, {"backoff_min_ms": 0}).close()
    wait_until("the line", lambda: bool(log.grep("option backoff_min_ms has no effect any more")))


@pytest.mark.parametrize("options, named", [
    ({"chunk_byte": 1}, "chunk_byte"), ({"lease_ttl_ms": -1}, "lease_ttl_ms"), ({"transports": ["x"]}, "transports"),
    ({"ranks": 4}, "ranks"), ({"block_tokens": 4}, "block_tokens"), ({"copy_threads": True}, "copy_threads"),
    ({"listen": "0.0.0.0"}, "0.0.0.0"),
])
def test_a_bad_option_stops_the_start(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], named: str) -> None:
    with pytest.raises(config.ConfigError, match=named):
        open_rank(monkeypatch, options)


@pytest.mark.parametrize("field", ["prefill_context_parallel_size", "decode_context_parallel_size"])
def test_an_engine_that_is_not_supported(field: str) -> None:
    engine = vllm_config()
    setattr(engine.parallel_config, field, 2)
    with pytest.raises(config.ConfigError, match=field):
        config.check_start(engine)


def test_each_rank_has_a_place_on_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """From which it has its address and port: kvf_address_choose(). The scheduler's node takes no connections."""
    given: list[tuple[str | None, int]] = []
    monkeypatch.setattr(config, "identity_fields", lambda *engine: {})
    monkeypatch.setattr(engine_config, "Node", lambda options, identity, index, log: given.append((options.get("listen"), index)))
    engine = vllm_config(ranks=2)
    engine.parallel_config.data_parallel_rank_local = 1
    for rank in (None, 0, 1):
        config.open_node(engine, kv_cache_config(), rank)
    assert given == [("", 0), (None, 2), (None, 3)]


def test_an_engine_that_was_not_told_listens_where_its_environment_says(monkeypatch: pytest.MonkeyPatch, key_path: str) -> None:
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.77")
    assert host_of(open_rank(monkeypatch, {})) == "127.0.0.1"
    assert host_of(open_rank(monkeypatch, {"key_file": key_path})) == "127.0.0.77"
    assert host_of(open_rank(monkeypatch, {"key_file": key_path, "listen": "127.0.0.78"})) == "127.0.0.78"
    monkeypatch.setenv("KVFERRY_KEY_FILE", key_path)
    assert host_of(open_rank(monkeypatch, {})) == "127.0.0.77"
    monkeypatch.setenv("KVFERRY_LISTEN", "127.0.0.0/8")
    assert host_of(open_rank(monkeypatch, {})) == "127.0.0.1"
    monkeypatch.setenv("KVFERRY_KEY_FILE", "/nowhere/key")
    for rank in (None, 0):
        with pytest.raises(config.ConfigError, match="/nowhere/key"):
            config.open_node(vllm_config(), kv_cache_config(), rank)


def host_of(node: Node) -> str:
    """That its tickets name."""
    try:
        return check.address_of(node).rpartition(":")[0]
    finally:
        node.close()


def platform(name: str) -> Any:
    return SimpleNamespace(is_cpu=lambda: name == "cpu", is_cuda=lambda: name == "cuda", device_name=name)


CUDA, CPU, ROCM = map(platform, ("cuda", "cpu", "rocm"))


@pytest.fixture
def transports(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a node's options say of transports: of a rank's, and of the scheduler's."""
    monkeypatch.setattr(config, "identity_fields", lambda *engine: {})

    def given(where: Any, buffers: str, **options: Any) -> dict[str, str]:
        opened: list[dict[str, str]] = []
        monkeypatch.setattr(config, "current_platform", where)
        monkeypatch.setattr(engine_config, "Node", lambda options, identity, index, log: opened.append(options))
        engine = vllm_config(options=options)
        engine.kv_transfer_config.kv_buffer_device = buffers
        config.check_start(engine)
        for rank in (None, 0):
            config.open_node(engine, kv_cache_config(), rank)
        of_rank, of_scheduler = ({name: one[name] for name in ("transports", "require") if name in one} for one in opened)
        assert of_rank == of_scheduler
        return of_rank
    return given


def test_buffers_in_host_memory_are_tcp_s(transports: Any) -> None:
    """An engine on a CPU has nothing else, and vLLM says so of each: there they mean nothing."""
    assert transports(CUDA, "cpu") == {"transports": "tcp"}
    for given in ({"transports": "tcp"}, {"transports": ["tcp"]}, {"require": "tcp"}, {"transports": "tcp", "require": ""}):
        assert transports(CUDA, "cpu", **given) == {"transports": "tcp"} | {name: "".join(value) for name, value in given.items()}
    for where, buffers in ((CUDA, "cuda"), (CPU, "cpu")):
        assert transports(where, buffers) == {}
        both = {"transports": "local,tcp", "require": "local"}
        assert transports(where, buffers, **both) == both


@pytest.mark.parametrize("options, named", [
    ({"transports": "local,tcp"}, 'transports = "local,tcp"'), ({"transports": ["ucx"]}, 'transports = "ucx"'),
    ({"require": ["local"]}, 'require = "local"'), ({"transports": "tcp", "require": "tcp,ucx"}, 'require = "tcp,ucx"'),
])
def test_buffers_in_host_memory_and_another_transport(transports: Any, options: dict[str, Any], named: str) -> None:
    with pytest.raises(config.ConfigError, match=f'^kv_buffer_device = "cpu" works over tcp alone, not {named} .*: make it "tcp"'):
        transports(CUDA, "cpu", **options)


def test_the_device_is_looked_at_before_its_buffers(transports: Any) -> None:
    with pytest.raises(config.ConfigError, match="not on rocm"):
        transports(ROCM, "cpu", transports="local")


@pytest.mark.parametrize("options, status", [({}, 500), ({"error_status": 503}, 503)])
def test_status_of_errors(options: dict[str, Any], status: int) -> None:
    assert config.error_status_of(vllm_config(options=options)) == status
    assert "error_status" not in config.options_given(vllm_config(options=options)).of_library(config.OF_CONNECTOR)


def test_other_status_of_errors_is_refused() -> None:
    with pytest.raises(config.ConfigError, match="error_status = \"502\" is not allowed: it must be 500 or 503"):
        config.error_status_of(vllm_config(options={"error_status": 502}))


# ---- layout ----

def test_there_are_no_host_buffers_to_copy_to() -> None:
    """Every engine offers its copies between device and host, whatever kv_buffer_device says: they are left alone."""
    offer = "set_host_xfer_buffer_ops"
    assert getattr(KVFerryConnector, offer) is getattr(KVConnectorBase_V1, offer)
