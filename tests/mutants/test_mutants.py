"""Every planted bug is caught by what its patch names. -s shows by how many seeds (median, most), and how."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kvferry import _kvferry

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "dev"))

import children  # noqa: E402
from mutants import PATCHES, ROOT, TREE, WHOLE, build, copy_tree, patch, read_mutant  # noqa: E402
from pd.paths import MODELS  # noqa: E402

FAKE_CUDA = "build/tests/fake_cuda/libcuda-fake.so"
SIM, LITMUS = "build/tests/sim/kvferry-sim", "build/tests/litmus/litmus"
UNIT = {"pages": "build/tests/unit/plan/unit_plan_pages",
        **{name: f"build/tests/unit/find/unit_find_{name}" for name in ("find", "offers")},
        **{name: f"build/tests/unit/memory/unit_memory_{name}" for name in ("cuda_liar", "cuda_points", "cuda_read")},
        "ucx_device": "build/tests/unit/transport/unit_transport_ucx_device",
        **{name: f"build/tests/unit/runtime/unit_runtime_{name}"
           for name in ("device", "device_calls", "device_large", "registration")}}
ONLY_THERE = {"litmus streams": "x86_64"}
"""Where other processors cannot show it."""
LIMIT_S = 600
ADAPTERS = ("trtllm ", "vllm ")
"""And which of the tests of that adapter, for pytest's -k."""


def program_of(catcher: str) -> str | None:
    """None: it is for other tests, or for other machines."""
    if catcher in WHOLE or catcher.startswith(ADAPTERS) or os.uname().machine != ONLY_THERE.get(catcher, os.uname().machine):
        return None
    return SIM if catcher == "sim" else LITMUS if catcher.startswith("litmus ") else UNIT[catcher.partition(" ")[0]]


@pytest.fixture(scope="module")
def tree() -> Path:
    TREE.mkdir(parents=True, exist_ok=True)
    copy_tree(TREE)
    build(TREE, [SIM, LITMUS, *UNIT.values(), FAKE_CUDA])
    shutil.copy(Path(_kvferry.__file__), TREE / "python/kvferry")
    if not (models := TREE / MODELS.relative_to(ROOT)).exists():
        models.parent.mkdir(exist_ok=True)
        models.symlink_to(MODELS)
    return TREE


def adapter_tests(catcher: str) -> list[str]:
    """Whose status is 1 if one of them fails: not if there is none."""
    adapter, _, which = catcher.partition(" ")
    words = f"PYTHONPATH=python {sys.executable} -m pytest -q -x -p no:cacheprovider tests/python/test_{adapter}_*.py -k"
    return ["sh", "-c", f"{words} '{which}'; [ $? = 1 ]"]


def command(catcher: str, program: str) -> list[str]:
    if program == SIM:
        return [SIM, "--search", f"--jobs={os.cpu_count() or 1}"]
    if program == LITMUS:
        return [LITMUS, "--mode", catcher.removeprefix("litmus "), "--planted"]
    tests = f"{program} {catcher.partition(' ')[2]}"
    return ["sh", "-c", f"! ({tests} && KVFERRY_FAKE_CUDA_COMPILER=0 {tests})"]


@pytest.mark.parametrize("name", sorted(path.stem for path in PATCHES.glob("*.patch")))
def test_a_planted_bug_is_caught(name: str, tree: Path) -> None:
    mutant = read_mutant(name)
    patch(mutant, tree, "--dry-run")
    patch(mutant, tree)
    programs = {catcher: program for catcher in mutant.catchers if (program := program_of(catcher)) is not None}
    try:
        build(tree, list(programs.values()))
        adapters = [adapter_tests(catcher) for catcher in mutant.catchers if catcher.startswith(ADAPTERS)]
        for words in [command(catcher, program) for catcher, program in programs.items()] + adapters:
            done = subprocess.run(children.command(LIMIT_S, words), cwd=tree, capture_output=True, text=True, check=False)
            print(f"{mutant.promise}  {done.stdout.strip()}")
            why = "hung" if done.returncode == children.TIMED_OUT else "not caught"
            assert done.returncode == 0, f"{why}: {' '.join(words)}: {done.stdout}{done.stderr}"
    finally:
        patch(mutant, tree, "-R")
