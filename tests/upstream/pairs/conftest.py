from __future__ import annotations

from collections.abc import Iterator

import pytest

from pair import Pair


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """The module's two engines, with a proxy of vLLM's before them."""
    with request.module.PAIR as running:
        yield running


@pytest.fixture(autouse=True)
def cold(pair: Pair) -> None:
    """Each test finds empty caches: prompts of several modules are the same."""
    pair.stack.forget_prompts()
