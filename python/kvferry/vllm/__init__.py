"""kvferry's connector for vLLM.

    --kv-transfer-config '{"kv_connector": "KVFerryConnector", "kv_role": "kv_both",
                           "kv_load_failure_policy": "recompute",
                           "kv_connector_extra_config": {"lease_ttl_ms": 30000}}'

Where vLLM's plugins are switched off it needs "kv_connector_module_path": "kvferry.vllm", too, and, for errors that tell clients
why and when to retry, `--middleware kvferry.vllm.KVErrors`.

Every decision is made in the C library; kvferry.engine holds what any engine needs, and these modules translate between
its words and vLLM's. seam.py holds what vLLM does not promise to keep, and contract.py checks that it is still there. Where
which module runs, and who owns what: python/kvferry/README.md.

A class is imported when it is asked for: `kvferry check` reads the contract of a vLLM in which the connector cannot be
imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .connector import KVFerryConnector
    from .middleware import KVErrors

__all__ = ["KVErrors", "KVFerryConnector"]


def __getattr__(name: str) -> Any:
    if name == "KVErrors":
        from .middleware import KVErrors
        return KVErrors
    if name == "KVFerryConnector":
        return _connector()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def log_as_vllm() -> None:
    """vLLM's logger formats and shows what ours says. Before its first line: a logger remembers which levels it leaves out."""
    from vllm.logger import init_logger

    from kvferry.engine import log

    log.logger.parent = init_logger("vllm.kvferry")


def _connector() -> type[KVFerryConnector]:
    """VersionError, before an import fails: vLLM is too old."""
    from vllm import __version__

    from kvferry.vllm_entry import make_known

    from . import versions

    log_as_vllm()
    versions.check(__version__)
    make_known()  # vLLM's MultiConnector finds its children's statistics by name, also where plugins are switched off
    from .connector import KVFerryConnector
    return KVFerryConnector
