"""From vLLM's configuration to a node's options."""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm import envs
from vllm.platforms import current_platform

from kvferry import Node
from kvferry.engine import config
from kvferry.engine.config import ConfigError, Options, option_text
from kvferry.engine.consumer import InFlight
from kvferry.engine.drain import GRACE_MS, GRACE_MS_MAX
from kvferry.engine.weights import READ, TRUST, WEIGHTS_DIGEST, WEIGHTS_ID
from kvferry.key import read_keys
from kvferry.metric_table import PREFIX, VLLM_PREFIX
from kvferry.vllm_entry import CONNECTOR, EXTRA, POLICY, own_config

from . import seam
from .content.identity import identity_fields
from .content.updates import KEEPING
from .content.weights import Weights, weights_of
from .groups import LONGEST_PROMPT, Groups
from .layout import SCATTERED
from .split import ranks_of

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

ERROR_STATUS = "error_status"  # the HTTP status of a request that has failed
CARRY_DRAFTS = "carry_drafts"  # whether the KV of draft models is carried
LOADS_IN_FLIGHT, LOAD_BYTES_IN_FLIGHT = "loads_in_flight", "load_bytes_in_flight"
"""How many loads, and how many bytes a rank, may be under way: other requests wait in vLLM's queue."""
LOADS_IN_FLIGHT_DEFAULT = 256
LEASE_WAIT = "lease_wait_ms"  # how long a prompt waits for its lease before it is computed
UNTESTED = "untested_vllm"  # whether a vLLM that kvferry is not tested with may lack a feature
DRAIN_GRACE = "drain_grace_ms"  # how long an engine that leaves takes new prompts
METRICS_PREFIX = "metrics_prefix"  # what the names of metrics begin with
OF_CONNECTOR = (ERROR_STATUS, WEIGHTS_ID, WEIGHTS_DIGEST, CARRY_DRAFTS, LOADS_IN_FLIGHT, LOAD_BYTES_IN_FLIGHT, LEASE_WAIT, UNTESTED,
                KEEPING, DRAIN_GRACE, METRICS_PREFIX)
"""Options that are not the library's."""
_ERROR = "its client gets an error, and behind vLLM's API server why and when to retry"
FAILED_LOAD = {
    "recompute": "the missing blocks are computed here, and its client waits longer; it gets an error only where "
                 'recompute_budget_tokens_per_s is spent, or a rank is lost. To have errors instead, set that to "fail".',
    "fail": f'{_ERROR}. To have the missing blocks computed here instead, set that to "recompute".',
    "auto": f"at most auto_max_recompute_tokens tokens are computed here; where more are missing, {_ERROR}. "
            'To have all computed, or none, set that to "recompute" or "fail".',
}
"""By policy: its effect, and its change."""


class Policy(NamedTuple):
    name: str
    setting: str  # the one that rules

    def line(self) -> str:
        return f"kvferry: policy {self.name}, from {self.setting}: if a request's load fails, {FAILED_LOAD[self.name]}"


def policy_of(transfer: Any) -> Policy | None:
    """None: kvferry is not there. `transfer` is the engine's: in a MultiConnector kvferry itself is given vLLM's default where
    its entry names no policy."""
    own = own_config(transfer)
    if own is None:
        return None
    extra = own.get(EXTRA) or {}
    if "policy" in extra:
        return Policy(option_text(extra["policy"]), "kvferry's option policy")
    if own.get(CONNECTOR) == transfer.kv_connector:
        return Policy(own[POLICY], f"vLLM's {POLICY} (default: fail)")
    if POLICY in own:
        return Policy(own[POLICY], f"{POLICY} of kvferry's entry in the MultiConnector")
    return Policy(transfer.kv_load_failure_policy, f"the MultiConnector's {POLICY} (default: fail)")


def options_given(vllm_config: VllmConfig) -> Options:
    return Options(vllm_config.kv_transfer_config.kv_connector_extra_config, EXTRA)


