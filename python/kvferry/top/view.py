"""Tables for the terminal."""

from __future__ import annotations

import time
import urllib.parse

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from . import rows

BREAKER_STYLES = ("green", "yellow", "bold red")
PEERS_SHOWN_MAX = 20
FAILURES_SHOWN_MAX = 12


def number(value: float | None) -> str:
    if value is None:
        return "–"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.1f}{unit}"
    return f"{value:.0f}" if value == int(value) or value >= 100 else f"{value:.1f}"


def age(seconds: float) -> str:
    for limit, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= limit:
            return f"{seconds / limit:.0f} {unit}"
    return f"{seconds:.0f} s"


def place(url: str, engine: str) -> str:
    parts = urllib.parse.urlsplit(url)
    return parts.netloc + (f" #{engine}" if engine not in ("", "0") else "")


def table(title: str, *columns: str) -> Table:
    """The first column is a name, those marked with < are text, the others numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim",
                 padding=(0, 1, 0, 0))
    for i, column in enumerate(columns):
        text = i == 0 or column.startswith("<")
        made.add_column(column.removeprefix("<"), justify="left" if text else "right", no_wrap=not column.startswith("<"))
    return made


def warn(value: float) -> Text:
    return Text(number(value), style="bold red" if value else "")


def engines_table(pairs: list[rows.Pair]) -> Table:
    made = table("engines", "engine", "loads\nper s", "failed\nper s", "bytes\nper s", "ms per\nload",
                 "recomputed\ntokens/s", "open\nloads", "leases\nnow", "leases\nper s", "leases\nexpired",
                 "quarantined\nblocks")
    for row in rows.engines(pairs):
        if not row.trouble:
            made.add_row(Text(place(row.url, row.engine)), number(row.loads_per_s), warn_rate(row.failures_per_s),
                         number(row.bytes_per_s), number(row.load_ms), number(row.recomputed_per_s), number(row.loads_open),
                         number(row.leases), number(row.leases_per_s), number(row.expired), warn(row.quarantined))
    return made


def warn_rate(value: float | None) -> Text:
    return Text(number(value), style="bold red" if value else "")


def troubles(pairs: list[rows.Pair]) -> list[Text]:
    return [Text.assemble((place(row.url, ""), "bold"), ": ", (row.trouble, "red"))
            for row in rows.engines(pairs) if row.trouble]


def links_text(links: list[tuple[str, int, bool]]) -> Text:
    text = Text()
    for name, breaker, up in links:
        text.append(f"{' ' if text else ''}{name}:")
        state = rows.BREAKERS[breaker] if breaker else "up" if up else "idle"
        text.append(state, style=BREAKER_STYLES[breaker] if breaker or up else "dim")
    return text


def peers_table(pairs: list[rows.Pair]) -> Table:
    listed = rows.peers(pairs)
    title = "peers" if len(listed) <= PEERS_SHOWN_MAX else f"peers ({PEERS_SHOWN_MAX} of {len(listed)})"
    made = table(title, "peer", "<seen by", "<links", "reads\nnow", "loads\nper s", "bytes\nper s",
                 "loads\nfailed", "<last failure")
    for row in listed[:PEERS_SHOWN_MAX]:
        last = f"{row.last_failure}, {age(row.last_failure_age_s)} ago" if row.last_failure else ""
        made.add_row(Text(row.peer), Text(place(row.url, row.engine)), links_text(row.links), number(row.reads),
                     number(row.loads_per_s), number(row.bytes_per_s), number(row.failures), Text(last))
    return made


def failures_table(pairs: list[rows.Pair]) -> Table:
    made = table("failed loads and refused tickets", "reason", "<engine", "count", "per s", "recomputed\ntokens")
    for row in rows.failures(pairs)[:FAILURES_SHOWN_MAX]:
        made.add_row(Text(row.reason), Text(place(row.url, row.engine)), number(row.count), warn_rate(row.per_s),
                     number(row.recomputed_tokens))
    return made


def frame(pairs: list[rows.Pair]) -> RenderableType:
    parts: list[RenderableType] = [Text(f"kvferry top  {time.strftime('%H:%M:%S', time.localtime(pairs[0].now.at))}", style="dim")]
    parts += troubles(pairs)
    for made in (engines_table(pairs), peers_table(pairs), failures_table(pairs)):
        if made.row_count:
            parts += [Text(), made]
    return Group(*parts)
