"""What the documents say of options and reasons is what the code says."""

from pathlib import Path

from kvferry import _kvferry

DOCS = Path(__file__).resolve().parents[2] / "docs"


def rows(document: str, first: str) -> list[str]:
    lines = (DOCS / document).read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(first)) + 2
    return [line for line in lines[start:] if line.startswith("| `")]


def test_options_table():
    expected = [
        f"| `{name}` | {unit or '–'} | {initial or '(none)'} | {allowed} | {meaning} |"
        for name, unit, initial, allowed, meaning in _kvferry.options()
    ]
    assert rows("options.md", "| option |") == expected
