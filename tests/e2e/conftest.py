"""One set of engines for the whole suite: a prefill engine, and a decode engine for each way of decoding, started when
the first test asks for it. A folder has a few engines of its own for each file (`start`), and is run by itself: engines
that are up share the machine's memory.

The model is small and random: its greedy tokens differ from prompt to prompt, so that KV blocks of another prompt
show in the answer. Run it with --connector nixl to see what other connectors do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "dev"))

from pd.connector import CONNECTORS, Connector, make_key  # noqa: E402
from pd.engine import Engine, EngineSpec, split_cores  # noqa: E402
from pd.paths import FAST, FAST_OTHER, OTHER_KEY  # noqa: E402
from pd.prompts import numbered_prompt  # noqa: E402
from pd.relay import Relay  # noqa: E402
from pd.rig import Rig  # noqa: E402
from pd.stack import Stack, log_folder, serving  # noqa: E402

import shapes  # noqa: E402

LEASE_S = 3.0
P_BLOCKS = 24
D_BLOCKS = 64
PROMPT_TOKENS = 150
PROMPTS = 9
TYPED_ERRORS = ("--middleware", "kvferry.vllm.KVErrors")
"""Beside what the plugin adds by itself."""
LAST = ("test_killed.py", "test_many.py", "test_retry.py", "test_sources.py")
"""They kill engines, or start more of them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--connector", choices=sorted(CONNECTORS), default="kvferry")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name in LAST)


def decoders(base: Connector, cores: str) -> list[EngineSpec]:
    """Those of our connector alone: over tcp (and without vLLM's plugins), failing, failing with several API servers and no
    stats, with another key, with another model, and two with a planted bug each."""
    tcp = base.with_options(transports=["tcp"])
    failing = tcp.with_policy("fail").with_options(recompute_budget_tokens_per_s=shapes.BUDGET_TOKENS_PER_S)
    stranger = base.with_options(key_file=str(make_key(OTHER_KEY)))
    return [
        EngineSpec("D-tcp", FAST, tcp.without_plugins(), cores, D_BLOCKS),
        EngineSpec("D-fail", FAST, failing, cores, D_BLOCKS),
        EngineSpec("D-servers", FAST, failing.with_options(error_status=503), cores, D_BLOCKS,
                   args=(*TYPED_ERRORS, "--disable-log-stats"), api_servers=2),
        EngineSpec("D-key", FAST, stranger, cores, D_BLOCKS),
        EngineSpec("D-model", FAST_OTHER, base, cores, D_BLOCKS),
        EngineSpec("D-fence", FAST, base.with_mutant("stale_unnoticed"), cores, D_BLOCKS),
        EngineSpec("D-prompt", FAST, base.with_mutant("prompt_unchecked"), cores, D_BLOCKS),
    ]


@pytest.fixture(scope="session")
def connector(request: pytest.FixtureRequest) -> str:
    return request.config.getoption("--connector")


@pytest.fixture(scope="session")
def stack(connector: str) -> Iterator[Stack]:
    base = CONNECTORS[connector](LEASE_S)
    p_cores, d_cores = split_cores()
    with Stack([EngineSpec("P", FAST, base, p_cores, P_BLOCKS), EngineSpec("D", FAST, base, d_cores, D_BLOCKS)],
               log_folder("e2e")) as running:
        yield running


@pytest.fixture(scope="session")
def rig_for(stack: Stack, connector: str) -> Callable[[str], Rig]:
    """The rig of a decode engine, by its name."""
    prompts = [numbered_prompt(number, PROMPT_TOKENS) for number in range(PROMPTS)]
    specs = {spec.name: spec for spec in decoders(CONNECTORS["kvferry"](LEASE_S), stack.decode.spec.cores)}
    rigs: dict[str, Rig] = {}

    def find(name: str) -> Rig:
        if name != "D" and connector != "kvferry":
            pytest.skip(f"{name} is of kvferry alone")
        if name not in rigs:
            engine = stack.decode if name == "D" else stack.add(specs[name])
            rigs[name] = Rig(stack, connector, prompts, LEASE_S, client_limit_s=30.0, consumer=engine)
        return rigs[name]
    return find


@pytest.fixture
def rig(rig_for: Callable[[str], Rig]) -> Rig:
    """Over the transport that the two engines agree on."""
    return rig_for("D")


@pytest.fixture
def tcp_rig(rig_for: Callable[[str], Rig]) -> Rig:
    return rig_for("D-tcp")


@pytest.fixture(params=["D", "D-tcp"])
def each_rig(rig_for: Callable[[str], Rig], request: pytest.FixtureRequest) -> Rig:
    return rig_for(request.param)


@pytest.fixture
def fail_rig(rig_for: Callable[[str], Rig]) -> Rig:
    """Over tcp, with the policy that answers an error instead of recomputing."""
    return rig_for("D-fail")


@pytest.fixture(scope="session")
def other_prefill(stack: Stack) -> Iterator[Engine]:
    """A second prefill engine, on P's cores."""
    with serving(replace(stack.prefill.spec, name="P2"), stack.logs) as engine:
        yield engine


@pytest.fixture(scope="module")
def relay() -> Iterator[Relay]:
    with Relay() as running:
        yield running


@pytest.fixture(scope="module")
def start(request: pytest.FixtureRequest) -> Iterator[Callable[[list[EngineSpec]], Callable[[str, str], Rig]]]:
    """Gives the rig of two of some engines, by name: prefill, decode."""
    prompts = [numbered_prompt(number, PROMPT_TOKENS) for number in range(PROMPTS)]
    stacks: list[Stack] = []

    def of(specs: list[EngineSpec]) -> Callable[[str, str], Rig]:
        known = {spec.name: spec for spec in specs}

        def rig(prefill: str, decode: str) -> Rig:
            if not stacks:
                stacks.append(Stack([known[prefill], known[decode]], log_folder(request.module.__name__), with_router=False))
                stacks[0].__enter__()
            engines = {engine.name: engine for engine in stacks[0].engines}
            source, consumer = (engines.get(name) or stacks[0].add(known[name]) for name in (prefill, decode))
            return Rig(stacks[0], "kvferry", prompts, shapes.LEASE_S, client_limit_s=60.0, source=source, consumer=consumer)
        return rig
    yield of
    for stack in stacks:
        stack.stop()
