"""Small engines in one process: a control node, a rank node and a pool of blocks."""

from __future__ import annotations

import ctypes
import logging
import random
import time
from array import array
from collections.abc import Callable
from typing import Any

from kvferry import Load, Node, Publication, Region, _kvferry, prompt_hash

BLOCK_TOKENS = 16
BLOCK_BYTES = 4096
LAYERS = 3
BLOCKS = 32
IDENTITY = {"model": "toy", "dtype": "float32"}
LIMIT_S = 10.0


def wait_until(what: str | Callable[[], object], ready: Callable[[], Any], limit_s: float = LIMIT_S, poll_s: float = 0.001) -> Any:
    """What ready() says once that is true."""
    end = time.monotonic() + limit_s
    while not (result := ready()):
        assert time.monotonic() < end, f"waited {limit_s} s for {what if isinstance(what, str) else what()} in vain"
        time.sleep(poll_s)
    return result


class Log(logging.Handler):
    """What an engine's log gets, of the adapter and of the library."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")

    def grep(self, text: str) -> list[str]:
        return [line for line in self.lines if text in line]


def pack(*groups: list[int]) -> tuple[bytes, ...]:
    return tuple(array("I", group).tobytes() for group in groups)


def make_prompt(tokens: int, seed: int = 1, salt: bytes = b"") -> bytes:
    rng = random.Random(seed)
    return prompt_hash(array("I", (rng.randrange(50000) for _ in range(tokens))).tobytes(), salt)


class Pool:
    """One rank's KV memory: a few layers, each with the same blocks."""

    def __init__(self, seed: int, block_bytes: int = BLOCK_BYTES) -> None:
        rng = random.Random(seed)
        self.block_bytes = block_bytes
        self.layers = [(ctypes.c_char * (BLOCKS * block_bytes)).from_buffer(
            bytearray(rng.randbytes(BLOCKS * block_bytes))) for _ in range(LAYERS)]

    def regions(self) -> list[Region]:
        return [Region(ctypes.addressof(layer), self.block_bytes, self.block_bytes, BLOCKS, 1, 1, 0) for layer in self.layers]

    def block(self, index: int) -> bytes:
        begin = index * self.block_bytes
        return b"".join(layer[begin:begin + self.block_bytes] for layer in self.layers)


class Engine:
    def __init__(self, seed: int, identity: dict[str, str] | None = None, block_bytes: int = BLOCK_BYTES,
                 index: int | None = None, **options: object) -> None:
        """With an index it listens where an adapter's engine would."""
        given = {"block_tokens": str(BLOCK_TOKENS)} | {name: str(value) for name, value in options.items()}
        self.pool = Pool(seed, block_bytes)
        at = [] if index is None else [index]  # an older build knows no index
        self.control = Node({**given, "listen": ""}, identity or IDENTITY, *at)
        self.rank = Node(given, identity or IDENTITY, *at)
        self.rank.register(self.pool.regions())
        self.control.set_ranks([self.rank.address()])
        self.events: list[Any] = []

    def close(self) -> None:
        self.control.close()
        self.rank.close()

    def publish(self, blocks: list[int], prompt: bytes, pool_blocks: int = BLOCKS) -> tuple[bytes, int, str]:
        """A lease of these blocks, its id and its ticket."""
        status, lease, lease_id = self.control.lease_reserve_blocks(pack(blocks), pool_blocks)
        assert status == _kvferry.OK and lease is not None
        assert self.rank.lease_publish([Publication(lease, prompt, 77, pack(blocks))]) == [_kvferry.OK]
        status, ticket = self.control.ticket_make(lease, prompt, pack(blocks))
        assert status == _kvferry.OK and ticket is not None
        return lease, lease_id, ticket

    def open(self, ticket: str, prompt: bytes) -> int:
        status, info = self.control.request_open(ticket, prompt, 55, {})
        assert status == _kvferry.OK and info is not None, _kvferry.status_name(status)
        return info.id

    def load(self, ticket: str, prompt: bytes, blocks: list[int]) -> int:
        """Begins a load of a whole ticket; the request's id."""
        request_id = self.open(ticket, prompt)
        assert self.control.request_begin([request_id]) == [_kvferry.OK]
        assert self.rank.load_start([Load(request_id, ticket, prompt, 0, 55, pack(blocks))]) == [_kvferry.OK]
        return request_id

    def take(self, kind: int, id_: int) -> Any:
        """Waits for an event of this kind and id, passing on what the rank has to say."""
        def find() -> Any:
            for event in [*self.control.poll(), *self.rank.poll()]:
                self.events.append(event)
                if event.kind == _kvferry.EVENT_LOAD:
                    self.control.request_report([event.report])
                elif event.kind == _kvferry.EVENT_RELEASED:
                    self.control.request_released([event.id], 0)
            return next((event for event in self.events if (event.kind, event.id) == (kind, id_)), None)
        return wait_until(f"event {kind} of {id_}", find)

    def verdict(self, request_id: int) -> Any:
        verdict = self.take(_kvferry.EVENT_VERDICT, request_id).verdict
        self.take(_kvferry.EVENT_REQUEST_RELEASED, request_id)
        return verdict

    def stat(self, name: str, reason: str = "") -> int:
        return sum(value for node in (self.control, self.rank) for stat, why, value, _ in node.stats()
                   if (stat, why) == (name, reason))
