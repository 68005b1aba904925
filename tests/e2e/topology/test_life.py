"""The life of a request and of its engines: whatever ends it, and whenever, its blocks come back on both sides. The relay
keeps a load from ending for as long as a test wants."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
from pd import client, metrics
from pd.client import Prompt, Reply, Ticket
from pd.engine import BLOCK_TOKENS, Engine, EngineSpec
from pd.progress import wait_until
from pd.prompts import numbered_prompt
from pd.relay import HOST, Relay
from pd.rig import RECOMPUTED, Rig
from pd.trial import new_failures

from shapes import LEASE_S, engine

pytestmark = pytest.mark.deep

P_BLOCKS, D_BLOCKS = 40, 24
CHUNK_TOKENS = 64
BLOCK_BYTES = 2 * 4 * 4 * 32 * 4 * BLOCK_TOKENS  # keys and values, layers, heads, head size, bytes
LONG = 440
"""Tokens. Two such prompts do not fit into D's pool together."""
SECOND, MARGIN_S = 1.0, 1.0
DRAIN_S = 20
WAIT_S = 30.0
LOADED_BLOCKS, LOADED_BYTES = "kvferry_loaded_blocks_total", "kvferry_loaded_bytes_total"
PREEMPTIONS = "vllm:num_preemptions_total"


def spec(name: str, blocks: int, **options: object) -> EngineSpec:
    """Prompts in chunks; an end that waits for what is under way; loads that may be held up for some seconds."""
    made = engine(name, blocks=blocks, stall_timeout_ms=20000, load_timeout_ms=120000, **options)
    return replace(made, args=("--max-num-batched-tokens", str(CHUNK_TOKENS), "--shutdown-timeout", str(DRAIN_S)))


@pytest.fixture(scope="module")
def up(start: Callable[..., Callable[[str, str], Rig]]) -> Rig:
    return start([spec("P", P_BLOCKS, advertise=HOST), spec("D", D_BLOCKS, transports=["tcp"])])("P", "D")


@pytest.fixture
def rig(up: Rig, relay: Relay) -> Iterator[Rig]:
    """Both engines idle, and loads going through. One that has ended is started anew."""
    for one in (up.producer, up.decoder):
        if not one.process.running():
            up.stack.restart(one)
    relay.serve(up.producer.process.listening_ports())
    up.warm_up()
    up.settle()
    yield up
    relay.let_go()


def hold(rig: Rig, relay: Relay) -> None:
    """Blocks do not arrive, while leases are renewed and signs of life answered."""
    relay.hold(but=rig.producer.connector_port)


def wait_for(what: str, ready: Callable[[], bool], limit_s: float = WAIT_S) -> float:
    began = time.monotonic()
    wait_until(what, ready, limit_s, every_s=0.02)
    return time.monotonic() - began


def idle(rig: Rig) -> bool:
    return rig.producer.usage() == 0.0 and rig.decoder.usage() == 0.0


def expect_blocks_back(rig: Rig) -> None:
    assert wait_for("blocks to come back", lambda: idle(rig)) < SECOND + MARGIN_S


def expected(rig: Rig, prompt: Prompt, max_tokens: int) -> list[int]:
    reply = client.complete(rig.decoder.url, prompt, max_tokens)
    assert reply.ok, reply
    rig.settle()
    return reply.tokens


@contextmanager
def in_background() -> Iterator[Callable[..., Future[Reply]]]:
    with ThreadPoolExecutor() as clients:
        yield clients.submit


def wait_loading(rig: Rig, loads: int = 1) -> None:
    wait_for(f"{loads} loads", lambda: rig.decoder.total("kvferry_loads_open") == loads)


@contextmanager
def loading(rig: Rig, relay: Relay) -> Iterator[Future[Reply]]:
    """D's answer, whose load does not end before the relay lets go."""
    ticket = rig.ticket(rig.question)
    hold(rig, relay)
    with in_background() as submit:
        reply = submit(rig.decode, rig.question, ticket)
        wait_loading(rig)
        yield reply


def expect_loaded(rig: Rig, reply: Reply, tokens: list[int], before: metrics.Samples) -> None:
    assert reply.ok and reply.tokens == tokens, reply
    after = rig.decoder.samples()
    assert metrics.total(after, RECOMPUTED) == metrics.total(before, RECOMPUTED)
    assert new_failures(before, after).keys() <= {"aborted"}, "of clients that have left"


