"""A prefill engine and two decode engines of one release. Whatever ends a request, under policy fail or recompute, the engine
lives and answers the next one right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pd import client, faults, metrics, trial, web
from pd.client import Reply, Ticket
from pd.connector import kvferry
from pd.engine import NO_SPINNING, EngineSpec
from pd.faults import Fault
from pd.paths import FAST
from pd.progress import wait_until
from pd.prompts import numbered_prompt
from pd.releases import on
from pd.rig import RECOMPUTED, Rig
from pd.stack import Stack, log_folder

import expect

LEASE_S = 3.0
P_BLOCKS = 24
D_BLOCKS = 96
BLOCK_TOKENS = 32
PROMPT_TOKENS = 150
PROMPTS = 10
FAILS_WITHIN_S = 3.5
LONG_TOKENS = 1800
"""Of an answer behind which the next request waits."""
ONE_AT_A_TIME = ("--max-num-seqs", "1")
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
PAUSED_S = 1.0
LIMIT_S = 30.0
GONE = ("peer_down", "transfer_failed", "handshake_timeout")


@dataclass(frozen=True)
class Pair:
    rig: Rig
    policy: str


@pytest.fixture(scope="module")
def rig_of(version: str) -> Iterator[Callable[[str], Rig]]:
    base = on(kvferry(LEASE_S), version)
    base = replace(base, env={**base.env, **NO_SPINNING})
    decoders = [EngineSpec(policy, FAST, base.with_policy(policy), "nobind", D_BLOCKS, max_tokens=2048,
                           args=ONE_AT_A_TIME) for policy in ("recompute", "fail")]
    prompts = [numbered_prompt(number, PROMPT_TOKENS) for number in range(PROMPTS)]
    with Stack([EngineSpec("P", FAST, base, "nobind", P_BLOCKS), *decoders], log_folder(f"releases-{version}"),
               with_router=False) as stack:
        engines = {engine.name: engine for engine in stack.engines}
        rigs = {spec.name: Rig(stack, "kvferry", prompts, LEASE_S, consumer=engines[spec.name]) for spec in decoders}
        yield rigs.__getitem__


@pytest.fixture(params=["recompute", "fail"])
def pair(request: pytest.FixtureRequest, rig_of: Callable[[str], Rig]) -> Pair:
    return Pair(rig_of(request.param), request.param)


def test_it_is_this_release(rig_of: Callable[[str], Rig], version: str) -> None:
    for engine in rig_of("fail").stack.engines:
        assert f'"{version}' in web.get(engine.url + "/version", LIMIT_S)[1]


def test_ten_prompts(pair: Pair) -> None:
    rig = pair.rig
    expected = [rig.expected(prompt) for prompt in rig.prompts]
    rig.settle()
    rig.warm_up()
    rig.settle()
    before = rig.counters()
    replies = [rig.decode(prompt, rig.ticket(prompt)) for prompt in rig.prompts]
    assert [reply.tokens for reply in replies] == expected, replies
    after = rig.counters()
    assert trial.grown(before, after, trial.LOADED) >= PROMPTS * (PROMPT_TOKENS - 1)
    assert trial.grown(before, after, trial.LOADED_BLOCKS) >= PROMPTS * (PROMPT_TOKENS // BLOCK_TOKENS)
    assert trial.grown(before, after, RECOMPUTED) == 0


# ---- what ends a request ----

def with_ticket(title: str, change: Callable[[Ticket], Ticket]) -> Fault:
    return Fault("f", title, faults.handed(change=change))


def without(ticket: Ticket) -> Ticket:
    return {name: value for name, value in ticket.items() if name != "kvferry_ticket"}


def foreign(ticket: Ticket) -> Ticket:
    """As NixlConnector's."""
    return {**without(ticket), "remote_block_ids": [[1, 2, 3, 4, 5]], "remote_engine_id": "other", "remote_host": "127.0.0.1",
            "remote_port": 1, "tp_size": 1}


