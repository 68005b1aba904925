"""Asks engines, once or twice, and prints what is judged."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

NEEDED = "kvferry why needs the package prometheus_client: pip install 'kvferry[top]'"
TIMEOUT_S = 10.0


def run(given: Sequence[str], since_s: float | None, say: Callable[[str], None]) -> int:
    """0: no step fails, 1: one does, 2: what is to be judged cannot be read."""
    try:
        from kvferry.top import scrape

        from . import judge, table
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] == "prometheus_client":
            print(NEEDED, file=sys.stderr)
            return 2
        raise
    try:
        urls = [scrape.metrics_url(url) for url in dict.fromkeys(given)]
    except scrape.Trouble as trouble:
        print(f"kvferry why: {trouble}", file=sys.stderr)
        return 2

    def look() -> list[scrape.Snapshot]:
        return scrape.take_all(urls, TIMEOUT_S, scrape.RAY_PREFIXES + scrape.ENGINE_PREFIXES, tuple(table.OF_VLLM.values()))

    before = look() if since_s is not None else []
    if since_s is not None:
        print(f"kvferry why: looks again in {since_s:g} s", file=sys.stderr, flush=True)
        time.sleep(since_s)
    now = look()
    for one in now:
        if one.trouble:
            print(f"kvferry why: {one.url}: {one.trouble}", file=sys.stderr)
    read = [(one, before[i] if before else None) for i, one in enumerate(now) if not one.trouble]
    if not read:
        return 2
    made = judge.lines(judge.sides_of([engine for one, old in read for engine in judge.engines_of(one, old)]))
    first = judge.verdict(made)
    for line in (first.text_of(), "", *(line.text_of() for line in made), "", counted(since_s)):
        say(line)
    return 1 if first.level == judge.FAIL else 2 if len(read) < len(now) else 0


def counted(since_s: float | None) -> str:
    if since_s is not None:
        return f"Counted in the last {since_s:g} s."
    return "Counted since each engine's start, so that what is over is still in it: --since SECONDS counts anew."
