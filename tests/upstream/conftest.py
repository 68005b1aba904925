"""vLLM's own P/D and connector tests, from its source distribution, with kvferry in NixlConnector's place.

`units`: on vLLM's scheduler, without engines. `pairs`: between two engines. What is known to fail or cannot run stands in
expected.py, with reasons.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "dev"))

import expected  # noqa: E402
from upstream import TREE  # noqa: E402


def pytest_configure() -> None:
    if not TREE.is_dir():
        raise pytest.UsageError(f"{TREE} is not there: . tools/dev/common.sh; . tools/dev/setup.sh; setup_upstream {TREE.name}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        test = f"{item.path.name}::{item.nodeid.partition('::')[2]}"
        if reason := expected.reason_in(expected.CANNOT_RUN, test):
            item.add_marker(pytest.mark.skip(reason=reason))
        elif reason := expected.reason_in(expected.FAIL, test):
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True, raises=expected.OF_THE_TEST))
