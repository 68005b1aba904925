"""One ticket and several requests, or none: as clients of vLLM's API send them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pd import client, metrics, web
from pd.progress import wait_until
from pd.rig import Rig

from shapes import engine

pytestmark = pytest.mark.deep

SOON_S = 1.0
LEASE_S = 20.0
"""Longer than anything here waits for: blocks that come back have not run out."""
LIMIT_S = 60.0
SEVERAL = {"temperature": 1.0, "top_k": 1}
"""With `n`, vLLM wants a temperature; all answers are the same."""


@pytest.fixture(scope="module")
def rig(start: Callable[..., Callable[[str, str], Rig]]) -> Rig:
    long = {"lease_ttl_ms": int(LEASE_S * 1000), "blocks": 64}
    return start([engine("P", **long), engine("D", policy="fail", **long)])("P", "D")


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
