"""The faults, each as what is done up to the client's answer, and how it is undone."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psutil

from . import client
from .client import Prompt, Reply, Ticket
from .rig import Rig

HANG_UP_AFTER_S = 0.3
SECOND_RANK = re.compile(r"Worker_(TP|PP)1$")


def nothing(rig: Rig) -> None:
    """There is nothing to undo."""


@dataclass(frozen=True)
class Fault:
    """inject gives the client's answer, or None where the client hung up."""

    letter: str
    title: str
    inject: Callable[[Rig], Reply | None]
    undo: Callable[[Rig], None] = nothing
    asks: Callable[[Rig], Prompt] = lambda rig: rig.question
    loads: bool = False
    """Nothing keeps the blocks from being loaded."""


def handed(between: Callable[[Rig], object] = nothing,
           change: Callable[[Ticket], Ticket] = lambda ticket: ticket) -> Callable[[Rig], Reply]:
    """What happens between a ticket and its use, and what becomes of it on its way."""
    def inject(rig: Rig) -> Reply:
        ticket = rig.ticket(rig.question)
        between(rig)
        return rig.decode(rig.question, change(ticket))
    return inject


def take_back(rig: Rig) -> None:
    rig.outlast_lease()
    rig.overwrite_prefill_blocks()


def stop(rig: Rig) -> None:
    rig.producer.process.pause()


def let_go_on(rig: Rig) -> None:
    rig.producer.process.resume()


def kill(rig: Rig) -> None:
    rig.producer.process.kill()


def start_anew(rig: Rig) -> None:
    rig.stack.restart(rig.producer)


def second_rank(rig: Rig) -> psutil.Process:
    """The process of P's second tensor-parallel rank, or of its second stage."""
    return next(process for process in rig.producer.process.family()
                if any(SECOND_RANK.search(word) for word in process.cmdline()))


def hung_up(rig: Rig) -> None:
    """P is stopped meanwhile, so that a load that needs P is still going on when the client leaves."""
    ticket = rig.ticket(rig.question)
    rig.producer.process.pause()
    with closing(client.ask(rig.decoder.url, rig.question, rig.max_tokens, ticket)):
        time.sleep(HANG_UP_AFTER_S)


def alter(ticket: Ticket) -> Ticket:
    """Our ticket is one opaque string; NixlConnector's names the blocks in plain numbers."""
    changed = copy.deepcopy(ticket)
    if "kvferry_ticket" in changed:
        changed["kvferry_ticket"] = flip_middle(changed["kvferry_ticket"])
    else:
        changed["remote_block_ids"] = reverse_lists(changed["remote_block_ids"])
    assert changed != ticket
    return changed


def flip_middle(text: str) -> str:
    middle = len(text) // 2
    return text[:middle] + ("A" if text[middle] != "A" else "B") + text[middle + 1:]


def reverse_lists(ids: list[Any]) -> list[Any]:
    return [reverse_lists(group) for group in ids] if isinstance(ids[0], list) else ids[::-1]


def swapped(rig: Rig) -> Reply:
    return rig.decode(rig.question, rig.ticket(rig.other_question))


healthy, killed, altered = handed(), handed(kill), handed(change=alter)
HEALTHY = Fault("-", "no fault", healthy, loads=True)
STALE = Fault("a", "lease ran out, blocks overwritten", handed(take_back))
STOPPED = Fault("b", "P stopped (SIGSTOP)", handed(stop), let_go_on)
KILLED = Fault("c", "P killed", killed, start_anew)
RESTARTED = Fault("d", "P killed and started anew", handed(start_anew))
HUNG_UP = Fault("e", "client hangs up during the load", hung_up, let_go_on)
ALTERED = Fault("f", "ticket altered on its way", altered)
SWAPPED = Fault("g", "ticket of another prompt", swapped)
RANK_LOST = Fault("-", "one rank of P stands still", handed(lambda rig: second_rank(rig).suspend()),
                  lambda rig: second_rank(rig).resume())
ALL = (HEALTHY, STALE, STOPPED, KILLED, RESTARTED, HUNG_UP, ALTERED, SWAPPED)
