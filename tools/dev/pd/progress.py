"""Says what is being done, and for how long, while it is being done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHOW_EVERY_S = 10.0


@contextmanager
def doing(what: str) -> Iterator[None]:
    start = time.monotonic()
    say(f"{what} …")
    yield
    say(f"{what}: {time.monotonic() - start:.0f} s")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def wait_until(what: str, ready: Callable[[], bool], limit_s: float, every_s: float = 0.25) -> None:
    """Waits with a line of progress every few seconds; TimeoutError after the limit."""
    start = shown = time.monotonic()
    while not ready():
        now = time.monotonic()
        if now - start > limit_s:
            raise TimeoutError(f"{what}: not so after {limit_s:.0f} s")
        if now - shown >= SHOW_EVERY_S:
            say(f"  … {what}: {now - start:.0f} s")
            shown = now
        time.sleep(every_s)
