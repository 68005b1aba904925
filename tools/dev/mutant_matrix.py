"""Each planted bug against each C suite alone: which suites catch what, and which of them alone?

A suite is a test of Meson's, but for those of the code's rules. It stops at its first failure. It catches a bug if it fails or
hangs each time of two, or of three if it has threads, since these may fail on a loaded machine. If many catch a bug, the
other suites are not run: none of them is needed for this bug.
Programs that a bug leaves as they are, to the byte, are not run. A row takes minutes. tests/mutants/matrix.json keeps it until
the lines that its patch changes are others; --anew makes also those again that were made with other C sources.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import children
import meson_suites
from mutants import BUILD_NINJA, PATCHES, ROOT, TREE, MutantError, build, copy_tree, patch, read_mutant

KEPT = ROOT / ".cache/mutants/matrix"
SHORT = 12
"""Digits of a key."""
MATRIX = PATCHES / "matrix.json"
SEEDS = 20000
"""Of the simulator: as many as it searches from one start for a planted bug."""
SIMULATOR = {"sim/seeds", "corpus/sim"}
WAITING_AT_A_TIME = 4
TRIES, TRIES_STEADY = 3, 2
MANY = 3
"""If so many suites have caught a bug, the simulator's not counted, no other begins: no certain suite is needed for the bug."""
STEADY = {"kvferry:threadless", "kvferry:fuzz", "kvferry:sim"}
LIMIT_S, LIMIT_TIMES = 15.0, 3.0
"""A suite hangs if it takes so much, and so many times what it takes without a bug, or twice what Meson lets it take."""
FAILED = re.compile(r"^\[  FAILED  \] (?!\d+ test\(s\))(.+)$", re.M)
ALL_FAILED = re.compile(r"^\[  FAILED  \] \d+ test\(s\), listed below", re.M)
BEGUN = re.compile(r"^\[ RUN      \] (.+)$", re.M)
NAMES = re.compile(r"(\w+\n)+")


class Suite(NamedTuple):
    name: str
    words: list[str]
    env: dict[str, str] = {}
    kind: str = "busy"
    """Or `waits`, which leaves its core idle, or `alone`, beside which nothing may run."""
    found: int | None = None
    """With this status it has failed, and with 1 not. None: it has failed with any but 0."""
    most_s: float = 600.0
    tries: int = TRIES_STEADY


class Outcome(NamedTuple):
    failed: bool
    seconds: float
    code: int
    """As children.py gives it: it hung, or a signal has ended it, SIGTERM at its first failure."""
    said: str

    @property
    def test(self) -> str:
        """The first that failed, or was under way; empty of what has no tests."""
        return (FAILED.findall(self.said)[:1] + BEGUN.findall(self.said)[-1:] + [""])[0]


def suites_of(folder: Path) -> list[Suite]:
    build(folder, [BUILD_NINJA])
    return [suite_of(test) for test in meson_suites.listed(folder / "build") if "kvferry:tidy" not in test["suite"]]


def suite_of(test: dict[str, Any]) -> Suite:
    kind = "alone" if not test["is_parallel"] else "waits" if "kvferry:waits" in test["suite"] else "busy"
    if test["name"] == "sim/seeds":
        return Suite(test["name"], [test["cmd"][0], "--search", "--starts=1", f"--most={SEEDS}"], test["env"], found=0)
    return Suite(test["name"], test["cmd"], test["env"], kind, most_s=2.0 * test["timeout"],
                 tries=TRIES_STEADY if STEADY.intersection(test["suite"]) else TRIES)


def programs_of(suites: list[Suite], folder: Path) -> list[str]:
    inside = str(folder / "build") + "/"
    return sorted({word.removeprefix(str(folder) + "/") for suite in suites for word in suite.words
                   if word.startswith(inside) and not word.endswith(".py")})


def print_of(suite: Suite) -> str:
    return meson_suites.print_of(suite.words, suite.env)


