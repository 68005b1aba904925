"""From TensorRT-LLM's arguments, and what a user has set for kvferry, to a node's options."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from kvferry.engine import config
from kvferry.engine.config import ConfigError, Options
from kvferry.engine.weights import WEIGHTS_ID, Weights

VARIABLE = "KVFERRY_TRTLLM"
"""JSON, or the path of a file with it: TensorRT-LLM has no place for a connector's own options."""

ROLE, LOADING, STAGING_BYTES, STAGED_TTL, HOLD, MAILBOX = (
    "role", "loading", "staging_bytes", "staged_ttl_ms", "hold_ms", "mailbox")
PREFILL, DECODE = "prefill", "decode"
STAGED, REWIND = "staged", "rewind"
OF_CONNECTOR = (ROLE, LOADING, STAGING_BYTES, STAGED_TTL, HOLD, MAILBOX, WEIGHTS_ID)

STAGING_BYTES_DEFAULT = 4 << 30
STAGED_TTL_MS_DEFAULT = 10_000
HOLD_MS_DEFAULT = 2_000

Settings = dict[str, Any]


def read_settings() -> Settings:
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        raise ConfigError(f'{VARIABLE} is not set: give it JSON, as {{"{ROLE}": "{PREFILL}"}}, or the path of a file with it')
    try:
        settings = json.loads(given if given.startswith("{") else Path(given).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{VARIABLE}: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{VARIABLE}: not an object of names and values")
    return settings


class Config:
    """Of one engine, the same on all of its ranks."""

    def __init__(self, llm_args: Any, settings: Settings | None = None) -> None:
        self.args = llm_args
        self.settings = read_settings() if settings is None else settings
        self._options = Options(self.settings, VARIABLE)
        if ROLE not in self.settings:
            raise ConfigError(f'{VARIABLE}: say which engine this is: "{ROLE}" is "{PREFILL}" or "{DECODE}"')
        self.is_prefill = self._options.choice(ROLE, PREFILL, DECODE) == PREFILL
        self._rewinds = self._options.choice(LOADING, STAGED, REWIND) == REWIND
        self.staging_bytes = self._options.count(STAGING_BYTES, STAGING_BYTES_DEFAULT)
        self.staged_ttl_s = self._options.count(STAGED_TTL, STAGED_TTL_MS_DEFAULT) / 1000
        self.hold_ms = self.hold_ms_of(self.settings)
        self.mailbox = self.mailbox_of(self.settings)
        try:
            Weights(list, self.settings.get(WEIGHTS_ID))
        except ValueError as error:
            raise ConfigError(f"{VARIABLE}: {error}") from error
        check_engine(llm_args)

    @property
    def loads_into_blocks(self) -> bool:
        return self._rewinds and not self.is_prefill

    @property
    def is_v2(self) -> bool:
        return getattr(self.args.kv_cache_config, "use_kv_cache_manager_v2", False) is True

    @property
    def ranks(self) -> int:
        return int(self.args.tensor_parallel_size)

    @property
    def block_tokens(self) -> int:
        return int(self.args.kv_cache_config.tokens_per_block)

    @staticmethod
    def mailbox_of(settings: Settings) -> str:
        """The path of its socket."""
        return str(settings.get(MAILBOX) or default_mailbox())

    @staticmethod
    def hold_ms_of(settings: Settings) -> int:
        return Options(settings, VARIABLE).count(HOLD, HOLD_MS_DEFAULT, least=0)

    def library_options(self) -> dict[str, str]:
        """Of the control node, and with rank_options() of a rank's."""
        if self.settings.get("policy", "recompute") != "recompute":
            raise ConfigError(f'{VARIABLE}: policy = "{self.settings["policy"]}" is not allowed: TensorRT-LLM has no way to '
                              "end a request for a connector; what cannot be loaded is computed")
        return {"policy": "recompute"} | self._options.of_library(OF_CONNECTOR) | {
            "ranks": str(self.ranks), "block_tokens": str(self.block_tokens)}

    def open_node(self, identity: dict[str, str], rank: int | None = None) -> Any:
        options = self.library_options() | ({} if rank is None else {"rank": str(rank)})
        return config.open_node(options, identity, VARIABLE, rank)


def default_mailbox() -> str:
    """Of a user's only decode engine on this host."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return os.path.join(base, f"kvferry-{os.geteuid()}", "mailbox")


def check_engine(args: Any) -> None:
    """What can be told before a model is loaded."""
    for name in ("pipeline_parallel_size", "context_parallel_size", "max_beam_width"):
        if (getattr(args, name, 1) or 1) > 1:
            raise ConfigError(f"kvferry supports tensor parallel engines without {name} above 1")
    if getattr(args, "enable_attention_dp", False):
        raise ConfigError("kvferry does not support enable_attention_dp")
    if getattr(args, "speculative_config", None) is not None:
        raise ConfigError("kvferry does not carry the KV of draft models: leave speculative_config out")
    cache = args.kv_cache_config
    if getattr(cache, "host_cache_size", None):
        raise ConfigError("kvferry needs all blocks in the GPU's pool: leave kv_cache_config.host_cache_size out")
    if "fp4" in str(getattr(cache, "dtype", "")).lower():
        raise ConfigError(f"kvferry does not carry KV of type {cache.dtype}: its scales lie elsewhere")
    if getattr(cache, "enable_partial_reuse", False):
        raise ConfigError("kvferry offers whole blocks: set kv_cache_config.enable_partial_reuse to False")
    if getattr(cache, "max_attention_window", None):
        raise ConfigError("kvferry does not carry sliding windows on TensorRT-LLM: leave kv_cache_config.max_attention_window out")
