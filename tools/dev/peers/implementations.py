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
# Its consumer has no progress thread: that spins, and takes a core from those that copy (up to 2.5 times as slow here).
NIXL_FASTEST = ("progress=hold",)
QUIET = {"UCX_LOG_LEVEL": "error", "NIXL_LOG_LEVEL": "ERROR", "MC_LOG_LEVEL": "ERROR", "GLOG_minloglevel": "2"}


def implementations(
    build: Path, peers: Path, options: list[str], ucx_library: str, against: Sequence[str] = (), key: tuple[str, ...] = ()
) -> list[Implementation]:
    """`against`: kvferry once more, with these options (NAME=VALUE, between spaces). `key`: the option that is a key's file."""
    library = (f"ucx_library={ucx_library}",)
    python = {"PYTHONPATH": str(peers), **QUIET}

    def kvferry(path: str, extra: tuple[str, ...] = (), environment: dict[str, str] | None = None) -> Implementation:
        return Implementation(
            path, "kvferry", "", (str(build / "peer_kvferry"),), path, (*extra, *options), {**QUIET, **(environment or {})}
        )

    def limit(path: str, how: str, count: int, variant: str) -> Implementation:
        return Implementation(path, "limit", variant, (str(build / "peer_limit"),), f"{how}:{count}")

    def driven(path: str, impl: str, environment: dict[str, str], extra: tuple[str, ...] = ()) -> Implementation:
        command = (sys.executable, str(HERE / f"{impl}_side.py"))
        return Implementation(path, impl, "", command, path, extra, {**python, **environment})

    everybody = [
        kvferry("local"),
        driven("local", "nixl", {}, NIXL_FASTEST),
        limit("local", "readv", THREADS, f"readv x{THREADS}"),
        limit("local", "readv", 1, "readv x1"),
        limit("local", "memcpy", THREADS, f"memcpy x{THREADS}"),
        limit("local", "memcpy", 1, "memcpy x1"),
        kvferry("tcp"),
        replace(kvferry("tcp", (*key, "tls=always")), variant="tls", extras=("first-load",)),
        driven("tcp", "nixl", UCX_TCP, NIXL_FASTEST),
        # As vLLM makes its agent, and nothing but an engine's step.
        replace(
            driven("tcp", "nixl", UCX_TCP, ("agent=vllm",)),
            variant="get_finished()",
            has_shapes=False,
            extras=("step-0", "step-100", "step-1000"),
        ),
        driven("tcp", "mooncake", {}),
        limit("tcp", "streams", THREADS, f"streams x{THREADS}"),
        limit("tcp", "streams", 1, "streams x1"),
        kvferry("ucx", library, UCX_TCP),
        *(
            Implementation("ucx", "ucx", variant, (str(build / "peer_ucx"),), waits, library, {**QUIET, **UCX_AS_OURS})
            for variant, waits in (("", "event"), ("ucx, spinning", "spin"))
        ),
    ]
    ours = [what for what in everybody if what.impl == "kvferry" and not what.variant]
    return everybody + [
        replace(what, variant=more, options=(*what.options, *more.split())) for what in ours for more in against
    ]
