"""Tickets that producers are asked for, by the prompt.

A caller that names the producer knows that it has computed the prompt. Then it is asked again, as long as a caller waits:
the prompt's ticket may be there a moment after its answer. Else all producers are asked once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvferry import _kvferry

from .mailbox import Done

if TYPE_CHECKING:
    from kvferry import Node
    from kvferry._kvferry import Event
    from kvferry.engine.metrics import Counters

PAUSE_S, PAUSE_MAX_S = 0.005, 0.2
"""Between two questions: the first, doubled each time."""


@dataclass
class Find:
    prompt: bytes
    at: str | None
    until: float
    done: Done
    pause_s: float = PAUSE_S
    again_at: float = 0.0


class Finder:
    def __init__(self, node: Node, counters: Counters, found: Callable[[str, Done], None]) -> None:
        """`found` is called with a ticket, and whom to tell what becomes of it."""
        self._node = node
        self._counters = counters
        self._found = found
        self._asked: dict[int, Find] = {}
        self._waiting: list[Find] = []

    def find(self, prompt: bytes, at: str | None, hold_ms: int, done: Done) -> None:
        self._ask(Find(prompt, at, time.monotonic() + hold_ms / 1000, done))

    def _ask(self, find: Find) -> None:
        left_ms = max(1, int((find.until - time.monotonic()) * 1000))
        status, id_ = self._node.ticket_find(find.prompt, find.at, left_ms, 0)
        if status == _kvferry.OK:
            self._asked[id_] = find
        else:
            self._end(find, status)

    def _end(self, find: Find, status: int) -> None:
        reason = _kvferry.status_name(status)
        self._counters.add("not_loaded", reason)
        find.done(0, reason)

    def on_event(self, event: Event) -> None:
        find = self._asked.pop(event.id, None)
        if find is None:
            return
        if event.cause == _kvferry.OK:
            ticket = self._node.ticket_take(event.id)
            if ticket is not None:
                self._found(ticket, find.done)
            else:
                self._end(find, _kvferry.NOT_FOUND)
            return
        find.again_at = time.monotonic() + find.pause_s
        if find.at is not None and find.again_at < find.until:
            find.pause_s = min(2 * find.pause_s, PAUSE_MAX_S)
            self._waiting.append(find)
        else:
            self._end(find, event.cause)

    def ask_again(self) -> None:
        now = time.monotonic()
        due = [find for find in self._waiting if find.again_at <= now]
        self._waiting = [find for find in self._waiting if find.again_at > now]
        for find in due:
            self._ask(find)

    def wait_s(self, longest_s: float) -> float:
        """Until ask_again() has something to do."""
        if not self._waiting:
            return longest_s
        return min(longest_s, max(0.0, min(find.again_at for find in self._waiting) - time.monotonic()))
