"""What is installed beside .venv for a stack: its packages, and the vLLM that it pins."""

from __future__ import annotations

import os

from pd.engine import NO_SPINNING, OFFLINE
from pd.paths import CACHE
from pd.releases import python_path


def environment(stack: str, vllm: str) -> dict[str, str]:
    """For its processes."""
    path = os.pathsep.join([python_path(vllm), str(CACHE / stack)])
    return {**os.environ, **NO_SPINNING, **OFFLINE, "PYTHONPATH": path}
