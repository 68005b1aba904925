"""LoRA adapters are compared by their content: the same one at another path loads, another one under the same name and path does
not, whenever it has come there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pd import client, trial
from pd.engine import Engine, EngineSpec
from pd.rig import Rig
from safetensors.torch import save_file

from shapes import engine

pytestmark = pytest.mark.deep

RANK, HIDDEN, LAYERS = 8, 128, 4
SEEDS = {"old": 1, "new": 2, "other": 3}
ANSWER_TOKENS = 12
LIMIT_S = 60.0
NOT_LOADED, NO_TICKETS = "kvferry_not_loaded_total", "kvferry_no_tickets_total"
LORA = ("--enable-lora", "--max-loras", "1", "--max-cpu-loras", "2", "--max-lora-rank", str(RANK))


def write(folder: Path, seed: int) -> None:
    """An adapter that changes most answers."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(LAYERS):
        for module in ("q_proj", "k_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, HIDDEN, generator=generator) * 0.3
            tensors[f"{name}.lora_B.weight"] = torch.randn(HIDDEN, RANK, generator=generator) * 0.3
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": ["q_proj", "k_proj", "v_proj"]}))


def swap(folder: Path, what: str) -> None:
    """Other files in its place."""
    shutil.rmtree(folder)
    write(folder, SEEDS[what])


def spec(name: str, adapter: Path, ranks: int = 1) -> EngineSpec:
    made = engine(name, ranks)
    env = {**made.connector.env, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    return replace(made, connector=replace(made.connector, env=env), args=(*made.args, *LORA, "--lora-modules", f"a={adapter}"))


@dataclass(frozen=True)
class Outcome:
    tokens: list[int]
    loaded: int
    refused: dict[str, int]
    not_loaded: dict[str, int]
    no_tickets: dict[str, int]


@dataclass(frozen=True)
class Pair:
    """Two engines with one adapter each, of the name `a`."""

    rig: Rig
    here: Path
    there: Path
    """Of the decode engine's."""

    def ask(self, of: Engine, prompt: client.Prompt, tokens: int, ticket: client.Ticket | None = None,
            model: str = "a") -> client.Reply:
        reply = client.complete(of.url, prompt, tokens, ticket, LIMIT_S, {"model": model})
        assert reply.ok, reply.in_short(200)
        return reply

    def call(self, of: Engine, path: str, **body: Any) -> None:
        of.call(f"/v1/{path}", LIMIT_S, body)

    def load(self, of: Engine, folder: Path, name: str = "a", **how: Any) -> None:
        self.call(of, "load_lora_adapter", lora_name=name, lora_path=str(folder), **how)

    def own(self, prompt: client.Prompt, model: str = "a") -> list[int]:
        """What D answers by itself, with whatever adapter it has."""
        self.rig.settle()
        return self.ask(self.rig.decoder, prompt, ANSWER_TOKENS, model=model).tokens

    def hand_over(self, model: str = "a", asks: str = "a") -> Outcome:
        rig, prompt = self.rig, self.rig.question
        rig.settle()
        before, tickets_before = rig.counters(), rig.producer.samples()
        ticket = self.ask(rig.producer, prompt, 1, client.ASK_FOR_TICKET, model).ticket
        reply = self.ask(rig.decoder, prompt, ANSWER_TOKENS, ticket, asks)
        rig.probe()
        after = rig.counters()
        return Outcome(reply.tokens, trial.grown(before, after, trial.LOADED), trial.new_failures(before, after),
                       trial.new_by("reason", before, after, NOT_LOADED),
                       trial.new_by("reason", tickets_before, rig.producer.samples(), NO_TICKETS))

    def loads(self, model: str = "a") -> None:
        outcome = self.hand_over(model, model)
        assert outcome.loaded >= len(self.rig.question) - 1 and not outcome.refused, outcome
        assert outcome.tokens == self.own(self.rig.question, model)

    def computes(self, outcome: Outcome, refused: str = "", not_loaded: str = "", model: str = "a") -> None:
        """Another adapter's blocks are never used, and it is said why."""
        assert set(outcome.refused) == ({refused} if refused else set()), outcome
        assert set(outcome.not_loaded) == ({not_loaded} if not_loaded else set()), outcome
        assert outcome.tokens == self.own(self.rig.question, model)


Pairs = Callable[[str], Pair]


@pytest.fixture(scope="module")
def pairs(start: Callable[..., Callable[[str, str], Rig]], tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """P with D, whose path is another one; with D-late, whose path is P's; with D-ranks."""
    folder = tmp_path_factory.mktemp("adapters")
    here, there = folder / "here" / "a", folder / "there" / "a"
    for path in (here, there):
        write(path, SEEDS["old"])
    rig = start([spec("P", here), spec("D", there), spec("D-late", here), spec("D-ranks", there, ranks=2)])
    return lambda name: Pair(rig("P", name), here, there)


@pytest.fixture(params=["D", "D-ranks"])
def pair(pairs: Pairs, request: pytest.FixtureRequest) -> Pair:
    """Both with the old content."""
    made = pairs(request.param)
    for of, path in ((made.rig.producer, made.here), (made.rig.decoder, made.there)):
        swap(path, "old")
        made.load(of, path, load_inplace=True)
    return made


def test_the_same_adapter_at_two_paths_loads(pair: Pair) -> None:
    assert pair.here != pair.there
    pair.loads()
    pair.loads("model")
    assert pair.own(pair.rig.question) != pair.own(pair.rig.question, "model")


def test_with_and_without_an_adapter_are_not_the_same(pair: Pair) -> None:
    pair.computes(pair.hand_over("a", "model"), refused="incompatible", model="model")
    pair.computes(pair.hand_over("model", "a"), refused="incompatible")


@pytest.mark.parametrize("how", ["in place", "unloaded and loaded"])
def test_another_content_under_a_running_decoder(pair: Pair, how: str) -> None:
    old = pair.own(pair.rig.question)
    swap(pair.there, "new")
    if how == "in place":
        pair.load(pair.rig.decoder, pair.there, load_inplace=True)
    else:
        pair.call(pair.rig.decoder, "unload_lora_adapter", lora_name="a")
        pair.load(pair.rig.decoder, pair.there)
    pair.computes(pair.hand_over(), refused="incompatible")
    assert pair.own(pair.rig.question) != old
    swap(pair.here, "new")
    pair.load(pair.rig.producer, pair.here, load_inplace=True)
    pair.loads()


def test_files_that_change_without_a_call_change_nothing(pair: Pair) -> None:
    """After load_inplace vLLM by itself reads them again in every step."""
    swap(pair.there, "new")
    pair.loads()


def test_one_that_vllm_has_dropped_is_read_again_before_it_loads(pair: Pair) -> None:
    for name in ("b", "c"):
        write(pair.there.parent / name, SEEDS["other"])
        pair.load(pair.rig.decoder, pair.there.parent / name, name)
    swap(pair.there, "new")
    pair.computes(pair.hand_over(), not_loaded="lora_changed")
    pair.computes(pair.hand_over(), refused="incompatible")
    for name in ("b", "c"):
        pair.call(pair.rig.decoder, "unload_lora_adapter", lora_name=name)


def test_a_content_that_the_producer_s_cache_does_not_have(pair: Pair) -> None:
    """The prompt's blocks of the old content are in P's prefix cache, under the same name and path."""
    pair.rig.settle()
    pair.ask(pair.rig.producer, pair.rig.question, 1)
    for of, path in ((pair.rig.producer, pair.here), (pair.rig.decoder, pair.there)):
        swap(path, "new")
        pair.load(of, path, load_inplace=True)
    ticket = pair.ask(pair.rig.producer, pair.rig.question, 1, client.ASK_FOR_TICKET).ticket
    reply = pair.ask(pair.rig.decoder, pair.rig.question, ANSWER_TOKENS, ticket)
    assert ticket is not None and reply.tokens == pair.own(pair.rig.question)


def test_another_content_at_the_decoder_s_start(pairs: Pairs) -> None:
    folder = pairs("D").here
    swap(folder, "new")
    late = pairs("D-late")  # it starts here, if no other test has asked for it
    swap(folder, "old")
    late.load(late.rig.producer, folder, load_inplace=True)
    late.computes(late.hand_over(), refused="incompatible")
    late.load(late.rig.decoder, folder, load_inplace=True)
    late.loads()
