"""Which of vLLM's tests fail with kvferry and which cannot run, and why. A test that fails and is not named here fails
`./dev test --deep upstream`; so does one that is named under FAIL and passes.

Keys: FILE::TEST or FILE::CLASS::TEST, with [PARAMETERS] for one case alone.
"""

from __future__ import annotations

ITS_STATS = "it asserts NixlConnector's class. What it is about holds: a child's statistics come back as its own class"
NO_CORE = ("it drives a scheduler without an EngineCore, by which kvferry joins its ranks: no request gets a ticket, and all "
           "are computed. Its requests have NIXL's fields, and it asserts NIXL's order of steps")
STATES_WITH_DRAFTS = "states with speculative decoding are refused (docs/limits.md)"
STATES_AGAIN = ("the second time as many bytes come as the first: kvferry does not say supports_divergent_local_hybrid_hits, "
                "so that vLLM takes nothing of a prompt from D's own cache where it has no state (docs/vllm.md)")
STATS = "test_multi_connector.py::TestMultiConnectorStats::test_build_kv_connector_stats"

FAIL = {
    f"{STATS}_reconstructs_nixl_stats": ITS_STATS,
    f"{STATS}_with_multiple_connectors": ITS_STATS,
    f"{STATS}_skips_connectors_without_custom_stats": ITS_STATS,
    "test_remote_decode_lifecycle.py::test_basic_lifecycle": NO_CORE,
    "test_remote_decode_lifecycle.py::test_short_prompt_lifecycle": NO_CORE,
    "test_remote_decode_lifecycle.py::test_prefix_cache_lifecycle": NO_CORE,
    "test_remote_decode_lifecycle.py::test_abort_during_kv_transfer": NO_CORE,
    "test_remote_prefill_lifecycle.py::test_basic_lifecycle": NO_CORE,
    "test_remote_prefill_lifecycle.py::test_interleaved_lifecycle": NO_CORE,
    "test_remote_prefill_lifecycle.py::test_no_spurious_prefix_caching": NO_CORE,
    "test_remote_prefill_lifecycle.py::test_full_block_prompt": NO_CORE,
    "test_remote_prefill_lifecycle.py::test_cannot_schedule_after_recv": NO_CORE,
    "test_remote_prefill_lifecycle.py::test_cannot_recv": NO_CORE,
    "test_remote_prefill_lifecycle.py::test_kv_fetch_stages_cleared_on_abort": NO_CORE,
    "test_remote_prefill_lifecycle.py::test_p_side_chunked_prefill_mamba": NO_CORE,
    "test_remote_prefill_lifecycle.py::test_async_load_reserves_blocks_for_promotion_margin": NO_CORE,
    "test_remote_prefill_lifecycle.py::test_async_load_does_not_double_reserve_mamba_spec_blocks": STATES_WITH_DRAFTS,
    "test_states.py::test_mamba_prefix_cache_hit": STATES_AGAIN,
}
OF_THE_TEST = (AssertionError, KeyError, TypeError, ValueError)
"""What they fail with. An engine that does not start is no failure that was expected."""

CANNOT_RUN = {
    "test_multi_connector.py::test_multi_example_connector_consistency": "needs a model of the hub; kvferry is not in it",
    "test_alone.py::test_prefill_cpu_offload_after_gpu_eviction": "of the OffloadingConnector, which is in test_beside.py",
}

OWN = "of one connector's own parts"
FILES = {
    "*/test_accuracy.py": "needs gsm8k and a model of the hub",
    "*/test_accuracy_rocm.py": "needs gsm8k, a model of the hub and GPUs",
    "nixl_integration/test_spec_decode_acceptance.py": "needs Llama 3.1 with EAGLE-3 and MT-Bench",
    "nixl_integration/test_nixl_imports.py": OWN,
    "extract_hidden_states_integration/*": "kvferry refuses that method (docs/limits.md)",
    "mooncake_integration/*": OWN,
    "moriio_integration/*": OWN,
    "unit/offloading_connector/*": OWN,
    "unit/test_nixl_*": OWN,
    "unit/test_mooncake_*": OWN,
    "unit/test_moriio_*": OWN,
    "unit/test_hf3fs_*": OWN,
    "unit/test_umbp_*": OWN,
    "unit/test_flexkv_*": OWN,
    "unit/test_lmcache_*": OWN,
    "unit/test_hisparse_*": OWN,
    "unit/test_decode_bench_connector.py": OWN,
    "unit/test_example_connector.py": OWN,
    "unit/test_hidden_states_connector.py": OWN,
    "unit/test_offloading_connector.py": OWN,
    "unit/test_simple_cpu_offload_*": OWN,
    "unit/test_bidirectional_kv_transfer.py": OWN + " (`bidirectional_kv_xfer`, docs/limits.md)",
    "unit/test_tp_mapping.py": OWN,
    "unit/test_transfer_topology_sharded.py": OWN,
}
"""Files of tests/v1/kv_connector that are not run. A file that is neither here nor run fails, too."""


def reason_in(table: dict[str, str], test: str) -> str | None:
    """With the parameters of the test or without."""
    return table.get(test) or table.get(test.partition("[")[0])
