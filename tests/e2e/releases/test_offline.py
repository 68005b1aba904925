"""An engine in a program, without vLLM's API server: requests that kvferry fails say why in the engine's own answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from pd.paths import DEV
from pd.releases import python_path

LIMIT_S = 480.0
ANSWERED = {"tokens": 3, "finish_reason": "length", "stop_reason": None}
RAISES_FROM = (0, 33)
"""AsyncLLM, instead of an answer."""


def failed(stop_reason: str) -> dict[str, Any]:
    return {"tokens": 0, "finish_reason": "error", "stop_reason": stop_reason}


@pytest.mark.parametrize("kind", ["llm", "async_llm"])
def test_a_program_reads_why(version: str, kind: str) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(DEV), python_path(version)])}
    ran = subprocess.run([sys.executable, "-m", "pd.offline", kind], env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    got = json.loads(ran.stdout.splitlines()[-1])
    assert got["good"] == got["computed"] == ANSWERED
    refused, mistaken = "kvferry:bad_ticket:retry=1", "kvferry:invalid:retry=0"
    if kind == "llm" or tuple(map(int, version.split(".")[:2])) < RAISES_FROM:
        assert (got["refused"], got["mistaken"]) == (failed(refused), failed(mistaken))
    else:
        assert got["refused"]["raised"] == "RetryableRequestError" and got["refused"]["text"].endswith(f" ({refused})")
        assert got["mistaken"]["raised"] == "VLLMValidationError" and f" ({mistaken})" in got["mistaken"]["text"]
