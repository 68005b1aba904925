"""Loads into staging, on the scheduler's side: what has arrived before the engine asks for it is offered, nothing else.

    deposited ──► LOADING ──► ready ──the engine asks, and has its blocks──► copied
                     └─ failed, or not asked for in time ─► forgotten

A ticket is deposited before its request reaches the engine. Its blocks are loaded into blocks of the staging, the same on
all ranks. Those are free again when a copy from them has been ordered: the next load into them waits for that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kvferry import _kvferry
from kvferry.engine.consumer import RemotePrompt
from kvferry.engine.messages import pack_blocks

from .loader import FAILED, FULL, LATE, NOT_ASKED, REFUSED, SHORT, Loader, what_is_left
from .mailbox import Done
from .messages import NO_BLOCK, Copy

if TYPE_CHECKING:
    from kvferry import Node
    from kvferry.engine.metrics import Counters


class Slots:
    """Blocks of the staging, one for each position of a prompt; and the copy that each is free after."""

    def __init__(self, count: int) -> None:
        self._free = deque((slot, 0) for slot in range(count))
        self.count = count

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, wanted: int) -> tuple[list[int], int]:
        """As many as there are, and the last of the copies that they are free after."""
        taken = [self._free.popleft() for _ in range(min(wanted, len(self._free)))]
        return [slot for slot, _ in taken], max((after for _, after in taken), default=0)

    def give(self, slots: Sequence[int], after: int = 0) -> None:
        self._free.extend((slot, after) for slot in slots)


@dataclass
class Deposit:
    """A ticket, and what has become of it."""

    prompt: bytes
    tokens: int  # of its blocks; once it is ready, of those that are good
    done: Done
    slots: list[int] = field(default_factory=list)
    is_ready: bool = False
    until: float = 0.0  # by when the engine has to ask


class Offer(NamedTuple):
    """What the engine has been told of a request."""

    deposit: Deposit
    first: int  # position, in blocks
    end: int


class Staged(Loader):
    def __init__(self, node: Node, counters: Counters, block_tokens: int, groups: int, slots: int,
                 ttl_s: float) -> None:
        super().__init__(node, counters, block_tokens)
        self._groups = groups
        self._slots = Slots(slots)
        self._ttl_s = ttl_s
        self._by_prompt: dict[bytes, deque[Deposit]] = {}
        self._ready_since: deque[Deposit] = deque()  # those that wait for the engine, the oldest first
        self._offers: dict[int, Offer] = {}
        self._after: dict[int, int] = {}  # of loads that have not been told to the ranks
        self._sources: list[list[int]] = [[] for _ in range(groups)]
        self._targets: list[list[int]] = [[] for _ in range(groups)]
        """By group: blocks of the staging, and of the pool, of the step that comes."""
        self._copies = 0  # that have been ordered

    # ---- tickets ----

    def take_up(self, remote: RemotePrompt, prompt: bytes, done: Done) -> None:
        """It is loaded into as much of the staging as there is."""
        positions = remote.counts[0]
        slots, after = self._slots.take(positions)
        if not slots or len(remote.counts) != self._groups or set(remote.counts) != {positions}:
            self._slots.give(slots, after)
            self._forget(remote)
            self.give_up(done, REFUSED if slots else FULL)
            return
        if len(slots) < positions:
            self._counters.add("not_loaded", FULL)
        deposit = remote.request = Deposit(prompt, len(slots) * self._block_tokens, done, slots)
        self._by_prompt.setdefault(prompt, deque()).append(deposit)
        self._after[remote.id] = after
        self.begin(remote, deposit.tokens, pack_blocks([slots] * self._groups, NO_BLOCK, remote.counts, [0] * self._groups))

    def take_after(self) -> dict[int, int]:
        after, self._after = self._after, {}
        return after

    # ---- what has become of loads ----

    def truncate_to(self, request: Deposit, tokens: int) -> None:
        request.tokens = min(request.tokens, tokens)

    def take_blocks(self, request: Deposit) -> list[int]:
        slots, request.slots, request.tokens = request.slots, [], 0
        return slots

    def free_blocks(self, blocks: Sequence[int]) -> None:
        self._slots.give(blocks)

    def settled(self) -> list[RemotePrompt]:
        """Those that have arrived are ready from here on."""
        ready, self._ready = self._ready, {}
        for id_, released in ready.items():
            remote = self._by_id.get(id_)
            if remote is not None:
                failed = remote.verdict is None or remote.verdict.action == _kvferry.ACTION_FAIL
                self._settle(remote, released)
                self._arrived(remote.request, failed)
        return []

    def _arrived(self, deposit: Deposit, failed: bool) -> None:
        blocks = 0 if failed else deposit.tokens // self._block_tokens
        self._slots.give(deposit.slots[blocks:])
        deposit.slots, deposit.tokens = deposit.slots[:blocks], blocks * self._block_tokens
        if blocks == 0:
            self._drop(deposit, FAILED)
            return
        deposit.is_ready, deposit.until = True, time.monotonic() + self._ttl_s
        self._ready_since.append(deposit)
        deposit.done(deposit.tokens, "")

    def _unlist(self, deposit: Deposit) -> None:
        of_prompt = self._by_prompt.get(deposit.prompt)
        if of_prompt is not None and deposit in of_prompt:
            of_prompt.remove(deposit)
            if not of_prompt:
                del self._by_prompt[deposit.prompt]

    def _drop(self, deposit: Deposit, reason: str) -> None:
        """It is not used. A load that is under way ends by itself, unused."""
        self._unlist(deposit)
        self._slots.give(deposit.slots)
        deposit.slots = []
        self.give_up(deposit.done, reason)

    def forget_old(self) -> None:
        now = time.monotonic()
        while self._ready_since and (self._ready_since[0].until <= now or not self._is_waiting(self._ready_since[0])):
            deposit = self._ready_since.popleft()
            if self._is_waiting(deposit):
                self._counters.add("not_loaded", NOT_ASKED)
                self._unlist(deposit)
                self._slots.give(deposit.slots)
                deposit.slots = []

    def _is_waiting(self, deposit: Deposit) -> bool:
        return any(deposit is one for one in self._by_prompt.get(deposit.prompt, ()))

    # ---- what the engine's scheduler says ----

    def offer(self, request_id: int, prompt: bytes, computed: int) -> int:
        deposit = next((one for one in self._by_prompt.get(prompt, ()) if one.is_ready), None)
        if deposit is None:
            if prompt in self._by_prompt:
                self._counters.add("not_loaded", LATE)
            return 0
        self._unlist(deposit)
        if computed % self._block_tokens or deposit.tokens <= computed:
            self._slots.give(deposit.slots)
            deposit.slots = []
            self._counters.add("not_loaded", SHORT)
            return 0
        self.drop_offer(request_id)
        self._offers[request_id] = Offer(deposit, computed // self._block_tokens, deposit.tokens // self._block_tokens)
        return deposit.tokens - computed

    def cut(self, request_id: int, start: int, end: int) -> None:
        """The engine does not use the offer for the tokens from `start` to `end`."""
        offer = self._offers.get(request_id)
        if offer is None:
            return
        left = what_is_left(range(offer.first * self._block_tokens, offer.end * self._block_tokens), start, end, self._block_tokens)
        self._offers[request_id] = offer._replace(first=left.start // self._block_tokens, end=left.stop // self._block_tokens)
        if not left:
            self.drop_offer(request_id)

    def drop_offer(self, request_id: int) -> None:
        offer = self._offers.pop(request_id, None)
        if offer is not None:
            self._slots.give(offer.deposit.slots)

    def admit(self, request: Any, blocks: Sequence[Sequence[int]]) -> None:
        """They get their bytes before the step's forward."""
        offer = self._offers.pop(request.request_id, None)
        if offer is None:
            return
        for sources, targets, ids in zip(self._sources, self._targets, blocks):
            there = ids[offer.first:offer.end]  # perhaps not all that were offered for
            targets += there
            sources += offer.deposit.slots[offer.first:offer.first + len(there)]
        self._slots.give(offer.deposit.slots, self._copies + 1)

    def take_copy(self) -> Copy | None:
        """Of the requests that have come to their blocks since the last one."""
        if not any(self._targets):
            return None
        self._copies += 1
        counts, firsts = [len(targets) for targets in self._targets], [0] * self._groups
        copy = Copy(self._copies, pack_blocks(self._sources, NO_BLOCK, counts, firsts),
                    pack_blocks(self._targets, NO_BLOCK, counts, firsts))
        self._sources, self._targets = [[] for _ in counts], [[] for _ in counts]
        return copy

    @property
    def is_idle(self) -> bool:
        return self._slots.free == self._slots.count

    @property
    def blocks(self) -> int:
        """Of the staging."""
        return self._slots.count
