"""kvferry.engine is for every engine: it imports none, neither when it runs nor for its types."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from kvferry import engine

ENGINES = ("vllm", "torch", "tensorrt_llm", "sglang", "prometheus_client")
FOLDER = Path(engine.__file__).parent
MODULES = sorted(path.stem for path in FOLDER.glob("*.py"))


def imported(path: Path) -> set[str]:
    """The first names of all modules that a file imports, wherever."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        assert not (isinstance(node, ast.ImportFrom) and node.level > 1), f"{path.name} imports from beside the package"
    return {".".join(name.split(".")[:2]) if name.startswith("kvferry.") else name.split(".")[0] for name in found}


@pytest.mark.parametrize("module", MODULES)
def test_it_names_no_engine(module: str) -> None:
    found = imported(FOLDER / f"{module}.py")
    assert not found & {*ENGINES, "kvferry.vllm", "kvferry.vllm_plugin", "kvferry.nixl"}
    assert found <= {*sys.stdlib_module_names, *(name for name in found if name.startswith("kvferry"))}


def test_it_is_there_without_any_engine() -> None:
    code = f"""
import importlib, sys
sys.modules |= dict.fromkeys({ENGINES})  # each import of one of these fails
for module in {[module for module in MODULES if module != "__init__"]}:
    importlib.import_module("kvferry.engine." + module)
"""
    assert len(MODULES) > 10
    subprocess.run([sys.executable, "-c", code], check=True)
