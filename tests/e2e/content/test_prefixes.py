"""What vLLM does with parts of prompts: salts that keep tenants' caches apart, blocks that D has already, prompts that P
computes in pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from pd import client, faults, trial
from pd.client import Prompt, Reply, Ticket
from pd.engine import BLOCK_TOKENS
from pd.faults import Fault
from pd.rig import Rig

import expect
from shapes import engine

pytestmark = pytest.mark.deep

PIECE_TOKENS = 64
LIMIT_S = 60.0
CACHED_BLOCKS = 3
OWN_HITS = "vllm:prefix_cache_hits_total"


@pytest.fixture(scope="module")
def rig(start: Callable[..., Callable[[str, str], Rig]]) -> Rig:
    pieces = ("--max-num-batched-tokens", str(PIECE_TOKENS), "--max-num-seqs", "16")
    return start([replace(engine("P"), args=pieces), engine("D")])("P", "D")


def ask(url: str, prompt: Prompt, tokens: int, ticket: Ticket, salt: str | None) -> Reply:
    return client.complete(url, prompt, tokens, ticket, LIMIT_S, {"cache_salt": salt} if salt else {})


def salted(of_ticket: str | None, of_request: str | None) -> Fault:
    def inject(rig: Rig) -> Reply:
        ticket = ask(rig.producer.url, rig.question, 1, client.ASK_FOR_TICKET, of_ticket).ticket
        assert ticket is not None
        return ask(rig.decoder.url, rig.question, rig.max_tokens, ticket, of_request)
    return Fault("-", "salts", inject)


@pytest.mark.parametrize("other", ["tenant b", None])
def test_another_tenant_s_ticket_is_refused(rig: Rig, other: str | None) -> None:
    outcome = trial.run(rig, salted("tenant a", other))
    expect.recomputed(outcome, "bad_ticket")
    assert outcome.loaded == 0
    expect.recomputed(trial.run(rig, salted(other, "tenant a")), "bad_ticket")


def test_a_tenant_s_own_ticket_loads(rig: Rig) -> None:
    expect.loaded(trial.run(rig, salted("tenant a", "tenant a")), len(rig.question))


def test_a_prompt_that_p_computes_in_pieces_loads(rig: Rig) -> None:
    assert len(rig.question) > 2 * PIECE_TOKENS
    expect.loaded(trial.run(rig, faults.HEALTHY), len(rig.question))


def test_only_what_d_has_not_is_loaded(rig: Rig) -> None:
    """D has computed another prompt with the same beginning."""
    cached = CACHED_BLOCKS * BLOCK_TOKENS
    hits = []

    def inject(rig: Rig) -> Reply:
        assert client.complete(rig.decoder.url, rig.question[:cached] + rig.other_question[cached:], 1).ok
        ticket = rig.ticket(rig.question)
        before = rig.counters()
        reply = rig.decode(rig.question, ticket)
        hits.append(trial.grown(before, rig.counters(), OWN_HITS))
        return reply

    outcome = trial.run(rig, Fault("-", "a beginning that D has", inject))
    expect.right_tokens(outcome)
    assert hits == [cached]
    assert len(rig.question) - cached - 1 <= outcome.loaded <= len(rig.question) - cached
    assert outcome.recomputed == 0 and outcome.reasons == {}
