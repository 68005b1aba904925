"""Data-parallel engines of a model with MLA, as such models are deployed: each rank has a scheduler, a pool and nodes of its own.
A ticket is of one rank, and every rank of the other side loads by it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
from pd import client, trial
from pd.client import Prompt, Reply, Ticket
from pd.engine import BLOCK_TOKENS, Engine, EngineSpec
from pd.families import BY_NAME
from pd.metrics import Samples
from pd.prompts import numbered_prompt
from pd.rig import RECOMPUTED, Rig
from pd.web import post_json

import shapes

pytestmark = pytest.mark.deep

RANKS = ("0", "1")
TOGETHER = ("--data-parallel-size", str(len(RANKS)))
DEEPSEEK = BY_NAME["deepseek"]
"""For vLLM a model of experts, whose ranks go step by step together; but no layer has them: they come with a collective operation,
all_gatherv, that vLLM has not on a CPU."""
BLOCKS = 64
LEASE_S = 30.0
PATIENCE_MS = 20000
"""All ranks of an engine go on while one of them has requests: eight busy processes on two cores have kept a handshake waiting for
more than five seconds."""
LIMIT_S = 60.0
AT_ONCE, OTHERS = 6, 100
"""Prompts that vLLM gives to the ranks as it likes, and the number of the first of them."""
COMPUTED = "vllm:prompt_tokens_total"


def engine(name: str, *args: str) -> EngineSpec:
    made = shapes.engine(name, model=DEEPSEEK.model(), blocks=BLOCKS, lease_ttl_ms=int(LEASE_S * 1000),
                         stall_timeout_ms=PATIENCE_MS, handshake_timeout_ms=PATIENCE_MS)
    return replace(made, args=(*args, *DEEPSEEK.engine_args()))


@pytest.fixture(scope="module")
def rig_of(start: Callable[..., Callable[[str, str], Rig]]) -> Callable[[str, str], Rig]:
    return start([engine("P", *TOGETHER), engine("D", *TOGETHER), engine("P-one"), engine("D-one")])


def ask(to: Engine, rank: str | None, prompt: Prompt, tokens: int, ticket: Ticket | None = None) -> Reply:
    """Of the rank that is named, as proxies do, or of the one that vLLM chooses."""
    headers = {"X-data-parallel-rank": rank} if rank else {}
    body = client.completion_body(prompt, tokens, ticket)
    reply = client.read_reply(post_json(to.url + "/v1/completions", body, LIMIT_S, headers))
    assert reply.ok, reply.in_short(200)
    return reply


def ticket_of(rig: Rig, rank: str | None, prompt: Prompt) -> Ticket:
    ticket = ask(rig.producer, rank, prompt, 1, client.ASK_FOR_TICKET).ticket
    assert ticket
    return ticket


by_rank = partial(trial.new_by, "engine")


def loaded(rig: Rig, before: Samples, prompts: int) -> dict[str, int]:
    """Tokens, by D's rank: all of the prompts but their last ones, and none was computed."""
    after = rig.counters()
    tokens, blocks = by_rank(before, after, trial.LOADED), by_rank(before, after, trial.LOADED_BLOCKS)
    length = len(rig.question)
    assert trial.grown(before, after, RECOMPUTED) == 0 and trial.new_failures(before, after) == {}
    assert sum(tokens.values()) >= prompts * (length - 1)
    assert sum(blocks.values()) >= prompts * (length // BLOCK_TOKENS) and blocks.keys() == tokens.keys()
    return tokens


def of_each_rank(rig: Rig, prefill: tuple[str | None, ...], decode: tuple[str | None, ...]) -> None:
    sources = set()
    for number, (source, consumer) in enumerate(product(prefill, decode)):
        prompt = rig.prompts[number]
        expected = ask(rig.decoder, consumer, prompt, rig.max_tokens).tokens
        rig.settle()
        computed, before = rig.producer.samples(), rig.counters()
        ticket = ticket_of(rig, source, prompt)
        sources.add(str(ticket["remote_engine_id"]))
        assert by_rank(computed, rig.producer.samples(), COMPUTED) == {source or "0": len(prompt)}
        assert ask(rig.decoder, consumer, prompt, rig.max_tokens, ticket).tokens == expected
        assert loaded(rig, before, 1).keys() == {consumer or "0"}
    assert len(sources) == len(prefill)


def test_each_rank_loads_from_each(rig_of: Callable[[str, str], Rig]) -> None:
    of_each_rank(rig_of("P", "D"), RANKS, RANKS)


def test_many_at_once(rig_of: Callable[[str, str], Rig]) -> None:
    """Wherever vLLM's own balancing puts them: all of the ranks have some."""
    rig = rig_of("P", "D")
    prompts = [numbered_prompt(OTHERS + number, len(rig.question)) for number in range(AT_ONCE)]
    expected = [ask(rig.decoder, None, prompt, rig.max_tokens).tokens for prompt in prompts]
    assert len(set(map(tuple, expected))) == len(prompts)
    rig.settle()
    computed, before = rig.producer.samples(), rig.counters()
    with ThreadPoolExecutor(AT_ONCE) as clients:
        tickets = list(clients.map(lambda prompt: ticket_of(rig, None, prompt), prompts))
        answers = list(clients.map(lambda pair: ask(rig.decoder, None, pair[0], rig.max_tokens, pair[1]).tokens,
                                   zip(prompts, tickets, strict=True)))
    assert answers == expected
    assert by_rank(computed, rig.producer.samples(), COMPUTED).keys() == set(RANKS)
    assert loaded(rig, before, len(prompts)).keys() == set(RANKS)
    rig.stack.wait_idle()


def test_into_one(rig_of: Callable[[str, str], Rig]) -> None:
    of_each_rank(rig_of("P", "D-one"), RANKS, (None,))


def test_from_one(rig_of: Callable[[str, str], Rig]) -> None:
    of_each_rank(rig_of("P-one", "D"), (None,), RANKS)
