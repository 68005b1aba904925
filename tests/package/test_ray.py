"""Ray's own factory with kvferry's backend: what a replica is set up with, and what P and D are asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = pytest.mark.deep

REPLICA = """
import json, os, sys
sys.path.append({ray!r})  # last: the rest is .venv's
import kvferry.ray
kvferry.ray.register(); kvferry.ray.register()
import ray
from ray.llm._internal.serve.engines.vllm.kv_transfer.factory import KVConnectorBackendFactory
from types import SimpleNamespace
ray.util.get_node_ip_address = lambda: "10.1.2.3"
class Request(SimpleNamespace):
    def model_copy(self, deep): return Request(**vars(self))
config = SimpleNamespace(engine_kwargs={{"kv_transfer_config": {{"kv_connector": "KVFerryConnector"}}}})
backend = KVConnectorBackendFactory.create_backend("KVFerryConnector", config)
backend.setup()
asked = backend.prepare_prefill_request(request=Request(max_tokens=9, stream=True), peer=None)
answer = SimpleNamespace(kv_transfer_params={{"kvferry_ticket": "T"}})
handed = backend.prepare_decode_request(request=Request(max_tokens=9), peer=None, prefill_response=answer)
json.dump({{"class": type(backend).__module__, "host": os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"], "P": vars(asked), "D": vars(handed),
           "config": config.engine_kwargs["kv_transfer_config"]}}, sys.stdout)
"""


def replica(**more: str) -> dict[str, object]:
    done = subprocess.run([sys.executable, "-c", REPLICA.format(ray=str(ROOT / ".cache/ray"))], capture_output=True, text=True,
                          timeout=120, env={name: value for name, value in os.environ.items() if "NIXL" not in name} | more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_replica_listens_at_its_node_s_address() -> None:
    got = replica()
    assert got["class"] == "kvferry.ray", "not Ray's default, which says so in a warning"
    assert got["host"] == "10.1.2.3"
    assert got["config"] == {"kv_connector": "KVFerryConnector"}


def test_an_address_that_is_set_stays() -> None:
    assert replica(VLLM_NIXL_SIDE_CHANNEL_HOST="10.9.9.9")["host"] == "10.9.9.9"


def test_p_is_asked_for_a_ticket_and_d_is_handed_it() -> None:
    got = replica()
    null = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
            "remote_host": None, "remote_port": None}
    assert got["P"] == {"max_tokens": 1, "stream": False, "kv_transfer_params": null}
    assert got["D"] == {"max_tokens": 9, "kv_transfer_params": {"kvferry_ticket": "T"}}
