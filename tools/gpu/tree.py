"""A copy of the tree in build-gpu, and what it is built with: .venv, what tools/gpu/pack has made, or the machine's."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build-gpu"
TREE = WORK / "tree"
PACK = ROOT / ".cache/gpu/c"
VENV = ROOT / ".venv/bin"
COPIED = ["include", "src", "tests", "bench", "tools", "meson.build", "meson_options.txt"]
OPTIONS = ["-Dtests=true", "--buildtype=debugoptimized", "-Dwerror=false", "-Dpython=false"]
COMPILERS_MAX = 8
"""At the same time: a virtual machine's memory may have to grow first."""
PROBE = [f"bench/gpu/probe/{name}.c" for name in ("main", "one", "two")] + ["tests/cuda_kernels.c", "src/memory/cuda/kernels.c"]


class GpuError(Exception):
    """The text says what is wrong, and the way out."""


def is_packed() -> bool:
    return PACK.exists() and not VENV.exists()


def tool(name: str) -> list[str]:
    if (VENV / name).exists():
        return [str(VENV / name)]
    if is_packed():
        return {"meson": [sys.executable, "-m", "mesonbuild.mesonmain"]}.get(name, [str(PACK / "python/bin" / name)])
    if shutil.which(name):
        return [name]
    raise GpuError(f"there is no {name} here: run ./dev setup, or bring .cache/gpu/c, which tools/gpu/pack makes")


def environment() -> dict[str, str]:
    if not is_packed():
        return dict(os.environ)
    prefix = PACK / "prefix"
    return os.environ | {"PKG_CONFIG": str(PACK / "python/pkgconf/.bin/pkgconf"),
                         "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig"), "CPATH": str(prefix / "include"),
                         "PYTHONPATH": before("PYTHONPATH", PACK / "python"), "LD_LIBRARY_PATH": before("LD_LIBRARY_PATH", prefix / "lib"),
                         "NINJA": str(PACK / "python/bin/ninja")}


def before(variable: str, folder: Path) -> str:
    return ":".join([str(folder), *filter(None, [os.environ.get(variable)])])


def copy_file(source: str, target: str) -> str:
    """One that is the same keeps its time, so that little is built anew; one that differs, a planted bug say, gets a new one."""
    there = Path(target)
    if not there.exists() or there.read_bytes() != Path(source).read_bytes():
        shutil.copy(source, target)
    return target


def copy_tree() -> None:
    TREE.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        source, target = ROOT / name, TREE / name
        if source.is_file():
            copy_file(str(source), str(target))
        else:
            shutil.copytree(source, target, dirs_exist_ok=True, copy_function=copy_file,
                            ignore=shutil.ignore_patterns("__pycache__"))


def set_up_command() -> list[str]:
    return [*tool("meson"), "setup", "build", *OPTIONS]


def build_command(targets: list[str]) -> list[str]:
    return [*tool("ninja"), f"-j{min(COMPILERS_MAX, os.cpu_count() or 1)}", "-C", "build", *targets]


def probe_command() -> list[str]:
    """Without the rest of the tree, so that the first answers are there within seconds."""
    return ["cc", "-O1", "-std=c17", "-D_GNU_SOURCE", "-Isrc", "-Iinclude", "-Itests", *PROBE, "-o", str(WORK / "probe"), "-ldl", "-pthread"]
