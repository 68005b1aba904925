"""A prefill and a decode engine of tests/trtllm_engine with kvferry's connector, over real nodes, and a router between."""

from __future__ import annotations

import importlib
import json
import random
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools" / "dev")]

from engines import wait_until  # noqa: E402
from pd.ports import free_ports  # noqa: E402
from trtllm_engine import names  # noqa: E402
from trtllm_engine.arguments import make_arguments  # noqa: E402
from trtllm_engine.engine import RUN_LIMIT_S, Engine  # noqa: E402
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

ANSWER_TOKENS = 4


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


def loaded(d: Engine, asked: int, tokens: list[int]) -> int:
    """What the engine has neither computed nor had."""
    return len(tokens) - d.counters[asked].computed - d.counters[asked].reused


def answer(d: Engine, tokens: list[int], limit_s: float = RUN_LIMIT_S, **identity: Any) -> int:
    """Of the decode engine, which must be right; how many tokens it had loaded."""
    asked = d.submit(tokens, ANSWER_TOKENS, **identity)
    d.run(limit_s=limit_s)
    assert d.answers[asked] == right_answer(tokens, ANSWER_TOKENS, **identity)
    return loaded(d, asked, tokens)


class World:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, loading: str = "staged") -> None:
        self.loading = loading
        self._folder = folder
        self._monkeypatch = monkeypatch
        self._open = ExitStack()
        self.port, = free_ports(1, self._open)
        self.mailbox = str(folder / "box")
        (folder / "config.json").write_text(json.dumps(MODEL))

    def engine(self, name: str, settings: dict[str, Any], manager: str = "v1", **arguments: Any) -> Engine:
        self._monkeypatch.setenv(VARIABLE, json.dumps(SETTINGS | settings))
        engine = Engine(
            name, connector_module="kvferry.trtllm", scheduler_class="KVFerryScheduler", worker_class="KVFerryWorker",
            model=str(self._folder), manager=manager, use_kv_cache_manager_v2=manager == "v2", blocks=BLOCKS,
            tokens_per_block=BLOCK_TOKENS, **arguments)
        for connector in () if arguments.get("processes") else reversed(self.connectors(engine)):
            self._open.callback(connector.close)
        self._open.callback(engine.close)
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
        self._open.callback(node.close)
        return node

    def ticket(self, p: Engine, tokens: list[int], manager: str = "v1") -> str:
        """The prefill engine has computed it, and lends it."""
        self.hand_over(p, tokens)
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

    def carry(self, p: Engine, tokens: list[int], hold_ms: int = HOLD_MS) -> None:
        """From the prefill engine to the decode engine's side: all that can be offered."""
        self.hand_over(p, tokens)
        assert self.load(tokens, hold_ms) == (offerable(len(tokens)), "")

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
        self._open.close()
