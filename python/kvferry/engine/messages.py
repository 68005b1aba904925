"""What the scheduler side and the ranks tell each other, once in every engine step."""

from __future__ import annotations

import enum
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvferry import Load, Publication, _kvferry

from .log import limited

LORA_CHANGED, IN_A_LIST = "lora_changed", "in_a_list"
"""Why there is no ticket, or no load: another content of the LoRA adapter was read meanwhile; the prompt is not the first of
its list."""


@dataclass
class StepOrders:
    """Scheduler side to every rank. What is ended or aborted comes before the step's memory work."""

    end: list[bytes] = field(default_factory=list)
    make_room: bool = False  # leases that only linger end, too
    abort: list[int] = field(default_factory=list)
    publish: list[Publication] = field(default_factory=list)  # `user` is the lease's id
    load: list[Load] = field(default_factory=list)  # `user` is the number of positions
    lease_adapters: dict[int, Any] = field(default_factory=dict)
    load_adapters: dict[int, Any] = field(default_factory=dict)
    """By lease, and by request: the LoRA adapter that the rank must have in memory to publish, or to load."""
    finished: list[str] = field(default_factory=list)
    """The engine's ids of requests that have ended, and that it keeps until every rank has said so."""
    answer: bool = False  # the scheduler side waits for something: answer even if there is no news


@dataclass
class Ending:
    """Scheduler side to every rank, between steps: to be ended now, and confirmed."""

    leases: dict[int, bytes] = field(default_factory=dict)
    loads: list[int] = field(default_factory=list)


@dataclass
class RankReport:
    """One rank to the scheduler side. To be told anything twice does no harm."""

    rank: int
    reports: list[bytes] = field(default_factory=list)
    released: set[int] = field(default_factory=set)  # requests to whose blocks nothing writes any more
    ended: set[int] = field(default_factory=set)  # leases
    unpublished: set[int] = field(default_factory=set)  # leases that it could not publish
    stuck: set[int] = field(default_factory=set)  # requests whose load is not released in time
    refused: set[int] = field(default_factory=set)  # requests that it does not load, since it has another adapter
    adapters: dict[int, Any] = field(default_factory=dict)  # by the engine's id: those that have changed
    healthy: bool = True  # no load is unreleased for too long, and the device is there
    stopped: str = ""  # why the rank has ended all its transfers, for good

    def is_empty(self) -> bool:
        """Not __bool__: an engine may drop what is false, and an empty answer is an answer."""
        return self == RankReport(self.rank)


class NotCarried(enum.Enum):
    """Why a prompt's KV is not handed over, nor loaded; the values are reasons in metrics."""

    NO_TOKEN_IDS = "no_token_ids"
    """It came as embeddings, or grows."""
    UNSEEN = "content_unseen"
    """It has a LoRA adapter, images, or a salt, whose content the engine does not show."""
    TOO_SHORT = "too_short"
    """One token, of a model whose state is handed over before a prompt's last one."""
    PROMPT_LOGPROBS = "prompt_logprobs"
    """Asked for of such a prompt: all of it is computed wherever it goes."""
    IMAGES_UNHASHED = "images_unhashed"
    WEIGHTS_UNKNOWN = "weights_unknown"
    CACHE_OLD = "cache_old"
    """The engine's prefix cache may hold blocks that other weights, or another adapter, have computed."""
    LORA_UNKNOWN = "lora_unknown"
    """Not every rank has read its adapter yet, or they have not read the same, or the engine reads it anew in every step."""


SAID_AT_START = frozenset((NotCarried.IMAGES_UNHASHED.value,))
"""What follows from the engine's configuration: the log has it once."""


def log_left_out(text: str, request_id: str, reason: str, why: str = "") -> None:
    """A request whose KV is not handed over, or not loaded."""
    if reason not in SAID_AT_START:
        limited.warning(text, request_id, f"{reason}: {why}" if why else reason, reason=reason)


def pack_blocks(groups: Iterable[Sequence[int]], null_block: int, counts: Sequence[int],
                firsts: Sequence[int]) -> tuple[bytes, ...]:
    """Block ids by KV group, `counts` positions of each. Positions before `firsts`, those that have no block, and the
    engine's null block become BLOCK_NONE."""
    packed = []
    for group, count, first in zip(groups, counts, firsts):
        ids = array("I", (_kvferry.BLOCK_NONE if position < first or block == null_block else block
                          for position, block in enumerate(group[:count])))
        ids.extend([_kvferry.BLOCK_NONE] * (count - len(ids)))
        packed.append(ids.tobytes())
    return tuple(packed)


def count_positions(blocks: Iterable[bytes]) -> int:
    return sum(map(len, blocks)) // array("I").itemsize
