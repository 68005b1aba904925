"""The command line."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence

WIDTH_WITHOUT_TERMINAL = 140
NEEDED = "kvferry top needs the packages rich and prometheus_client: pip install 'kvferry[top]'"


def positive(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not 0.1 to 3600 seconds")
    return value


def arguments_of(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="kvferry", description="Tools for engines with kvferry.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    top = commands.add_parser("top", help="a live view of engines: peers, breakers, loads, leases, rates, last failures",
                              description="Shows what engines' /metrics say of kvferry, until Ctrl-C.")
    top.add_argument("urls", nargs="+", metavar="URL", help="an engine's API server: HOST:PORT or http://HOST:PORT")
    top.add_argument("--interval", type=positive, default=1.0, metavar="SECONDS", help="between two looks (default 1)")
    top.add_argument("--once", action="store_true",
                     help="look twice, print one frame and end: status 0 if all engines answered, 1 if not")
    top.set_defaults(run=run_top)
    return parser.parse_args(words)


def run_top(arguments: argparse.Namespace) -> int:
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
        urls = [scrape.metrics_url(url) for url in arguments.urls]
    except scrape.Trouble as trouble:
        print(f"kvferry top: {trouble}", file=sys.stderr)
        return 2
    interval_s: float = arguments.interval
    before: list[scrape.Snapshot] = []

    def look() -> tuple[RenderableType, bool]:
        nonlocal before
        now = scrape.take_all(urls, timeout_s=max(2.0, interval_s))
        pairs = [rows.pair(one, before[i] if before else None) for i, one in enumerate(now)]
        before = now
        return view.frame(pairs), not any(one.trouble for one in now)

    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH_WITHOUT_TERMINAL
    console = Console(width=wide)
    if arguments.once:
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


def main(words: Sequence[str] | None = None) -> int:
    arguments = arguments_of(words)
    try:
        status: int = arguments.run(arguments)
        return status
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more to be said at exit
        return 1


if __name__ == "__main__":
    sys.exit(main())
