"""An engine in a program, without vLLM's API server: requests that kvferry fails say why in the engine's own answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
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
def test_a_program_reads_why(version: str, kind: str, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(DEV), python_path(version)])}
    log, answers = tmp_path / "log", tmp_path / "answers"
    with log.open("w") as out:
        ran = subprocess.Popen([sys.executable, "-m", "pd.offline", kind, str(answers)], env=env, stdout=out, stderr=out)
    try:
        assert ran.wait(LIMIT_S) == 0, log.read_text()[-3000:]
    finally:
        ran.kill()
        print(log.read_text()[-3000:])
    got = json.loads(answers.read_text())
    assert got["good"] == got["computed"] == ANSWERED
    refused, mistaken = "kvferry:bad_ticket:retry=1", "kvferry:invalid:retry=0"
    if kind == "llm" or tuple(map(int, version.split(".")[:2])) < RAISES_FROM:
        assert (got["refused"], got["mistaken"]) == (failed(refused), failed(mistaken))
    else:
        assert got["refused"]["raised"] == "RetryableRequestError" and got["refused"]["text"].endswith(f" ({refused})")
        assert got["mistaken"]["raised"] == "VLLMValidationError" and f" ({mistaken})" in got["mistaken"]["text"]