# ---- a client leaves ----

def test_before_admission(rig: Rig, relay: Relay) -> None:
    """One load has D's blocks. The next one's client leaves before D has any for it."""
    first, second = (numbered_prompt(number, LONG) for number in (20, 21))
    tokens = expected(rig, first, rig.max_tokens)
    before = rig.decoder.samples()
    first_ticket = rig.ticket(first)
    held_by_first = rig.producer.usage()
    second_ticket = rig.ticket(second)
    hold(rig, relay)
    with in_background() as submit:
        first_reply = submit(rig.decode, first, first_ticket)
        wait_loading(rig)
        waiting = client.ask(rig.decoder.url, second, rig.max_tokens, second_ticket)
        wait_for("the second request", lambda: rig.decoder.total("kvferry_requests_open") == 2)
        assert rig.decoder.total("kvferry_loads_open") == 1, "it was admitted"
        waiting.close()
        back_s = wait_for("P's blocks of the second", lambda: rig.producer.usage() == held_by_first)
        assert back_s < SECOND + MARGIN_S
        relay.let_go()
        expect_loaded(rig, first_reply.result(), tokens, before)
    expect_blocks_back(rig)


def test_while_loading(rig: Rig, relay: Relay) -> None:
    ticket = rig.ticket(rig.question)
    hold(rig, relay)
    asked = client.ask(rig.decoder.url, rig.question, rig.max_tokens, ticket)
    wait_loading(rig)
    asked.close()
    expect_blocks_back(rig)


def test_while_running(rig: Rig) -> None:
    asked = client.ask(rig.decoder.url, rig.question, 300, rig.ticket(rig.question), stream=True)
    assert asked.getresponse().read(10)
    assert rig.decoder.usage() > 0.0, "it is over"
    asked.close()
    expect_blocks_back(rig)


def test_on_p_before_d_knows(rig: Rig) -> None:
    """P has published, and goes on generating: there is a lease, and no ticket yet."""
    asked = client.ask(rig.producer.url, rig.question, 300, client.ASK_FOR_TICKET, stream=True)
    assert asked.getresponse().read(10)
    assert rig.producer.total("kvferry_leases_untaken") > 0 and rig.producer.usage() > 0.0
    asked.close()
    expect_blocks_back(rig)


@pytest.mark.parametrize("leaver", ["loads", "waits"])
def test_another_client_of_the_same_ticket(rig: Rig, relay: Relay, leaver: str) -> None:
    """The second waits for the first one's load. One client leaves. Neither its load's end, nor the request by which the API
    server aborts it, ends the lease of the other."""
    tokens = expected(rig, rig.question, rig.max_tokens)
    before = rig.decoder.samples()
    ticket = rig.ticket(rig.question)
    hold(rig, relay)
    with in_background() as submit:
        if leaver == "waits":
            stays = submit(rig.decode, rig.question, ticket)
            wait_loading(rig)
        leaves = client.ask(rig.decoder.url, rig.question, rig.max_tokens, ticket)
        if leaver == "loads":
            wait_loading(rig)
            stays = submit(rig.decode, rig.question, ticket)
        wait_for("two requests", lambda: rig.decoder.total("kvferry_requests_open") == 2)
        leaves.close()
        wait_for("one request", lambda: rig.decoder.total("kvferry_requests_open") == 1)
        wait_loading(rig)
        time.sleep(SECOND)
        assert rig.producer.usage() > 0.0, "the lease has ended"
        relay.let_go()
        expect_loaded(rig, stays.result(), tokens, before)
    expect_blocks_back(rig)


# ---- what engines do with prompts ----

def test_a_load_longer_than_a_lease(rig: Rig, relay: Relay) -> None:
    """Nothing is computed meanwhile on either side: the leases are renewed and the steps without a forward pass go on."""
    tokens = expected(rig, rig.question, rig.max_tokens)
    before = rig.decoder.samples()
    with loading(rig, relay) as reply:
        time.sleep(LEASE_S + 1.0)
        relay.let_go()
        expect_loaded(rig, reply.result(), tokens, before)
    expect_blocks_back(rig)


