"""`kvferry options` and `kvferry explain`: the library's tables, where one needs them."""

from __future__ import annotations

import difflib
import sys
import textwrap
from collections.abc import Callable, Iterable

from . import _kvferry
from .vllm_options import TABLE
from .why import table

WIDTH = 100
Say = Callable[[str], None]


def no_such(kind: str, name: str, known: Iterable[str], command: str) -> int:
    near = difflib.get_close_matches(name, known, 1)
    print(f'kvferry: there is no {kind} "{name}": ' + (f"did you mean {near[0]}?" if near else f"`{command}` lists them"), file=sys.stderr)
    return 2


def options(name: str | None, say: Say) -> int:
    rows = {name: (unit, initial or "(none)", allowed, meaning) for name, unit, initial, allowed, meaning in _kvferry.options()}
    rows |= {name: ("", initial, allowed, f"vLLM's connector alone: {meaning}") for name, initial, allowed, meaning in TABLE}
    if name is None:
        for each, (unit, initial, _, _) in rows.items():
            say(f"{each:30}{initial} {unit}".rstrip())
        return 0
    if name not in rows:
        return no_such("option", name, rows, "kvferry options")
    unit, initial, allowed, meaning = rows[name]
    say(textwrap.fill(meaning, WIDTH))
    say(f"default: {initial} {unit}".rstrip())
    say(textwrap.fill(f"allowed: {allowed} {unit}".rstrip(), WIDTH))
    return 0


def reason(name: str | None, say: Say) -> int:
    statuses = {status[0]: status for status in _kvferry.reasons()}
    known = [*statuses, *(name for step in table.STEPS for name in step.causes if name not in statuses)]
    if name is None:
        for each in dict.fromkeys(known):
            say(each)
        return 0
    if name not in known:
        return no_such("reason", name, known, "kvferry explain")
    found = table.find(name)
    meaning = statuses[name][6] if name in statuses else found[0][1].meaning or found[0][1].remedy
    say(textwrap.fill(meaning.replace("`", ""), WIDTH))
    if name in statuses:
        _, lost, here, elsewhere, recompute, breaker, _ = statuses[name]
        flags = {"the same load may be tried again": here, "another producer, or a new ticket, may help": elsewhere,
                 "the missing blocks may be recomputed": recompute, "its peer is not tried for a while": breaker}
        say(textwrap.fill(f"lost: {lost}; " + "; ".join(text for text, holds in flags.items() if holds), WIDTH).rstrip("; "))
    for step, cause in found:
        say(textwrap.fill(f"kvferry why, step {step.name}, at {step.side}: {cause.remedy}", WIDTH))
    return 0
