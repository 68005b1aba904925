"""kvferry's connector for vLLM.

    --kv-transfer-config '{"kv_connector": "KVFerryConnector", "kv_connector_module_path": "kvferry.vllm",
                           "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
                           "kv_connector_extra_config": {"lease_ttl_ms": 30000}}'

Every decision is made in the C library; these modules translate between its words and vLLM's.
"""

from .connector import KVFerryConnector

__all__ = ["KVFerryConnector"]
