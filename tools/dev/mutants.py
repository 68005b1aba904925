"""Planted bugs: each patch of tests/mutants/ goes into a copy of the tree.

The head of a patch says which promise the bug breaks, what it is, and by what it must be caught: `sim` (the simulator,
from several starts), `litmus MODE`, `trtllm` or `vllm` and which of that adapter's tests, or the unit tests of `find`, `offers`,
`pages`, `registration`, `ucx_device`, `cuda_liar`, `cuda_points`, `cuda_read` or `device…` (two nodes on the fake driver of a GPU;
`device WHICH`: the cases with this in their name, `apart` if P has a process of its own), in tests/mutants/test_mutants.py;
`engine` and `hosts` are for tests/e2e and tests/hosts, which take
packages: this program builds one for each of these.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "tests/mutants"
TREE = ROOT / ".cache/mutants/tree"
PACKAGES = ROOT / ".cache/mutants/packages"
BUILD_NINJA = "build/build.ninja"
WITH_TOOLS = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
"""meson and ninja are beside this Python."""
WHOLE = {"engine", "hosts"}
"""Tests that take a package with the bug."""


class Mutant(NamedTuple):
    name: str
    promise: str
    catchers: list[str]


class MutantError(Exception):
    """A patch that cannot be used; the text says why."""


def read_mutant(name: str) -> Mutant:
    head = (PATCHES / f"{name}.patch").read_text().partition("\n--- ")[0]
    fields = dict(re.findall(r"^(Promise|Bug|Caught by): (.+)$", head, re.M))
    if len(fields) != 3:
        raise MutantError(f"{name}.patch: its head needs Promise, Bug and Caught by")
    return Mutant(name, fields["Promise"], [name.strip() for name in fields["Caught by"].split(",")])


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


def build(folder: Path, programs: list[str]) -> None:
    """Programs are paths in the folder, below build/."""
    if not (folder / BUILD_NINJA).exists():
        subprocess.run(["meson", "setup", "build", "-Dtests=true", "-Dbench=false", "-Dwerror=false", "--buildtype=debugoptimized"],
                       cwd=folder, check=True, capture_output=True, env=WITH_TOOLS)
    targets = [program.removeprefix("build/") for program in programs]
    done = subprocess.run(["ninja", "-C", "build", "--quiet", *targets], cwd=folder, capture_output=True,
                          text=True, check=False, env=WITH_TOOLS)
    if done.returncode != 0:
        raise MutantError(f"it does not compile, status {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")


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


if __name__ == "__main__":
    for mutant in map(read_mutant, sorted(path.stem for path in PATCHES.glob("*.patch"))):
        if WHOLE.intersection(mutant.catchers):
            make_package(mutant)
