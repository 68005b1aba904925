"""P and D on two hosts, started as README's quickstart says, with a key or without one, and vllm-router on a third."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest
from load import Load, Question
from network import Network
from own_network import two_hosts
from pd import client, metrics
from pd.connector import QUICKSTART, Connector, make_key
from pd.engine import Engine, EngineSpec, Router, split_cores
from pd.paths import FAST, KEY
from pd.progress import wait_until
from pd.rig import RECOMPUTED
from pd.stack import START_LIMIT_S, log_folder
from rows import Row
from why import why

COUNT = 100
LIMIT_S = 60.0
ROUTES = {4: "route delete default", 6: "route delete ::/0"}
LOADS = "kvferry_loads_total"
ON_D = "a loopback address is of this host alone: a producer on another one needs a key"
WHY = r"FAIL  5 load    0 loads arrived.*; peer_(down|restarted) \d+.* \(loopback\) at 127.0.0.1:\d+: tickets name a loopback address, .*key_file"
ON_P = "without a key this engine listens for this host alone; others need one on both sides"


@dataclass
class Pair:
    p: Engine
    d: Engine
    router: Router


@pytest.fixture
def network() -> Iterator[Network]:
    made = two_hosts(["P", "D"])
    yield made
    made.close()


@contextmanager
def running(network: Network, families: tuple[int, ...], connector: Connector) -> Iterator[Pair]:
    """Hosts with default routes of these families alone."""
    logs = log_folder("two-hosts")
    engines = []
    with ExitStack() as stack:
        for name, cores in zip(("P", "D"), split_cores()):
            host = network.hosts[name]
            host.ip(*(line for family, line in ROUTES.items() if family not in families))
            engine = Engine(EngineSpec(name, FAST, connector, cores, 400, host=network.address(name, families[0]),
                                       enter=tuple(host.command())), logs)
            stack.callback(engine.stop)
            engine.start()
            engines.append(engine)
        for engine in engines:
            wait_until(f"waiting for {engine.name}", engine.healthy, START_LIMIT_S)
        router = Router([engines[0].url], engines[1].url, logs)
        stack.callback(router.stop)
        router.start()
        wait_until("waiting for the router", router.healthy, START_LIMIT_S)
        yield Pair(*engines, router)


def gives_tickets(engine: Engine) -> bool:
    return bool(client.complete(engine.url, [1, 2, 3] * 20, 1, client.ASK_FOR_TICKET).ticket)


@pytest.mark.parametrize("families", [(4,), (6,), (4, 6)], ids=["IPv4", "IPv6", "dual"])
def test_two_hosts_with_a_key(network: Network, families: tuple[int, ...], some: Callable[[int], list[Question]], row: Row) -> None:
    with running(network, families, QUICKSTART.with_options(key_file=str(make_key(KEY)))) as up:
        wait_until("the weights' identity", lambda: gives_tickets(up.p), LIMIT_S)
        answers = Load(up.router.url, some(COUNT)).join()
        found = up.d.samples()
        loads, recomputed = metrics.total(found, LOADS), metrics.total(found, RECOMPUTED)
        row.tell(answers, loads=loads, recomputed_tokens=recomputed)
        assert answers.right == loads == COUNT and recomputed == 0, answers


def test_two_hosts_without_a_key(network: Network, some: Callable[[int], list[Question]], row: Row) -> None:
    with running(network, (4, 6), QUICKSTART) as up:
        wait_until("the weights' identity", lambda: gives_tickets(up.p), LIMIT_S)
        answers = Load(up.router.url, some(COUNT)).join()
        found = up.d.samples()
        row.tell(answers, loads=metrics.total(found, LOADS), recomputed_tokens=metrics.total(found, RECOMPUTED))
        assert answers.right == COUNT, answers
        assert metrics.total(found, LOADS) == 0 and metrics.total(found, RECOMPUTED) > 0
        assert ON_D in up.d.process.log.read_text()
        wait_until("P to say so", lambda: ON_P in up.p.process.log.read_text(), LIMIT_S)
        said = why(up.p.url, up.d.url)
        assert re.match(WHY, said), said
