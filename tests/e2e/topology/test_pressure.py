"""More prompts at once than leases have room for on a prefill engine: they wait for theirs, or go without."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from pd import client, metrics
from pd.client import Prompt, Reply
from pd.engine import BLOCK_TOKENS
from pd.progress import wait_until
from pd.prompts import numbered_prompt
from pd.rig import RECOMPUTED, Rig
from pd.trial import new_by

from shapes import engine

pytestmark = pytest.mark.deep

BLOCKS, SHARE = 24, 50
"""Room for the leases of two prompts."""
PROMPTS = 8
TOKENS = 150
WAIT_MS = 60_000
NO_TICKETS, LOADED = "kvferry_no_tickets_total", "kvferry_loaded_blocks_total"


@pytest.fixture(scope="module")
def rig_of(start: Callable[..., Callable[[str, str], Rig]]) -> Callable[[str], Rig]:
    rigs = start([engine("P-waits", blocks=BLOCKS, lease_pool_share_percent=SHARE, lease_wait_ms=WAIT_MS),
                  engine("P", blocks=BLOCKS, lease_pool_share_percent=SHARE), engine("D", blocks=64)])

    def find(name: str) -> Rig:
        rig = rigs(name, "D")
        rig.warm_up()
        rig.settle()
        return rig
    return find


def hand_over(rig: Rig, prompt: Prompt) -> Reply:
    """As a router does it; whoever gets no ticket has its prompt computed at D."""
    first_step = client.complete(rig.producer.url, prompt, 1, client.ASK_FOR_TICKET)
    assert first_step.ok, first_step
    return client.complete(rig.decoder.url, prompt, rig.max_tokens, first_step.ticket, rig.client_limit_s)


def all_at_once(rig: Rig, first: int) -> tuple[int, int, dict[str, int]]:
    """Prompts that nobody has seen: how many prompts and blocks D has loaded, and why P gave no tickets. All answers are
    right, and all blocks come back."""
    prompts = [numbered_prompt(first + number, TOKENS) for number in range(PROMPTS)]
    tokens = [rig.expected(prompt) for prompt in prompts]
    rig.settle()
    p_before, d_before = rig.producer.samples(), rig.decoder.samples()
    with ThreadPoolExecutor(PROMPTS) as clients:
        replies = list(clients.map(lambda prompt: hand_over(rig, prompt), prompts))
    assert [reply.tokens for reply in replies] == tokens
    rig.stack.wait_idle()
    p_after, d_after = rig.producer.samples(), rig.decoder.samples()
    assert metrics.total(d_after, RECOMPUTED) == metrics.total(d_before, RECOMPUTED)
    loaded, blocks = (round(metrics.total(d_after, name, **labels) - metrics.total(d_before, name, **labels))
                      for name, labels in (("kvferry_verdicts_total", {"action": "use"}), (LOADED, {})))
    return loaded, blocks, new_by("reason", p_before, p_after, NO_TICKETS)


def test_prompts_wait_for_their_leases(rig_of: Callable[[str], Rig]) -> None:
    loaded, blocks, without = all_at_once(rig_of("P-waits"), 300)
    assert (loaded, without) == (PROMPTS, {})
    assert blocks >= PROMPTS * (TOKENS // BLOCK_TOKENS)


def test_prompts_go_without(rig_of: Callable[[str], Rig]) -> None:
    loaded, _, without = all_at_once(rig_of("P"), 320)
    assert loaded == PROMPTS - without["no_lease"] and without.keys() == {"no_lease"}


def test_others_go_on_while_a_prompt_waits(rig_of: Callable[[str], Rig]) -> None:
    """Nobody comes for two leases, until they run out."""
    rig = rig_of("P-waits")
    tickets = [rig.ticket(numbered_prompt(340 + number, TOKENS)) for number in range(2)]
    assert all(tickets)
    with ThreadPoolExecutor() as clients:
        waiting = clients.submit(rig.ticket, numbered_prompt(342, TOKENS))
        began = time.monotonic()
        for _ in range(5):
            assert client.complete(rig.producer.url, numbered_prompt(350, 40), 4, timeout_s=5.0).ok
        assert not waiting.done()
        assert waiting.result() and time.monotonic() - began < rig.lease_s + 2.0
    wait_until("blocks to come back", lambda: rig.producer.usage() == 0.0, rig.lease_s + 2.0, every_s=0.1)
