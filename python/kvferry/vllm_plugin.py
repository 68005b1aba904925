"""vLLM calls this in each of its processes (entry point group vllm.general_plugins). It makes the connector known by name.
An engine with it reads its weights' files beside vLLM, and its API servers tell clients why requests fail.

Not in kvferry.vllm, whose import brings in much of vLLM: the connector is imported when an engine asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvferry.engine.wrapping import wrap
from kvferry.vllm_entry import EXTRA, make_known, own_config

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def register() -> None:
    make_known()
    _wrap_executor()
    _wrap_configuration()


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


def _begin_to_read(vllm_config: VllmConfig) -> None:
    own = own_config(vllm_config.kv_transfer_config)
    if own is not None:
        from kvferry.vllm import log_as_vllm
        from kvferry.engine.config import ConfigError
        from kvferry.vllm.config import check_engine, check_options
        from kvferry.vllm.content.weights import begin_beside_load

        log_as_vllm()
        options = own.get(EXTRA) or {}
        check_engine(vllm_config, options)
        check_options(vllm_config, options)
        try:
            begin_beside_load(vllm_config, options)
        except ValueError as error:
            raise ConfigError(f"{EXTRA}: {error}") from None
