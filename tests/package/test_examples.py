"""The examples, built and run as their readers do it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import ROOT, Venv, build, run

EXAMPLES = ROOT / "examples"


def shown() -> list[str]:
    """What the examples' manual says that they print."""
    printed = re.findall(r"^(?:prefill|decode): .*$", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert any("64 tokens loaded: A B C D" in line for line in printed)
    return sorted(printed)


def build_and_run(installed: dict[str, str], source: Path, *flags: str) -> list[str]:
    """What the program prints."""
    return sorted(build(installed, source, *flags).splitlines())


@pytest.mark.parametrize("standard", ["c11", "c17", "gnu17"])
@pytest.mark.parametrize("source", sorted(EXAMPLES.glob("*.c")), ids=lambda source: source.stem)
def test_c(installed: dict[str, str], tmp_path: Path, source: Path, standard: str) -> None:
    flags = run("pkg-config", "--cflags", "--libs", "kvferry", env=installed).split()
    assert any(str(tmp_path) in flag for flag in flags), "of the installed library"
    assert build_and_run(installed, source, f"-std={standard}", *flags) == shown()


def test_c_with_the_static_library(installed: dict[str, str], tmp_path: Path) -> None:
    for shared in tmp_path.rglob("libkvferry.so*"):
        shared.unlink()  # else the linker takes it
    flags = run("pkg-config", "--static", "--cflags", "--libs", "kvferry", env=installed).split()
    assert build_and_run(installed, EXAMPLES / "two_nodes.c", *flags) == shown()


@pytest.mark.deep
def test_python(bare_venv: Venv, wheel: Path, tmp_path: Path) -> None:
    env = bare_venv.env()  # no compiler
    run("pip", "install", "--no-index", wheel, env=env)
    assert sorted(run("python", EXAMPLES / "two_nodes.py", env=env, cwd=tmp_path).splitlines()) == shown()
