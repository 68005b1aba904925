"""Each test is a row of the table at the end: what clients of a stack got, and what its metrics say."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import own_network  # noqa: E402
from load import Question, questions  # noqa: E402
from rows import Row, keep, kept, table  # noqa: E402

rows = kept()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    done = [item for item in items if item.name in rows]
    config.hook.pytest_deselected(items=done)
    items[:] = [item for item in items if item.name not in rows]


@pytest.fixture(scope="session", autouse=True)
def own_network_of_all() -> None:
    try:
        own_network.enter()
    except (own_network.NoNetwork, OSError) as error:
        pytest.skip(f"stacks: the system allows no network of a test's own: {error}")


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Iterator[Row]:
    made, failed = Row(request.node.name, time.monotonic(), {}), request.session.testsfailed
    yield made
    rows[made.name] = made.values
    if request.session.testsfailed == failed:
        keep(made)


@pytest.fixture(scope="module")
def some() -> Callable[[int], list[Question]]:
    """So many questions that these engines have not been asked yet."""
    left = questions()
    return lambda count: [next(left) for _ in range(count)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in table(rows):
        terminalreporter.write_line(line)
