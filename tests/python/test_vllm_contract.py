"""What kvferry uses of vLLM beyond the connector's contract is there, and a vLLM in which it is not does not start."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

vllm = pytest.importorskip("vllm")

from fakes import vllm_config, vllm_scheduler  # noqa: E402
from kvferry.engine.log import logger  # noqa: E402
from kvferry.engine.wrapping import wrap_methods  # noqa: E402
from kvferry.vllm import config, contract, engine_core, seam, versions  # noqa: E402
from kvferry.vllm.content import updates  # noqa: E402
from kvferry.vllm.contract import CONTRACT, ContractError, Entry  # noqa: E402
from vllm import outputs  # noqa: E402
from vllm.v1.engine.core import EngineCoreProc  # noqa: E402
from vllm.v1.worker import gpu_worker  # noqa: E402

GUARDS = [entry for entry in CONTRACT if entry.is_guard]
FEATURES = [entry for entry in CONTRACT if not entry.is_guard]
SOURCES = Path(seam.__file__).parent
UNKNOWN = "0.99.0"
ALLOW = {"untested_vllm": "allow"}


def id_of(entry: Entry) -> str:
    return f"{entry.name.partition(':')[2]}: {entry.why}"


@pytest.mark.parametrize("entry", CONTRACT, ids=id_of)
def test_the_installed_vllm_has_it(entry: Entry) -> None:
    """Guards on every version. A feature that a tested version lacks is off there: the log says so."""
    found = contract.trouble(entry)
    assert not found or not entry.is_guard, f"vLLM {vllm.__version__}: {entry.name} {found}. kvferry counts on: {entry.why}"
    assert versions.is_tested(vllm.__version__)


def everything() -> Any:
    """An engine that has all that entries may be about, on a vLLM of a version that may lack features."""
    engine = vllm_config(options=ALLOW)
    engine.lora_config, engine.speculative_config, engine.model_config.enable_sleep_mode = object(), object(), True
    engine.kv_transfer_config.kv_connector_extra_config["connectors"] = [{"kv_connector": "OffloadingConnector"}]
    return engine


def rename(monkeypatch: pytest.MonkeyPatch, entry: Entry) -> None:
    """As if vLLM's authors had renamed it, or one of its attributes, or what its source says."""
    find, source_of, trouble = contract.find, contract.source_of, contract.trouble
    monkeypatch.setattr(contract, "trouble", lambda one: (trouble.__wrapped__ if one is entry else trouble)(one))
    if entry.takes is not None or not (entry.has or entry.says):
        def found(name: str) -> Any:
            if name == entry.name:
                raise AttributeError(name)
            return find(name)
        monkeypatch.setattr(contract, "find", found)
        return
    def changed(one: Any) -> str:
        source = source_of(one)
        return re.sub(rf"\b{entry.has[0]}\b", "renamed", source) if entry.has else re.sub(entry.says, "", source)
    monkeypatch.setattr(contract, "source_of", changed)


@pytest.mark.parametrize("entry", GUARDS, ids=id_of)
@pytest.mark.parametrize("version", [vllm.__version__, UNKNOWN])
def test_a_guard_that_is_renamed_refuses_to_start(monkeypatch: pytest.MonkeyPatch, entry: Entry, version: str) -> None:
    """Whatever is allowed."""
    monkeypatch.setattr(vllm, "__version__", version)
    contract.find(entry.name)  # its module is in memory, as in an engine
    rename(monkeypatch, entry)
    with pytest.raises(ContractError, match=re.escape(entry.name)):
        config.check_start(everything())


def without(engine: Any, needs: str) -> Any:
    engine.lora_config = None if needs == contract.LORA else engine.lora_config
    engine.speculative_config = None if needs == contract.DRAFTS else engine.speculative_config
    engine.model_config.enable_sleep_mode = needs != contract.SLEEP
    if needs == contract.OFFLOADING:
        del engine.kv_transfer_config.kv_connector_extra_config["connectors"]
    return engine


@pytest.mark.parametrize("entry", [entry for entry in GUARDS if entry.needs], ids=id_of)
def test_an_engine_without_it_does_not_look(monkeypatch: pytest.MonkeyPatch, entry: Entry) -> None:
    rename(monkeypatch, entry)
    config.check_start(without(everything(), entry.needs))


