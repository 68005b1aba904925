"""Under which name vLLM knows the connector, and where an engine's configuration has it. Imports nothing of vLLM: each of its
processes looks here, those that hold no engine too."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

NAME, MODULE = "KVFerryConnector", "kvferry.vllm"
CONNECTOR, MODULE_PATH, EXTRA, POLICY = (
    "kv_connector", "kv_connector_module_path", "kv_connector_extra_config", "kv_load_failure_policy")
HANDING_OVER = ("NixlConnector", "NixlPullConnector", "NixlPushConnector", "MooncakeConnector", "MoRIIOConnector")


def make_known() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    with suppress(ValueError):  # it is known already: vLLM may call again
        KVConnectorFactory.register_connector(NAME, MODULE, NAME)


def own_config(transfer: Any) -> dict[str, Any] | None:
    """What our connector is told, alone or in vLLM's MultiConnector; None if there is none.

    ValueError: it cannot be beside another one."""
    if transfer is None:
        return None
    outer = {name: getattr(transfer, name) for name in (CONNECTOR, MODULE_PATH, EXTRA, POLICY)}
    configs = [outer, *(outer[EXTRA] or {}).get("connectors", ())]
    own = [config for config in configs if _is_own(config)]
    others = [config[CONNECTOR] for config in configs if config.get(CONNECTOR) in HANDING_OVER and not _is_own(config)]
    if own and (others or len(own) > 1):
        raise ValueError(f"kvferry cannot be beside {', '.join(others) or 'kvferry'} in a MultiConnector: both would write the same "
                         "fields of kv_transfer_params")
    return own[0] if own else None


def _is_own(config: dict[str, Any]) -> bool:
    return config.get(CONNECTOR) == NAME or str(config.get(MODULE_PATH)).split(".")[0] == "kvferry"
