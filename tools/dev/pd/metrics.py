"""Reads the Prometheus text of a server."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

Samples = list[Sample]


def parse(text: str) -> Samples:
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def total(samples: Samples, name: str, **labels: str) -> float:
    """The sum over all series of this name that carry these labels; 0.0 if there is none."""
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


def by_label(samples: Samples, name: str, label: str) -> dict[str, float]:
    values = {s.labels.get(label, "") for s in samples if s.name == name and s.value}
    return {value: total(samples, name, **{label: value}) for value in values}
