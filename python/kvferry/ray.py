"""Ray Serve LLM's backend for KVFerryConnector: each replica listens at the address of its Ray node.

Call register() in the driver, before the application is built. Without it Ray uses its default backend, with a warning: then
an engine with a key listens at the address of its default route (docs/security.md)."""

from __future__ import annotations

import os

import ray
from ray.llm._internal.serve.engines.vllm.kv_transfer.base import DefaultConnectorBackend
from ray.llm._internal.serve.engines.vllm.kv_transfer.factory import KVConnectorBackendFactory

NAME = "KVFerryConnector"


class KVFerryConnectorBackend(DefaultConnectorBackend):  # type: ignore[misc]
    """What is asked of P and of D is Ray's default: P gets the null dictionary, D what P has answered."""

    def setup(self) -> None:
        os.environ.setdefault("VLLM_NIXL_SIDE_CHANNEL_HOST", ray.util.get_node_ip_address())


def register() -> None:
    """For all processes of the cluster. To call it again is harmless."""
    if not KVConnectorBackendFactory.is_registered(NAME):
        KVConnectorBackendFactory.register_backend(NAME, f"{__name__}:{KVFerryConnectorBackend.__name__}")