def transports_by_buffers(vllm_config: VllmConfig) -> dict[str, str]:
    """What vLLM's kv_buffer_device says of the library's options: through host memory, blocks of a GPU go by tcp."""
    transfer = vllm_config.kv_transfer_config
    if not current_platform.is_cuda() or transfer.kv_buffer_device != "cpu":
        return {}
    for name in ("transports", "require"):
        given = option_text(transfer.kv_connector_extra_config.get(name, "tcp"))
        if given not in ("tcp", ""):
            raise ConfigError(f'kv_buffer_device = "cpu" works over tcp alone, not {name} = "{given}" ({EXTRA}): make it "tcp", '
                              "or leave kv_buffer_device out")
    return {"transports": "tcp"}


def check_start(vllm_config: VllmConfig) -> list[str]:
    """check_engine(), of the connector's own configuration."""
    return check_engine(vllm_config, vllm_config.kv_transfer_config.kv_connector_extra_config)


def serves_tcp(transfer: KVTransferConfig) -> bool:
    transports = option_text(transfer.kv_connector_extra_config.get("transports", "tcp"))
    return "tcp" in (name.strip() for name in transports.split(","))


def check_engine(vllm_config: VllmConfig, given: dict[str, Any]) -> list[str]:
    """What can be told before a model is loaded, with these options of the connector: the features of vLLM that are off.
    ConfigError, ContractError, VersionError: the engine must not start."""
    allows_untested = Options(given, EXTRA).choice(UNTESTED, "refuse", "allow") == "allow"
    features_off = seam.check_start(vllm_config, allows_untested)
    if not (current_platform.is_cpu() or current_platform.is_cuda()):
        raise ConfigError(f"kvferry carries KV in host memory or on NVIDIA GPUs, not on {current_platform.device_name}; "
                          "kv_buffer_device does not help")
    transports_by_buffers(vllm_config)
    prefix_of(given)
    if envs.VLLM_KV_CACHE_LAYOUT in SCATTERED:
        raise ConfigError(f"kvferry needs blocks in one piece, and VLLM_KV_CACHE_LAYOUT={envs.VLLM_KV_CACHE_LAYOUT} scatters "
                          "them by heads: leave it unset, or take BLHNC")
    parallel = vllm_config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name) > 1:
            raise ConfigError(f"kvferry does not support {name} above 1")
    if seam.returns_routed_experts(vllm_config):
        raise ConfigError("kvferry does not carry routed experts: leave out --enable-return-routed-experts")
    return features_off


def check_options(vllm_config: VllmConfig, given: dict[str, Any]) -> None:
    """What can be told of the connector's options before a model is loaded: names, values, the key file, and the ports of ranks on this
    host. ConfigError: the engine must not start."""
    own = copy.copy(vllm_config)
    own.kv_transfer_config = copy.copy(vllm_config.kv_transfer_config)
    own.kv_transfer_config.kv_connector_extra_config = given
    options = node_options(own)
    for look in (error_status_of, carries_drafts, has_checksums, lease_wait_s, harmless_rpcs, drain_grace_ms, loads_in_flight, weights_digest):
        look(own)
    config.check_options(options, EXTRA)
    parallel = vllm_config.parallel_config
    if getattr(parallel, "nnodes", 1) > 1 or getattr(parallel, "distributed_executor_backend", None) == "ray":
        return  # ranks are on other hosts
    without = WITHOUT_UCX if "ucx" in options.get("transports", "") else QUIET
    for rank in range(ranks_of(vllm_config)):
        config.open_node(options | without, {}, EXTRA, index_of(vllm_config, rank)).close()


QUIET = {"peers": "", "log_level": "error"}
WITHOUT_UCX = QUIET | {"transports": "tcp", "require": ""}
"""Of a node that only tries its place: workers may yet be forked, which UCX does not bear."""


def node_options(vllm_config: VllmConfig) -> dict[str, str]:
    options = {"policy": vllm_config.kv_transfer_config.kv_load_failure_policy} | transports_by_buffers(vllm_config)
    return options | options_given(vllm_config).of_library(OF_CONNECTOR)


