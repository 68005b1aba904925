from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from network import Network, NoNetwork, until_empty
from remote import Refused, Remote
from sites import UCX, Site

from kvferry import _kvferry


@pytest.fixture(scope="session")
def allowed() -> None:
    """Skips, where the system allows no such networks."""
    try:
        with closing(Network(["probe"])) as network:
            network.lose("probe", "probe", 1)
            network.limit("probe", 1000)
    except (NoNetwork, OSError) as error:
        pytest.skip(f"hosts: the system allows no network namespaces of a test's own: {error}")


@pytest.fixture
def site(allowed: None, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Makes a network of hosts with these names. All is gone after the test."""
    made: list[Site] = []

    def make(*names: str) -> Site:
        made.append(Site(Network(list(names)), tmp_path))
        return made[-1]

    yield make
    namespaces: set[str] = set()
    for one in made:
        namespaces |= one.network.namespaces()
        one.close()
        one.network.close()
    left = until_empty(namespaces)
    assert not left, f"processes {left} outlived the test"


@pytest.fixture(scope="session")
def why_not(allowed: None) -> dict[str, str]:
    """The transports that this machine cannot have, and why."""
    known = next(values for name, _, _, values, _ in _kvferry.options() if name == "transports")
    if "ucx" not in known:
        return {"ucx": "this library has no transport ucx"}
    with closing(Network(["probe"])) as network, closing(Remote(network.hosts["probe"], {"transports": "ucx"}, UCX)) as engine:
        try:
            engine.wait()
        except Refused as refused:
            return {"ucx": str(refused)}
    return {}


@pytest.fixture(params=["tcp", "ucx"])
def transport(request: pytest.FixtureRequest, why_not: dict[str, str]) -> str:
    if request.param in why_not:
        pytest.skip(why_not[request.param])
    return str(request.param)
