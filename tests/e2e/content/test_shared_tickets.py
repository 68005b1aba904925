"""One ticket and several requests, or none: as clients of vLLM's API send them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pd import client, metrics, trial, web
from pd.engine import BLOCK_TOKENS
from pd.progress import wait_until
from pd.rig import Rig

from shapes import engine

pytestmark = pytest.mark.deep

SOON_S = 1.0
LEASE_S = 20.0
"""Longer than anything here waits for: blocks that come back have not run out."""
LIMIT_S = 60.0
LINGER_S = 0.05
POLL_S = 0.15
"""What it takes to look: P computes three tokens so that its gauges are new."""
HITS = "vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_hits_total"
SEVERAL = {"temperature": 1.0, "top_k": 1}
"""With `n`, vLLM wants a temperature; all answers are the same."""


@pytest.fixture(scope="module")
def rig(start: Callable[..., Callable[[str, str], Rig]]) -> Rig:
    long = {"lease_ttl_ms": int(LEASE_S * 1000), "blocks": 256}
    return start([engine("P", **long), engine("D", policy="fail", transports="tcp", **long)])("P", "D")


def post(url: str, prompt: Any, answer_tokens: int, ticket: Any = None, **fields: Any) -> web.Answer:
    return web.post_json(url + "/v1/completions", client.completion_body(prompt, answer_tokens, ticket) | fields, LIMIT_S)


def tokens_of(answer: web.Answer) -> list[list[int]]:
    assert answer.status == 200, answer
    return [choice["token_ids"] for choice in sorted(answer.body["choices"], key=lambda choice: choice["index"])]


def leases(rig: Rig) -> int:
    assert client.complete(rig.producer.url, [1, 2, 3], 1).ok  # gauges are as old as the last step
    return int(metrics.total(rig.producer.samples(), "kvferry_leases"))


def wait_for_no_lease(rig: Rig) -> float:
    start = time.monotonic()
    wait_until("waiting for the blocks", lambda: leases(rig) == 0, LIMIT_S, every_s=0.05)
    return time.monotonic() - start


@pytest.mark.parametrize("bad", [{"temperature": -1}, {"model": "unknown"}, {"max_tokens": 100_000}])
def test_a_request_that_d_refuses(rig: Rig, bad: dict[str, Any]) -> None:
    rig.settle()
    ticket = rig.ticket(rig.question)
    assert leases(rig) == 1
    assert post(rig.decoder.url, rig.question, 16, ticket, **bad).status in (400, 404)
    assert wait_for_no_lease(rig) < SOON_S


def test_p_is_asked_for_several_answers(rig: Rig) -> None:
    right = rig.expected(rig.question)
    rig.settle()
    answer = post(rig.producer.url, rig.question, 1, client.ASK_FOR_TICKET, n=3, **SEVERAL)
    assert len(tokens_of(answer)) == 3 and leases(rig) == 1
    assert rig.decode(rig.question, answer.body["kv_transfer_params"]).tokens == right
    assert wait_for_no_lease(rig) < SOON_S


def test_a_list_of_prompts(rig: Rig) -> None:
    """P gives the first one's ticket, and router and D know no better than to use it for all."""
    prompts = [rig.question, rig.other_question, rig.question[:40]]
    right = [rig.expected(prompt) for prompt in prompts]
    rig.settle()
    answer = post(rig.producer.url, prompts, 1, client.ASK_FOR_TICKET)
    assert len(tokens_of(answer)) == 3 and leases(rig) == 1
    assert tokens_of(post(rig.decoder.url, prompts, 16, answer.body["kv_transfer_params"])) == right
    assert wait_for_no_lease(rig) < SOON_S


def test_parameters_that_nobody_can_read(rig: Rig) -> None:
    nested: Any = []
    for _ in range(500):
        nested = [nested]
    for url in (rig.producer.url, rig.decoder.url):
        assert post(url, rig.question, 1, {"x": nested}).status in (400, 500)
        assert client.complete(url, rig.question, 1).ok


# ---- one ticket, and many requests on D ----


def not_computed(before: metrics.Samples, after: metrics.Samples) -> int:
    return int(sum(trial.grown(before, after, name) for name in HITS))


@pytest.mark.parametrize("how", ["n", "list"])
@pytest.mark.parametrize("count", [2, 8, 64])
def test_many_requests_with_one_ticket(rig: Rig, count: int, how: str) -> None:
    """The first one loads, and the others find its blocks in D's cache: of each at most a block is computed."""
    right = rig.expected(rig.question)[:4]
    rig.settle()
    ticket = rig.ticket(rig.question)
    before = rig.decoder.samples()
    prompt, fields = (rig.question, {"n": count, **SEVERAL}) if how == "n" else ([rig.question] * count, {})
    answer = post(rig.decoder.url, prompt, 4, ticket, **fields)
    assert wait_for_no_lease(rig) < LINGER_S + 0.1 + POLL_S
    assert tokens_of(answer) == [right] * count
    computed = count * len(rig.question) - not_computed(before, rig.decoder.samples())
    assert computed <= count * BLOCK_TOKENS


def requests_open(rig: Rig) -> int:
    return int(metrics.total(rig.decoder.samples(), "kvferry_requests_open"))


@pytest.mark.parametrize("when", ["while it loads", "when it is loaded"])
def test_the_first_of_many_is_cancelled(rig: Rig, when: str) -> None:
    """P is stopped meanwhile, so that its load goes on until all have come."""
    right = rig.expected(rig.question)
    rig.settle()
    ticket = rig.ticket(rig.question)
    before = rig.decoder.samples()
    with ThreadPoolExecutor(8) as pool:
        rig.producer.process.pause()
        try:
            first = web.post(rig.decoder.url + "/v1/completions", client.completion_body(rig.question, 200, ticket))
            wait_until("waiting for the first", lambda: requests_open(rig) == 1, LIMIT_S, every_s=0.02)
            others = [pool.submit(rig.decode, rig.question, ticket) for _ in range(7)]
            wait_until("waiting for the others", lambda: requests_open(rig) == 8, LIMIT_S, every_s=0.02)
            if when == "while it loads":
                first.close()
                wait_until("waiting for its end", lambda: requests_open(rig) == 7, LIMIT_S, every_s=0.02)
        finally:
            rig.producer.process.resume()
        if when == "when it is loaded":
            wait_until("waiting for its load", lambda: not_computed(before, rig.decoder.samples()) > 0, LIMIT_S, every_s=0.002)
            first.close()
        replies = [reply.result() for reply in others]
    assert [reply.tokens for reply in replies] == [right] * 7, replies
    assert wait_for_no_lease(rig) < LINGER_S + 0.1 + POLL_S
