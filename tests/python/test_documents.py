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
from tables import DOCS, MODELS, operator_rule, parts, releases_in, tables, with_part, with_table
DASHBOARD = ROOT / "deploy/grafana/kvferry.json"


@pytest.mark.parametrize("name", tables())
def test_tables(name: str) -> None:
    text = (DOCS / name).read_text()
    assert with_table(text, tables()[name]) == text, "run ./dev tables"


@pytest.mark.parametrize("name", parts())
def test_parts(name: str) -> None:
    text = (DOCS / name).read_text()
    assert with_part(text, parts()[name]) == text, "run ./dev tables"


def test_the_operator_has_the_same_alerts():
    file, text = operator_rule()
    assert file.read_text() == text, "run ./dev tables"


def test_the_models_page_has_a_result_of_each_release():
    assert set(SUPPORTED) <= set(releases_in(MODELS.read_text()))
    assert {versions.minor(release) for release in SUPPORTED} == versions.TESTED.keys(), (
        "left: tools/dev/requirements-releases.txt; right: kvferry/vllm/versions.py")


def test_the_failure_model_names_no_other_reasons():
    reasons = {reason[0] for reason in _kvferry.reasons()}
    table = (DOCS / "failure-model.md").read_text().partition("\n## What D sees\n")[2].partition("\n## ")[0]
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
    assert len(examples) == 4, "examples of an engine in README and docs/, which this test must see: " + "\n".join(examples)
    assert {one for one in examples if '"kv_load_failure_policy": "recompute"' not in one} == set()


