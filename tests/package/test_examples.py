"""The examples, built and run as their readers do it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import ROOT, Venv, run

EXAMPLES = ROOT / "examples"


def shown() -> list[str]:
    """What the examples' manual says that they print."""
    printed = re.findall(r"^(?:prefill|decode): .*$", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert any("64 tokens loaded: A B C D" in line for line in printed)
    return sorted(printed)


def test_c(installed: dict[str, str], tmp_path: Path) -> None:
    flags = run("pkg-config", "--cflags", "--libs", "kvferry", env=installed).split()
    assert any(str(tmp_path) in flag for flag in flags), "of the installed library"
    program = tmp_path / "two_nodes"
    run("cc", "-Wall", "-Wextra", "-Werror", EXAMPLES / "two_nodes.c", *flags, "-o", program, env=installed)
    assert sorted(run(program, env=installed).splitlines()) == shown()


@pytest.mark.deep
def test_python(bare_venv: Venv, wheel: Path, tmp_path: Path) -> None:
    env = bare_venv.env()  # no compiler
    run("pip", "install", "--no-index", wheel, env=env)
    assert sorted(run("python", EXAMPLES / "two_nodes.py", env=env, cwd=tmp_path).splitlines()) == shown()
