"""What the scheduler side tells the ranks: with a step's metadata, and between steps (engine/channel.py)."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvferry.engine.messages import StepOrders

NO_BLOCK = -1
"""In place of a block that has slid out of its window (BAD_PAGE_INDEX)."""


@dataclass
class Copy:
    """From staging to the pool, before the step's forward: of all of its requests, so that there is one a step."""

    number: int
    source: tuple[bytes, ...]
    destination: tuple[bytes, ...]


@dataclass
class Between(StepOrders):
    """Between steps."""

    after: dict[int, int] = field(default_factory=dict)
    """By load into staging: the copy, of its blocks of the staging, before whose end nothing may be written there; none: 0."""


@dataclass
class Handover(Between):
    """Orders between steps about prompts that have been computed."""

    requests: dict[int, int] = field(default_factory=dict)  # the engine's, which it keeps, by the lease that is published
    tickets: list[str] = field(default_factory=list)  # of these: the first rank gives them to those who ask


@dataclass
class Parked:
    """A request whose blocks are loaded while the engine keeps it waiting."""

    request_id: int  # the engine's
    load_id: int
    local_tokens: int
    tokens: int  # that are there once all is loaded
    prompt_tokens: int
    blocks: tuple[bytes, ...]


@dataclass
class Step(StepOrders):
    """With the metadata of a step, the same on all ranks."""

    copy: Copy | None = None
    parked: list[Parked] = field(default_factory=list)
