"""Planted bugs: each patch of tests/mutants/ is applied to a copy of the tree, which is built, and the tests that the
patch names must find it.

The head of a patch says which promise the bug breaks, what it is, and by what it must be caught: `sim` (the simulator,
from several starts) or `litmus MODE`; `engine` and `hosts` are for tests/e2e and tests/hosts, which take packages that
--package builds.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "tests/mutants"
TREE = ROOT / ".cache/mutants/tree"
PACKAGES = ROOT / ".cache/mutants/packages"
ONLY_THERE = {"litmus streams": "x86_64"}
"""Where other processors cannot show it."""
LITMUS_LIMIT_S = 180


class Mutant(NamedTuple):
    name: str
    promise: str
    bug: str
    catchers: list[str]


class Outcome(NamedTuple):
    caught: bool
    said: str


class MutantError(Exception):
    """A patch that cannot be used; the text says why."""


def read_mutant(path: Path) -> Mutant:
    head = path.read_text().partition("\n--- ")[0]
    fields = dict(re.findall(r"^(Promise|Bug|Caught by): (.+)$", head, re.M))
    if len(fields) != 3:
        raise MutantError(f"{path.name}: its head needs Promise, Bug and Caught by")
    return Mutant(path.stem, fields["Promise"], fields["Bug"], [name.strip() for name in fields["Caught by"].split(",")])


def copy_tree(folder: Path) -> None:
    """Everything that git knows or would add. Files that are the same keep their time, so that little is built anew."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.split("\0")
    names = {name for name in listed if name and (ROOT / name).is_file()}
    for name in names:
        there = folder / name
        if not there.exists() or there.read_bytes() != (ROOT / name).read_bytes():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, there)
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        name = path.relative_to(folder).as_posix()
        if name not in names and not name.startswith("build/"):
            path.unlink()


def patch(mutant: Mutant, folder: Path, *options: str) -> None:
    done = subprocess.run(["patch", "-p1", "--fuzz=0", "--no-backup-if-mismatch", "-s", "-r", "-", *options],
                          stdin=(PATCHES / f"{mutant.name}.patch").open(), cwd=folder, capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise MutantError(f"{mutant.name}.patch does not apply: {(done.stdout + done.stderr).strip()}")


def build(folder: Path) -> None:
    if not (folder / "build/build.ninja").exists():
        subprocess.run(["meson", "setup", "build", "-Dbench=false", "-Dwerror=false", "--buildtype=debugoptimized"],
                       cwd=folder, check=True, capture_output=True)
    done = subprocess.run(["ninja", "-C", "build", "--quiet", "tests/sim/kvferry-sim", "tests/litmus/litmus"], cwd=folder,
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MutantError(f"it does not compile:\n{done.stdout[-2000:]}")


def run_catcher(catcher: str, folder: Path, jobs: int) -> Outcome:
    if catcher in ONLY_THERE and os.uname().machine != ONLY_THERE[catcher]:
        return Outcome(True, f"only on {ONLY_THERE[catcher]}")
    if catcher == "sim":
        done = subprocess.run([folder / "build/tests/sim/kvferry-sim", "--search", f"--jobs={jobs}"], capture_output=True,
                              text=True, check=False)
    elif catcher.startswith("litmus "):
        done = subprocess.run([folder / "build/tests/litmus/litmus", "--mode", catcher.split()[1], "--planted"],
                              capture_output=True, text=True, check=False, timeout=LITMUS_LIMIT_S)
    else:
        return Outcome(True, "by tests of its own")
    return Outcome(done.returncode == 0, (done.stdout.strip().splitlines() or ["it says nothing"])[-1])


def run_mutant(mutant: Mutant, folder: Path, jobs: int) -> list[Outcome]:
    patch(mutant, folder, "--dry-run")
    patch(mutant, folder)
    try:
        build(folder)
        return [run_catcher(catcher, folder, jobs) for catcher in mutant.catchers]
    finally:
        patch(mutant, folder, "-R")


def write_junit(path: Path, results: list[tuple[Mutant, str | None]]) -> None:
    suite = ET.Element("testsuite", name="mutants", tests=str(len(results)))
    for mutant, failure in results:
        case = ET.SubElement(suite, "testcase", classname="mutants", name=mutant.name)
        if failure is not None:
            ET.SubElement(case, "failure").text = failure
    path.parent.mkdir(parents=True, exist_ok=True)
    ET.ElementTree(suite).write(path)


def search(mutants: list[Mutant], jobs: int, junit: Path | None) -> int:
    began = time.monotonic()
    TREE.mkdir(parents=True, exist_ok=True)
    copy_tree(TREE)
    build(TREE)
    results: list[tuple[Mutant, str | None]] = []
    print(f"{'planted bug':28} {'of':3} {'caught by':18} {'found, seeds (median, most), how'}", flush=True)
    for mutant in mutants:
        failure = None
        try:
            outcomes = run_mutant(mutant, TREE, jobs)
            for catcher, outcome in zip(mutant.catchers, outcomes):
                print(f"{mutant.name:28} {mutant.promise:3} {catcher:18} {outcome.said}"
                      f"{'' if outcome.caught else '   NOT CAUGHT'}", flush=True)
            missed = [catcher for catcher, outcome in zip(mutant.catchers, outcomes) if not outcome.caught]
            failure = f"not caught by {', '.join(missed)}" if missed else None
        except MutantError as error:
            failure = str(error)
            print(f"{mutant.name:28} {mutant.promise:3} FAILED: {failure}", flush=True)
        results.append((mutant, failure))
    if junit is not None:
        write_junit(junit, results)
    failed = [mutant.name for mutant, failure in results if failure is not None]
    print(f"{len(results)} planted bugs in {time.monotonic() - began:.0f} s: "
          f"{'all caught' if not failed else 'NOT CAUGHT: ' + ', '.join(failed)}")
    return 1 if failed else 0


def make_package(mutant: Mutant) -> None:
    """The Python package with this bug, in a folder of its own: for PYTHONPATH."""
    tree = TREE.with_name(f"tree-{mutant.name}")
    tree.mkdir(parents=True, exist_ok=True)
    copy_tree(tree)
    patch(mutant, tree)
    target = PACKAGES / mutant.name
    shutil.rmtree(target, ignore_errors=True)
    try:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                        "--no-build-isolation", "--no-deps", "--target", str(target), str(tree)], check=True)
    finally:
        shutil.rmtree(tree)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev sim --mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--mutants", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time (default: %(default)s)")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="also write the results there")
    parser.add_argument("--package", action="store_true", help="build the Python package with each of the bugs instead")
    given = parser.parse_args()
    try:
        known = {path.stem: read_mutant(path) for path in sorted(PATCHES.glob("*.patch"))}
        unknown = [name for name in given.names if name not in known]
        if unknown:
            parser.error(f"there is no planted bug {', '.join(unknown)} in tests/mutants")
        chosen = [known[name] for name in given.names] or list(known.values())
        if not given.package:
            return search(chosen, given.jobs, given.junit)
        for mutant in chosen:
            make_package(mutant)
    except MutantError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
