"""From vLLM's configuration to a node's options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.platforms import current_platform

from kvferry import Error, Node

from .identity import identity_fields
from .layout import check_groups, slides
from .weights import WEIGHTS_ID, Weights, weights_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

EXTRA = "kv_connector_extra_config"
OF_ENGINE = ("rank", "ranks", "block_tokens", "keep_prefix")
"""Options that follow from the engine's own configuration."""
ERROR_STATUS = "error_status"
"""The HTTP status of a request that has failed."""
CARRY_DRAFTS = "carry_drafts"
"""Whether the KV of draft models is carried."""
LOADS_IN_FLIGHT, LOAD_BYTES_IN_FLIGHT = "loads_in_flight", "load_bytes_in_flight"
"""How many loads, and how many bytes a rank, may be under way: other requests wait in vLLM's queue."""
LOADS_IN_FLIGHT_DEFAULT = 256
LEASE_WAIT = "lease_wait_ms"
"""How long a prompt waits for its lease before it is computed."""
OF_CONNECTOR = (ERROR_STATUS, WEIGHTS_ID, CARRY_DRAFTS, LOADS_IN_FLIGHT, LOAD_BYTES_IN_FLIGHT, LEASE_WAIT)
"""Options that are not the library's."""


class ConfigError(ValueError):
    """An engine that cannot be started like this; the text says what to change."""


def option_text(value: Any) -> str:
    """An option's value, as the library takes it, from one of JSON's."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    return str(value)


def _given_options(vllm_config: VllmConfig) -> dict[str, str]:
    transfer = vllm_config.kv_transfer_config
    options = {"policy": transfer.kv_load_failure_policy}
    for name, value in transfer.kv_connector_extra_config.items():
        if name in OF_ENGINE:
            raise ConfigError(f"{EXTRA}: {name} follows from the engine's configuration and cannot be set")
        if name not in OF_CONNECTOR:
            options[name] = option_text(value)
    return options


def check_engine(vllm_config: VllmConfig) -> None:
    """What can be told before a model is loaded."""
    if not current_platform.is_cpu():
        raise ConfigError(f"kvferry carries KV in host memory, and this engine's is on {current_platform.device_type}; vLLM's "
                          "host buffers (kv_buffer_device) are not used either")
    model = vllm_config.model_config
    for flag, what in (("use_mla", "MLA"), ("is_hybrid", "state-space"), ("is_attention_free", "state-space")):
        if getattr(model, flag):
            raise ConfigError(f"kvferry does not carry the state of {what} layers")
    parallel = vllm_config.parallel_config
    for name in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name) > 1:
            raise ConfigError(f"kvferry supports tensor and data parallel engines, not {name}")
    if vllm_config.model_config.get_total_num_kv_heads() < parallel.tensor_parallel_size:
        raise ConfigError("kvferry needs tensor_parallel_size to be at most the model's number of KV heads")


def _address_of_rank(address: str, index: int) -> str:
    """Ranks of one host cannot share a port: with a fixed one, the i-th takes the i-th after it."""
    host, separator, port = address.rpartition(":")
    named = separator and port.isdigit() and (":" not in host or host.endswith("]"))
    return f"{host}:{int(port) + index}" if named and int(port) > 0 else address


def _open(options: dict[str, str], vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> Node:
    check_engine(vllm_config)
    options["ranks"] = str(vllm_config.parallel_config.tensor_parallel_size)
    options["block_tokens"] = str(check_groups(kv_cache_config))
    options["keep_prefix"] = "off" if any(map(slides, kv_cache_config.transfer_groups)) else "on"
    try:
        return Node(options, identity_fields(vllm_config, kv_cache_config))
    except Error as error:
        raise ConfigError(f"{EXTRA}: {error}") from error


def open_control_node(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> Node:
    """The scheduler's node. It takes no connections."""
    options = _given_options(vllm_config)
    options["listen"] = ""
    return _open(options, vllm_config, kv_cache_config)


def open_rank_node(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, rank: int) -> Node:
    """The node of one worker."""
    options = _given_options(vllm_config)
    parallel = vllm_config.parallel_config
    index = (parallel.data_parallel_rank_local or 0) * parallel.tensor_parallel_size + rank
    for name in {"listen", "advertise"} & options.keys():
        options[name] = _address_of_rank(options[name], index)
    options["rank"] = str(rank)
    return _open(options, vllm_config, kv_cache_config)


def carries_drafts(vllm_config: VllmConfig) -> bool:
    given = option_text(vllm_config.kv_transfer_config.kv_connector_extra_config.get(CARRY_DRAFTS, True))
    if given not in ("true", "false"):
        raise ConfigError(f'{EXTRA}: {CARRY_DRAFTS} = "{given}" is not allowed: it must be true or false')
    return given == "true"


def error_status_of(vllm_config: VllmConfig) -> int:
    """The HTTP status of a request that has failed."""
    given = option_text(vllm_config.kv_transfer_config.kv_connector_extra_config.get(ERROR_STATUS, 500))
    if given not in ("500", "503"):
        raise ConfigError(f'{EXTRA}: error_status = "{given}" is not allowed: it must be 500 or 503')
    return int(given)


def loaded_weights(vllm_config: VllmConfig) -> Weights:
    """The weights that vLLM has just loaded."""
    try:
        return weights_of(vllm_config, vllm_config.kv_transfer_config.kv_connector_extra_config.get(WEIGHTS_ID))
    except ValueError as error:
        raise ConfigError(f"{EXTRA}: {error}") from error


def _count_option(vllm_config: VllmConfig, name: str, default: int, least: int = 1) -> int:
    given = option_text(vllm_config.kv_transfer_config.kv_connector_extra_config.get(name, default))
    if not given.isascii() or not given.isdigit() or int(given) < least:
        raise ConfigError(f'{EXTRA}: {name} = "{given}" is not allowed: it must be a whole number, {least} or more')
    return int(given)


def lease_wait_s(vllm_config: VllmConfig) -> float:
    """How long a prompt waits for its lease."""
    return _count_option(vllm_config, LEASE_WAIT, 0, least=0) / 1000


def load_bounds(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> tuple[int, int]:
    """Most loads, and most tokens to be loaded, at a time. Without a bound on bytes the pool is one."""
    block_bytes = sum(group.kv_cache_spec.page_size_bytes * len(group.layer_names)
                      for group in kv_cache_config.transfer_groups)
    bytes_max = _count_option(vllm_config, LOAD_BYTES_IN_FLIGHT, kv_cache_config.num_blocks * block_bytes)
    return (_count_option(vllm_config, LOADS_IN_FLIGHT, LOADS_IN_FLIGHT_DEFAULT),
            bytes_max * check_groups(kv_cache_config) // block_bytes)
