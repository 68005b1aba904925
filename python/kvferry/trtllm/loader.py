"""What both ways to load have in common on the scheduler's side: tickets come in, and the engine asks once for each request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvferry import _kvferry
from kvferry.engine.consumer import Consumer, InFlight, RemotePrompt

from .mailbox import Done

if TYPE_CHECKING:
    from kvferry import Node
    from kvferry._kvferry import Verdict
    from kvferry.engine.metrics import Counters

LATE, FULL, NOT_ASKED, SHORT, REFUSED, FAILED = (
    "late", "staging_full", "not_asked_for", "no_longer_than_cached", "ticket_refused", "load_failed")
"""Why a ticket's blocks are not used."""
LOADS_MAX = 4096
TOKENS_MAX = 1 << 62


def what_is_left(offer: range, start: int, end: int, block_tokens: int) -> range:
    """Of an offer's tokens, if the engine does not use those from `start` to `end`: it counts the others as loaded. Blocks before
    the first one that is left may be other requests' as well. ValueError: nobody can load around a hole."""
    start, end = max(start, offer.start), min(end, offer.stop)
    if start >= end:
        return offer
    if end == offer.stop:
        return range(offer.start, min(offer.stop, -(-start // block_tokens) * block_tokens))
    if start == offer.start and end % block_tokens == 0:
        return range(end, offer.stop)
    raise ValueError(f"kvferry cannot load the tokens {offer.start} to {offer.stop} of a prompt without {start} to {end}: blocks have "
                     f"{block_tokens} tokens, and are loaded in one piece")


class Loader(Consumer):
    def __init__(self, node: Node, counters: Counters, block_tokens: int) -> None:
        super().__init__(node, counters, None, InFlight(LOADS_MAX, TOKENS_MAX))
        self._block_tokens = block_tokens
        self._names = 0

    # ---- what the two do ----

    def take_up(self, remote: RemotePrompt, prompt: bytes, done: Done) -> None:
        """Its ticket is good, and its lease is kept alive. `done` is to be called once, with the tokens that are there, and
        if there are none, why."""
        raise NotImplementedError

    def forget_old(self) -> None:
        """What the engine has not asked for in time."""
        raise NotImplementedError

    def offer(self, request_id: int, prompt: bytes, computed: int) -> int:
        """How many tokens after the `computed` first ones are offered: the only time that it asks for this request."""
        raise NotImplementedError

    def cut(self, request_id: int, start: int, end: int) -> None:
        """Of what was offered the engine does not use the tokens from `start` to `end`: what_is_left()."""
        raise NotImplementedError

    def admit(self, request: Any, blocks: Sequence[Sequence[int]]) -> None:
        """The request has these blocks of each group, perhaps not all that were offered for."""
        raise NotImplementedError

    def drop_offer(self, request_id: int) -> None:
        """The request does not come to its blocks."""
        raise NotImplementedError

    def finish(self, request_id: int) -> bool:
        """The request has ended; whether something may still write to its blocks."""
        self.drop_offer(request_id)
        return False

    @property
    def is_idle(self) -> bool:
        """There is no ticket, and nothing is kept for one."""
        raise NotImplementedError

    # ---- tickets ----

    def deposit(self, ticket: str, done: Done) -> None:
        """A ticket for a prompt that this engine will be asked for. `done` is called from here, or later."""
        status, prompt = self._node.ticket_prompt(ticket)
        if prompt is None:
            self.give_up(done, _kvferry.status_name(status))
            return
        self._names += 1
        remote = RemotePrompt(f"ticket-{self._names}", None, ticket=ticket, prompt=prompt)
        self.open(remote, 0, {})
        if remote.id == 0:
            self.give_up(done, REFUSED)
        else:
            self.take_up(remote, prompt, done)

    def give_up(self, done: Done, reason: str) -> None:
        self._counters.add("not_loaded", reason)
        done(0, reason)

    def _fail(self, remote: RemotePrompt, verdict: Verdict) -> None:
        """The engine knows nothing of it, and computes the prompt."""
        self._remote.pop(remote.key, None)
