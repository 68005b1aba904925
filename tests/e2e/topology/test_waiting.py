"""A request that waits in D's queue, behind long answers that fill D's pool, hears at once that it cannot be served: its
ticket is refused, its lease ends, or P dies meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import pytest
from pd import client, faults, metrics, web
from pd.progress import wait_until
from pd.prompts import numbered_prompt
from pd.rig import Rig

import typed
from shapes import LEASE_S, engine
from typed import CHAT, COMPLETIONS, ask, ticket_for

pytestmark = pytest.mark.deep

LONG_ANSWERS = 14
LONG_TOKENS = 1900
MODEL_TOKENS = 2048
D_BLOCKS = 66
FULL = 0.9
TOLD_S = 1.0
"""After the decision."""
RENEWAL_S = LEASE_S / 3
LOADED_BLOCKS = "kvferry_loaded_blocks_total"
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
FILL_LIMIT_S = 60.0
QUEUE_LIMIT_S = 300.0
EVERY_WAY = [pytest.param(path, stream, id=f"{path.rsplit('v1/')[-1]}{' stream' if stream else ''}")
             for path in (COMPLETIONS, CHAT) for stream in (False, True)]


@pytest.fixture(scope="module")
def rig(start: Callable[..., Callable[[str, str], Rig]]) -> Rig:
    d = engine("D", blocks=D_BLOCKS)
    d = replace(d, connector=d.connector.with_policy("fail"), max_tokens=MODEL_TOKENS)
    return start([engine("P"), d])("P", "D")


@contextmanager
def full(rig: Rig) -> Iterator[None]:
    """D's pool is full of long answers, and some of them wait."""
    rig.settle()
    rig.expected(rig.question)
    rig.warm_up()
    rig.settle()
    with ExitStack() as clients:
        for number in range(LONG_ANSWERS):
            prompt = numbered_prompt(100 + number, 100)
            clients.enter_context(closing(client.ask(rig.decoder.url, prompt, LONG_TOKENS, stream=True)))
        wait_until("filling D", lambda: rig.decoder.usage() > FULL and count(rig, WAITING) > 0, FILL_LIMIT_S, every_s=0.05)
        yield
        assert count(rig, RUNNING) + count(rig, WAITING) >= LONG_ANSWERS // 2, "the long answers are over"
    rig.settle()


def count(rig: Rig, name: str) -> int:
    return int(metrics.total(rig.counters(), name))


def waits(rig: Rig) -> None:
    wait_until("waiting in D's queue",
               lambda: count(rig, RUNNING) + count(rig, WAITING) > LONG_ANSWERS, FILL_LIMIT_S, every_s=0.02)


@pytest.mark.parametrize("path, stream", EVERY_WAY)
def test_a_refused_ticket(rig: Rig, path: str, stream: bool) -> None:
    with full(rig):
        answer = ask(rig, path, faults.alter(ticket_for(rig, path)), stream=stream)
        typed.expect(answer, 500, "bad_ticket", None)
        assert answer.seconds < TOLD_S


def told(asked: list[Future[web.Answer]], rig: Rig, reason: str, within_s: float) -> None:
    start = time.monotonic()
    for one in asked:
        typed.expect(one.result(), 500, reason, f"127.0.0.1:{rig.producer.connector_port}")
    assert time.monotonic() - start < within_s
    assert count(rig, RUNNING) + count(rig, WAITING) <= LONG_ANSWERS


@contextmanager
def waiting(rig: Rig, path: str) -> Iterator[list[Future[web.Answer]]]:
    """Two requests with good tickets, one streaming, in D's queue."""
    with full(rig), ThreadPoolExecutor() as clients:
        tickets = [ticket_for(rig, path) for _ in range(2)]
        asked = [clients.submit(ask, rig, path, ticket, stream=stream) for ticket, stream in zip(tickets, (False, True))]
        waits(rig)
        time.sleep(RENEWAL_S)
        assert not any(one.done() for one in asked)
        yield asked


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_lease_that_ends(rig: Rig, path: str) -> None:
    """Heard at the next renewal."""
    with waiting(rig, path) as asked:
        rig.producer.call("/reset_prefix_cache", typed.LIMIT_S)
        told(asked, rig, "lease_expired", RENEWAL_S + TOLD_S)
        client.complete(rig.producer.url, rig.other_question, 1)  # vLLM says what its pool holds with its steps only


def test_a_producer_that_dies(rig: Rig) -> None:
    """Heard at the second renewal that does not reach it."""
    with waiting(rig, COMPLETIONS) as asked:
        rig.producer.process.kill()
        told(asked, rig, "peer_down", 2 * RENEWAL_S + TOLD_S)
        rig.stack.restart(rig.producer)


def test_a_good_one_loads(rig: Rig) -> None:
    """However long it waits: its lease is renewed."""
    expected = rig.expected(rig.question)
    with ThreadPoolExecutor() as clients, full(rig):
        before = count(rig, LOADED_BLOCKS)
        answer = clients.submit(rig.decode, rig.question, rig.ticket(rig.question))
        waits(rig)
        time.sleep(2 * LEASE_S)
        assert not answer.done() and rig.producer.usage() > 0.0
    reply = answer.result(QUEUE_LIMIT_S)
    assert reply.ok and reply.tokens == expected, reply
    assert count(rig, LOADED_BLOCKS) - before >= len(rig.question) // 32