def run(suite: Suite, limit_s: float, stop: bool = True) -> Outcome:
    """`stop`: at its first failure."""
    environment = {**os.environ, "MALLOC_PERTURB_": "165", **suite.env}
    with tempfile.TemporaryFile() as file:
        start = time.monotonic()
        process = subprocess.Popen(children.command(limit_s, suite.words), env=environment, cwd=tempfile.gettempdir(),
                                   stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)

        def said() -> str:
            return os.pread(file.fileno(), 1 << 24, 0).decode(errors="replace")

        while time.monotonic() - start < limit_s + children.END_S and not (stop and FAILED.search(said())):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
                break
        process.terminate()  # SIGKILL would leave the suite's orphans
        code = process.wait()
        failed = code not in (0, 1) or code == suite.found if suite.found is not None else code != 0
        return Outcome(failed, time.monotonic() - start, code, said())


def run_all(suites: list[Suite], limit_s: Callable[[Suite], float],
            tries: int = 0, many: int = MANY) -> tuple[dict[str, Outcome], list[str], list[str]]:
    """Returns the last outcome of each suite, the suites that fail every time, and those that fail only sometimes. Suites begin
    in the list's order. If `many` fail every time, the simulator's not counted, no other begins: it has no outcome."""
    outcomes: dict[str, Outcome] = {}
    failing: set[str] = set()
    sometimes: set[str] = set()

    def one(suite: Suite) -> None:
        if len(failing - SIMULATOR) >= many:
            return
        for tried in range(tries or suite.tries):
            outcomes[suite.name] = run(suite, limit_s(suite))
            if not outcomes[suite.name].failed:
                if tried > 0:
                    sometimes.add(suite.name)
                return
        failing.add(suite.name)

    with ThreadPoolExecutor(os.cpu_count() or 1) as busy, ThreadPoolExecutor(WAITING_AT_A_TIME) as waiting:
        for future in [(waiting if suite.kind == "waits" else busy).submit(one, suite)
                       for suite in suites if suite.kind != "alone"]:
            future.result()
    for suite in suites:
        if suite.kind == "alone":
            one(suite)
    return outcomes, sorted(failing), sorted(sometimes)


def failing_tests(suite: Suite, limit_s: float) -> list[str]:
    """All of them, also where a crash hides those behind it, if the program can list and run them one by one."""
    whole = run(suite, limit_s, stop=False)
    if ALL_FAILED.search(whole.said):
        return sorted(set(FAILED.findall(whole.said)))
    program = Suite(suite.name, [*suite.words, "--list"], suite.env)
    if len(suite.words) == 1 and BEGUN.search(whole.said) and NAMES.fullmatch((listed := run(program, limit_s)).said):
        ones = {name: program._replace(words=[*suite.words, f"={name}"]) for name in listed.said.split()}
        return sorted(name for name, one in ones.items() if run(one, limit_s).failed)
    return sorted({*FAILED.findall(whole.said), *BEGUN.findall(whole.said)[-1:]})


# ---- what is kept ----

def is_of_c(name: str) -> bool:
    return re.search(r"^\+\+\+ b/\S+\.[ch]$", (PATCHES / f"{name}.patch").read_text(), re.M) is not None


