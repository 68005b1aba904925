"""Engines whose hooks raise when a test says so (tools/dev/pd/raising.py)."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from pd import metrics
from pd.client import Ticket
from pd.connector import RAISING
from pd.engine import Engine, EngineSpec

from shapes import engine

ERRORS, STOPPED = "kvferry_internal_errors_total", "kvferry_transfers_stopped"
SEEN_WITHIN_S = 15.0


def raising(folder: Path, name: str, mutant: str = "", **shape: Any) -> EngineSpec:
    made = engine(name, **shape)
    connector = made.connector.with_mutant(mutant) if mutant else made.connector
    (folder / name).mkdir(exist_ok=True)
    return replace(made, connector=connector.raising_in(folder / name))


def folder_of(one: Engine) -> Path:
    return Path(one.spec.connector.env[RAISING])


def arm(one: Engine, hook: str, when: str = "before", rank: int = 0) -> None:
    """In one step, as the engine looks at any time."""
    unseen = folder_of(one) / "new"
    unseen.write_text(when)
    unseen.rename(folder_of(one) / f"{hook}.{rank}")


def has_raised(one: Engine, hook: str, rank: int = 0) -> bool:
    return not (folder_of(one) / f"{hook}.{rank}").exists()


def lost_ticket(one: Engine) -> Ticket:
    return {"do_remote_prefill": True, "kvferry_ticket": (folder_of(one) / "ticket").read_text()}


def errors(one: Engine) -> dict[str, float]:
    """By hook."""
    return metrics.by_label(one.samples(), ERRORS, "hook")


def is_stopped(one: Engine) -> bool:
    return metrics.total(one.samples(), STOPPED) == 1.0


def shows(one: Engine, hook: str, stopped: bool) -> None:
    """In /metrics, soon: they go with the engine's steps."""
    end = time.monotonic() + SEEN_WITHIN_S
    while (shown := (errors(one).get(hook, 0.0), is_stopped(one))) != (1.0, stopped):
        assert time.monotonic() < end, shown
        time.sleep(0.1)
