"""A run as a picture: what the clients got over time, with the faults, and how soon each was noticed and over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .report import Run
from .tally import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 120
COLOURS = {
    Outcome.RIGHT: "#4c9f70", Outcome.TYPED_ERROR: "#e6a532", Outcome.OTHER: "#9a9a9a",
    Outcome.HUNG: "#7b4ea3", Outcome.WRONG: "#c8372d",
}
NAMES = {Outcome.RIGHT: "right", Outcome.TYPED_ERROR: "typed error", Outcome.OTHER: "other error", Outcome.HUNG: "hung",
         Outcome.WRONG: "WRONG"}


def draw(run: Run, path: Path) -> None:
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (requests, times, faults) = pyplot.subplots(
        3, 1, figsize=(14, 11), height_ratios=(3, 3, 4), layout="constrained")
    draw_requests(run, requests)
    draw_latencies(run, times)
    draw_faults(run, faults)
    tally = run.tally
    counts = ", ".join(f"{tally.by_outcome[outcome]} {NAMES[outcome]}" for outcome in COLOURS)
    figure.suptitle(f"{run.connector}, seed {run.seed}: {tally.requests} requests, {counts}; "
                    f"{run.leaked_blocks} blocks leaked, D restarted {len(run.d_restarts)} times")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def shade_faults(run: Run, axes: Axes) -> None:
    for fault in run.faults:
        axes.axvspan(fault.begin_s, fault.end_s, color="#d9534f", alpha=0.12, linewidth=0)
    axes.set_xlim(0.0, run.seconds)


def draw_requests(run: Run, axes: Axes) -> None:
    width_s = max(1.0, run.seconds / BINS)
    outcomes = [outcome for outcome in COLOURS if run.tally.by_outcome[outcome]] or [Outcome.RIGHT]
    ends = [[r.end_s for r in run.requests if r.outcome is outcome] for outcome in outcomes]
    edges = [place * width_s for place in range(int(run.seconds / width_s) + 2)]
    axes.hist(ends, edges, stacked=True, color=[COLOURS[outcome] for outcome in outcomes],
              label=[NAMES[outcome] for outcome in outcomes])
    shade_faults(run, axes)
    axes.set_ylabel(f"answers in {width_s:.0f} s")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(outcomes), frameon=False)
    axes.set_title("Answers by outcome; shaded: a fault", loc="left", fontsize=10)


def draw_latencies(run: Run, axes: Axes) -> None:
    for outcome in COLOURS:
        chosen = [r for r in run.requests if r.outcome is outcome]
        if chosen:
            axes.scatter([r.end_s for r in chosen], [r.end_s - r.begin_s for r in chosen], s=9, color=COLOURS[outcome],
                         label=NAMES[outcome], zorder=3 if outcome is not Outcome.RIGHT else 2)
    shade_faults(run, axes)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.set_ylabel("seconds")
    axes.set_xlabel("seconds after the start")
    axes.set_title("How long each answer took", loc="left", fontsize=10)


def draw_faults(run: Run, axes: Axes) -> None:
    """One line a kind of fault: a dot where D noticed it, a cross where a right answer came after it."""
    titles = sorted({fault.episode.title for fault in run.faults}, reverse=True)
    for place, title in enumerate(titles):
        chosen = [fault for fault in run.faults if fault.episode.title == title]
        noticed = [fault.detection_s for fault in chosen if fault.detection_s is not None]
        recovered = [fault.recovery_s for fault in chosen if fault.recovery_s is not None]
        first = place == 0
        axes.scatter(noticed, [place + 0.15] * len(noticed), marker="o", s=22, color="#d9534f",
                     label="begin of the fault → D notices" if first else None)
        axes.scatter(recovered, [place - 0.15] * len(recovered), marker="x", s=26, color="#4c9f70",
                     label="end of the fault → first right answer to a new request" if first else None)
    axes.set_yticks(range(len(titles)), titles)
    axes.set_xlabel("seconds")
    axes.set_xlim(left=0.0)
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, frameon=False)
    axes.set_title("Detection and recovery", loc="left", fontsize=10)