@pytest.mark.parametrize("entry", FEATURES, ids=id_of)
def test_a_feature_that_is_missing(monkeypatch: pytest.MonkeyPatch, entry: Entry) -> None:
    assert contract.importlib.import_module(entry.module)
    rename(monkeypatch, entry)
    assert entry.why in config.check_start(vllm_config())
    monkeypatch.setattr(vllm, "__version__", UNKNOWN)
    with pytest.raises(ContractError, match=rf'{UNKNOWN}.*{re.escape(entry.name)}.*"untested_vllm": "allow"'):
        config.check_start(vllm_config())
    assert entry.why in config.check_start(vllm_config(options=ALLOW))


PRE_FORWARD = "self.kv_connector.pre_forward("


@pytest.mark.parametrize("name, order", [
    (contract.SECOND_RUNNER + "execute_model", lambda text: PRE_FORWARD + text.replace(PRE_FORWARD, "")),
    (contract.SECOND_RUNNER + "execute_model", lambda text: text + "self.kv_block_zeroer.zero_block_ids(new)"),
    (contract.RUNNER + "execute_model", lambda text: text + "copy_kv_cache_blocks_inplace(late)"),
    (contract.SECOND_CONNECTOR + "pre_forward", lambda text: "self._start_load_kv()" + text.replace("self._start_load_kv()", "")),
    (contract.MIXIN + "_get_kv_connector_output", lambda text: text.replace("kv_connector.start_load_kv(get_forward_context())", "", 1)),
])
def test_loads_start_behind_the_forward_where_vllm_s_order_is_another(monkeypatch: pytest.MonkeyPatch, name: str, order: Any) -> None:
    """Memory work may not come behind the point that loads wait for."""
    entry = next(entry for entry in FEATURES if (entry.name, entry.why) == (name, contract.LOADS_FIRST))
    source = contract.source_of(contract.find(name))
    monkeypatch.setattr(contract, "source_of", lambda found: order(source))
    assert contract.trouble.__wrapped__(entry) == "has changed"


@pytest.mark.parametrize("version, tested", [("0.31.0", True), ("0.33.2+cpu", True), ("0.30.0", False), ("0.34.0rc1", False), ("nightly", False)])
def test_versions(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str, tested: bool) -> None:
    """A tested one: silence. Another whose contract is whole: one warning."""
    monkeypatch.setattr(vllm, "__version__", version)
    monkeypatch.setattr(logger, "propagate", True)
    caplog.set_level("WARNING", logger.name)  # a module of vLLM 0.29 sets the root's to ERROR
    monkeypatch.setattr(contract, "CONTRACT", GUARDS)
    seam.say_start(config.check_start(vllm_config()))
    said = [record.getMessage() for record in caplog.records if record.name.startswith("kvferry")]
    assert len(said) == (not tested) and all(version in line and "0.29, 0.31, 0.32 and 0.33" in line for line in said)
    assert versions.kv_format(version) == ("1" if tested else f"vllm {version}")


