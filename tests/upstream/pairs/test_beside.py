"""KVFerryConnector beside vLLM's OffloadingConnector in a MultiConnector, behind toy_proxy_server.py."""

from __future__ import annotations

from pd.connector import kvferry, offloading
from upstream import INTEGRATION, take_tests

from pair import Pair

CHUNKS_BYTES = 256 << 20
"""More than the prompts have that shall push one out of P's own pool."""
PAIR = Pair("upstream-beside", kvferry().among(offloading(chunks_bytes=CHUNKS_BYTES)), INTEGRATION / "toy_proxy_server.py")
globals().update(take_tests("test_edge_cases", PAIR.env))
globals().update(take_tests("test_multi_connector_edge_cases", PAIR.env))
