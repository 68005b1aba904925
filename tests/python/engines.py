"""Small engines in one process: a control node, a rank node and a pool of blocks."""

from __future__ import annotations

import ctypes
import logging
import random
import time
from array import array
from collections.abc import Callable, Iterable
from typing import Any

from kvferry import Load, Node, Publication, Region, _kvferry, prompt_hash

BLOCK_TOKENS = 16
BLOCK_BYTES = 4096
LAYERS = 3
BLOCKS = 32
IDENTITY = {"model": "toy", "dtype": "float32"}
LIMIT_S = 10.0
LASTING = {"peers_known", "sessions_open"}
"""Gauges that outlive a request."""


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
        self.tracebacks: list[str] = []
        """What the lines with one are about."""

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")
        if record.exc_info:
            self.tracebacks.append(str(record.args[0]))  # type: ignore[index]

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


def gauges_left(nodes: Iterable[Node]) -> dict[str, Any]:
    """What is still on the books of these, and of their peers."""
    found: dict[str, Any] = {}
    for node in nodes:
        found |= {name: value for name, _, value, is_gauge in node.stats() if is_gauge and value and name not in LASTING}
        for _, address, _, _, _, numbers in node.peers():
            found |= {f"{address} {name}": value for name, _, value, is_gauge in numbers if is_gauge and value}
    return found


class Nodes:
    """Of one engine: a control node, and those of its ranks."""

    def __init__(self, control: Node, ranks: list[Node]) -> None:
        self.control, self.ranks = control, ranks
        self.control.set_ranks([rank.address() for rank in ranks])
        self.events: list[Any] = []

    def close(self) -> None:
        for node in (self.control, *self.ranks):
            node.close()

    def lend(self, prompt: bytes, blocks: tuple[bytes, ...], pool_blocks: int) -> tuple[bytes, int, str]:
        """A lease of these blocks, its id and its ticket."""
        status, lease, lease_id = self.control.lease_reserve_blocks(blocks, pool_blocks)
        assert status == _kvferry.OK and lease is not None
        for rank in self.ranks:
            assert rank.lease_publish([Publication(lease, prompt, 77, blocks)]) == [_kvferry.OK]
        status, ticket = self.control.ticket_make(lease, prompt, blocks)
        assert status == _kvferry.OK and ticket is not None
        return lease, lease_id, ticket

    def open(self, ticket: str, prompt: bytes) -> int:
        status, info = self.control.request_open(ticket, prompt, 55, {})
        assert status == _kvferry.OK and info is not None, _kvferry.status_name(status)
        return info.id

    def fetch(self, ticket: str, prompt: bytes, blocks: tuple[bytes, ...]) -> int:
        """Begins a load of a whole ticket; the request's id."""
        request_id = self.open(ticket, prompt)
        assert self.control.request_begin([request_id]) == [_kvferry.OK]
        for rank in self.ranks:
            assert rank.load_start([Load(request_id, ticket, prompt, 0, 55, blocks)]) == [_kvferry.OK]
        return request_id

    def take(self, kind: int, id_: int, limit_s: float = LIMIT_S) -> Any:
        """Waits for an event of this kind and id, passing on what the ranks have to say."""
        def find() -> Any:
            self.events += self.control.poll()
            for number, rank in enumerate(self.ranks):
                for event in rank.poll():
                    self.events.append(event)
                    if event.kind == _kvferry.EVENT_LOAD:
                        self.control.request_report([event.report])
                    elif event.kind == _kvferry.EVENT_RELEASED:
                        self.control.request_released([event.id], number)
            return next((event for event in self.events if (event.kind, event.id) == (kind, id_)), None)
        return wait_until(f"event {kind} of {id_}", find, limit_s)

    def verdict(self, request_id: int) -> Any:
        verdict = self.take(_kvferry.EVENT_VERDICT, request_id).verdict
        self.take(_kvferry.EVENT_REQUEST_RELEASED, request_id)
        return verdict

    def stat(self, name: str, reason: str = "") -> int:
        return sum(value for node in (self.control, *self.ranks) for stat, why, value, _ in node.stats()
                   if (stat, why) == (name, reason))


class Engine(Nodes):
    """Of one rank."""

    def __init__(self, seed: int, identity: dict[str, str] | None = None, block_bytes: int = BLOCK_BYTES,
                 index: int | None = None, **options: object) -> None:
        """With an index it listens where an adapter's engine would."""
        given = {"block_tokens": str(BLOCK_TOKENS)} | {name: str(value) for name, value in options.items()}
        self.pool = Pool(seed, block_bytes)
        at = [] if index is None else [index]  # an older build knows no index
        control = Node({**given, "listen": ""}, identity or IDENTITY, *at)
        self.rank = Node(given, identity or IDENTITY, *at)
        self.rank.register(self.pool.regions())
        super().__init__(control, [self.rank])

    def publish(self, blocks: list[int], prompt: bytes, pool_blocks: int = BLOCKS) -> tuple[bytes, int, str]:
        return self.lend(prompt, pack(blocks), pool_blocks)

    def load(self, ticket: str, prompt: bytes, blocks: list[int]) -> int:
        return self.fetch(ticket, prompt, pack(blocks))
