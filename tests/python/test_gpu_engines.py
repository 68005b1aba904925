"""tools/gpu/engines.py and mini.py, on the CPU with the fake of the driver; and the set that brings vLLM to a machine with a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines import wait_until
from test_gpu_tools import DEV, MARK, TOOLS, mark, marked, until_gone  # noqa: F401

import patches  # isort: skip
import rows  # isort: skip
import vllm_set  # isort: skip

ENGINES_MINUTES, MINI_MINUTES = 25, 8
UP_S = 120
ENGINE_ROWS = ["start", "graphs", "zeroed block", "one by one", "at once", "overwritten", "P stopped", "checksum", "tcp", "latency",
               "first token", "P killed"]
ENGINES_SKIP = {*(f"first use/{name}" for name in ("library", "reshape_and_cache", "attention")), "first/graphs",
                *(f"second/{name}" for name in ENGINE_ROWS)}
"""What needs Triton or graphs, as the second model runner does."""
MINI_ROWS = ["start", "zeroed block", "reused early", "published early", "loaded early", "one by one", "at once", "lease ended",
             "P stopped", "checksum", "tcp", "capture", "latency", "P killed"]
MINI_SKIP = {f"{layout}/{name}" for layout in ("apart", "together") for name in ("published early", "loaded early", "capture")}
"""What needs a device that works late."""


def run(name: str, out: Path, minutes: float, mark: str) -> dict[str, Any]:  # noqa: F811
    """The rows."""
    done = subprocess.run([sys.executable, str(TOOLS / f"{name}.py"), "--out", str(out), "--fake", "--minutes", str(minutes)],
                          env={**os.environ, MARK: mark}, check=False)
    found = [json.loads(line) for line in (out / f"{name}.jsonl").read_text().splitlines()]
    until_gone(mark)
    wrong = [row for row in found if row.get("right") is False]
    assert wrong == [] and done.returncode == 0
    assert len({row["row"] for row in found}) == len(found)
    return {row.pop("row"): row for row in found}


def skipped(found: dict[str, Any]) -> set[str]:
    return {name for name, row in found.items() if "skipped" in row}


@pytest.mark.deep
def test_engines(tmp_path: Path, mark: str) -> None:  # noqa: F811
    found = run("engines", tmp_path, ENGINES_MINUTES, mark)
    assert skipped(found) == ENGINES_SKIP and {row["skipped"] for row in found.values() if "skipped" in row} == {rows.NOT_ON_A_CPU}
    assert found.keys() == ENGINES_SKIP | {"first use/model"} | {f"first/{name}" for name in ENGINE_ROWS}
    for name in ("one by one", "at once", "P stopped", "checksum", "tcp", "first token"):
        assert found[f"first/{name}"]["loads"] == found[f"first/{name}"]["of"] == found[f"first/{name}"]["equal"] > 0
    assert found["first/zeroed block"]["seen"] > 0


@pytest.mark.deep
def test_small_engines(tmp_path: Path, mark: str) -> None:  # noqa: F811
    found = run("mini", tmp_path, MINI_MINUTES, mark)
    assert skipped(found) == MINI_SKIP
    assert found.keys() == {f"{layout}/{name}" for layout in ("apart", "together") for name in MINI_ROWS}
    for layout in ("apart", "together"):
        assert found[f"{layout}/reused early"]["seen"] > 0 and found[f"{layout}/zeroed block"]["seen"] > 0
        assert found[f"{layout}/at once"]["loads"] == found[f"{layout}/at once"]["bytes_equal"] == found[f"{layout}/at once"]["of"]


@pytest.mark.deep
@pytest.mark.parametrize("name", ["engines", "mini"])
def test_killed_while_its_engines_start(name: str, tmp_path: Path, mark: str) -> None:  # noqa: F811
    begun = subprocess.Popen([sys.executable, str(TOOLS / f"{name}.py"), "--out", str(tmp_path), "--fake", "--minutes", "5"],
                             env={**os.environ, MARK: mark})
    wait_until("itself, its supervisor, its other self, and engines", lambda: len(marked(mark)) >= 6, UP_S, 0.1)
    begun.send_signal(signal.SIGKILL)
    begun.wait()
    until_gone(mark)


def test_without_the_fake(tmp_path: Path) -> None:
    """A status that does not send the caller on to mini.py."""
    copy = tmp_path / "tools/gpu"
    shutil.copytree(TOOLS, copy)
    shutil.copytree(DEV, copy.parent / "dev")
    done = subprocess.run([sys.executable, str(copy / "engines.py"), "--out", str(tmp_path), "--fake"], check=False)
    assert done.returncode == 2


def test_without_a_gpu(tmp_path: Path, mark: str) -> None:  # noqa: F811
    """The caller goes on to mini.py, and why stands in the last row."""
    done = subprocess.run([sys.executable, str(TOOLS / "engines.py"), "--out", str(tmp_path), "--minutes", "3"],
                          env={**os.environ, MARK: mark, "CUDA_VISIBLE_DEVICES": ""}, check=False)
    found = [json.loads(line) for line in (tmp_path / "engines.jsonl").read_text().splitlines()]
    assert done.returncode == 3 and found[0]["row"] == "first use/library" and not any(row["right"] for row in found)
    until_gone(mark)


def test_a_row_that_raises_is_wrong_and_the_next_ones_are_tried(tmp_path: Path) -> None:
    found = rows.Rows(tmp_path / "rows.jsonl", 1, is_patient=False)

    def fail() -> rows.Figures:
        raise KeyError("lost")

    found.run("one", fail)
    found.run("two", lambda: {"right": True})
    found.skip("three")
    late = rows.Rows(tmp_path / "late.jsonl", 0, is_patient=False)
    late.run("four", lambda: {"right": True})
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [line.get("right") for line in lines] == [False, True, None] and "lost" in lines[0]["why"] and found.wrong == 1
    assert late.wrong == 1 and rows.NO_TIME in (tmp_path / "late.jsonl").read_text()


def test_patches_fit_the_vllm_that_is_packed(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.origin is not None
    home = Path(spec.origin).parents[1]
    fitting = sorted(TOOLS.glob("vllm-*.patch"))
    assert fitting
    for patch in fitting:
        for hunk in patches.hunks(patch.read_text()):
            (tmp_path / hunk.file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(home / hunk.file, tmp_path / hunk.file)
        patches.apply(patch, tmp_path)
    changed = [path for path in tmp_path.rglob("*.py")]
    assert len(changed) == len(fitting)
    for path in changed:
        compile(path.read_text(), path, "exec")
        assert path.read_text() != (home / path.relative_to(tmp_path)).read_text()


def test_everything_packed_is_pinned() -> None:
    assert len(vllm_set.pins()) == len(vllm_set.NAMES) + 1 and all("==" in pin for pin in vllm_set.pins())


def test_what_is_packed_comes_out_again(tmp_path: Path) -> None:
    """Of a wheel what is left out stays out; the library comes in a set of its own, whose patched neighbours are not lost."""
    import zipfile
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    changed = {hunk.file for patch in TOOLS.glob("vllm-*.patch") for hunk in patches.hunks(patch.read_text())}
    spec = importlib.util.find_spec("vllm")
    assert spec is not None and spec.origin is not None
    home = Path(spec.origin).parents[1]
    with zipfile.ZipFile(wheels / "vllm-1-py3-none-any.whl", "w") as wheel:
        for name in changed:
            wheel.write(home / name, name)
        wheel.writestr("vllm/_C_stable_libtorch.abi3.so", b"compiled")
        wheel.writestr("vllm/_other_C.abi3.so", b"compiled")
    with zipfile.ZipFile(wheels / "some-1-py3-none-any.whl", "w") as wheel:
        for name in ("some/__init__.py", "some/_c.so", "some/tests/test_it.py", "some/_c.pyi"):
            wheel.writestr(name, "")
    vllm_set.pack(wheels, tmp_path / "sets")
    vllm_set.unpack(tmp_path / "sets", tmp_path / "site")
    found = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*") if path.is_file()}
    assert found == {*changed, "vllm/_C_stable_libtorch.abi3.so", "some/__init__.py", "some/_c.so"}
    assert (tmp_path / "site" / vllm_set.LIBRARY).read_bytes() == b"compiled"
    assert "uvloop" in (tmp_path / "site/vllm/v1/utils.py").read_text()
