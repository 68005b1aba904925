"""The connector is known to vLLM by its name alone."""

from __future__ import annotations

import logging
import subprocess
import sys
from argparse import Namespace
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from fastapi import FastAPI
from kvferry import vllm_entry, vllm_plugin
from kvferry.vllm import KVErrors, KVFerryConnector, contract
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.launchers import app as launchers
from vllm.entrypoints.serve.middleware import register as vllm_middleware

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "dev"))

from pd.paths import FAST  # noqa: E402


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """vLLM's connectors without ours."""
    others = {name: loader for name, loader in KVConnectorFactory._registry.items() if name != "KVFerryConnector"}
    monkeypatch.setattr(KVConnectorFactory, "_registry", others)
    return others


def named(**more: str) -> KVTransferConfig:
    return KVTransferConfig(kv_connector="KVFerryConnector", kv_role="kv_both", **more)


def test_the_entry_point_makes_the_connector_known(registry: dict[str, object]) -> None:
    (found,) = entry_points(group="vllm.general_plugins", name="kvferry")
    with pytest.raises(ValueError, match="Unsupported connector"):
        KVConnectorFactory.get_connector_class(named())
    found.load()()
    assert KVConnectorFactory.get_connector_class(named()) is KVFerryConnector


def test_it_may_be_called_again(registry: dict[str, object]) -> None:
    before = len(registry)
    vllm_plugin.register()
    vllm_plugin.register()
    assert len(registry) == before + 1
    assert KVConnectorFactory.get_connector_class(named()) is KVFerryConnector


def test_plugins_switched_off(registry: dict[str, object]) -> None:
    by_link_id = named(kv_connector_module_path="kvferry.vllm")
    assert KVConnectorFactory.get_connector_class(by_link_id) is KVFerryConnector


def test_the_call_does_not_import_the_connector() -> None:
    """Each of vLLM's processes makes it, those that hold no engine too."""
    code = ("import sys; from kvferry.vllm_plugin import register; register(); "
            "assert 'kvferry.vllm' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_under_the_name_of_nixl(registry: dict[str, object]) -> None:
    """vLLM's own one stays what its name finds. The class's name is ours: that is what a MultiConnector finds statistics by."""
    nixl = registry["NixlConnector"]
    as_nixl = KVTransferConfig(kv_connector="NixlConnector", kv_connector_module_path="kvferry.nixl", kv_role="kv_both")
    vllm_plugin.register()
    found = KVConnectorFactory.get_connector_class(as_nixl)
    assert found is KVFerryConnector and found.__name__ == "KVFerryConnector"
    assert registry["NixlConnector"] is nixl
    assert KVConnectorFactory.get_connector_class_by_name(found.__name__) is found
    assert vllm_entry.own_config(as_nixl) is not None


# ---- what clients of an API server hear, without --middleware ----

@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has made no engine's configuration yet."""
    monkeypatch.setattr(launchers, "init_entrypoints_middleware", vllm_middleware.init_entrypoints_middleware)


def server_for(transfer: KVTransferConfig | None, *given: str) -> FastAPI:
    """In vLLM's order: plugins, configuration, application."""
    vllm_plugin.register()
    EngineArgs(model=str(FAST), dtype="float32", max_model_len=64, kv_transfer_config=transfer).create_engine_config()
    made = FastAPI()
    args = Namespace(allowed_origins=["*"], allow_credentials=False, allowed_methods=["*"], allowed_headers=["*"], api_key=None,
                     enable_request_id_headers=True, middleware=list(given))
    launchers.init_entrypoints_middleware(args, made, ("generate",))
    return made


def times_added(app: FastAPI) -> int:
    return [one.cls for one in app.user_middleware].count(KVErrors)


@pytest.mark.parametrize("transfer", [
    named(), KVTransferConfig(kv_connector="NixlConnector", kv_connector_module_path="kvferry.nixl", kv_role="kv_both"),
    KVTransferConfig(kv_connector="MultiConnector", kv_role="kv_both", kv_connector_extra_config={"connectors": [
        {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}, {"kv_connector": "KVFerryConnector", "kv_role": "kv_both"}]})],
    ids=["alone", "as nixl", "in a MultiConnector"])
def test_an_api_server_of_such_an_engine_tells_why(fresh: None, transfer: KVTransferConfig) -> None:
    app = server_for(transfer)
    assert times_added(app) == 1 and app.user_middleware[0].cls is KVErrors  # around all others
    assert times_added(server_for(transfer, "kvferry.vllm.KVErrors")) == 2  # each app once, however often one is configured


def test_an_api_server_of_another_engine_does_not(fresh: None) -> None:
    assert times_added(server_for(None)) == 0
    assert times_added(server_for(None, "kvferry.vllm.KVErrors")) == 1


def test_an_api_server_that_is_made_otherwise(fresh: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It works, and the log says what is off."""
    monkeypatch.setattr(contract, "lacks", lambda feature: feature == contract.ERRORS_ADDED)
    monkeypatch.setattr(logging.getLogger("kvferry"), "propagate", True)
    assert times_added(server_for(named())) == 0
    assert f"this is off: {contract.ERRORS_ADDED}" in caplog.text


def test_a_process_that_is_no_api_server(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, contract.APP)
    server_for(named())
    assert contract.APP not in sys.modules
