"""What vLLM calls in each of its processes (entry point group vllm.general_plugins): makes the connector known by name,
lets an engine with it read its weights' files beside vLLM, and its API servers tell clients why requests fail.

Not in kvferry.vllm, whose import brings in much of vLLM: the connector is imported when an engine asks for it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kvferry.engine.wrapping import wrap

if TYPE_CHECKING:
    from vllm.config import VllmConfig

NAME, MODULE = "KVFerryConnector", "kvferry.vllm"
CONNECTOR, MODULE_PATH, EXTRA, POLICY = (
    "kv_connector", "kv_connector_module_path", "kv_connector_extra_config", "kv_load_failure_policy")
HANDING_OVER = ("NixlConnector", "NixlPullConnector", "NixlPushConnector", "MooncakeConnector", "MoRIIOConnector")


def register() -> None:
    make_known()
    _wrap_executor()
    _wrap_configuration()


def make_known() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    with suppress(ValueError):  # it is known already: vLLM may call again
        KVConnectorFactory.register_connector(NAME, MODULE, NAME)


def _wrap_executor() -> None:
    """vLLM tells connectors of a model only when it is loaded: its executor is made before."""
    from vllm.v1.executor.abstract import Executor

    def make_and_read(make: Any, executor: Any, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        _begin_to_read(vllm_config)
        make(executor, vllm_config, *args, **kwargs)

    if not hasattr(Executor.__init__, "of_kvferry"):
        Executor.__init__ = wrap(Executor.__init__, make_and_read)  # type: ignore[method-assign]


def _wrap_configuration() -> None:
    """An API server makes its engine's configuration, and then its application."""
    from vllm.engine.arg_utils import EngineArgs

    def make_and_add(make: Any, args: Any, *more: Any, **named: Any) -> VllmConfig:
        made: VllmConfig = make(args, *more, **named)
        if own_config(made.kv_transfer_config) is not None:
            from kvferry.vllm import KVErrors, seam

            seam.add_to_api_server(KVErrors)
        return made

    if not hasattr(EngineArgs.create_engine_config, "of_kvferry"):
        EngineArgs.create_engine_config = wrap(EngineArgs.create_engine_config, make_and_add)  # type: ignore[method-assign]


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
        raise ValueError(f"kvferry cannot be beside {', '.join(others) or 'kvferry'} in a MultiConnector: both would answer "
                         "with tickets, in the same fields of kv_transfer_params")
    return own[0] if own else None


def _is_own(config: dict[str, Any]) -> bool:
    return config.get(CONNECTOR) == NAME or str(config.get(MODULE_PATH)).split(".")[0] == "kvferry"


def _begin_to_read(vllm_config: VllmConfig) -> None:
    own = own_config(vllm_config.kv_transfer_config)
    if own is not None:
        from kvferry.vllm import log_as_vllm
        from kvferry.vllm.config import check_engine
        from kvferry.vllm.weights import begin_beside_load

        log_as_vllm()
        options = own.get(EXTRA) or {}
        check_engine(vllm_config, options)
        with suppress(ValueError):  # the connector says it, once
            begin_beside_load(vllm_config, options)