def index_of(vllm_config: VllmConfig, rank: int) -> int:
    """Of the rank on its host."""
    return (vllm_config.parallel_config.data_parallel_rank_local or 0) * ranks_of(vllm_config) + rank


def open_node(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, rank: int | None = None) -> Node:
    """The node of one worker, or the scheduler's."""
    options = node_options(vllm_config) | {"ranks": str(ranks_of(vllm_config))} | Groups(kv_cache_config).options()
    index = None
    if rank is not None:
        options["rank"] = str(rank)
        index = index_of(vllm_config, rank)
    return config.open_node(options, identity_fields(vllm_config, kv_cache_config), EXTRA, index)


def has_checksums(vllm_config: VllmConfig) -> bool:
    return options_given(vllm_config).switch("checksum", False)


def carries_drafts(vllm_config: VllmConfig) -> bool:
    return options_given(vllm_config).switch(CARRY_DRAFTS, True)


def error_status_of(vllm_config: VllmConfig) -> int:
    return int(options_given(vllm_config).choice(ERROR_STATUS, "500", "503"))


def prefix_of(given: dict[str, Any]) -> str:
    """What the names of metrics begin with. Dynamo's worker shows only those of vLLM: it is known by its package, which the
    process was started as."""
    prefixes = (VLLM_PREFIX, PREFIX) if "dynamo.vllm" in sys.modules else (PREFIX, VLLM_PREFIX)
    return Options(given, EXTRA).choice(METRICS_PREFIX, *prefixes)


def pinned_per_block(kv_cache_config: KVCacheConfig) -> dict[str, float]:
    """What a block under lease takes of the pool; a state stands for no number of tokens."""
    groups = Groups(kv_cache_config)
    block_bytes = groups.block_bytes()
    tokens = 0.0 if groups.block_tokens == LONGEST_PROMPT else block_bytes / groups.bytes_per_token()
    return {"pinned_bytes": block_bytes, "pinned_tokens": tokens}


def loaded_weights(vllm_config: VllmConfig) -> Weights:
    """The weights that vLLM has just loaded."""
    weights_digest(vllm_config)
    try:
        return weights_of(vllm_config, vllm_config.kv_transfer_config.kv_connector_extra_config)
    except ValueError as error:
        raise ConfigError(f"{EXTRA}: {error}") from error


def weights_digest(vllm_config: VllmConfig) -> str:
    return options_given(vllm_config).choice(WEIGHTS_DIGEST, READ, TRUST)


def harmless_rpcs(vllm_config: VllmConfig) -> set[str]:
    """Names of calls that a user knows to leave the weights alone."""
    return options_given(vllm_config).names(KEEPING)


def lease_wait_s(vllm_config: VllmConfig) -> float:
    return options_given(vllm_config).count(LEASE_WAIT, 0, least=0) / 1000


def drain_grace_ms(vllm_config: VllmConfig) -> int:
    return options_given(vllm_config).count(DRAIN_GRACE, GRACE_MS, least=0, most=GRACE_MS_MAX)


def keys_of(vllm_config: VllmConfig) -> list[bytes]:
    """Those that the node has taken; none: it has none."""
    file = options_given(vllm_config).of_library(OF_CONNECTOR).get("key_file") or os.environ.get("KVFERRY_KEY_FILE")
    return read_keys(Path(file)) if file else []


def loads_in_flight(vllm_config: VllmConfig, bytes_default: int = 1) -> tuple[int, int]:
    """Loads, and bytes a rank."""
    options = options_given(vllm_config)
    return options.count(LOADS_IN_FLIGHT, LOADS_IN_FLIGHT_DEFAULT), options.count(LOAD_BYTES_IN_FLIGHT, bytes_default)


def in_flight(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> InFlight:
    """Without a bound on bytes the pool is one."""
    block_bytes = sum(group.kv_cache_spec.page_size_bytes * len(group.layer_names)
                      for group in kv_cache_config.transfer_groups)
    loads_max, bytes_max = loads_in_flight(vllm_config, kv_cache_config.num_blocks * block_bytes)
    return InFlight(loads_max, int(bytes_max / Groups(kv_cache_config).bytes_per_token()))
