"""Loads straight into the blocks, on the scheduler's side: the engine keeps a request waiting for them, and where they fail
it is taken back (rewind.py).

    deposited ──► OPEN ──the engine asks, and gives it blocks──► LOADING ──every rank──► over
                    └─ not asked for in time, or its lease is lost ─► forgotten
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kvferry.engine.consumer import Phase, RemotePrompt
from kvferry.engine.messages import pack_blocks

from .loader import FAILED, NOT_ASKED, REFUSED, SHORT, Loader, what_is_left
from .mailbox import Done
from .messages import NO_BLOCK, Parked

if TYPE_CHECKING:
    from kvferry import Node
    from kvferry._kvferry import Verdict
    from kvferry.engine.metrics import Counters


@dataclass
class Deposit:
    """A ticket whose lease is kept alive until the engine asks."""

    prompt: bytes
    remote: RemotePrompt
    until: float


class Offer(NamedTuple):
    deposit: Deposit
    local: int  # tokens that the engine has itself
    tokens: int  # that are there once all is loaded


class Parking(Loader):
    def __init__(self, node: Node, counters: Counters, block_tokens: int, ttl_s: float) -> None:
        super().__init__(node, counters, block_tokens)
        self._ttl_s = ttl_s
        self._waiting: deque[Deposit] = deque()  # for the engine, the oldest first
        self._offers: dict[int, Offer] = {}
        self._parked: list[Parked] = []
        self._load_of: dict[int, int] = {}  # by the engine's request: one that it keeps waiting
        self._ended: list[int] = []

    # ---- tickets ----

    def take_up(self, remote: RemotePrompt, prompt: bytes, done: Done) -> None:
        """Nothing is loaded before the engine has asked."""
        if len(set(remote.counts)) != 1:
            self._forget(remote)
            self.give_up(done, REFUSED)
            return
        self._waiting.append(Deposit(prompt, remote, time.monotonic() + self._ttl_s))
        done(remote.counts[0] * self._block_tokens, "")

    def _decide_early(self, remote: RemotePrompt, verdict: Verdict) -> None:
        """Its lease is lost before the engine has asked."""
        self._counters.add("not_loaded", FAILED)
        super()._decide_early(remote, verdict)
        self._waiting = deque(one for one in self._waiting if one.remote is not remote)

    def forget_old(self) -> None:
        now = time.monotonic()
        while self._waiting and self._waiting[0].until <= now:
            self._let_go(self._waiting.popleft(), NOT_ASKED)

    def _let_go(self, deposit: Deposit, reason: str) -> None:
        if deposit.remote.key in self._remote:
            self._counters.add("not_loaded", reason)  # first: a reader that finds is_idle finds the reason too
            self._forget(deposit.remote)

    # ---- what the engine's scheduler says ----

    def offer(self, request_id: int, prompt: bytes, computed: int) -> int:
        deposit = next((one for one in self._waiting if one.prompt == prompt and one.remote.phase is Phase.OPEN
                        and one.remote.key in self._remote), None)
        if deposit is None:
            return 0
        self._waiting.remove(deposit)
        tokens = deposit.remote.counts[0] * self._block_tokens
        if computed % self._block_tokens or tokens <= computed:
            self._let_go(deposit, SHORT)
            return 0
        self.drop_offer(request_id)
        self._offers[request_id] = Offer(deposit, computed, tokens)
        return tokens - computed

    def cut(self, request_id: int, start: int, end: int) -> None:
        """The engine does not use the offer for the tokens from `start` to `end`. It parks the request all the same."""
        offer = self._offers.get(request_id)
        if offer is not None:
            left = what_is_left(range(offer.local, offer.tokens), start, end, self._block_tokens)
            self._offers[request_id] = offer._replace(local=left.start, tokens=left.stop)

    def drop_offer(self, request_id: int) -> None:
        offer = self._offers.pop(request_id, None)
        if offer is not None:
            self._let_go(offer.deposit, NOT_ASKED)

    def admit(self, request: Any, blocks: Sequence[Sequence[int]]) -> None:
        """It waits from here on."""
        offer = self._offers.pop(request.request_id, None)
        if offer is None:
            return
        remote = offer.deposit.remote
        first = offer.local // self._block_tokens
        there = min(offer.tokens // self._block_tokens, *(len(group) for group in blocks))
        positions = remote.counts[0]
        destination = pack_blocks([group[:there] for group in blocks], NO_BLOCK, [positions] * len(blocks), [first] * len(blocks))
        if remote.key in self._remote:
            self.begin(remote, offer.tokens - offer.local, destination)
        else:  # its lease has been lost since: the engine waits all the same, until every rank has found that out
            self.order_load(remote, destination)
        self._load_of[request.request_id] = remote.id
        self._parked.append(Parked(request.request_id, remote.id, offer.local, positions * self._block_tokens,
                                   request.prompt_len, destination))

    def take_parked(self) -> list[Parked]:
        parked, self._parked = self._parked, []
        return parked

    def finish(self, request_id: int) -> bool:
        self.drop_offer(request_id)
        load_id = self._load_of.get(request_id)
        if load_id is None:
            return False
        self._ended.append(load_id)
        return True

    # ---- what the ranks have agreed on ----

    def take_ended(self) -> list[int]:
        """Loads whose requests have ended."""
        ended, self._ended = self._ended, []
        return ended

    def over(self, request_id: int) -> None:
        """Nothing writes to its blocks any more."""
        self._load_of.pop(request_id, None)

    def settled(self) -> list[RemotePrompt]:
        ready, self._ready = self._ready, {}
        for id_ in ready:
            remote = self._by_id.get(id_)
            if remote is not None:
                self._leave(remote)
                self._remote.pop(remote.key, None)
        return []

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._offers or self._load_of or self._by_id)
