"""The lease ends before D reads, by time or because P needed the blocks."""

from __future__ import annotations

import threading
import time

from pd import client, faults, metrics, trial
from pd.client import Prompt, Reply
from pd.rig import Rig

import expect

LEASE_REASONS = ("lease_expired", "lease_unknown")
PREEMPTIONS = "vllm:num_preemptions_total"


def test_stale(rig: Rig) -> None:
    rig.warm_up()
    expect.recomputed(trial.run(rig, faults.STALE), *LEASE_REASONS)


def test_stale_over_tcp(tcp_rig: Rig) -> None:
    tcp_rig.warm_up()
    expect.recomputed(trial.run(tcp_rig, faults.STALE), *LEASE_REASONS)


def test_no_consumer_ever_comes(rig: Rig) -> None:
    rig.settle()
    rig.ticket(rig.question)
    assert rig.producer.usage() > 0.0
    assert rig.stack.wait_idle() < rig.lease_s + 2.0


def preempted_while_published(rig: Rig) -> Reply:
    """Three requests outgrow P's pool while they generate; the last one, already published, has to make room. Short
    enough that its next lease, made when it is computed again, is live when it finishes."""
    before = metrics.total(rig.producer.samples(), PREEMPTIONS)
    others = [in_background(rig, two_prompts[:256], max_tokens=60)
              for two_prompts in (rig.fillers[0] + rig.fillers[1], rig.fillers[2] + rig.fillers[3])]
    first_step = client.complete(rig.producer.url, rig.question, 24, client.ASK_FOR_TICKET)
    for other in others:
        other.join()
    assert metrics.total(rig.producer.samples(), PREEMPTIONS) > before, "nothing was preempted"
    assert first_step.ticket, first_step.in_short(200)
    return rig.decode(rig.question, first_step.ticket)


def in_background(rig: Rig, prompt: Prompt, max_tokens: int) -> threading.Thread:
    thread = threading.Thread(target=client.complete, args=(rig.producer.url, prompt, max_tokens))
    thread.start()
    time.sleep(0.05)
    return thread


def test_published_request_is_preempted(rig: Rig) -> None:
    rig.warm_up()
    fault = faults.Fault("-", "preempted", preempted_while_published)
    expect.loaded(trial.run(rig, fault), len(rig.question))
