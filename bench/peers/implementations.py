"""Who is compared."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .pair import Implementation

THREADS = 2  # as kvferry's options copy_threads and tcp_streams have by default
HERE = Path(__file__).resolve().parent
# Over TCP on this host, as kvferry's transport ucx chooses where the node listens on loopback.
UCX_TCP = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
# And what it sets itself (docs/ucx.md), for plain UCX to have the same.
UCX_AS_OURS = {**UCX_TCP, "UCX_TCP_TX_SEG_SIZE": "62k", "UCX_TCP_MAX_POLL": "1"}
QUIET = {"UCX_LOG_LEVEL": "error", "NIXL_LOG_LEVEL": "ERROR", "MC_LOG_LEVEL": "ERROR", "GLOG_minloglevel": "2"}
STEPS = ("step-0", "step-100", "step-1000")


def make_key(folder: Path) -> str:
    """The option of kvferry's that is a key's file."""
    file = folder / "key"
    file.touch(0o600)
    file.write_text("0123456789abcdef" * 4 + "\n")
    return f"key_file={file}"


def kvferry(build: Path, ucx_library: str, key: str) -> list[Implementation]:
    """In each of its ways; of a folder with the drivers. TLS is another variant of the path tcp."""

    def one(path: str, *options: str, environment: dict[str, str] | None = None) -> Implementation:
        command = (str(build / "peer_kvferry"),)
        return Implementation(path, "kvferry", "", command, path, options, {**QUIET, **(environment or {})})

    return [
        one("local"),
        one("tcp"),
        replace(one("tcp", key, "tls=always"), variant="tls", extras=("first-load", "first-load-known")),
        one("ucx", f"ucx_library={ucx_library}", environment=UCX_TCP),
    ]


def implementations(
    build: Path, peers: Path, ucx_library: str, key: str, against: Sequence[str] = ()
) -> list[Implementation]:
    """`against`: kvferry once more, with these options (NAME=VALUE, between spaces)."""
    local, tcp, tls, ucx = kvferry(build, ucx_library, key)

    def limit(path: str, how: str, count: int) -> Implementation:
        return Implementation(path, "limit", f"{how} x{count}", (str(build / "peer_limit"),), f"{how}:{count}")

    def driven(path: str, impl: str, environment: dict[str, str], *options: str) -> Implementation:
        command = (sys.executable, str(HERE / f"{impl}_side.py"))
        return Implementation(path, impl, "", command, path, options, {"PYTHONPATH": str(peers), **QUIET, **environment})

    def plain_ucx(variant: str, waits: str) -> Implementation:
        command = (str(build / "peer_ucx"),)
        return Implementation("ucx", "ucx", variant, command, waits, ucx.options, {**QUIET, **UCX_AS_OURS})

    return [
        local,
        driven("local", "nixl", {}),
        *(limit("local", how, count) for how in ("readv", "memcpy") for count in (THREADS, 1)),
        tcp,
        tls,
        driven("tcp", "nixl", UCX_TCP),
        # As vLLM makes its agent, and nothing but an engine's step.
        replace(driven("tcp", "nixl", UCX_TCP, "agent=vllm"), variant="get_finished()", has_shapes=False, extras=STEPS),
        driven("tcp", "mooncake", {}),
        *(limit("tcp", how, count) for how in ("streams", "tls") for count in (THREADS, 1)),
        ucx,
        plain_ucx("", "event"),
        plain_ucx("ucx, spinning", "spin"),
        *(replace(what, variant=more, options=(*what.options, *more.split()))
          for what in (local, tcp, ucx) for more in against),
    ]  # fmt: skip
