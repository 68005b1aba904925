"""Reads the Prometheus text of a server."""

from __future__ import annotations

import re
from typing import NamedTuple

LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


Samples = list[Sample]


def parse(text: str) -> Samples:
    matches = (LINE.match(line) for line in text.splitlines())
    return [Sample(m[1], dict(LABEL.findall(m[2] or "")), float(m[3])) for m in matches if m]


def total(samples: Samples, name: str, **labels: str) -> float:
    """The sum over all series of this name that carry these labels; 0.0 if there is none."""
    return sum(s.value for s in samples
               if s.name == name and all(s.labels.get(key) == value for key, value in labels.items()))


def by_label(samples: Samples, name: str, label: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for s in samples:
        if s.name == name and s.value:
            sums[s.labels.get(label, "")] = sums.get(s.labels.get(label, ""), 0.0) + s.value
    return sums
