"""Engines on hosts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from network import Network
from remote import Load, Remote

STALL_S, SLACK_S = 0.5, 0.5
OPTIONS = {"stall_timeout_ms": str(int(STALL_S * 1000)), "lease_ttl_ms": "1500", "chunk_bytes": "524288"}
UCX = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0", "UCX_LOG_LEVEL": "fatal"}
BLOCKS = 24
"""Of a load: 9 MiB."""
SLOW_CHUNKS = {"chunk_bytes": "1572864", "tcp_buffer_bytes": "65536", "tcp_streams": "1"}
"""A chunk is in the blocks, and not in the kernel's buffers, for most of its way; and none overtakes another."""
FAILS_BY_S = max(STALL_S, 1.0) + SLACK_S
"""A load of a peer that cannot be reached: handshake_timeout_ms is 1000."""
HEAL_S = 8.0
"""Until a load works again: a breaker's cooldown, a probe, its handshake."""
DESCRIPTORS_KEPT = {"tcp": 0, "ucx": 2}
"""UCX keeps connections of endpoints that were closed by force, and closes them in its own time: half a minute and more."""
QUIET_S = 12.0
"""Until nothing is left: a lease's life, and what TCP waits for an acknowledgement."""


class Site:
    """A network, and engines on its hosts."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self._engines: list[Remote] = []
        self._key = folder / "key"
        self._key.write_text(os.urandom(32).hex())
        self._key.chmod(0o600)

    def engine(self, name: str, transport: str = "tcp", family: int = 4, env: dict[str, str] | None = None,
               **options: str | None) -> Remote:
        """An engine that knows its own address, the key, and nothing else. None: not even that option."""
        given = OPTIONS | {"key_file": str(self._key), "transports": transport,
                           "listen": self.network.address(name, family)} | options
        known = {option: value for option, value in given.items() if value is not None}
        self._engines.append(Remote(self.network.hosts[name], known, UCX | (env or {})))
        return self._engines[-1]

    def close(self) -> None:
        for engine in self._engines:
            engine.close()


def is_whole(load: Load, blocks: int = BLOCKS) -> bool:
    return load.action == "use" and load.keep == blocks


class Pair:
    """A producer P and a consumer D on hosts of their own, which have loaded once."""

    def __init__(self, site: Site, transport: str, family: int = 4, **options: str) -> None:
        self.site, self.network, self.transport = site, site.network, transport
        self.p = site.engine("P", transport, family, **options)
        self.d = site.engine("D", transport, family, **options)
        self.leases: list[int] = []
        assert is_whole(self.load())
        self.descriptors = self._descriptors()

    def _descriptors(self) -> list[int]:
        return [side.ask("descriptors") for side in (self.p, self.d)]

    def load(self, blocks: int = BLOCKS) -> Load:
        offer = self.p.offer(blocks)
        self.leases.append(offer.lease)
        return self.d.load(offer)

    def during_a_load(self, fault: Callable[[], object], mbit: int = 200,
                      queue_ms: int = 100) -> tuple[Load, float]:
        """A load, slow enough to be caught half-way by the fault; and how long after the fault it ended."""
        self.network.limit("D", mbit, queue_ms)
        offer = self.p.offer(BLOCKS)
        self.leases.append(offer.lease)
        started = self.d.start(offer)
        self.d.until_midway(3)
        fault()
        begin = time.monotonic()
        load = self.d.finish(started)
        assert not is_whole(load), "the load had ended before the fault"
        return load, load.at - begin

    def until_it_works(self) -> float:
        """Loads again and again, until one succeeds. What fails until then has its reason, in time."""
        begin = time.monotonic()
        while not is_whole(load := self.load()):
            assert load.reason in ("peer_down", "transfer_stalled", "handshake_timeout", "transfer_setup"), load
            assert load.seconds < FAILS_BY_S, load
            assert time.monotonic() < begin + HEAL_S, load
            time.sleep(0.05)
        return time.monotonic() - begin

    def expect_nothing_left(self) -> None:
        """Every lease has ended, nothing is open, no descriptor was lost."""
        for lease in self.leases:
            self.p.ask("ended", lease=lease)
        end, kept = time.monotonic() + QUIET_S, DESCRIPTORS_KEPT[self.transport]
        while True:
            left, now = [side.ask("left") for side in (self.p, self.d)], self._descriptors()
            if left == [{}, {}] and all(mine <= before + kept for mine, before in zip(now, self.descriptors)):
                break
            assert time.monotonic() < end, (left, now, self.descriptors)
            time.sleep(0.02)
        assert self.p.ask("healthy") and self.d.ask("healthy")
