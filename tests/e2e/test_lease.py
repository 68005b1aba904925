"""The lease ends before D reads, by time or because P needed the blocks."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

from pd import client, faults, metrics, trial
from pd.client import Prompt, Reply
from pd.rig import Rig

import expect

LEASE_REASONS = ("lease_expired", "lease_unknown")
PREEMPTIONS = "vllm:num_preemptions_total"


def test_stale(each_rig: Rig) -> None:
    each_rig.warm_up()
    expect.recomputed(trial.run(each_rig, faults.STALE), *LEASE_REASONS)


def test_no_consumer_ever_comes(rig: Rig) -> None:
    rig.settle()
    rig.ticket(rig.question)
    assert rig.producer.usage() > 0.0
    assert rig.stack.wait_idle() < rig.lease_s + 2.0


def preempted_while_published(rig: Rig) -> Reply:
    """Three requests outgrow P's pool while they generate; the last one, already published, has to make room. They wait
    together before a stopped P, so that none of them is done before another begins."""
    before = metrics.total(rig.producer.samples(), PREEMPTIONS)
    rig.producer.process.pause()
    with ThreadPoolExecutor() as clients:
        others = [send(clients, rig, two_prompts[:256], 60)
                  for two_prompts in (rig.fillers[0] + rig.fillers[1], rig.fillers[2] + rig.fillers[3])]
        first_step = send(clients, rig, rig.question, 24, client.ASK_FOR_TICKET)
        rig.producer.process.resume()
        assert all(other.result().ok for other in others)
    assert metrics.total(rig.producer.samples(), PREEMPTIONS) > before, "nothing was preempted"
    ticket = first_step.result().ticket
    assert ticket, first_step.result().in_short(200)
    return rig.decode(rig.question, ticket)


def send(clients: ThreadPoolExecutor, rig: Rig, prompt: Prompt, max_tokens: int,
         ask: client.Ticket | None = None) -> Future[Reply]:
    """In the order of the calls: a connection each, which waits for P."""
    reply = clients.submit(client.complete, rig.producer.url, prompt, max_tokens, ask)
    time.sleep(0.05)
    return reply


def test_published_request_is_preempted(rig: Rig) -> None:
    rig.warm_up()
    fault = faults.Fault("-", "preempted", preempted_while_published)
    expect.loaded(trial.run(rig, fault), len(rig.question))
