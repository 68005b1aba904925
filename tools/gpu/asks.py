"""What engines are asked, and what they answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ASKS_FOR_TICKET = {"do_remote_decode": True}


@dataclass
class Ask:
    prompt: list[int]
    tokens: int
    params: dict[str, Any] | None = None
    """kv_transfer_params."""


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    """Of each token, since the request came."""
    params: dict[str, Any] | None = None
    reason: str | None = None
    """Why it has ended: "length", or an error."""
