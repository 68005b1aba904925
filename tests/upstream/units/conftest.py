"""vLLM's unit tests of connectors: the factory gives KVFerryConnector for the name NixlConnector, and a model of this machine
stands in the place of the hub's. Run the folder: it has no tests of its own."""

from __future__ import annotations

import os
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
from pd.paths import FAST
from upstream import TREE

UNIT = "tests/v1/kv_connector/unit"
FILES = (
    f"{UNIT}/test_cache_pollution_prevention.py", f"{UNIT}/test_config.py", f"{UNIT}/test_error_propagation.py",
    f"{UNIT}/test_handshake_pp_aggregation.py", f"{UNIT}/test_hma_auto_config.py",
    f"{UNIT}/test_invalid_blocks_correctness.py", f"{UNIT}/test_kv_connector_lifecycle.py",
    f"{UNIT}/test_kv_load_failure_recovery.py", f"{UNIT}/test_multi_connector.py", f"{UNIT}/test_output_aggregator.py",
    f"{UNIT}/test_remote_decode_lifecycle.py", f"{UNIT}/test_remote_prefill_lifecycle.py",
    f"{UNIT}/test_scheduler_kv_connector_override.py", "tests/distributed/test_kvlayout.py",
    "tests/v1/core/test_deferred_block_free.py", "tests/v1/worker/test_gpu_kv_connector.py",
)
OF_THE_HUB = ("facebook/opt-125m", "Qwen/Qwen3-0.6B")


def pytest_configure(config: pytest.Config) -> None:
    substitute_connector()
    substitute_models()
    config.args += [str(TREE / file) for file in FILES]


def substitute_connector() -> None:
    from kvferry.vllm import KVFerryConnector
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    KVConnectorFactory._registry["NixlConnector"] = lambda: KVFerryConnector


def substitute_models() -> None:
    """No name is vLLM's default, a model of the hub."""
    from vllm.config import ModelConfig
    make = ModelConfig.__init__

    def init(self: ModelConfig, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("model") in OF_THE_HUB or (not args and "model" not in kwargs):
            kwargs["model"] = str(FAST)
        make(self, *args, **kwargs)
    ModelConfig.__init__ = init
