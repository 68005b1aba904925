"""The connectors that an engine can be started with: ours, and the one that vLLM ships."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .paths import DEV, FAKE_CUDA, KEY, PLANTED


POLICY = "kv_load_failure_policy"
RAISING = "KVFERRY_TEST_RAISING"
"""The environment variable that raising.py reads."""
LOOPBACK = "127.0.0.1"
"""Where engines of tests stay, which have a key."""


@dataclass(frozen=True)
class Connector:
    """How an engine is told about its connector: a JSON configuration and environment variables."""

    name: str
    config: dict[str, Any]
    env: dict[str, str] = field(default_factory=dict)
    siblings: tuple[dict[str, Any], ...] = ()
    """Other connectors beside it, in vLLM's MultiConnector."""
    comes_first: bool = True

    def among(self, *siblings: dict[str, Any], first: bool = True) -> Connector:
        return replace(self.with_these_tools(), siblings=siblings, comes_first=first)

    def with_these_tools(self) -> Connector:
        """In the engine's process."""
        path = os.pathsep.join([str(DEV), *filter(None, [self.env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))])])
        return replace(self, env={**self.env, "PYTHONPATH": path})

    def with_rank_calls(self, *names: str) -> Connector:
        """Calls of the ranks by a worker extension of these tools, which leave the weights alone."""
        return self.with_these_tools().with_options(rpcs_that_keep_weights=list(names))

    def on_fake_gpu(self) -> Connector:
        """The engine's pool passes for a GPU's (adopt.py)."""
        tools = self.with_options(cuda_library=str(FAKE_CUDA)).with_these_tools()
        return replace(tools, config={**tools.config, "kv_connector_module_path": "pd.adopt"})

    def raising_in(self, folder: Path) -> Connector:
        """Its hooks raise as files in the folder say (raising.py)."""
        tools = self.with_these_tools()
        return replace(tools, config={**tools.config, "kv_connector_module_path": "pd.raising"},
                       env={**tools.env, RAISING: str(folder)})

    def with_options(self, **options: Any) -> Connector:
        extra = {**self.config.get("kv_connector_extra_config", {}), **options}
        return replace(self, config={**self.config, "kv_connector_extra_config": extra})

    def with_policy(self, policy: str) -> Connector:
        return replace(self, config={**self.config, POLICY: policy})

    def with_mutant(self, name: str) -> Connector:
        """With the package that has this planted bug."""
        return replace(self, env={**self.env, "PYTHONPATH": str(PLANTED / name)})

    def without_plugins(self) -> Connector:
        """Found by its module's path alone."""
        return replace(self, config={**self.config, "kv_connector_module_path": "kvferry.vllm"},
                       env={**self.env, "VLLM_PLUGINS": ""})

    def as_nixl(self) -> Connector:
        """Ours, under the name that some stacks insist on."""
        return replace(self, config={**self.config, "kv_connector": "NixlConnector", "kv_connector_module_path": "kvferry.nixl"})

    def at_port(self, port: int) -> Connector:
        """With a port of its own that stays the same when the engine is started anew; as it is, where it chooses its address."""
        if self.name == "kvferry":
            is_told = "listen" in self.config.get("kv_connector_extra_config", {})
            return self.with_options(listen=f"{LOOPBACK}:{port}") if is_told else self
        return replace(self, env={**self.env, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)})

    def as_json(self) -> str:
        if not self.siblings:
            return json.dumps(self.config)
        own = {name: value for name, value in self.config.items() if name != POLICY}
        children = [own, *self.siblings] if self.comes_first else [*self.siblings, own]
        return json.dumps({"kv_connector": "MultiConnector", "kv_role": "kv_both", POLICY: self.config[POLICY],
                           "kv_connector_extra_config": {"connectors": children}})


def make_key(path: Path) -> Path:
    """A shared key of 32 random bytes, as hexadecimal digits, readable by its owner alone."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32) + "\n")
    return path


QUICKSTART = Connector("kvferry", {"kv_connector": "KVFerryConnector", "kv_role": "kv_both", POLICY: "recompute"})
"""As README starts engines. It chooses its address itself."""


def kvferry(lease_s: float = 30.0, **options: Any) -> Connector:
    return QUICKSTART.with_options(lease_ttl_ms=int(lease_s * 1000), key_file=str(make_key(KEY)), **{"listen": LOOPBACK} | options)


def nixl(lease_s: float = 30.0, **options: Any) -> Connector:
    """NixlConnector keeps whole seconds."""
    base = Connector("nixl", {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_buffer_device": "cpu",
    })
    return base.with_options(kv_lease_duration=max(1, round(lease_s)), **options)


def offloading(delay_ms: int = 200, chunks_bytes: int = 64 << 20) -> dict[str, Any]:
    """A sibling: vLLM's OffloadingConnector with a cache in host memory that copies late."""
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "spec_name": "LateSpec", "spec_module_path": "pd.offload", "cpu_bytes_to_use": chunks_bytes, "delay_ms": delay_ms}}


def example(folder: Path) -> dict[str, Any]:
    """A sibling: vLLM's ExampleConnector, which loads and saves within a step. It knows one KV group only."""
    return {"kv_connector": "ExampleConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": str(folder)}}


def lmcache(port: int, mode: str) -> dict[str, Any]:
    """A sibling: LMCache's, with its server (LMCacheServer) at this port."""
    return {"kv_connector": "LMCacheMPConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port, "lmcache.mp.mp_transfer_mode": mode}}


CONNECTORS = {"kvferry": kvferry, "nixl": nixl}
