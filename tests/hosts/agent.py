"""An engine in a process of its own. It does what each line of its standard input says, and answers with a line.

    python agent.py SEED OPTIONS      ends with its standard input
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from engines import BLOCK_TOKENS, Engine, Pool, gauges_left, make_prompt  # noqa: E402
from kvferry import _kvferry  # noqa: E402

BLOCK_BYTES = 128 * 1024
"""Of one layer."""
POOL_BLOCKS = 4096
"""What the engine says that it has, so that leases of loads that failed do not bar the next."""
ACTIONS = {_kvferry.ACTION_USE: "use", _kvferry.ACTION_RECOMPUTE: "recompute", _kvferry.ACTION_FAIL: "fail"}
ENDS = {_kvferry.LEASE_END_COMPLETED: "completed", _kvferry.LEASE_END_ABANDONED: "abandoned",
        _kvferry.LEASE_END_EXPIRED: "expired", _kvferry.LEASE_END_REVOKED: "revoked"}


class Agent(Engine):
    def __init__(self, seed: int, options: dict[str, str]) -> None:
        super().__init__(seed, block_bytes=BLOCK_BYTES, index=0, **options)
        self._leases: dict[int, bytes] = {}

    # ---- as a producer ----

    def offer(self, blocks: list[int], prompt: int) -> dict[str, Any]:
        lease, lease_id, ticket = self.publish(blocks, make_prompt(len(blocks) * BLOCK_TOKENS, prompt), POOL_BLOCKS)
        self._leases[lease_id] = lease
        return {"lease": lease_id, "ticket": ticket}

    def overwrite(self, lease: int, seed: int) -> float:
        """The blocks have another owner from now on: ends the lease, then writes what `seed` stands for. When."""
        owner = Pool(seed, BLOCK_BYTES)
        assert self.rank.lease_end([self._leases[lease]]) == [_kvferry.OK]
        for mine, other in zip(self.pool.layers, owner.layers):
            ctypes.memmove(mine, other, ctypes.sizeof(mine))
        return time.monotonic()

    def ended(self, lease: int, limit_s: float = 5.0) -> str:
        """Waits until the lease has; why. The blocks are the engine's again."""
        cause = self.take(_kvferry.EVENT_LEASE_ENDED, lease, limit_s).cause
        assert self.control.lease_release([lease]) == [_kvferry.OK]
        del self._leases[lease]
        return ENDS[cause]

    # ---- as a consumer ----

    def start(self, ticket: str, blocks: list[int], prompt: int) -> int:
        for layer in self.pool.layers:
            ctypes.memset(layer, 0, ctypes.sizeof(layer))
        return self.load(ticket, make_prompt(len(blocks) * BLOCK_TOKENS, prompt), blocks)

    def finish(self, request: int, source: list[int], target: list[int], seed: int, limit_s: float) -> dict[str, Any]:
        """Waits for a load's end. Which of the blocks that it calls loaded are not those of the producer `seed`."""
        verdict = self.take(_kvferry.EVENT_VERDICT, request, limit_s).verdict
        at = time.monotonic()
        self.take(_kvferry.EVENT_REQUEST_RELEASED, request, limit_s)
        action, status, keep = verdict[:3]
        expected, got = Pool(seed, BLOCK_BYTES), self.pool
        wrong = [i for i in range(keep) if got.block(target[i]) != expected.block(source[i])]
        return {"action": ACTIONS[action], "reason": _kvferry.status_name(status), "keep": keep, "at": at, "wrong": wrong}

    # ---- what is left ----

    def peers(self) -> list[str]:
        """Their addresses."""
        return sorted({peer[1] for node in (self.control, self.rank) for peer in node.peers()})

    def left(self) -> dict[str, int]:
        return gauges_left((self.control, self.rank))

    def descriptors(self) -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    def healthy(self) -> bool:
        return self.control.healthy() and self.rank.healthy()


def main() -> None:
    try:
        agent = Agent(int(sys.argv[1]), json.loads(sys.argv[2]))
    except _kvferry.Error as error:
        print(json.dumps({"refused": str(error)}), flush=True)
        return
    print(json.dumps({"answer": None}), flush=True)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {"answer": getattr(agent, name)(**arguments)}
        except Exception as error:  # the test's to judge
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
