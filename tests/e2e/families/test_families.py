"""Families of models, between engines of several shapes: what D answers to a loaded prompt is right, and shows it if a
block of it was not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pd import client, faults, trial
from pd.carried import RANKS, STAGES, Row
from pd.client import Prompt
from pd.prompts import numbered_prompt
from pd.rig import Rig
from pd.trial import Outcome

import expect
import judge
import losses
from judge import Local

pytestmark = pytest.mark.deep

RPC_LIMIT_S = 30.0


def locally(rig: Rig, prompt: Prompt, tokens: int, url: str | None = None) -> client.Reply:
    """On D, or there."""
    rig.settle()
    reply = client.complete(url or rig.decoder.url, prompt, tokens, fields=rig.fields)
    assert reply.ok, reply.in_short(200)
    return reply


def answered(rig: Rig, row: Row, beginning: Prompt) -> tuple[Prompt, Local]:
    """A prompt whose last token is what the model says of the others: so D by itself computes it apart, too."""
    apart = locally(rig, beginning, rig.max_tokens + 1)
    prompt = [*beginning, apart.tokens[0]]
    rest = replace(apart, tokens=apart.tokens[1:], logprobs=apart.logprobs[1:], leads=apart.leads[1:])
    of_p = None if row.topology.cut_alike else locally(rig, prompt, rig.max_tokens, rig.producer.url)
    return prompt, Local(locally(rig, prompt, rig.max_tokens), rest, of_p)


@pytest.fixture(scope="module")
def known(rig: Rig, row: Row) -> list[tuple[Prompt, Local]]:
    """Prompts of every length that matters, and then the rig's question."""
    lengths = [edge + more for edge in row.family.edges for more in (-1, 0, 1)]
    prompts = [answered(rig, row, numbered_prompt(length, length - 1)) for length in lengths]
    question = answered(rig, row, rig.question[:-1])
    rig.prompts[0] = question[0]
    return [*prompts, question]


@pytest.fixture(scope="module")
def doubt(known: list[tuple[Prompt, Local]]) -> float:
    return judge.doubt_of(local for _, local in known)


def ask_loaded(rig: Rig, prompt: Prompt) -> Outcome:
    """All of it but the last token came by kvferry."""
    outcome = trial.run(rig, replace(faults.HEALTHY, inject=lambda r: r.decode(prompt, r.ticket(prompt)), asks=lambda _: prompt))
    assert outcome.reply is not None and outcome.reply.ok, outcome.reply
    assert (outcome.recomputed, outcome.reasons) == (0, {})
    assert outcome.loaded >= len(prompt) - 1 and outcome.loaded_blocks > 0
    expect.lives(outcome)
    return outcome


def test_what_is_loaded_is_right(rig: Rig, row: Row, known: list[tuple[Prompt, Local]], doubt: float) -> None:
    wrong = {}
    for prompt, local in known:
        reply = ask_loaded(rig, prompt).reply
        assert reply is not None
        if not (judge.same(reply, local) if row.identical else judge.distance(reply, local, doubt) <= doubt):
            wrong[len(prompt)] = judge.distance(reply, local, doubt)
    assert wrong == {}, f"by length; answers may differ by {0.0 if row.identical else doubt:.3g}"


def test_prompts_give_different_tokens(known: list[tuple[Prompt, Local]]) -> None:
    """Else none of these tests could fail."""
    answers = {tuple(local.whole.tokens) for _, local in known}
    assert len(answers) == len(known)


def layers_of(rig: Rig, row: Row) -> list[str]:
    """Those whose content decides which tokens come."""
    stages = rig.producer.call("/collective_rpc", RPC_LIMIT_S, {"method": "kv_layers"}).body["results"]
    names = {name for stage in stages for name in stage}
    return sorted(name for name in names if not row.family.drafts(name))


def with_a_zeroed_block(rig: Rig, layer: str) -> client.Reply:
    rig.settle()
    rig.producer.call("/collective_rpc", RPC_LIMIT_S, {"method": "wipe_kv"})
    ticket = rig.ticket(rig.question)
    zeroed = rig.producer.call("/collective_rpc", RPC_LIMIT_S, {"method": "zero_block", "kwargs": {"layer": layer}})
    assert any(zeroed.body["results"]), zeroed.body
    before = rig.counters()
    reply = rig.decode(rig.question, ticket)
    assert trial.grown(before, rig.counters(), trial.LOADED_BLOCKS) > 0
    return reply


def test_a_zeroed_block_shows(rig: Rig, row: Row, known: list[tuple[Prompt, Local]], doubt: float) -> None:
    """In each layer."""
    layers = layers_of(rig, row)
    assert layers
    leads = [reply.leads[0] for reply in (known[-1][1].whole, known[-1][1].apart)]
    assert min(leads) > doubt, f"{leads}: another first token would say nothing: the family needs another seed"
    unseen = {}
    for layer in layers:
        found = judge.distance(with_a_zeroed_block(rig, layer), known[-1][1], doubt)
        if found <= doubt:
            unseen[layer] = found
    assert unseen == {}, f"answers may differ by {doubt:.3g}"


def right_and_typed(outcome: Outcome, local: Local, doubt: float, reasons: tuple[str, ...]) -> None:
    """Loaded or recomputed, and if that, it says why."""
    assert outcome.reply is not None and outcome.reply.ok, outcome.reply
    assert judge.distance(outcome.reply, local, doubt) <= doubt
    assert outcome.recomputed or outcome.loaded_blocks
    assert bool(outcome.reasons) == bool(outcome.recomputed) and set(outcome.reasons) <= set(reasons), outcome.reasons
    expect.lives(outcome)


def test_the_lease_ends_during_the_load(rig: Rig, known: list[tuple[Prompt, Local]], doubt: float) -> None:
    rig.warm_up()
    outcome = trial.run(rig, losses.LEASE_ENDS)
    assert outcome.recomputed
    right_and_typed(outcome, known[-1][1], doubt, losses.LEASE)


def test_a_rank_is_lost(rig: Rig, row: Row, known: list[tuple[Prompt, Local]], doubt: float) -> None:
    if row.topology.prefill not in (RANKS, STAGES):
        pytest.skip("P has one rank")
    rig.warm_up()
    if row.family.replicated and row.topology.prefill == RANKS:
        for _ in range(2):  # loads take turns at the ranks, and the one that stands still has nothing that the other has not
            outcome = trial.run(rig, faults.RANK_LOST)
            assert not outcome.recomputed and outcome.loaded_blocks
            right_and_typed(outcome, known[-1][1], doubt, ())
        return
    outcome = trial.run(rig, faults.RANK_LOST)
    assert outcome.recomputed
    right_and_typed(outcome, known[-1][1], doubt, losses.NETWORK)


def test_p_is_killed_during_the_load(rig: Rig, known: list[tuple[Prompt, Local]], doubt: float) -> None:
    """At last: there is no P afterwards."""
    rig.warm_up()
    outcome = trial.run(rig, losses.KILLED)
    assert outcome.recomputed
    right_and_typed(outcome, known[-1][1], doubt, losses.GONE)
