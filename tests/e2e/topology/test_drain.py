"""Engines that leave: what routers, clients and probes see in each phase, and who may ask for it. P has two API servers. All of
them, P's too, have the middleware of the plugin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from pd import client, metrics, web
from pd.client import Prompt
from pd.engine import Engine, EngineSpec
from pd.paths import KEY
from pd.progress import wait_until
from pd.prompts import numbered_prompt
from pd.rig import RECOMPUTED, Rig

import shapes
from typed import COMPLETIONS, expect

pytestmark = pytest.mark.deep

LEASE_S = 60.0
GRACE_S = 6.0
LIMIT_S = 60.0
SERVERS = 2
LOOKS = 12
"""Of a client that connects anew each time: the kernel gives it to one of the servers."""


def engine(name: str, api_servers: int = 1) -> EngineSpec:
    made = shapes.engine(name, lease_ttl_ms=int(LEASE_S * 1000), drain_grace_ms=int(GRACE_S * 1000))
    return replace(made, api_servers=api_servers, args=("--shutdown-timeout", "40"))


@pytest.fixture(scope="module")
def rig_of(start: Callable[..., Callable[[str, str], Rig]]) -> Callable[[str, str], Rig]:
    return start([engine("P", SERVERS), engine("P2"), engine("D"), engine("D2")])


def name_of(of: Engine) -> str:
    [state] = json.loads(web.get(of.url + "/kvferry/drain", LIMIT_S)[1])["engines"]
    return str(state["engine"])


def command(*words: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "KVFERRY_KEY_FILE"}
    return subprocess.Popen([sys.executable, "-m", "kvferry.cli", *words], stdout=subprocess.PIPE, text=True, env=environment)


def run(*words: str) -> tuple[int, str]:
    asked = command(*words)
    said = asked.communicate(timeout=LIMIT_S)[0]
    return asked.returncode, said


def health(of: Engine) -> set[int]:
    return {web.get_status(of.url + "/health", LIMIT_S) for _ in range(LOOKS)}


def ask(of: Engine, prompt: Prompt) -> web.Answer:
    return web.post_json(of.url + COMPLETIONS, client.completion_body(prompt, 1), LIMIT_S)


def expect_closed(of: Engine, prompt: Prompt) -> None:
    for _ in range(LOOKS):
        expect(ask(of, prompt), 503, "draining", None)


def expect_loaded(rig: Rig, prompt: Prompt, ticket: client.Ticket) -> None:
    before = rig.decoder.samples()
    reply = rig.decode(prompt, ticket)
    assert reply.ok and reply.tokens == client.complete(rig.decoder.url, prompt, rig.max_tokens).tokens, reply
    after = rig.decoder.samples()
    assert metrics.total(after, "kvferry_loaded_blocks_total") > metrics.total(before, "kvferry_loaded_blocks_total")
    assert metrics.total(after, RECOMPUTED) == metrics.total(before, RECOMPUTED)


def test_a_killed_producer_leaves_both_decoders_ready(rig_of: Callable[[str, str], Rig]) -> None:
    """Though no P is left."""
    rigs = [rig_of("P2", name) for name in ("D", "D2")]
    producer, decoders = rigs[0].producer, [rig.decoder for rig in rigs]
    wait_until("identities", lambda: run("ready", *map(name_of, [producer, *decoders]))[0] == 0, LIMIT_S)
    for rig in rigs:
        rig.warm_up()
    prompt = numbered_prompt(31, 150)
    tickets = [rig.ticket(prompt) for rig in rigs]
    producer.process.kill()
    assert all(rig.decode(prompt, ticket).ok for rig, ticket in zip(rigs, tickets))
    status, said = run("ready", *map(name_of, decoders))
    assert status == 0 and said.count(f"peer 127.0.0.1:{producer.connector_port}: ") == 2, said
    for decoder in decoders:
        assert web.get_status(decoder.url + "/kvferry/ready", LIMIT_S) == 200 and health(decoder) == {200}
    rigs[1].stack.engines.remove(decoders[1])
    decoders[1].stop()


def test_sigterm_alone_has_no_first_phase(rig_of: Callable[[str, str], Rig]) -> None:
    """No client gets an untyped error all the same."""
    rig = rig_of("P2", "D")
    rig.stack.restart(rig.producer)
    rig.warm_up()
    prompt = numbered_prompt(32, 150)
    ticket = rig.ticket(prompt)
    name = name_of(rig.producer)
    rig.producer.process.ask_to_end()
    answers: list[web.Answer] = []
    wait_until("the end to begin", lambda: answers.append(ask(rig.producer, rig.question)) or answers[-1].status != 200, LIMIT_S)
    assert health(rig.producer) == {503}
    expect_closed(rig.producer, rig.question)
    expect(answers[-1], 503, "draining", None)
    assert run("ready", name)[1].startswith(f"engine {name}: not ready: it leaves: ")
    expect_loaded(rig, prompt, ticket)
    wait_until("the end of P2", lambda: not rig.producer.process.running(), LIMIT_S)
    rig.stack.engines.remove(rig.producer)


def test_phases(rig_of: Callable[[str, str], Rig]) -> None:
    rig = rig_of("P", "D")
    rig.warm_up()
    name = name_of(rig.producer)
    assert run("drain", rig.producer.url.removeprefix("http://"))[0] == 2, "without the key"
    assert health(rig.producer) == {200} and run("ready", name)[0] == 0
    began = time.monotonic()
    draining = command("drain", name, "--timeout", "60")
    assert draining.stdout is not None
    said = draining.stdout.readline()
    assert said.startswith(f"engine {name}: leaving: "), said
    seen_leaving = time.monotonic()
    # leaving
    assert health(rig.producer) == {503} and run("ready", name)[0] == 1
    prompt = numbered_prompt(33, 150)
    ticket = rig.ticket(prompt)
    assert time.monotonic() < began + GRACE_S, "the machine is too slow for this test"
    # closed
    time.sleep(max(0.0, seen_leaving + GRACE_S + 0.5 - time.monotonic()))
    expect_closed(rig.producer, rig.question)
    assert health(rig.producer) == {503}
    # ending
    wait_until("the end of all prompts", lambda: f"engine {name}: ending" in draining.stdout.readline(), LIMIT_S)
    time.sleep(1.0)
    assert draining.poll() is None, "a lease is out"
    status, said = run("drain", rig.producer.url, "--key-file", str(KEY), "--timeout", "0.1")
    assert status == 1 and said.startswith(f"engine {name}: ending") and "1 leases out" in said, said
    expect_loaded(rig, prompt, ticket)
    assert draining.wait(LIMIT_S) == 0 and f"engine {name}: ended" in draining.stdout.read()
    rig.producer.process.ask_to_end()
    wait_until("the end of P", lambda: not rig.producer.process.running(), LIMIT_S)
