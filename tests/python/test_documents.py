"""What the documents and the dashboard say of options, metrics and reasons is what the code says."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from kvferry import _kvferry, metric_table
from kvferry.vllm import versions

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools/dev"))
from pd.releases import SUPPORTED
from tables import DOCS, README, releases_in, tables, with_table
DASHBOARD = ROOT / "deploy/grafana/kvferry.json"


@pytest.mark.parametrize("name", tables())
def test_tables(name: str) -> None:
    text = (DOCS / name).read_text()
    assert with_table(text, tables()[name]) == text, "run ./dev tables"


def test_the_readme_has_a_result_of_each_release():
    assert set(SUPPORTED) <= set(releases_in(README.read_text()))
    assert {versions.minor(release) for release in SUPPORTED} == versions.TESTED.keys()


def test_the_failure_model_names_no_other_reasons():
    reasons = {reason[0] for reason in _kvferry.reasons()}
    table = (DOCS / "failure-model.md").read_text().partition("## What D sees")[2].partition("## ")[0]
    cells = [line.split("|")[3] for line in table.splitlines() if line.startswith("| ")]
    named = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert named and named <= reasons


def test_functions_named_in_the_architecture_exist():
    code = "".join(path.read_text() for folder in ("include", "src") for path in (ROOT / folder).rglob("*.[ch]"))
    named = set(re.findall(r"`(kvf_\w+)\(\)`", (DOCS / "architecture.md").read_text()))
    assert len(named) > 30
    assert {name for name in named if not re.search(rf"^\w[^;]*\b{name}\(", code, re.M)} == set()


def test_examples_name_a_policy():
    """Else clients get vLLM's default: an error."""
    examples = {f"{path.name}: {block}" for path in [ROOT / "README.md", *DOCS.glob("*.md")]
                for block in re.findall(r"^```.*?^```", path.read_text(), re.M | re.S) if '"kv_connector"' in block}
    assert len(examples) == 4
    assert {one for one in examples if '"kv_load_failure_policy": "recompute"' not in one} == set()


def test_links_lead_somewhere():
    for path in [ROOT / "README.md", *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
            assert target.startswith("http") or (path.parent / target).exists(), f"{path.name}: {target}"


# ---- the dashboard ----

def panels() -> list[dict[str, Any]]:
    return json.loads(DASHBOARD.read_text())["panels"]


def expressions() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    return ([target["expr"] for panel in panels() for target in panel.get("targets", [])]
            + [variable["query"]["query"] for variable in dashboard["templating"]["list"]
               if isinstance(variable.get("query"), dict)])


def shown_names() -> dict[str, metric_table.Metric]:
    shown = {}
    for name, kind, metric in metric_table.names():
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        shown.update({name + suffix: metric for suffix in suffixes})
    return shown


def test_the_dashboard_shows_metrics_that_exist():
    named = {name for expression in expressions() for name in re.findall(r"\bkvferry_\w+", expression)}
    assert named and named <= shown_names().keys()


def test_the_dashboard_groups_by_labels_that_exist():
    for expression in expressions():
        labels = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
        metrics = [shown_names()[name] for name in re.findall(r"\bkvferry_\w+", expression)]
        known = {"instance", "engine", "model_name", "job", "le", *(label for metric in metrics for label in metric.labels)}
        assert labels <= known, expression


def test_the_dashboard_has_both_sides():
    text = " ".join(expressions())
    for name in ("loads_total", "load_failures_total", "peer_load_failures_total", "recomputed_tokens_total", "leases",
                 "leases_ended_total", "peer_breaker", "loaded_bytes_total", "load_seconds_bucket",
                 "detection_seconds_bucket", "blocks_quarantined"):
        assert re.search(rf"\bkvferry_{name}\b", text), name


def test_the_dashboard_s_panels_are_apart():
    taken: dict[tuple[int, int], str] = {}
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_each_panel_says_what_it_shows_and_in_what_unit():
    for panel in panels():
        if panel["type"] != "row":
            assert panel["title"] and panel["description"] and panel["targets"]
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
