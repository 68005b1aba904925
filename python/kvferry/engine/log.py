"""One logger for an adapter, which makes it a child of its engine's.

Clients and peers can cause lines at will: what they cause goes through `limited`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partialmethod

logger = logging.getLogger("kvferry")

LINES_PER_S = 5
KEYS_MAX = 256


class LimitedLogger:
    """Writes at most LINES_PER_S lines a second of each text and reason; the next one that is written says how many were
    left out. Control characters, which a client's words may hold, become '?'."""

    def __init__(self, to: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._to = to
        self._clock = clock
        self._lock = threading.Lock()
        self._seconds: dict[tuple[str, str], list[float]] = {}
        """By text and reason: when its second began, the lines since, those left out."""

    def _log(self, level: int, text: str, *arguments: object, reason: str = "") -> None:
        with self._lock:
            self._log_one(level, text, *arguments, reason=reason)

    def _log_one(self, level: int, text: str, *arguments: object, reason: str) -> None:
        now = self._clock()
        if (text, reason) not in self._seconds and len(self._seconds) >= KEYS_MAX:
            self._seconds.clear()
        second = self._seconds.setdefault((text, reason), [now, 0, 0])
        if now - second[0] >= 1.0:
            second[:2] = [now, 0]
        if second[1] >= LINES_PER_S:
            second[2] += 1
            return
        second[1] += 1
        if second[2]:
            text, arguments = text + " (and %d more like it)", (*arguments, int(second[2]))
            second[2] = 0
        self._to.log(level, text, *("".join(c if c.isprintable() else "?" for c in str(one))
                                    if isinstance(one, (str, Exception)) else one for one in arguments))

    warning, error = partialmethod(_log, logging.WARNING), partialmethod(_log, logging.ERROR)


limited = LimitedLogger(logger)