def tree_key(folder: Path) -> str:
    """Of what the programs are built of, and of the inputs that they read."""
    digest = hashlib.sha256(str(SEEDS).encode())
    for top in ("include", "meson.build", "meson_options.txt", "src", "tests", "tools/chaos"):
        path = folder / top
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in (".c", ".h", ".hex") or file.name in ("meson.build", "meson_options.txt"):
                digest.update(f"{file.relative_to(folder)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def patch_key(name: str) -> str:
    """Of the lines that it changes; those around them may change."""
    lines = (PATCHES / f"{name}.patch").read_bytes().splitlines()
    changed = [line for line in lines if line[:1] in (b"+", b"-") and not line.startswith((b"+++ ", b"--- "))]
    return hashlib.sha256(b"\n".join(changed)).hexdigest()[:SHORT]


def read_matrix() -> dict[str, Any]:
    return json.loads(MATRIX.read_text()) if MATRIX.exists() else {"bugs": {}, "suites": {}}


def write_matrix(rows: dict[str, dict[str, Any]], seconds: dict[str, float]) -> None:
    """A line a bug: which suites catch it, and by which of their tests first; all tests of a suite that does so alone."""
    bugs = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items())]
    suites = [f"  {json.dumps(name)}: {taken}" for name, taken in sorted(seconds.items())]
    new = MATRIX.with_suffix(".new")
    new.write_text('{"bugs": {\n' + ",\n".join(bugs) + '\n },\n "suites": {\n' + ",\n".join(suites) + "\n }}\n")
    new.rename(MATRIX)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """In the copy of the tree."""
    KEPT.mkdir(parents=True, exist_ok=True)
    with (KEPT / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MutantError("another run is under way") from None
        yield


# ---- a row ----

def baseline(suites: list[Suite], tree: str) -> dict[str, Any]:
    """How long each suite takes without a bug, and what it runs."""
    path = KEPT / f"baseline-{tree}.json"
    if path.exists():
        return json.loads(path.read_text())
    start = time.monotonic()
    build(TREE, programs_of(suites, TREE))
    prints = {suite.name: print_of(suite) for suite in suites}
    outcomes, failing, unsteady = run_all(suites, lambda suite: suite.most_s, TRIES, len(suites) + 1)
    for name in failing:
        print(f"{name} without a bug, status {outcomes[name].code}:\n{outcomes[name].said[-2000:]}")
    if failing:
        raise MutantError(f"without a bug these fail or hang: {' '.join(failing)}")
    seconds = {name: round(outcome.seconds, 2) for name, outcome in outcomes.items()}
    print(f"without a bug: {len(suites)} suites, {sum(seconds.values()):.0f} s of them, "
          f"{time.monotonic() - start:.0f} s in all{', failed sometimes: ' * bool(unsteady)}{' '.join(unsteady)}", flush=True)
    path.write_text(json.dumps(base := {"seconds": seconds, "prints": prints}))
    return base


def sole(names: Iterable[str]) -> set[str]:
    """The suite that catches a bug alone, and that which would if there were no simulator."""
    return {each.pop() for each in (set(names), set(names) - SIMULATOR) if len(each) == 1}


def make_row(name: str, suites: list[Suite], base: dict[str, Any], many: int = MANY) -> dict[str, Any]:
    start = time.monotonic()
    build(TREE, programs_of(suites, TREE))
    built = time.monotonic()
    changed = [suite for suite in suites if print_of(suite) != base["prints"][suite.name]]
    changed.sort(key=lambda suite: base["seconds"][suite.name])

    def limit_s(suite: Suite) -> float:
        return min(LIMIT_S + LIMIT_TIMES * base["seconds"][suite.name], suite.most_s)

    outcomes, caught, sometimes = run_all(changed, limit_s, many=many)
    tests = {suite.name: found for suite in changed if suite.name in sole(caught)
             if (found := failing_tests(suite, limit_s(suite)))}
    print(f"{name}: {len(caught)} of {len(outcomes)} suites catch it, of {len(changed)}: {' '.join(caught[:5])}"
          f"{' …' * (len(caught) > 5)}, {built - start:.0f} of {time.monotonic() - start:.0f} s to build", flush=True)
    row = {"caught": {suite: outcomes[suite].test for suite in caught}, "sometimes": sometimes, "tests": tests,
           "not_run": len(changed) - len(outcomes)}
    return {what: found for what, found in row.items() if found or what == "caught"}


def fill(names: list[str], tree: str, rows: dict[str, dict[str, Any]]) -> None:
    """Makes the rows of `names`."""
    TREE.mkdir(parents=True, exist_ok=True)
    copy_tree(TREE)
    suites = suites_of(TREE)
    base = baseline(suites, tree)
    start = time.monotonic()
    for done, name in enumerate(names, start=1):
        patch(read_mutant(name), TREE)
        try:
            rows[name] = {"patch": patch_key(name), "tree": tree, **make_row(name, suites, base)}
        finally:
            patch(read_mutant(name), TREE, "-R")
        write_matrix(rows, base["seconds"])
        left_h = (time.monotonic() - start) / done * (len(names) - done) / 3600
        print(f"[{done}/{len(names)}] about {left_h:.1f} h left", flush=True)


# ---- what is told ----

def alone(rows: dict[str, dict[str, Any]], without: set[str]) -> dict[str, dict[str, list[str]]]:
    """Suite, bug that it alone catches, its tests that fail: the suites with most such bugs first."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, row in sorted(rows.items()):
        caught = set(row["caught"]) - without
        if len(caught) == 1:
            suite = caught.pop()
            found.setdefault(suite, {})[name] = row.get("tests", {}).get(suite, [])
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def ranked(rows: dict[str, dict[str, Any]], seconds: dict[str, float]) -> Iterable[str]:
    catch = {suite: [row for row in rows.values() if suite in row["caught"]] for suite in seconds}
    for title, without in (("alone catch", set()), ("alone catch, were there no simulator,", SIMULATOR)):
        found = alone(rows, without)
        yield f"{len(found)} suites {title} {sum(map(len, found.values()))} of {len(rows)} bugs:"
        for suite, bugs in found.items():
            yield f"  {suite}: {len(bugs)} of the {len(catch[suite])} that it catches, in {seconds[suite]:.1f} s"
            yield from (f"    {bug}{': ' * bool(tests)}{' '.join(tests)}" for bug, tests in bugs.items())
    sole_ones = {*alone(rows, set()), *alone(rows, SIMULATOR)}
    others = sorted((min(len(set(row["caught"]) - SIMULATOR) for row in catch[suite]), suite) for suite in catch
                    if catch[suite] and suite not in sole_ones)
    yield f"{len(others)} suites catch bugs, and none alone; at least so many that are no simulator catch each of them:"
    yield from (f"  {fewest}  {suite}: {len(catch[suite])} bugs, {seconds[suite]:.1f} s" for fewest, suite in others)
    nothing = sorted(suite for suite in catch if not catch[suite])
    yield f"{len(nothing)} suites catch nothing of what they were run with:"
    yield from (f"  {suite}, {seconds[suite]:.1f} s" for suite in nothing)
    yield "by no suite: " + " ".join(sorted(name for name, row in rows.items() if not row["caught"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kept", action="store_true", help="only the table of the rows that are kept")
    parser.add_argument("--anew", action="store_true", help="also the rows that were made with other C sources")
    parser.add_argument("names", nargs="*", metavar="NAME", help="these bugs alone")
    given = parser.parse_args()
    names = [path.stem for path in sorted(PATCHES.glob("*.patch")) if is_of_c(path.stem)]
    if unknown := set(given.names).difference(names):
        raise MutantError(f"no planted bug in C: {' '.join(sorted(unknown))}")
    tree = tree_key(ROOT)[:SHORT]
    matrix = read_matrix()
    rows = {name: row for name in names if (row := matrix["bugs"].get(name)) and row["patch"] == patch_key(name)}
    missing = [name for name in given.names or names if name not in rows or (given.anew and rows[name]["tree"] != tree)]
    if missing and not given.kept:
        with one_at_a_time():
            fill(missing, tree, rows)
    if not given.names:
        older = sum(row["tree"] != tree for row in rows.values())
        print(f"{len(rows)} of {len(names)} bugs have a row, {older} of them made with other C sources")
        print("\n".join(ranked(rows, read_matrix()["suites"])))


if __name__ == "__main__":
    try:
        main()
    except MutantError as error:
        sys.exit(f"error: {error}")