def test_only_what_d_has_not_is_read(rig: Rig) -> None:
    known = rig.question[:4 * BLOCK_TOKENS]
    prompt = known + numbered_prompt(22, 70)
    tokens = expected(rig, prompt, rig.max_tokens)
    assert rig.decode(rig.question, rig.ticket(rig.question)).ok
    before = rig.decoder.samples()
    expect_loaded(rig, rig.decode(prompt, rig.ticket(prompt)), tokens, before)
    after = rig.decoder.samples()
    missing = -(-len(prompt) // BLOCK_TOKENS) - 4
    assert metrics.total(after, LOADED_BLOCKS) - metrics.total(before, LOADED_BLOCKS) == missing
    assert metrics.total(after, LOADED_BYTES) - metrics.total(before, LOADED_BYTES) == missing * BLOCK_BYTES
    expect_blocks_back(rig)


def test_a_prompt_in_chunks(rig: Rig) -> None:
    prompt = numbered_prompt(23, LONG)
    tokens = expected(rig, prompt, rig.max_tokens)
    before = rig.decoder.samples()
    expect_loaded(rig, rig.decode(prompt, rig.ticket(prompt)), tokens, before)
    rig.settle()
    stale = rig.ticket(prompt)
    rig.outlast_lease()
    reply = rig.decode(prompt, stale)
    assert reply.ok and reply.tokens == tokens
    assert rig.decoder.total(RECOMPUTED) - metrics.total(before, RECOMPUTED) == LONG
    expect_blocks_back(rig)


def test_loads_and_preemptions(rig: Rig, relay: Relay) -> None:
    """Requests outgrow D's pool while they generate, and one of them is loading all the while."""
    prompts = [rig.question, rig.other_question, *rig.fillers[:2]]
    lengths = [16, 80, 80, 80]
    tokens = [expected(rig, prompt, length) for prompt, length in zip(prompts, lengths)]
    before = rig.decoder.samples()
    tickets: list[Ticket] = [rig.ticket(prompt) for prompt in prompts]
    with in_background() as submit:
        replies = [submit(client.complete, rig.decoder.url, prompt, length, ticket)
                   for prompt, length, ticket in zip(prompts[1:], lengths[1:], tickets[1:])]
        blocks = sum(-(-len(prompt) // BLOCK_TOKENS) for prompt in prompts[1:])
        wait_for("their loads", lambda: rig.decoder.total(LOADED_BLOCKS) - metrics.total(before, LOADED_BLOCKS) >= blocks)
        hold(rig, relay)
        held = submit(rig.decode, prompts[0], tickets[0])
        wait_for("a preemption", lambda: rig.decoder.total(PREEMPTIONS) > metrics.total(before, PREEMPTIONS))
        relay.let_go()
        expect_loaded(rig, held.result(), tokens[0], before)
        assert [reply.result().tokens for reply in replies] == tokens[1:]
    expect_blocks_back(rig)


# ---- an engine ends: the last ones, since each costs a start ----

def expect_ended(engine: Engine) -> None:
    wait_for(f"the end of {engine.name}", lambda: not engine.process.running(), DRAIN_S + 10.0)


def test_d_is_killed_while_it_loads(rig: Rig, relay: Relay) -> None:
    """P has its blocks back when the lease has run out. D's next life loads: the next test begins with that."""
    with loading(rig, relay) as reply:
        rig.decoder.process.kill()
        relay.let_go()
        assert reply.result().status == 0
    assert wait_for("P's blocks", lambda: rig.producer.usage() == 0.0) < LEASE_S + SECOND + MARGIN_S


@pytest.mark.parametrize("which", ["P", "D"])
def test_an_engine_ends_while_d_loads(rig: Rig, relay: Relay, which: str) -> None:
    """Asked to end, it waits for what is under way."""
    leaver = rig.producer if which == "P" else rig.decoder
    tokens = expected(rig, rig.question, rig.max_tokens)
    with loading(rig, relay) as reply:
        leaver.process.ask_to_end()
        time.sleep(SECOND)
        assert leaver.process.running()
        relay.let_go()
        assert reply.result().tokens == tokens, reply.result()
    expect_ended(leaver)
    other = rig.decoder if which == "P" else rig.producer
    wait_for("the other engine's blocks", lambda: other.usage() == 0.0)