def ended_while_waiting(rig: Rig) -> Reply:
    """Behind a long answer; whoever fails hears it before that is over."""
    def count(name: str) -> int:
        return int(metrics.total(rig.counters(), name))

    ticket, failures = rig.ticket(rig.question), count(trial.FAILURES)
    with ThreadPoolExecutor() as clients:
        with closing(client.ask(rig.decoder.url, rig.other_question, LONG_TOKENS, stream=True)):
            wait_until("the long answer", lambda: count(RUNNING) == 1, LIMIT_S, every_s=0.02)
            asked = clients.submit(rig.decode, rig.question, ticket)
            wait_until("waiting behind it", lambda: count(WAITING) == 1, LIMIT_S, every_s=0.02)
            rig.producer.call("/reset_prefix_cache", LIMIT_S)
            wait_until("hearing of it", lambda: count(trial.FAILURES) > failures, LIMIT_S, every_s=0.02)
            if rig.decoder.spec.name == "fail":
                asked.result(FAILS_WITHIN_S)
            assert count(RUNNING) == 1, "the long answer is over"
        reply = asked.result(LIMIT_S)
    client.complete(rig.producer.url, rig.other_question, 1)  # vLLM says what its pool holds with its steps only
    return reply


REFUSED = [with_ticket("ticket missing", without), with_ticket("foreign ticket", foreign), faults.ALTERED, faults.SWAPPED]
ENDED = [faults.STALE, Fault("a", "lease ended while waiting", ended_while_waiting)]


def answers_right(rig: Rig) -> None:
    expected = rig.expected(rig.fillers[0])
    rig.settle()
    reply = client.complete(rig.decoder.url, rig.fillers[0], rig.max_tokens, timeout_s=LIMIT_S)
    assert reply.tokens == expected, reply
    assert rig.decoder.process.running()


@pytest.mark.parametrize("fault", [*REFUSED, *ENDED], ids=lambda fault: fault.title)
def test_fault(pair: Pair, fault: Fault) -> None:
    reasons = ("bad_ticket",) if fault in REFUSED else ("lease_expired", "lease_unknown")
    outcome = trial.run(pair.rig, fault)
    if pair.policy == "fail":
        expect.failed(outcome, FAILS_WITHIN_S if fault in REFUSED else LIMIT_S)
        assert outcome.reply is not None and outcome.reply.reason in reasons, outcome.reply
        assert outcome.recomputed == 0
    else:
        expect.recomputed(outcome, *reasons)
    answers_right(pair.rig)


@pytest.mark.parametrize("options, status", [({"unheard_of": 1}, 400), ({"policy": "fail"}, 500)], ids=["unknown", "policy"])
def test_options(pair: Pair, options: dict[str, Any], status: int) -> None:
    """Of the request: they end it whatever the engine's policy."""
    outcome = trial.run(pair.rig.with_options(**options), faults.ALTERED)
    assert outcome.reply is not None and outcome.reply.status == status, outcome.reply
    assert outcome.recomputed == 0
    expect.lives(outcome)
    answers_right(pair.rig)


def paused(rig: Rig, refuses: bool) -> Reply:
    """The answer to the ticket's last use: 0.33 and later refuse the first one, earlier versions let it wait."""
    ticket = rig.ticket(rig.question)
    with ThreadPoolExecutor() as clients:
        rig.decoder.call("/pause?mode=wait", LIMIT_S)
        try:
            asked = clients.submit(rig.decode, rig.question, ticket)
            if refuses:
                assert asked.result(PAUSED_S).status == 503
            else:
                with pytest.raises(TimeoutError):
                    asked.result(PAUSED_S)
        finally:
            rig.decoder.call("/resume", LIMIT_S)
    return rig.decode(rig.question, ticket) if refuses else asked.result()


def test_paused(pair: Pair, version: str) -> None:
    refuses = [int(part) for part in version.split(".")] >= [0, 33]
    outcome = trial.run(pair.rig, Fault("p", "D paused", lambda rig: paused(rig, refuses)))
    expect.loaded(outcome, PROMPT_TOKENS)


def test_killed(rig_of: Callable[[str], Rig]) -> None:
    """The last one: P stays dead."""
    rig, fail_rig = rig_of("recompute"), rig_of("fail")
    for each in (fail_rig, rig):
        each.warm_up()
        each.expected(each.fillers[0])

    def killed(rig: Rig) -> Reply:
        ticket = fail_rig.ticket(fail_rig.question)
        reply = faults.killed(rig)
        failed = fail_rig.decode(fail_rig.question, ticket)
        assert failed.status == 500 and failed.reason in GONE, failed
        return reply

    dead = rig.producer
    expect.recomputed(trial.run(rig, Fault("c", "P killed", killed, lambda rig: rig.stack.engines.remove(dead))), *GONE)
    for each in (fail_rig, rig):
        assert each.probe().ok
        answers_right(each)
