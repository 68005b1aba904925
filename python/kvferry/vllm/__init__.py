"""kvferry's connector for vLLM.

    --kv-transfer-config '{"kv_connector": "KVFerryConnector", "kv_role": "kv_both",
                           "kv_load_failure_policy": "recompute",
                           "kv_connector_extra_config": {"lease_ttl_ms": 30000}}'

(with "kv_connector_module_path": "kvferry.vllm" where vLLM's plugins are switched off)

and, for errors that tell clients why and when to retry: `--middleware kvferry.vllm.KVErrors`.

Every decision is made in the C library; kvferry.engine holds what any engine needs, and these modules translate between
its words and vLLM's.
"""

from vllm.logger import init_logger

from kvferry.engine import log
from kvferry.vllm_plugin import make_known

from .connector import KVFerryConnector
from .middleware import KVErrors

log.logger.parent = init_logger("vllm.kvferry")  # which formats and shows what it says
make_known()  # vLLM's MultiConnector finds its children's statistics by name, also where plugins are switched off

__all__ = ["KVErrors", "KVFerryConnector"]
