"""The tables of the documents that are the code's own: of options, metrics, reasons, steps of why.md, and families of models. That
of vLLM's releases is of the last kept run of their tests (tests/e2e/releases). And the alerts once more, as Prometheus' operator has them."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from kvferry import _kvferry, metric_table
from kvferry.why import table as why
from pd.carried import CARRIED, NOT_ON_A_CPU, ROWS, TOPOLOGIES, Topology

DOCS = Path(__file__).resolve().parents[2] / "docs"
PROMETHEUS = DOCS.parent / "deploy/prometheus"
MODELS = DOCS / "models.md"
FLAGS = "here", "elsewhere", "recompute", "breaker"
OF_A_RELEASE = re.compile(r"^\| (\d+\.\d+\.\d+) \|.*\n", re.M)


def how_known(name: str, topology: Topology) -> str:
    """Of what tests/e2e/families has tried."""
    row = next((row for row in ROWS if (row.family.name, row.topology) == (name, topology)), None)
    if row is None:
        return "not in vLLM"
    return "identical" if row.identical else "within the noise"


def tables() -> dict[str, list[str]]:
    """The rows of each document's table, which is its first whose rows begin with a name."""
    return {
        "options.md": [
            f"| `{name}` | {f'{initial} {unit}'.strip() or '(none)'} | {allowed} | {meaning} |"
            for name, unit, initial, allowed, meaning in _kvferry.options()],
        "reasons.md": [
            f"| `{name}` | {lost} | {', '.join(flag for flag, holds in zip(FLAGS, flags) if holds) or '–'} | {meaning} |"
            for name, lost, *flags, meaning in _kvferry.reasons()],
        "models.md": [
            f"| `{name}` | {carried.what} | {' | '.join(how_known(name, topology) for topology in TOPOLOGIES)} |"
            for name, carried in CARRIED.items()] + [
            f"| `{name}` | {what} |{' bytes only |' * len(TOPOLOGIES)}" for name, what in NOT_ON_A_CPU.items()],
    }


def with_table(text: str, rows: list[str]) -> str:
    lines = text.splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines, 1) if line.startswith("|---") and lines[i].startswith("| `"))
    end = next((i for i, line in enumerate(lines[start:], start) if not line.startswith("| `")), len(lines))
    return "".join([*lines[:start], *(row + "\n" for row in rows), *lines[end:]])


BEGIN, END = "<!-- made by ./dev tables -->\n", "<!-- end -->\n"
WIDTH = 100


def parts() -> dict[str, str]:
    """What stands in each document between BEGIN and END."""
    return {"metrics.md": metric_groups(), "reasons.md": connector_causes(), "why.md": "\n".join(map(why_step, why.STEPS))}


def with_part(text: str, part: str) -> str:
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + part + END + rest.partition(END)[2]


def metric_groups() -> str:
    def row(name: str, _: str, metric: metric_table.Metric) -> str:
        return f"| `{name}` | {', '.join(f'`{label}`' for label in metric.labels) or '–'} | {metric.help} |\n"
    head = "| metric | labels | meaning |\n|---|---|---|\n"
    histograms = ", ".join(f"`{name}`" for name, kind, _ in metric_table.names() if kind == "histogram")
    kinds = filled(f"Names that end in `_total` are counters. These are histograms: {histograms}. All others are gauges.")
    groups = (f"## {title}\n\n{head}{''.join(row(*one) for one in group)}" for title, group in metric_table.groups().items())
    return "\n".join([kinds, *groups])


def connector_causes() -> str:
    def where(name: str) -> str:
        sides = [step.side for step in (why.TICKETS, why.USE) if name in step.causes]
        return "both" if len(sides) > 1 else sides[0]
    head = "| cause | on | meaning |\n|---|---|---|\n"
    return head + "".join(f"| `{name}` | {where(name)} | {cause.meaning} |\n" for name, cause in why.causes_of_connector().items())


def filled(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) + "\n"


def why_step(step: why.Step) -> str:
    """What a cause means is said here where reasons.md does not."""
    known = {status[0] for status in _kvferry.reasons()} | why.causes_of_connector().keys()
    metrics = ", ".join(f"`{metric_table.PREFIX}{name}`" for name in step.metrics)
    shared = [name for name in step.causes if step is why.USE and name in why.CONTENT]

    def cause(name: str) -> str:
        meaning = "" if name in known else step.causes[name].meaning + " "
        remedy = step.causes[name].remedy
        text = f"{meaning}{remedy[0].upper()}{remedy[1:]}"
        return filled(f"- `{name}`: {text}" + "." * (text[-1] not in ".?"), "  ")
    causes = "".join(cause(name) for name in step.causes if name not in shared)
    if shared:
        causes += filled("- " + ", ".join(f"`{name}`" for name in shared) + ": their remedies stand in step 1.", "  ")
    return (f"## {why.STEPS.index(step) + 1}. {step.question}\n\n"
            + filled(f"Metrics of {step.side}: {metrics}. In the log: `{step.log}`.") + "\n" + causes)


def releases_in(text: str) -> list[str]:
    return OF_A_RELEASE.findall(text)


def with_releases(text: str, rows: list[str]) -> str:
    """In place of those that are there."""
    first, *_, last = OF_A_RELEASE.finditer(text)
    return text[:first.start()] + "".join(row + "\n" for row in rows) + text[last.end():]


def operator_rule() -> tuple[Path, str]:
    """The alerts as the operator's kind, in which kustomize cannot set a plain file."""
    rules = (PROMETHEUS / "kvferry.rules.yml").read_text()
    head = ("# Made by ./dev tables of kvferry.rules.yml, for Prometheus' operator.\napiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\n"
            "metadata:\n  name: kvferry\nspec:\n")
    return PROMETHEUS / "prometheus-rule.yaml", head + textwrap.indent(rules[rules.index("groups:"):], "  ")


if __name__ == "__main__":
    rule, text = operator_rule()
    rule.write_text(text)
    for name in {**tables(), **parts()}:
        document = DOCS / name
        text = written = document.read_text()
        if name in tables():
            written = with_table(written, tables()[name])
        if name in parts():
            written = with_part(written, parts()[name])
        if written != text:
            document.write_text(written)
            print(f"docs/{name}")
