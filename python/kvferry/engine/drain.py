"""How an engine leaves, so that routers see it and no client gets an error:

    leaving   /health is 503, so that routers take it off their lists; new prompts are computed and get tickets all the same
    closed    new prompts are refused, typed and retryable; those under way go on
    ending    no prompt is under way; leases are out
    ended     none is: the end of the process now costs no request

An engine says in a file of its folder (errors.py) when it closes: an API server, of which there may be several, and several
engines behind each, looks there at each request. What is to be decided beyond that, the engine decides.
"""

from __future__ import annotations

import hmac
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .errors import errors_folder
from .log import logger

OPEN, LEAVING, CLOSED, ENDING, ENDED = "open", "leaving", "closed", "ending", "ended"
GRACE_MS = 15000
"""Longer than a router's health check takes to take an engine off: its interval times its threshold."""
GRACE_MS_MAX = 3600_000
SETTLE_NS = 1_000_000_000
"""After it has closed: what an API server took at the last moment has reached the engine by then."""
FILE = "leaving"
RANK = re.compile(r"_dp\d+\Z")
"""What vLLM puts behind the id of an engine for each of its data-parallel ranks."""
READY, STATE, DRAIN, DRAIN_PROVED = "ready", "state", "drain", "drain_proved"
"""What may be asked."""


class Notice(NamedTuple):
    """What the file says. Times are CLOCK_MONOTONIC's."""

    engine: str
    closes_ns: int | None  # None: it stays

    def is_of(self, engine: str) -> bool:
        """One of its ranks, if it has several."""
        return self.engine == engine or RANK.sub("", self.engine) == engine


def read_notice(folder: Path) -> Notice | None:
    """None: there is none, or no engine any more."""
    try:
        return Notice(*json.loads((folder / FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def notices() -> dict[Path, Notice]:
    """Of this user's engines on this host, by their folders. OSError: it cannot be seen which there are."""
    return {folder: notice for folder in sorted(errors_folder().iterdir()) if (notice := read_notice(folder))}


def write_notice(folder: Path, notice: Notice) -> None:
    unnamed = folder / f"{FILE}.new"
    unnamed.write_bytes(json.dumps(notice).encode())
    unnamed.rename(folder / FILE)


def phase_of(closes_ns: int | None, now_ns: int, requests: int, leases: int) -> str:
    if closes_ns is None:
        return OPEN
    if now_ns < closes_ns:
        return LEAVING
    if requests or now_ns < closes_ns + SETTLE_NS:
        return CLOSED
    return ENDING if leases else ENDED


def proof_of(key: bytes, nonce: str, grace: str) -> str:
    """Proves that a caller from elsewhere has the key; `grace` is the one that it asks for, "" for the engine's own."""
    return hmac.digest(key, f"kvferry drain\0{nonce}\0{grace}".encode(), "sha256").hex()


class Look(NamedTuple):
    """What an engine says of itself."""

    requests: int
    leases: int
    why_not: list[str]
    """Why it is not ready; empty: it is."""
    notes: list[str]
    """What does not keep it from being ready."""


class Drain:
    """Of one engine. Any thread may ask; its answers are plain data."""

    def __init__(self, folder: Path, engine: str, grace_ms: int, keys: Sequence[bytes], look: Callable[[], Look]) -> None:
        """OSError: the file cannot be written."""
        self._folder = folder
        self._engine = engine
        self._grace_ms = grace_ms
        self._keys = keys
        self._look = look
        self._lock = threading.Lock()
        self._closes_ns: int | None = None
        write_notice(folder, Notice(engine, None))

    def begin(self, grace_ms: int | None = None) -> None:
        """Asked again, it closes when it was to close, or earlier. OSError: nobody would see it."""
        with self._lock:
            closes_ns = time.monotonic_ns() + (self._grace_ms if grace_ms is None else grace_ms) * 1_000_000
            if self._closes_ns is not None and self._closes_ns <= closes_ns:
                return
            write_notice(self._folder, Notice(self._engine, closes_ns))
            self._closes_ns = closes_ns
        logger.info("kvferry: the engine leaves: it takes new prompts for %.1f s more",
                    max(0, closes_ns - time.monotonic_ns()) / 1e9)

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """ValueError: it is no question. PermissionError: it wants the key."""
        ask, grace_ms = question.get("ask"), question.get("grace_ms")
        if grace_ms is not None and (type(grace_ms) is not int or not 0 <= grace_ms <= GRACE_MS_MAX):
            raise ValueError(f"grace_ms is not 0 to {GRACE_MS_MAX}")
        if ask == DRAIN_PROVED:
            self._check_proof(str(question.get("nonce")), str(question.get("proof")), "" if grace_ms is None else str(grace_ms))
        elif ask not in (READY, STATE, DRAIN):
            raise ValueError("unknown question")
        if ask in (DRAIN, DRAIN_PROVED):
            self.begin(grace_ms)
        return self._state()

    def _check_proof(self, nonce: str, proof: str, grace: str) -> None:
        if not self._keys:
            raise PermissionError("this engine has no key: drain it on its own host, as its own user")
        if not any([hmac.compare_digest(proof_of(key, nonce, grace).encode(), proof.encode()) for key in self._keys]):
            raise PermissionError("not proved by this engine's key")

    def _state(self) -> dict[str, Any]:
        look, now_ns, closes_ns = self._look(), time.monotonic_ns(), self._closes_ns
        phase = phase_of(closes_ns, now_ns, look.requests, look.leases)
        why_not = look.why_not if phase == OPEN else [f"it leaves: {phase}", *look.why_not]
        return {"engine": self._engine, "phase": phase, "requests": look.requests, "leases": look.leases,
                "closes_in_ms": None if closes_ns is None else max(0, closes_ns - now_ns) // 1_000_000,
                "ready": not why_not, "why_not": why_not, "notes": look.notes}
