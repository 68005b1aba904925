"""The tables of the documents that are the code's own: of options, metrics and reasons."""

from __future__ import annotations

from pathlib import Path

from kvferry import _kvferry, metric_table

DOCS = Path(__file__).resolve().parents[2] / "docs"


def yes(flag: bool) -> str:
    return "yes" if flag else "–"


def tables() -> dict[str, list[str]]:
    """The rows of each document's table, which is its first."""
    return {
        "options.md": [
            f"| `{name}` | {unit or '–'} | {initial or '(none)'} | {allowed} | {meaning} |"
            for name, unit, initial, allowed, meaning in _kvferry.options()],
        "metrics.md": [
            f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in metric.labels) or '–'} | {metric.help} |"
            for name, kind, metric in metric_table.names()],
        "reasons.md": [
            f"| `{name}` | {lost} | {yes(here)} | {yes(elsewhere)} | {yes(recompute)} | {yes(breaker)} | {meaning} |"
            for name, lost, here, elsewhere, recompute, breaker, meaning in _kvferry.reasons()],
    }


def with_table(text: str, rows: list[str]) -> str:
    lines = text.splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.startswith("|---")) + 1
    end = next((i for i, line in enumerate(lines[start:], start) if not line.startswith("| `")), len(lines))
    return "".join([*lines[:start], *(row + "\n" for row in rows), *lines[end:]])


if __name__ == "__main__":
    for name, rows in tables().items():
        document = DOCS / name
        text = document.read_text()
        if (written := with_table(text, rows)) != text:
            document.write_text(written)
            print(f"docs/{name}")