def headings(page: Path) -> set[str]:
    """What the links to a page have behind `#`."""
    lines = re.findall(r"^#+ (.*)", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


def broken(page: Path, link: str) -> str | None:
    target, _, part = link.partition("#")
    found = (page.parent / target).resolve() if target else page
    if not found.exists():
        return "there is no such file"
    if part and found.suffix == ".md" and part not in headings(found):
        return f"{found.name} has no such heading"
    return None


def test_links_lead_somewhere():
    pages = [page for folder in ("docs", "examples", "python", "src", "tests", "tools") for page in (ROOT / folder).rglob("*.md")]
    assert len(pages) > 30
    links = [(page, link) for page in [*ROOT.glob("*.md"), *pages]
             for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if not link.startswith("http")]
    missing = [f"{page.relative_to(ROOT)}: the link to {link} is broken: {why}" for page, link in links if (why := broken(page, link))]
    assert not missing, "\n".join(missing)


def rows(name: str) -> list[str]:
    """Of all tables, without heads and rules."""
    lines = (DOCS / name).read_text().splitlines()
    return [line for line, after in zip(lines, [*lines[1:], ""]) if line.startswith("| ") and not after.startswith("|---")]


@pytest.mark.parametrize("name", ["routers.md", "kubernetes.md"])
def test_each_row_names_its_test(name: str) -> None:
    """Or says that it was read, not run."""
    assert len(rows(name)) > 15
    for row in rows(name):
        shown_by = row.rstrip(" |").rpartition(" | ")[2]
        files = re.findall(r"`(tests/[^`]*)`", shown_by)
        assert files or "read, not run" in shown_by, row
        assert [file for file in files if not (ROOT / file).exists()] == [], row


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


NAMED = re.compile(r"(?:kvferry_|\$\{prefix\})(\w+)")


def bare_names(text: str) -> set[str]:
    return set(NAMED.findall(text.replace("kvferry_(leases|requests_total)", "kvferry_leases kvferry_requests_total")
                             .replace("${prefix}(leases|requests_total)", "")))


def shown() -> dict[str, metric_table.Metric]:
    return {name.removeprefix(metric_table.PREFIX): metric for name, metric in shown_names().items()}


def test_the_dashboard_shows_metrics_that_exist():
    named = bare_names(" ".join(expressions()))
    assert named and named <= shown().keys()


def test_the_dashboard_groups_by_labels_that_exist():
    for expression in expressions():
        labels = {label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")}
        metrics = [shown()[name] for name in bare_names(expression)]
        known = {"namespace", "pod", "instance", "ReplicaId", "engine", "model_name", "job", "le",
                 *(label for metric in metrics for label in metric.labels)}
        assert labels <= known, expression


def test_the_dashboard_finds_each_stack_s_names_and_chooses_by_pod_namespace_model_and_engine():
    variables = {one["name"]: one for one in json.loads(DASHBOARD.read_text())["templating"]["list"]}
    query = variables["prefix"]["query"]["query"]
    pattern = re.search(r'__name__=~"([^"]*)"', query)
    cut = re.fullmatch(r"/(.*)/", variables["prefix"]["regex"])
    assert pattern and cut
    for prefix in ("kvferry_", "vllm:kvferry_", "ray_kvferry_", "ray_vllm_kvferry_"):
        assert re.fullmatch(pattern[1], prefix + "leases")
        found = re.match(cut[1], prefix + "leases")
        assert found and found[1] == prefix
    for panel in panels():
        for target in panel.get("targets", []):
            for name in NAMED.findall(target["expr"]):
                for label, variable in (("namespace", "namespace"), ("pod", "pod"), ("model_name", "model"), ("engine", "engine")):
                    assert variable in variables and f'{label}=~"${variable}"' in target["expr"], (name, label)


# ---- who reads a metric ----

READERS = [DASHBOARD, ROOT / "deploy/prometheus/kvferry.rules.yml", DOCS / "alerts.md",
           ROOT / "python/kvferry/leave.py", *(ROOT / "python/kvferry/top").glob("*.py"), *(ROOT / "python/kvferry/why").glob("*.py")]
"""Panels, alerts, their entries in the runbook, `kvferry ready`, `kvferry top`, `kvferry why`; a table of all metrics is no reader."""
OLD_MAX = 50
NEW = {"leases_untaken", "pinned_tokens", "pinned_bytes", "oldest_lease_timestamp_seconds", "oldest_waiting_timestamp_seconds",
       "last_load_timestamp_seconds"}


def test_each_metric_has_a_reader_and_there_are_not_too_many():
    text = "\n".join(path.read_text() for path in READERS)
    read = bare_names(text) | set(re.findall(r'"(\w+)"', "\n".join(path.read_text() for path in READERS[3:])))
    suffixes = ("", "_bucket", "_sum", "_count")
    names = {name.removeprefix(metric_table.PREFIX) for name, _, _ in metric_table.names()}
    unread = {name for name in names if not any(name + suffix in read for suffix in suffixes)}
    assert not unread, "no panel, alert or command reads these"
    assert NEW <= names
    assert len(names - NEW) <= OLD_MAX, f"{len(names)} metrics are more than anybody reads: let one go for each that comes"


def test_tools_tests_and_documents_name_metrics_that_exist():
    """What is not there reads as 0."""
    sources = [path for folder in ("tools", "tests", "python") for path in (ROOT / folder).rglob("*.py")] + [
        ROOT / "README.md", *DOCS.glob("*.md")]
    whole = re.compile(r"\bkvferry_(?!options|ticket)(\w+_(?:total|sum|count|bucket|seconds|bytes)|leases\w*|loads_\w+|blocks_\w+|"
                       r"requests_\w+|sessions_\w+|finds_\w+|offers_\w+|peers?_\w+|transfers_\w+|vllm_\w+|draft_\w+|pinned_\w+)\b")
    unknown = {(path.name, name) for path in sources for name in whole.findall(path.read_text())} - {
        (path.name, name.removeprefix(metric_table.PREFIX)) for path in sources
        for name in [*shown_names(), *(name for name, _, _ in metric_table.names())]}
    assert unknown == set()


def test_the_dashboard_has_both_sides():
    text = " ".join(expressions())
    for name in ("loads_total", "load_failures_total", "no_tickets_total", "not_loaded_total", "peer_load_failures_total",
                 "recomputed_tokens_total", "leases", "leases_ended_total", "peer_breaker",
                 "loaded_bytes_total", "load_seconds_bucket", "detection_seconds_bucket", "blocks_quarantined"):
        assert name in bare_names(text), name


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
