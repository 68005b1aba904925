"""The same figures as pictures: one PNG each for speed, time and cost, a panel for each path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .report import GB_PER_S, S_PER_GB, US, Row, is_extra, label

PICTURES = (
    ("speed", GB_PER_S, "GB/s"),
    ("latency", US, "time of a load, µs (bar: median, line: to p99)"),
    ("cpu", S_PER_GB, "CPU of both processes, s/GB"),
)


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, unit, axis in PICTURES:
        chosen = [row for row in rows if row["unit"] == unit and not is_extra(row)]
        paths = list(dict.fromkeys(row["case"].split("/")[0] for row in chosen))
        if not chosen:
            continue
        figure, axes = pyplot.subplots(len(paths), 1, figsize=(13, 3.6 * len(paths)), squeeze=False)
        for path, panel in zip(paths, axes[:, 0]):
            bars(panel, [row for row in chosen if row["case"].split("/")[0] == path], unit)
            panel.set_title(path, loc="left")
            panel.set_ylabel(axis, fontsize=8)
        figure.tight_layout()
        files.append(folder / f"{name}.png")
        figure.savefig(files[-1], dpi=110)
        pyplot.close(figure)
    return files


def bars(panel, rows: Sequence[Row], unit: str) -> None:  # type: ignore[no-untyped-def]
    shapes = list(dict.fromkeys(row["case"].split("/")[1] for row in rows))
    names = list(dict.fromkeys(label(row) for row in rows))
    width = 0.84 / len(names)
    for i, name in enumerate(names):
        mine = [row for row in rows if label(row) == name]
        at = [shapes.index(row["case"].split("/")[1]) - 0.42 + width * (i + 0.5) for row in mine]
        medians = [row["median"] for row in mine]
        tails = [max(0.0, row["p99"] - row["median"]) for row in mine]
        panel.bar(at, medians, width, label=name, yerr=[[0.0] * len(mine), tails] if unit == US else None,
                  color="black" if name == "kvferry" else None)  # fmt: skip
    panel.set_xticks(range(len(shapes)), shapes, fontsize=8)
    panel.set_yscale("log" if unit != GB_PER_S else "linear")
    panel.grid(axis="y", alpha=0.3)
    panel.legend(fontsize=7, ncols=len(names))
