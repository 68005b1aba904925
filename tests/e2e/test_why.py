"""Mistakes of operators: the first line of `kvferry why` names the step, the reason and the remedy. That of loopback on two hosts
is in stacks/test_two_hosts.py."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from pd import client
from pd.engine import Engine
from pd.faults import handed
from pd.ports import free_ports
from pd.prompts import numbered_prompt
from pd.rig import Rig
from pd.stack import Stack, serving

pytestmark = pytest.mark.deep

SINCE_S = 20
"""From one look to the next: the mistake is made in between, and engines have shown it."""
SHORT_TOKENS = 20
FEW_PERCENT = 10
"""Of P's blocks: enough for a short prompt, and too few for the rig's."""
EXPIRED = r"5 load    0 loads arrived; lease_(expired|unknown) [12] at {peer}"
"""Counted by the rank that loads, and by the control node if it hears of it first."""


@pytest.fixture(scope="module", autouse=True)
def of_kvferry(connector: str) -> None:
    if connector != "kvferry":
        pytest.skip("metrics of kvferry")


def why(rig: Rig, mistake: Callable[[Rig], object]) -> tuple[int, list[str]]:
    """What it says of the time in which the mistake is made."""
    rig.expected(rig.question)
    rig.settle()
    return of_now(rig, mistake)


def of_now(rig: Rig, mistake: Callable[[Rig], object]) -> tuple[int, list[str]]:
    command = [sys.executable, "-m", "kvferry.cli", "why", "--since", str(SINCE_S), rig.decoder.url, rig.producer.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asked:
        assert asked.stderr is not None and asked.stdout is not None
        assert "looks again" in asked.stderr.readline()
        began = time.monotonic()
        mistake(rig)
        assert time.monotonic() - began < SINCE_S - 3, "the mistake took longer than the time between two looks"
        lines = asked.stdout.read().splitlines()
        return asked.wait(), lines


def says(found: tuple[int, list[str]], first: str, level: str = "FAIL") -> None:
    status, lines = found
    assert status == (level == "FAIL") and re.match(f"{level}  {first}", lines[0]), lines


def carry(rig: Rig, prompt: client.Prompt | None = None) -> client.Reply:
    asked = prompt or rig.question
    return rig.decode(asked, rig.ticket(asked))


carry_late = handed(Rig.outlast_lease)


def peer_of(rig: Rig) -> str:
    return f"127.0.0.1:{rig.producer.connector_port}"


def test_all_is_well(rig: Rig) -> None:
    rig.warm_up()
    status, lines = why(rig, carry)
    assert status == 0, lines
    assert re.match("ok    6 all     no step fails: 1 load arrived; of D's 150 prompt tokens (149|150) were loaded ", lines[0]), lines


def test_the_router_drops_the_ticket(rig: Rig) -> None:
    def drop(rig: Rig) -> None:
        rig.ticket(rig.question)
        client.complete(rig.decoder.url, rig.question, rig.max_tokens)
    says(why(rig, drop), "2 router  not_brought: D has seen 0 of P's 1 ticket: let the router send ")


def test_another_key(rig_for: Callable[[str], Rig]) -> None:
    says(why(rig_for("D-key"), carry), "3 ticket  D has taken 0 tickets; other_key 1: give P and D the same key_file")


def test_other_weights(rig_for: Callable[[str], Rig]) -> None:
    says(why(rig_for("D-model"), carry), "3 ticket  D has taken 0 tickets; incompatible 1: start P and D with the same model files")


def test_a_lease_that_is_too_short(rig: Rig) -> None:
    rig.warm_up()
    says(why(rig, carry_late), EXPIRED.format(peer=peer_of(rig)) + ": .*lease_ttl_ms")


def test_the_policy_fail(rig_for: Callable[[str], Rig]) -> None:
    rig = rig_for("D-fail")
    rig.warm_up()
    says(why(rig, carry_late), EXPIRED.format(peer=peer_of(rig)) + "; policy fail: 1 request ended with an error: .*lease_ttl_ms")


@pytest.fixture(scope="module")
def wrong(stack: Stack) -> Iterator[Engine]:
    """A prefill engine that may lease a few blocks only, whose tickets name a port that nobody listens at."""
    spec = stack.prefill.spec
    options = {"advertise": f"127.0.0.1:{free_ports(1)[0]}", "lease_pool_share_percent": FEW_PERCENT}
    with serving(replace(spec, name="P-wrong", connector=spec.connector.with_options(**options)), stack.logs) as engine:
        yield engine


def test_a_wrong_port(rig: Rig, wrong: Engine) -> None:
    short = numbered_prompt(200, SHORT_TOKENS)
    says(why(replace(rig, source=wrong), lambda rig: carry(rig, short)),
         r"5 load    0 loads arrived; peer_down \d at (127.0.0.1:\d+): .*kvferry check \1")


def test_p_has_no_room(rig: Rig, wrong: Engine) -> None:
    def ask(rig: Rig) -> None:
        reply = client.complete(rig.producer.url, rig.question, 1, client.ASK_FOR_TICKET)
        assert reply.ok and not reply.ticket
    says(why(replace(rig, source=wrong), ask), "1 tickets P has given 0 tickets; limit 1: one prompt is more than lease_pool_share_percent")


def test_prompts_shorter_than_a_block(rig: Rig) -> None:
    rig.warm_up()
    short = numbered_prompt(300, SHORT_TOKENS)
    says(why(rig, lambda rig: carry(rig, short)), "6 all     short_prompts: a prompt has 20 tokens on average, a block 32; ", "less")


def test_d_s_own_cache(rig: Rig) -> None:
    rig.warm_up()
    rig.settle()
    client.complete(rig.decoder.url, rig.question, 1)
    says(of_now(rig, carry), r"6 all     own_cache: of D's 150 prompt tokens \d+ were loaded \(\d+ %\), 128 were in its own cache", "less")
