"""What vLLM calls in each of its processes (entry point group vllm.general_plugins): makes the connector known by name,
and lets an engine with it read its weights' files beside vLLM.

Not in kvferry.vllm, whose import brings in much of vLLM: the connector is imported when an engine asks for it."""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig

NAME, MODULE = "KVFerryConnector", "kvferry.vllm"


def register() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    with suppress(ValueError):  # it is known already: vLLM may call again
        KVConnectorFactory.register_connector(NAME, MODULE, NAME)
    _wrap_executor()


def _wrap_executor() -> None:
    """vLLM tells connectors of a model only when it is loaded: its executor is made before."""
    from vllm.v1.executor.abstract import Executor

    make = Executor.__init__
    if getattr(make, "of_kvferry", False):
        return

    @functools.wraps(make)
    def make_and_read(self: Any, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        _begin_to_read(vllm_config)
        make(self, vllm_config, *args, **kwargs)

    make_and_read.of_kvferry = True  # type: ignore[attr-defined]
    Executor.__init__ = make_and_read  # type: ignore[method-assign]


def _own_options(transfer: Any) -> dict[str, Any] | None:
    """Our connector's options, alone or in vLLM's MultiConnector; None if there is none."""
    if transfer is None:
        return None
    options = dict(transfer.kv_connector_extra_config or {})
    configs = [{"kv_connector": transfer.kv_connector, "kv_connector_module_path": transfer.kv_connector_module_path,
                "kv_connector_extra_config": options}, *options.get("connectors", ())]
    for config in configs:
        if config.get("kv_connector") == NAME or str(config.get("kv_connector_module_path")).split(".")[0] == "kvferry":
            return dict(config.get("kv_connector_extra_config") or {})
    return None


def _begin_to_read(vllm_config: VllmConfig) -> None:
    options = _own_options(vllm_config.kv_transfer_config)
    if options is not None:
        from kvferry.vllm.weights import WEIGHTS_ID, begin_beside_load

        with suppress(ValueError):  # the connector says it, once
            begin_beside_load(vllm_config, options.get(WEIGHTS_ID))
