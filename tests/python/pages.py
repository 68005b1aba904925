"""Recorded pages of metrics, and what serves them: the fixture `serve`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

RECORDED = Path(__file__).parent / "recorded"
Serve = Callable[..., str]
