"""A release by itself: what kvferry uses of it is there, and its own schedulers get along with the connector."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from pd.paths import ROOT
from pd.releases import python_path


@pytest.mark.parametrize("file", ["test_vllm_contract.py", "test_vllm_plugin.py", "test_vllm_scheduler.py"])
def test_python(version: str, file: str) -> None:
    ran = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/python/{file}"], cwd=ROOT,
                         env={**os.environ, "PYTHONPATH": python_path(version)}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-1000:]
