"""What vLLM calls in each of its processes (entry point group vllm.general_plugins): makes the connector known by name.

Not in kvferry.vllm, whose import brings in much of vLLM: the connector is imported when an engine asks for it."""

from __future__ import annotations

from contextlib import suppress


def register() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    with suppress(ValueError):  # it is known already: vLLM may call again
        KVConnectorFactory.register_connector("KVFerryConnector", "kvferry.vllm", "KVFerryConnector")
