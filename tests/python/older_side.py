"""A process of test_older_build.py: small engines of the build that PYTHONPATH names. A line of JSON on standard input
says which of them does what, and one on standard output answers. It uses only what both builds have."""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from typing import Any

import kvferry
from engines import BLOCK_BYTES, BLOCK_TOKENS, BLOCKS, Engine, make_prompt, pack, wait_until
from kvferry import Load, Publication, _kvferry

RENEWED_S = 30.0
SOURCE, TARGET = [1, 3, 5, 7], [10, 11, 12, 13]
PROMPT = make_prompt(len(SOURCE) * BLOCK_TOKENS)


class Side(Engine):
    def __init__(self, seed: int, **options: object) -> None:
        super().__init__(seed, **options)
        self.consumers: dict[int, int] = {}
        """Of each open request: which consumer P counts it as."""

    # ---- P ----

    def offer(self) -> tuple[str, int, str]:
        """A ticket, its lease's id, and what the blocks hold."""
        status, self.lease, lease_id = self.control.lease_reserve(len(SOURCE), BLOCKS)
        assert status == _kvferry.OK
        status, ticket = self.control.ticket_make(self.lease, PROMPT, pack(SOURCE))
        assert status == _kvferry.OK
        assert self.rank.lease_publish([Publication(self.lease, PROMPT, 77, pack(SOURCE))]) == [_kvferry.OK]
        return ticket, lease_id, self.held(SOURCE)

    def revoke(self) -> None:
        assert self.rank.lease_end([self.lease]) == [_kvferry.OK]

    def is_completed(self, lease_id: int) -> bool:
        """Waits for the lease's end."""
        return self.take(_kvferry.EVENT_LEASE_ENDED, lease_id).cause == _kvferry.LEASE_END_COMPLETED

    def protocol(self, address: str) -> tuple[int, int]:
        """The oldest and the newest that the node there speaks."""
        status, why, found = _kvferry.check_node(address, {})
        assert status == _kvferry.OK, why
        return found["protocol_min"], found["protocol_max"]

    # ---- D ----

    def request(self, ticket: str) -> Any:
        status, info = self.control.request_open(ticket, PROMPT, 55, {})
        assert status == _kvferry.OK
        self.consumers[info.id] = getattr(info, "attachment", info.id)
        return info

    def refusal(self, ticket: str) -> str:
        status, _ = self.control.request_open(ticket, PROMPT, 55, {})
        return next(name for name, *_ in _kvferry.reasons() if getattr(_kvferry, name.upper()) == status)

    def address_in(self, ticket: str) -> str:
        return self.request(ticket).peer

    def request_all(self, ticket: str, count: int) -> list[int]:
        return [self.request(ticket).id for _ in range(count)]

    def expect_renewals(self) -> None:
        """Two of each request: when the second is sent, P has answered the first."""
        self.enough = self.stat("renewals_sent") + 2 * len(set(self.consumers.values()))

    def wait_for_renewals(self) -> None:
        wait_until("renewals", lambda: self.stat("renewals_sent") >= self.enough, RENEWED_S)

    def fetch(self, ticket: str, request_id: int) -> tuple[str, str]:
        """The verdict's reason, and what the blocks hold."""
        for layer in self.pool.layers:
            ctypes.memset(ctypes.addressof(layer) + TARGET[0] * BLOCK_BYTES, 0, len(TARGET) * BLOCK_BYTES)
        assert self.control.request_begin([request_id]) == [_kvferry.OK]
        assert self.rank.load_start([Load(request_id, ticket, PROMPT, 0, 55, pack(TARGET))]) == [_kvferry.OK]
        del self.consumers[request_id]
        return _kvferry.status_name(self.verdict(request_id).status), self.held(TARGET)

    def reason(self, request_id: int) -> str:
        """Waits for the verdict of a request that is not loaded."""
        del self.consumers[request_id]
        return _kvferry.status_name(self.take(_kvferry.EVENT_VERDICT, request_id).verdict.status)

    def cancel(self, ids: list[int]) -> None:
        assert self.control.request_cancel(ids) == [_kvferry.OK] * len(ids)
        for request_id in ids:
            del self.consumers[request_id]

    # ---- both ----

    def held(self, blocks: list[int]) -> str:
        return hashlib.sha256(b"".join(self.pool.block(block) for block in blocks)).hexdigest()

    def troubles(self) -> list[str]:
        """Why sessions have ended, and what has been decided that nobody asked for."""
        self.events += self.control.poll()
        verdicts = [f"verdict of {event.id}" for event in self.events if event.kind == _kvferry.EVENT_VERDICT]
        refused = [f"{why} sessions" for why in ("protocol", "incompatible") if self.stat("sessions_refused", why)]
        failures = [peer.failure for node in (self.control, self.rank) for peer in node.peers() if peer.failure]
        return failures + refused + verdicts


if __name__ == "__main__":
    sides = [Side(seed, **json.loads(sys.argv[2])) for seed in range(int(sys.argv[1]))]
    print(json.dumps(kvferry.__file__), flush=True)
    for line in sys.stdin:
        which, call, *arguments = json.loads(line)
        print(json.dumps(getattr(sides[which], call)(*arguments)), flush=True)
