"""The connector is known to vLLM by its name alone."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from kvferry import vllm_plugin
from kvferry.vllm import KVFerryConnector
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory


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
    assert vllm_plugin.own_config(as_nixl) is not None
