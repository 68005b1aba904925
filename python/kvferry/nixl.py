"""kvferry under the name that stacks know which accept no other:

    --kv-transfer-config '{"kv_connector": "NixlConnector", "kv_connector_module_path": "kvferry.nixl", "kv_role": "kv_both",
                           "kv_load_failure_policy": "recompute"}'

vLLM takes the class from this module and leaves its own connector of that name alone. What it ties to the name: docs/routers.md.
"""

from kvferry.vllm import KVFerryConnector as NixlConnector

__all__ = ["NixlConnector"]
