"""One logger for an adapter, which makes it a child of its engine's. The lines of the library's nodes go there too.

Clients and peers can cause lines at will: what they cause goes through `limited`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partialmethod

from kvferry import LogQueue

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

LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
"""By kvf_log_level."""


class NodeLog:
    """The queue of a process, made when it is first asked for, and the thread that empties it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: LogQueue | None = None

    def queue(self) -> LogQueue:
        with self._lock:
            if self._queue is None:
                self._queue = LogQueue()
                threading.Thread(target=self._empty, args=(self._queue,), name="kvferry-log", daemon=True).start()
            return self._queue

    @staticmethod
    def _empty(queue: LogQueue) -> None:
        while True:
            level, text = queue.next()
            logger.log(LEVELS[level], "kvferry: %s", text)


_node_log = NodeLog()


def node_log() -> LogQueue | None:
    """None: nobody has said how this process logs. The library then writes to standard error by itself."""
    return _node_log.queue() if logger.hasHandlers() else None


def _forget() -> None:
    """A forked child has no thread."""
    global _node_log
    _node_log = NodeLog()


os.register_at_fork(after_in_child=_forget)
