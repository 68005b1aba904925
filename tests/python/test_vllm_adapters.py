"""LoRA by content: vLLM's own manager reads real files, the two sides see what it has found, and hand nothing over for another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402
from fakes import ASKS, BRINGS, TOKENS, FakeBlocks, FakeEngine, event, request, step  # noqa: E402
from kvferry import _kvferry  # noqa: E402
from kvferry.engine.messages import NotCarried  # noqa: E402
from kvferry.vllm.content import adapters  # noqa: E402
from kvferry.vllm.content.adapters import SEVERAL, Adapter, Adapters, Content, LoadedAdapters, loaded_adapters  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from vllm.config.lora import LoRAConfig  # noqa: E402
from vllm.lora.lora_model import LoRAModel  # noqa: E402
from vllm.lora.model_manager import AdapterLRUCache, LRUCacheLoRAModelManager  # noqa: E402
from vllm.lora.peft_helper import PEFTHelper  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402
from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager  # noqa: E402
from vllm.v1.core import kv_cache_utils  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402

SHAPES = {"lora_A": (2, 8), "lora_B": (8, 2)}


def write(folder: Path, seed: int = 1, value: float | None = None, **config: Any) -> str:
    """An adapter; `value` goes into one of its numbers."""
    folder.mkdir(exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {f"base_model.model.model.layers.0.self_attn.q_proj.{part}.weight": torch.randn(shape, generator=generator)
               for part, shape in SHAPES.items()}
    if value is not None:
        tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"][7, 1] = value
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(
        {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], **config}))
    return str(folder)


class ModelManager(LRUCacheLoRAModelManager):
    """Of a model that has no layers to apply adapters to."""

    def __init__(self, config: LoRAConfig) -> None:
        self.lora_config, self.model = config, SimpleNamespace()  # type: ignore[assignment]
        self.supported_lora_modules, self.packed_modules_mapping = ["q_proj"], {}
        self.packed_modules, self.modules, self.moe_ep_load_spec = {}, {}, None
        self._enable_mixed_moe_lora_format = self.is_pooling_model = False
        self._registered_adapters = AdapterLRUCache(self.capacity, self.deactivate_adapter)
        self._active_adapters = AdapterLRUCache(self.lora_slots, self._deactivate_adapter)
        self.lora_index_to_id = [None] * self.lora_slots
        self._classification_head = self._pooling_task = None


def make_manager(capacity: int = 2, **config: Any) -> tuple[LRUCacheWorkerLoRAManager, LoadedAdapters]:
    manager = LRUCacheWorkerLoRAManager.__new__(LRUCacheWorkerLoRAManager)
    manager.lora_config = LoRAConfig(max_lora_rank=8, max_loras=capacity, max_cpu_loras=capacity,
                                     **{"lora_dtype": torch.float32, **config})
    manager._lora_model_cls, manager.max_position_embeddings, manager.vocab_size = LoRAModel, 64, 100
    manager._adapter_manager = ModelManager(manager.lora_config)
    return manager, loaded_adapters(manager.lora_config)


def lora(lora_id: int = 1, path: str = "/a", name: str = "a", **fields: Any) -> LoRARequest:
    return LoRARequest(name, lora_id, path, **fields)


def digest_of(path: str, **config: Any) -> bytes:
    manager, loaded = make_manager(**config)
    manager.add_adapter(lora(path=path))
    return loaded.changes()[1].digest


# ---- a worker ----

def test_a_digest_is_of_what_is_read_and_not_of_where(tmp_path: Path) -> None:
    first = digest_of(write(tmp_path / "a"))
    assert digest_of(write(tmp_path / "b")) == first
    others = [digest_of(write(tmp_path / "c", **change)) for change in (
        {"seed": 2}, {"value": 0.5}, {"lora_alpha": 8}, {"use_rslora": True},
        *([{"alpha_pattern": {"q_proj": 3}}] if "alpha_pattern" in vars(PEFTHelper)["__dataclass_fields__"] else []))]
    path = write(tmp_path / "a")
    others += [digest_of(path, target_modules=["o_proj"]), digest_of(path, lora_dtype=torch.float16)]
    assert len({first, *others}) == len(others) + 1


def test_each_load_is_seen(tmp_path: Path) -> None:
    manager, loaded = make_manager(capacity=1)
    path = write(tmp_path / "a")
    manager.add_adapter(lora(1, path))
    old = loaded.changes()[1]
    content = Content(1, old.digest, (old.version,))
    assert loaded.has(content, 0) and not loaded.changes()
    manager.add_adapter(lora(2, write(tmp_path / "b"), "b"))
    assert not loaded.has(content, 0)  # it would be read again
    assert loaded.changes().keys() == {1, 2}
    manager.add_adapter(lora(1, path))
    assert loaded.has(content, 0)
    write(tmp_path / "a", seed=2)
    manager.add_adapter(lora(1, path, load_inplace=True))
    assert not loaded.has(content, 0)
    write(tmp_path / "a")
    manager.add_adapter(lora(1, path, load_inplace=True))
    assert not loaded.has(content, 0)  # it was another one meanwhile
    assert loaded.changes()[1].digest == old.digest


def test_a_load_that_fails_changes_nothing(tmp_path: Path) -> None:
    manager, loaded = make_manager()
    path = write(tmp_path / "a")
    manager.add_adapter(lora(1, path))
    loaded.changes()
    (tmp_path / "a" / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(Exception, match="(?i)header|safetensor"):
        manager.add_adapter(lora(1, path, load_inplace=True))
    assert not loaded.changes()


def test_what_cannot_be_digested_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, loaded = make_manager()
    path = write(tmp_path / "a")
    manager.add_adapter(lora(1, path))
    assert loaded.changes()[1].loaded
    monkeypatch.setattr(adapters, "digest_of", lambda lora, config: lora.unknown)
    manager.add_adapter(lora(1, path, load_inplace=True))
    assert not loaded.changes()[1].loaded


def test_no_adapter_of_a_step_makes_room_for_another_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, _ = make_manager(capacity=2)
    paths = {name: write(tmp_path / name) for name in "abc"}
    a, b, c = (lora(number, paths[name], name) for number, name in enumerate("abc", start=1))
    read: list[int] = []
    load = LRUCacheWorkerLoRAManager._load_adapter
    monkeypatch.setattr(LRUCacheWorkerLoRAManager, "_load_adapter", lambda self, one: read.append(one.lora_int_id) or load(self, one))
    for first, second in ((a, b), (b, a)):  # whichever is the older one
        manager.add_adapter(first)
        manager.add_adapter(second)
    read.clear()
    manager._apply_adapters({c: None, b: None})  # type: ignore[arg-type]
    assert read == [3]


def test_two_engines_of_a_process_are_two(tmp_path: Path) -> None:
    (one, of_one), (other, of_other) = make_manager(), make_manager()
    one.add_adapter(lora(1, write(tmp_path / "a")))
    other.add_adapter(lora(1, write(tmp_path / "b", seed=2)))
    assert of_one.changes()[1].digest != of_other.changes()[1].digest


# ---- the scheduler's side ----

class Engine(FakeEngine):
    """With one or two ranks whose vLLM has read what they are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ranks: int = 1) -> None:
        super().__init__(monkeypatch, ranks)
        self.loras: list[dict[int, Any]] = [{} for _ in range(ranks)]
        self.vllm_config.lora_config = LoRAConfig(max_lora_rank=8, max_loras=1)

    def read(self, digests: str, lora_id: int = 1) -> None:
        """By rank: a letter each; a blank drops it."""
        for one, held, digest in zip(self.workers, self.loras, digests):
            if digest == " ":
                del held[lora_id]
                continue
            held[lora_id] = digest
            one._adapters.note(Holds(held), lora_id, digest.encode())
            self.keep = Holds(held)
            one._adapters._manager = lambda held=held: Holds(held)

    def step(self, output: Any = None) -> Any:
        orders = self.side.orders(output or step())
        for one in self.workers:
            one.start_loads(orders)
            one.publish(orders)
        self.side.receive([one.report() for one in self.workers])
        self.settled = self.side.settle()
        return orders

    def learn(self, digests: str) -> None:
        """And the scheduler's side hears of it."""
        self.read(digests)
        self.step()

    def ask(self, prompt: str = "a", **fields: Any) -> Any:
        made = request(prompt, TOKENS, **{"lora_request": lora(), **fields})
        self.scheduler.requests[prompt] = made
        self.side.arrive(made)
        return made

    def prefill(self, a: Any, begun: int = 0) -> Any:
        a.num_computed_tokens = begun
        return self.step(step(tokens={a.request_id: TOKENS - begun}))

    def load(self, **fields: Any) -> Any:
        """A request whose blocks are on their way after the next step."""
        b = self.ask("b", params=BRINGS, status=RequestStatus.WAITING_FOR_REMOTE_KVS, **fields)
        external, _ = self.side.offer(b, 0)
        if external:
            self.side.admit(b, FakeBlocks([1, 2, 3]), external)
            b.num_computed_tokens = TOKENS
        return b

    def arrived(self) -> Any:
        """A request that has been loaded, and that no step has had yet."""
        b = self.load()
        (load,) = self.step().load
        for one in self.workers:
            one._node.events.append(event(_kvferry.EVENT_RELEASED, load[0]))
        self.node.report(load[0])
        self.step()
        self.side._poll()
        self.settled |= self.side.settle()
        assert self.settled == {"b"} and b.num_computed_tokens == TOKENS
        return b

    def reasons(self, of: str) -> dict[str, int]:
        return self.side._producer._counters.take().get(of, {})

    def call(self, name: str, *args: Any, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.around(name, lambda *given: meanwhile(), *args)


class Holds:
    def __init__(self, held: dict[int, str]) -> None:
        self.held = held

    def list_adapters(self) -> set[int]:
        return set(self.held)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(monkeypatch)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(monkeypatch, ranks=2)


def identity(engine: Engine, **fields: Any) -> bytes | NotCarried:
    made = engine.ask("identity", **fields)
    found = engine.side._prompts.of(made)
    engine.side.finish(made)
    return found


def test_an_identity_is_of_the_content(pair: Engine) -> None:
    bare = identity(pair, lora_request=None)
    assert identity(pair) is NotCarried.LORA_UNKNOWN  # not read yet
    pair.read("xx", 1)
    pair.read("xx", 2)
    pair.read("yy", 3)
    pair.read("xy", 4)
    pair.step()
    first = identity(pair)
    assert isinstance(first, bytes) and first != bare
    assert identity(pair, lora_request=lora(2, "/elsewhere", "other")) == first
    assert identity(pair, lora_request=lora(3, "/third")) != first
    assert identity(pair, lora_request=lora(4, "/fourth")) is NotCarried.LORA_UNKNOWN  # ranks differ


def test_published_with_the_adapter_that_it_was_begun_with(engine: Engine) -> None:
    engine.learn("x")
    assert engine.prefill(engine.ask(params=ASKS)).publish
    assert len(engine.workers[0]._node.of("lease_publish")) == 1 and not engine.reasons("no_tickets")


def test_not_published_if_the_rank_reads_another_one_in_the_step(engine: Engine) -> None:
    engine.learn("x")
    a = engine.ask(params=ASKS)
    read_first = engine.workers[0].start_loads
    engine.workers[0].start_loads = lambda orders: (read_first(orders), engine.read("y"))  # type: ignore[method-assign]
    assert engine.prefill(a).publish
    assert engine.workers[0]._node.of("lease_publish") == []
    assert not engine.side._producer._leases and engine.reasons("no_tickets") == {"lease_ended": 1}


@pytest.mark.parametrize("between", ["y", "yx"])
def test_no_ticket_if_another_one_was_read_between_chunks(engine: Engine, between: str) -> None:
    engine.learn("x")
    a = engine.ask(params=ASKS)
    engine.step(step(tokens={"a": 32}))
    for content in between:
        engine.read(content)
    engine.step()
    engine.side.content.cache_is_empty()
    assert not engine.prefill(a, begun=32).publish
    assert engine.reasons("no_tickets") == {"lora_changed": 1}


def test_not_read_when_it_begins(engine: Engine) -> None:
    a = engine.ask(params=ASKS)
    assert not engine.prefill(a).publish
    assert engine.reasons("no_tickets") == {"lora_unknown": 1}


def test_loaded_with_the_adapter_that_the_rank_has(engine: Engine) -> None:
    engine.learn("x")
    engine.arrived()
    assert len(engine.workers[0]._node.of("load_start")) == 1 and not engine.reasons("not_loaded")


@pytest.mark.parametrize("what", ["xy", "x "], ids=["another", "dropped"])
def test_a_rank_with_another_one_loads_nothing(pair: Engine, what: str) -> None:
    """It knows before the scheduler's side does; the other rank is told to stop."""
    pair.learn("xx")
    b = pair.load()
    pair.read(what)
    assert pair.step().load
    assert [len(one._node.of("load_start")) for one in pair.workers] == [1, 0]
    orders = pair.step()
    assert orders.abort
    pair.workers[0]._node.events.append(event(_kvferry.EVENT_RELEASED, orders.abort[0]))
    pair.step()
    assert pair.settled == {"b"} and b.num_computed_tokens == 0
    assert pair.reasons("not_loaded") == {"lora_changed": 1}


def test_dropped_by_a_call_while_it_loads(engine: Engine) -> None:
    engine.learn("x")
    b = engine.load()
    (load,) = engine.step().load
    engine.workers[0]._node.events.append(event(_kvferry.EVENT_RELEASED, load[0]))
    engine.call("add_lora", lora(2, "/b"), meanwhile=lambda: engine.read("y"))
    assert engine.scheduler.finished_recving_kv_req_ids == {"b"} and b.num_computed_tokens == 0
    assert engine.reasons("not_loaded") == {"lora_changed": 1}


@pytest.mark.parametrize("what", ["y", " "], ids=["another", "dropped"])
@pytest.mark.parametrize("how", ["add_lora", "remove_lora", "collective_rpc", "a step"])
def test_loaded_but_not_begun(engine: Engine, how: str, what: str) -> None:
    """vLLM may have cached the blocks by then."""
    engine.learn("x")
    b = engine.arrived()
    if how == "a step":
        engine.read(what)
        engine.step()
    else:
        args = {"add_lora": (lora(2, "/b"),), "remove_lora": (2,), "collective_rpc": ("whatever",)}[how]
        engine.call(how, *args, meanwhile=lambda: engine.read(what))
    assert b.num_computed_tokens == 0 and engine.manager.evicted == {5, 6, 7}
    assert engine.reasons("not_loaded") == {"lora_changed": 1}


def test_once_begun_it_is_vllm_s(engine: Engine) -> None:
    engine.learn("x")
    b = engine.arrived()
    engine.step(step(tokens={"b": 1}))
    engine.learn("y")
    assert b.num_computed_tokens == TOKENS and not engine.side._consumer._unstarted


def test_news_that_overtake_one_another() -> None:
    known = Adapters(1)
    known.receive(0, {1: Adapter(b"y", 2, True, reported=5)})
    known.receive(0, {1: Adapter(b"x", 1, True, reported=4)})
    content = known.content(1)
    assert content is not None and content.digest == b"y"


# ---- vLLM's prefix cache, and load_inplace ----

def swapped(engine: Engine, ok: bool, lora_id: int = 1) -> bytes | NotCarried:
    """A content under the name and path of another one that has computed blocks; `ok` says whether the cache can be emptied."""
    engine.learn("x")
    engine.side.finish(engine.ask())
    engine.ok = ok
    engine.call("add_lora", lora(lora_id), meanwhile=lambda: engine.read("y", lora_id))
    return identity(engine, lora_request=lora(lora_id))


@pytest.fixture(params=[True, False], ids=["by name and path", "by name"])
def by_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """How vLLM's prefix cache tells adapters apart; 0.29's goes by name."""
    def keys(request: Any) -> list[Any]:
        lora = request.lora_request
        return [("lora", lora.lora_name, lora.lora_path)] if by_path else [lora.lora_name]
    by_path: bool = request.param
    monkeypatch.setattr(kv_cache_utils, "_gen_lora_extra_hash_keys", keys)
    return by_path


@pytest.mark.parametrize("lora_id", [1, 2], ids=["in place", "unloaded and loaded"])
def test_cached_blocks_of_another_content(engine: Engine, by_path: bool, lora_id: int) -> None:
    assert swapped(engine, ok=False, lora_id=lora_id) is NotCarried.CACHE_OLD
    assert isinstance(identity(engine, lora_request=lora(lora_id, "/elsewhere")), bytes) == by_path
    engine.manager.usage = 0.0  # nobody uses a block
    assert isinstance(identity(engine, lora_request=lora(lora_id)), bytes)


def test_a_name_that_gets_another_content_and_path(engine: Engine, by_path: bool) -> None:
    """Neither is handed over, nor loaded, while vLLM's cache may give a request the blocks of both."""
    engine.learn("x")
    engine.side.finish(engine.ask())
    engine.ok, again = False, {"lora_request": lora(2, "/elsewhere")}
    engine.call("add_lora", again["lora_request"], meanwhile=lambda: engine.read("y", 2))
    for which in (again, {}):
        a = engine.ask(params=ASKS, **which)
        assert bool(engine.prefill(a).publish) == by_path
        engine.side.finish(a)
        b = engine.load(**which)
        assert bool(engine.step().load) == by_path
        engine.side.finish(b)
    counted = engine.side._producer._counters.take()
    assert [counted.get(of, {}).get("cache_old", 0) for of in ("no_tickets", "not_loaded")] == [0 if by_path else 2] * 2
    engine.manager.usage = 0.0  # nobody uses a block
    assert isinstance(identity(engine, **again), bytes)


def test_the_cache_is_emptied_at_once_if_nobody_uses_it(engine: Engine) -> None:
    assert isinstance(swapped(engine, ok=True), bytes)


def test_another_content_and_the_old_one_again(engine: Engine) -> None:
    engine.learn("x")
    engine.ask("lives on")
    engine.read("y")
    engine.learn("x")
    assert identity(engine) is NotCarried.CACHE_OLD
    assert SEVERAL in engine.side._prompts.adapters._cached.values()


def test_read_anew_in_every_step(engine: Engine) -> None:
    """vLLM's server leaves the flag in the requests after a call; without one the files may change whenever they like."""
    engine.learn("x")
    in_place = lora(load_inplace=True)
    assert identity(engine, lora_request=in_place) is NotCarried.LORA_UNKNOWN
    engine.call("add_lora", in_place)
    a = engine.ask(lora_request=in_place)
    assert isinstance(engine.side._prompts.of(a), bytes)
    assert not a.lora_request.load_inplace and in_place.load_inplace


def test_what_can_grow_is_bounded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "ADAPTERS_MAX", 4)
    known, loaded = engine.side._prompts.adapters, engine.workers[0]._adapters
    for number in range(1, 20):
        engine.read("x", number)
        engine.step()
        one = engine.ask(lora_request=lora(number, f"/{number}", f"{number}", load_inplace=number % 2 == 0))
        engine.side.finish(one)
        known.called(lora(number, name=f"{number}"))
        engine.loras[0].clear()
    sizes = [len(loaded._known), len(known._ranks[0]), len(known._cached), len(known._by_call), len(known._unsteady)]
    assert max(sizes) <= 5 and not known._alive
    assert identity(engine, lora_request=lora(19, "/19", "19")) is NotCarried.CACHE_OLD
