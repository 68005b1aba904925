"""What each test has found, a row each; and those of a run before."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from load import TRUTH, Answers

TREE = os.environ.get("KVFERRY_TREE", "")
"""Of the checkout: a row that has passed on this very tree is kept, and its test not run again. Nothing: none is."""
KEPT = TRUTH.with_name("rows.json")
COLUMNS = ("answers", "right", "errors", "loads", "recomputed_tokens", "longest_s", "seconds")


@dataclass
class Row:
    name: str
    begin: float
    values: dict[str, object]

    def tell(self, answers: Answers, **more: float) -> None:
        self.values |= {"answers": answers.count, "right": answers.right,
                        "errors": answers.errors.total(),
                        "longest_s": round(answers.longest_s, 1), "seconds": round(time.monotonic() - self.begin)} | more


def kept() -> dict[str, dict[str, object]]:
    if not TREE or not KEPT.exists():
        return {}
    found = json.loads(KEPT.read_text())
    return dict(found["rows"]) if found["tree"] == TREE else {}


def keep(row: Row) -> None:
    if TREE:
        KEPT.write_text(json.dumps({"tree": TREE, "rows": kept() | {row.name: row.values}}))


def table(rows: dict[str, dict[str, object]]) -> list[str]:
    width = max([len(name) for name in rows], default=0)
    lines = [("row", *COLUMNS), *((name, *(str(values.get(column, "-")) for column in COLUMNS)) for name, values in rows.items())]
    return [" ".join([name.ljust(width), *(cell.rjust(len(column)) for cell, column in zip(cells, COLUMNS))]) for name, *cells in lines]
