"""An older build of kvferry beside this one, in turns: whether any load has become slower."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from pd.progress import say
from pd.table import table

from .blocks import MIB, SHAPES, Memory, Shape, available_bytes, fit, pool_bytes_for
from .implementations import kvferry, make_key
from .pair import Implementation, Pair, PeerError
from .rounds import end, first, turn

LEAST = 0.95  # of the older build's speed
PAIRS_MIN = 9  # fewer show nothing
PAIRS = 12  # as many with the older build ahead as with the newer
TURNS = 4  # of each build in one pair
DRIVER = Path("bench/peers/peer_kvferry")
SYSTEM_UCX = "libucp.so.0"
Times = tuple[list[float], list[float]]  # nanoseconds of a load of the older and the newer build, a median for each pair


@dataclass(frozen=True)
class Case:
    old: Implementation
    new: Implementation
    shape: Shape

    @property
    def name(self) -> str:
        return f"{self.new.variant or self.new.path}/{self.shape.name}"


def ratios(times: Times) -> list[float]:
    """The newer build's speed to the older's, pair by pair."""
    return [old / new for old, new in zip(*times, strict=True)]


def is_slower(pairs: Sequence[float]) -> bool:
    if len(pairs) < PAIRS_MIN:
        raise ValueError(f"{len(pairs)} pairs show nothing: {PAIRS_MIN} at least")
    return statistics.median(pairs) < LEAST


def has_failed(runs: Sequence[Sequence[float]]) -> bool:
    """Of a case, the ratios of each run: slower in the first, and again in a second. None: it could not be measured."""
    return not runs or (len(runs) > 1 and all(map(is_slower, runs)))


def drivers_of(folder: Path) -> Path:
    """Of a checkout, or of the build in it."""
    for build in (folder / "build-release", folder):
        if (build / DRIVER).exists():
            return (build / DRIVER).parent.absolute()
    raise SystemExit(
        f"error: neither {folder / 'build-release' / DRIVER} nor {folder / DRIVER} is there. Check the older commit out and "
        f"build it:\n  git worktree add {folder} COMMIT\n  cd {folder} && ./dev bench --case local/1x4KiB"
    )


def measure(case: Case, memory: Memory, logs: Path) -> Times:
    """Each pair of figures on fresh connections: how threads and sockets happen to fall lasts as long as these."""
    memory.choose(case.shape)
    times: Times = ([], [])
    with ExitStack() as both:
        sides: list[Pair] = []
        for build in (case.old, case.new):
            sides.append(both.enter_context(closing(Pair(build, memory, logs))))
            sides[-1].pause()
        for i in range(PAIRS):
            order = (0, 1) if i % 2 == 0 else (1, 0)
            samples = {build: first(sides[build], memory, case.shape) for build in order}
            for build in order * TURNS:
                turn(sides[build], samples[build])
            for build in order:
                end(sides[build])
                times[build].append(statistics.median(samples[build].ns))
    return times


def speed(shape: Shape, ns: float) -> str:
    return f"{ns / 1e3:.3g} µs" if shape.layers * shape.blocks == 1 else f"{shape.bytes / ns:.3g} GB/s"


def line(case: Case, run: int, times: Times) -> tuple[str, ...]:
    old, new = (speed(case.shape, statistics.median(ns)) for ns in times)
    pairs = ratios(times)
    low, middle, high = statistics.quantiles(pairs, n=4)
    return (case.name, str(run), old, new, f"{middle:.3f}", f"{low:.3f} to {high:.3f}", str(len(pairs)),
            "SLOWER" if is_slower(pairs) else "ok")  # fmt: skip


HEAD = ("case", "run", "old", "new", "new / old", "quartiles", "pairs", "")


def judge(cases: Sequence[Case], run: Callable[[Case], Times]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Runs each case, and in the end those once more that were slower. The table's lines, and the names of those that have failed."""
    found: dict[Case, list[list[float]]] = {case: [] for case in cases}
    lines = []
    again = list(cases)
    for number in (1, 2):
        for case in again:
            try:
                times = run(case)
            except PeerError as error:
                found[case].clear()
                say(str(error))
                lines.append((case.name, str(number), *"-----", "NOT MEASURED"))
            else:
                found[case].append(ratios(times))
                lines.append(line(case, number, times))
            say("  ".join(lines[-1]))
        again = [case for case, runs in found.items() if runs and is_slower(runs[0])]
    return lines, [case.name for case, runs in found.items() if has_failed(runs)]


def compare(old: Path, new: Path, wanted: str, peers_ucx: Path, logs: Path) -> int:
    """The exit status. UCX is the same for both builds: that of the peers where they are installed, else the system's."""
    pool_bytes = pool_bytes_for(available_bytes())
    ucx = str(peers_ucx.absolute()) if peers_ucx.exists() else SYSTEM_UCX
    ways = zip(*(kvferry(drivers_of(folder), ucx, make_key(logs)) for folder in (old, new)))
    cases = [Case(replace(one, variant=f"{one.variant} old".strip()), other, fit(shape, pool_bytes))
             for one, other in ways for shape in SHAPES]  # fmt: skip
    cases = [case for case in cases if wanted in case.name]
    if not cases:
        raise SystemExit(f"error: no case's name has '{wanted}'")
    say(f"{old} (old) beside {new} (new), {len(cases)} cases, pools of {pool_bytes // MIB} MiB")
    memory = Memory(pool_bytes, seed=1)
    lines, failed = judge(cases, lambda case: measure(case, memory, logs))
    print("\n" + table(HEAD, lines))
    print(f"\n{len(cases) - len(failed)} of {len(cases)} are not slower" + (f"; FAILED: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0
