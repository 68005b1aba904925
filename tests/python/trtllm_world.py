"""A prefill and a decode engine of tests/trtllm_engine with kvferry's connector, over real nodes, and a router between."""

from __future__ import annotations

import importlib
import json
import random
import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engines import wait_until  # noqa: E402
from trtllm_engine import names  # noqa: E402
from trtllm_engine.arguments import make_arguments  # noqa: E402
from trtllm_engine.engine import Engine  # noqa: E402
from trtllm_engine.model import right_answer  # noqa: E402

names.install(names.NEWEST)

from kvferry import Node, _kvferry  # noqa: E402
from kvferry.trtllm.config import VARIABLE, Config  # noqa: E402
from kvferry.trtllm.deposit import deposit  # noqa: E402
from kvferry.trtllm.identity import Model, Prompts, identity_fields  # noqa: E402

BLOCK_TOKENS = 4
BLOCKS = 64
HOLD_MS = 3000
MODEL = {"num_hidden_layers": 2, "num_key_value_heads": 4, "num_attention_heads": 4, "head_dim": 2, "hidden_size": 8}
SETTINGS = {"weights_id": "toy", "staging_bytes": 1 << 20}


RANKS_MAX = 4


def free_ports(held: ExitStack) -> int:
    """The first of RANKS_MAX, one for each rank. They are held: the system gives them to nobody else, and only who names one may
    listen there, as SO_REUSEADDR of both allows."""
    while True:
        with suppress(OSError, OverflowError), ExitStack() as row:
            port = 0
            for rank in range(RANKS_MAX):
                one = row.enter_context(socket.socket())
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind(("127.0.0.1", port + rank if port else 0))
                port = port or int(one.getsockname()[1])
            held.push(row.pop_all())
            return port


def import_adapter(version: names.Version) -> None:
    """Anew, with this version's classes, as an engine does it."""
    names.install(version)
    for name in [name for name in sys.modules if (name + ".").startswith("kvferry.trtllm.")]:
        del sys.modules[name]
    importlib.import_module("kvferry.trtllm")


def prompt(seed: int, tokens: int = 18) -> list[int]:
    return random.Random(seed).choices(range(1000), k=tokens)


def offerable(tokens: int) -> int:
    """Whole blocks, without the one of the last token."""
    return (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS


class World:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, loading: str = "staged") -> None:
        self.loading = loading
        self._folder = folder
        self._monkeypatch = monkeypatch
        self.engines: list[Engine] = []
        self._processes: dict[Engine, bool] = {}
        self._nodes: list[Node] = []
        self._ports = ExitStack()
        self.port = free_ports(self._ports)
        self.mailbox = str(folder / "box")
        (folder / "config.json").write_text(json.dumps(MODEL))

    def engine(self, name: str, settings: dict[str, Any], manager: str = "v1", **arguments: Any) -> Engine:
        self._monkeypatch.setenv(VARIABLE, json.dumps(SETTINGS | settings))
        engine = Engine(
            name, connector_module="kvferry.trtllm", scheduler_class="KVFerryScheduler", worker_class="KVFerryWorker",
            model=str(self._folder), manager=manager, use_kv_cache_manager_v2=manager == "v2", blocks=BLOCKS,
            tokens_per_block=BLOCK_TOKENS, **arguments)
        self._processes[engine] = arguments.get("processes", False)
        self.engines.append(engine)
        return engine

    @property
    def peer(self) -> str:
        return f"127.0.0.1:{self.port}"

    def prefill(self, settings: dict[str, Any] | None = None, **arguments: Any) -> Engine:
        return self.engine("P", {"role": "prefill", "listen": self.peer} | (settings or {}), **arguments)

    def decode(self, settings: dict[str, Any] | None = None, **arguments: Any) -> Engine:
        given = {"role": "decode", "peers": self.peer, "mailbox": self.mailbox, "loading": self.loading} | (settings or {})
        return self.engine("D", given, seed=2, **arguments)

    # ---- what a router does ----

    def _config(self, manager: str) -> Config:
        """Of an engine of either role, as far as identities go."""
        arguments = make_arguments({"model": str(self._folder), "tokens_per_block": BLOCK_TOKENS,
                                    "use_kv_cache_manager_v2": manager == "v2"})
        return Config(arguments, SETTINGS | {"role": "decode"})

    def key(self, tokens: list[int], salt: str | None = None) -> bytes:
        """What a ticket is found by."""
        config = self._config("v1")
        found = Prompts(config, Model(config)).of_tokens(tokens, salt)
        assert isinstance(found, bytes)
        return found

    def router(self, manager: str = "v1") -> Node:
        """A node with the engines' identity, that asks producers."""
        config = self._config(manager)
        node = Node({"listen": "", "peers": self.peer, "ranks": "1", "block_tokens": str(BLOCK_TOKENS)},
                    identity_fields(config, Model(config)))
        self._nodes.append(node)
        return node

    def ticket(self, tokens: list[int], manager: str = "v1") -> str:
        return self.find(self.router(manager), self.key(tokens))

    def find(self, node: Node, key: bytes) -> str:
        """The ticket that the prefill engine has for it."""
        def ask() -> str | None:
            status, id_ = node.ticket_find(key, None, 1000, 0)
            assert status == _kvferry.OK
            wait_until("a find's end", lambda: any(event.id == id_ for event in node.poll()))
            return node.ticket_take(id_)
        return str(wait_until("the ticket", ask, poll_s=0.005))

    def hand_over(self, p: Engine, tokens: list[int]) -> None:
        """The prefill engine computes it."""
        asked = p.submit(tokens, 1)
        p.run()
        assert p.answers[asked] == right_answer(tokens, 1)

    def load(self, tokens: list[int], hold_ms: int = HOLD_MS) -> tuple[int, str]:
        """The decode engine is to ask for it."""
        return deposit(self.mailbox, tokens=tokens, at=self.peer, hold_ms=hold_ms)

    def deposit(self, ticket: str, hold_ms: int = HOLD_MS) -> tuple[int, str]:
        return deposit(self.mailbox, ticket=ticket, hold_ms=hold_ms)

    # ---- the end ----

    @staticmethod
    def connectors(engine: Engine) -> list[Any]:
        return [*engine.workers, engine.scheduler]

    def all_is_back(self, p: Engine | None, d: Engine | None) -> None:
        """Blocks, staging."""
        if p is not None:
            def is_free() -> bool:
                p.nudge()
                p.step()
                return p.free_blocks == BLOCKS and not p.pinned
            wait_until("P's blocks", is_free)
        if d is not None:
            def is_idle() -> bool:
                d.nudge()
                d.step()
                return d.scheduler._consumer.is_idle and d.free_blocks == BLOCKS
            wait_until("D's blocks, and its tickets", is_idle)

    def close(self) -> None:
        for node in self._nodes:
            node.close()
        for engine in self.engines:
            connectors = [] if self._processes[engine] else self.connectors(engine)
            engine.close()
            for connector in connectors:
                connector.close()
        self._ports.close()
