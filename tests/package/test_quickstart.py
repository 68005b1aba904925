"""README.md's quickstart, line by line as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, Venv
from pd.paths import FAST, LOGS

pytestmark = pytest.mark.deep

LIMIT_S = 400.0
NAMESPACES = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""All ports are free there, and all that was started ends with it."""
SCRIPT = """
set -e
ip link set lo up
{ %s
} >&3
curl -fsS http://127.0.0.1:8200/metrics
"""
SMALL = {"HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
         "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
"""Engines without a GPU, a network and a compiler."""


def quickstart() -> str:
    found = re.search(r"^## Quickstart\n.*?^```\n(.*?)^```\n", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_quickstart_answers_over_kvferry(vllm_venv: Venv, wheel: Path, tmp_path: Path) -> None:
    env = vllm_venv.env(os.environ["PATH"]) | SMALL | {"MODEL": str(FAST)}
    reply = tmp_path / "reply"
    LOGS.mkdir(parents=True, exist_ok=True)
    with reply.open("w") as answer, (LOGS / "quickstart.log").open("w") as log:
        done = subprocess.run([*NAMESPACES, "bash", "-c", f"exec 3>{reply}\n" + SCRIPT % quickstart()], cwd=ROOT, env=env,
                              stdout=subprocess.PIPE, stderr=log, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, (LOGS / "quickstart.log").read_text()[-4000:]
    print(reply.read_text())
    assert False, done.stdout[-3000:]