@pytest.mark.parametrize("version", ["0.28.0", "0.9.2", "0.28.1+cpu"])
def test_versions_that_are_too_old(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(vllm, "__version__", version)
    for start in (lambda: config.check_start(vllm_config(options=ALLOW)), lambda: __import__("kvferry.vllm").vllm.KVFerryConnector):
        with pytest.raises(versions.VersionError) as raised:
            start()
        assert str(raised.value) == f"kvferry needs vLLM 0.29 or later, not {version}; tested: 0.29, 0.31, 0.32 and 0.33"


def test_the_document_has_the_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    table = (Path(__file__).resolve().parents[2] / "docs" / "limits.md").read_text().partition("## Versions of vLLM\n")[2].partition("\n## ")[0]
    lost = {name: next(entry for entry in CONTRACT if entry.name.endswith(name)) for name in (".reset_prefix_cache", ".has_pending_block_frees")}

    def start(version: str, *found: tuple[Entry, str]) -> str:
        monkeypatch.setattr(vllm, "__version__", version)
        monkeypatch.setattr(contract, "troubles", lambda is_concerned: list(found))
        with pytest.raises(ValueError) as raised:
            config.check_start(vllm_config())
        return str(raised.value)

    said = [start("0.28.0"), *(start(UNKNOWN, (entry, "is not there")) for entry in lost.values())]
    assert re.findall(r"^\|.*\| `(.*)` \|$", table, re.M) == said


def test_a_scheduler_of_other_kinds_is_refused() -> None:
    scheduler = vllm_scheduler()
    seam.check_scheduler(scheduler)
    scheduler.grammar_compile_error_reqs = []
    with pytest.raises(ContractError, match="it has list and set for requests that fail"):
        seam.check_scheduler(scheduler)


@pytest.mark.parametrize("kind", [set, dict])
def test_requests_that_fail(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    """Looked up each time: vLLM 0.33 makes a new dict in every step."""
    scheduler = vllm_scheduler()
    for _ in range(2):
        scheduler.grammar_compile_error_reqs = kind()
        if kind is dict and not hasattr(outputs, "RequestError"):
            pytest.skip(f"vLLM {vllm.__version__} has a set")
        seam.fail_request(scheduler, "a", "peer_down", "its peer is gone", True)
        assert set(scheduler.grammar_compile_error_reqs) == {"a"}
    if kind is dict:
        error = scheduler.grammar_compile_error_reqs["a"]
        assert (error.code, error.message, error.retryable) == ("peer_down", "its peer is gone", True)


def test_only_what_an_engine_can_do_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped: list[str] = []
    monkeypatch.setattr(seam, "wrap_methods", lambda cls, wrappers: wrapped.extend(wrappers))
    engine_core.install(vllm_config(), object)
    all_of = {*engine_core.AROUNDS, "update_from_output"}
    assert set(wrapped) == all_of - {"add_lora", "remove_lora", "sleep"}
    wrapped.clear()
    engine_core.install(everything(), object)
    assert set(wrapped) == all_of
    wrapped.clear()
    monkeypatch.setattr(contract, "lacks", lambda feature: feature == contract.STOP_REASONS)
    engine_core.install(everything(), object)
    assert set(wrapped) == engine_core.AROUNDS.keys()


def test_no_other_module_calls_what_vllm_does_not_promise() -> None:
    """Methods, functions and private names: what their arguments are is checked in one place."""
    names = {entry.name.rpartition(".")[2].rpartition(":")[2] for entry in CONTRACT if entry.takes is not None or entry.says}
    names |= {"grammar_compile_error_reqs", "finished_recving_kv_req_ids", "_current_batch_allocated_block_ids", "block_pool"}
    names -= {"__init__", *engine_core.AROUNDS, *updates.UPDATE, updates.RELOAD}
    names -= {"free", "touch", "sleep", "execute_model", "sample_tokens", "_load_adapter", "_apply_adapters",
              "has_pending_block_frees", "_get_connector_metadata", "get_blocks", "get_block_ids"}  # also other objects'
    for module in SOURCES.rglob("*.py"):
        if module.name in ("seam.py", "contract.py"):
            continue
        code = re.sub(r'"""(?s:.*?)"""', "", module.read_text())
        found = {name for name in names if re.search(rf"\.{name}\b", code)}
        assert not found, f"{module.name} uses {found} beside seam.py"


def test_every_entry_s_source_can_be_read() -> None:
    assert all(contract.source_of(contract.find(entry.name)) for entry in CONTRACT if entry.has or entry.says)
    assert inspect.getsource(contract.source_of)


def test_a_method_that_a_class_lacks_is_not_passed_over() -> None:
    class Core:
        def pause(self) -> str:
            return "paused"

    class Process(Core):
        def stop(self) -> str:
            return "stopped"

    def around(method: Any, core: Any) -> str:
        return f"wrapped: {method(core)}"
    with pytest.raises(AttributeError, match="Core has no resume"):
        wrap_methods(Core, {"pause": around, "resume": around})
    assert Process().pause() == "paused"
    for _ in range(2):
        wrap_methods(Core, {"pause": around, "stop": around})
    assert (Process().pause(), Process().stop()) == ("wrapped: paused", "wrapped: stopped")


WORKERS_ARE_ASKED_BY = {
    "add_lora", "collective_rpc", "compute_weight_checksums", "execute_dummy_batch", "get_supported_tasks", "is_sleeping",
    "list_loras", "pin_lora", "post_step", "profile", "release_kv_cache_memory", "remove_lora", "reset_encoder_cache", "reset_mm_cache",
    "save_sharded_state", "shutdown", "sleep", "step", "step_with_batch_queue", "wake_up"}
"""Those that change weights, or what is in the pool, are wrapped."""


def test_vllm_s_engine_reaches_its_workers_by_no_method_that_nobody_has_judged() -> None:
    found = {name for name, method in inspect.getmembers(EngineCoreProc, inspect.isfunction)
             if re.search(r"model_executor|collective_rpc", inspect.getsource(method)) and not name.startswith("_")}
    assert found <= WORKERS_ARE_ASKED_BY, found - WORKERS_ARE_ASKED_BY


SINCE_0_32 = {"compute_weight_checksums", "release_late_interaction_query_cache", "shutdown_weight_transfer_engine"}


def test_calls_that_leave_weights_alone_are_vllm_s() -> None:
    assert updates.own_methods(object.__new__(gpu_worker.Worker)) >= updates.KEEP_WEIGHTS - SINCE_0_32
