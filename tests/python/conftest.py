from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from engines import Engine


@pytest.fixture
def engine() -> Iterator[Callable[..., Engine]]:
    """Makes engines that are closed with the test."""
    made: list[Engine] = []

    def make(seed: int = 1, **arguments: object) -> Engine:
        made.append(Engine(seed, **arguments))
        return made[-1]

    yield make
    for one in made:
        one.close()
