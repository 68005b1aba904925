"""The loop: look, show, wait."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

WIDTH_WITHOUT_TERMINAL = 140
NEEDED = "kvferry top needs the packages rich and prometheus_client: pip install 'kvferry[top]'"


def run(given: Sequence[str], interval_s: float, once: bool) -> int:
    try:
        from rich.console import Console, RenderableType
        from rich.live import Live

        from . import rows, scrape, view
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in ("rich", "prometheus_client"):
            print(NEEDED, file=sys.stderr)
            return 2
        raise
    try:
        urls = [scrape.metrics_url(url) for url in given]
    except scrape.Trouble as trouble:
        print(f"kvferry top: {trouble}", file=sys.stderr)
        return 2
    before: list[scrape.Snapshot] = []

    def look() -> tuple[RenderableType, bool]:
        nonlocal before
        now = scrape.take_all(urls, timeout_s=max(2.0, interval_s))
        pairs = [rows.pair(one, before[i] if before else None) for i, one in enumerate(now)]
        before = now
        return view.frame(pairs), not any(one.trouble for one in now)

    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH_WITHOUT_TERMINAL
    console = Console(width=wide)
    if once:
        look()
        time.sleep(interval_s)
        frame, good = look()
        console.print(frame)
        return 0 if good else 1
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        keep_looking(lambda: live.update(look()[0], refresh=True), interval_s)
    return 0


def keep_looking(look: Callable[[], None], interval_s: float) -> None:
    while True:
        began = time.monotonic()
        look()
        time.sleep(max(0.0, interval_s - (time.monotonic() - began)))
