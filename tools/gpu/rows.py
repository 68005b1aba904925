"""What engines.py and mini.py find out: a JSON line a row, in the file as soon as it is known."""

from __future__ import annotations

import json
import os
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
"""`right` says whether the row is as it should be, `why` why not."""
NOT_ON_A_CPU = "not on a CPU"
NO_TIME = "no time was left"


class Rows:
    def __init__(self, path: Path, minutes: float, is_patient: bool) -> None:
        """Patient: nothing has a limit of its own, as where other programs have the processors."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._is_patient = is_patient
        self._path = path
        self._until = time.monotonic() + 60 * minutes
        self.wrong = 0

    def left_s(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def limit(self, seconds: float) -> float:
        return self.left_s() if self._is_patient else min(seconds, self.left_s())

    def add(self, name: str, figures: Figures) -> None:
        self.wrong += figures.get("right") is False
        with self._path.open("a") as file:
            file.write(json.dumps({"row": name, **figures}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        rest = "  ".join(f"{key} {value}" for key, value in figures.items() if key != "right")
        print(f"{name:34} {self._word(figures):6} {rest}", flush=True)

    @staticmethod
    def _word(figures: Figures) -> str:
        return {True: "right", False: "WRONG"}.get(figures.get("right", ""), "")

    def skip(self, name: str) -> None:
        """Neither right nor wrong."""
        self.add(name, {"skipped": NOT_ON_A_CPU})

    def run(self, name: str, judge: Callable[[], Figures]) -> Figures:
        """Whatever it raises is in its row."""
        begin = time.monotonic()
        if self.left_s() == 0:
            figures: Figures = {"right": False, "why": NO_TIME}
        else:
            try:
                figures = judge()
            except Exception as error:
                last = traceback.extract_tb(error.__traceback__)[-1]
                figures = {"right": False, "why": f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"}
        figures["seconds"] = round(time.monotonic() - begin, 1)
        self.add(name, figures)
        return figures


def spread_ms(seconds: Sequence[float]) -> Figures:
    """The median, and what one of a hundred is longer than."""
    if not seconds:
        return {"median_ms": None, "p99_ms": None}
    ordered = sorted(seconds)
    return {"median_ms": round(statistics.median(ordered) * 1e3, 3),
            "p99_ms": round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1e3, 3)}
