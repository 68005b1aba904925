"""An exception of ours in a hook of a real engine: right tokens before, during and after, the engine lives, and its metrics
say what has happened. All hooks, on models of engines: tests/python/test_vllm_boundary.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pd import client, faults, metrics, trial
from pd.client import Prompt
from pd.engine import Engine
from pd.rig import Rig

import expect
from planted import arm, errors, folder_of, has_raised, is_stopped, raising, shows

pytestmark = pytest.mark.deep

REFUSED = {"lease_expired", "transfer_setup"}
"""The lease has ended; and the engine's memory is nobody's to read."""


@pytest.fixture(scope="module")
def rig_of(start: Callable[..., Callable[[str, str], Rig]], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Rig]:
    folder = tmp_path_factory.mktemp("armed")
    rigs = start([raising(folder, "P"), raising(folder, "D", blocks=64, transports=["tcp"]),
                  raising(folder, "P-two", ranks=2), raising(folder, "D-two", ranks=2, blocks=64)])

    def find(prefill: str, decode: str) -> Rig:
        """Engines that have been stopped are started anew."""
        rig = rigs(prefill, decode)
        for one in (rig.producer, rig.decoder):
            for left in folder_of(one).iterdir():
                left.unlink()
            if is_stopped(one):
                rig.stack.restart(one)
        rig.warm_up()
        return rig
    return find


def is_right(rig: Rig, prompt: Prompt, ticket: client.Ticket | None) -> None:
    expected = rig.expected(prompt)
    reply = client.complete(rig.decoder.url, prompt, rig.max_tokens, ticket, rig.client_limit_s)
    assert reply.ok, reply
    assert reply.tokens == expected


def ask_for_ticket(rig: Rig, prompt: Prompt) -> client.Ticket | None:
    """None: the engine has answered, and given none."""
    reply = client.complete(rig.producer.url, prompt, 1, client.ASK_FOR_TICKET)
    assert reply.ok, reply
    return reply.ticket


def engine_of(rig: Rig, side: str) -> Engine:
    return rig.producer if side == "P" else rig.decoder


def falls_asleep(engine: Engine) -> None:
    """It steps only while it has requests: vLLM's pause waits for that."""
    engine.call("/pause?mode=wait", 10.0)
    engine.call("/resume", 10.0)


# ---- one request ----

@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("side", ["P", "D"])
@pytest.mark.parametrize("hook", ["arrive", "offer", "admit", "finish"])
def test_one_request_goes_on_without_a_transfer(rig_of: Callable[..., Rig], hook: str, side: str, when: str) -> None:
    rig = rig_of("P", "D")
    one, expected = engine_of(rig, side), rig.expected(rig.question)
    rig.settle()
    before = errors(one).get(hook, 0.0)
    if side == "P":
        arm(one, f"Scheduler.{hook}", when)
        assert ask_for_ticket(rig, rig.question) is None
        reply = rig.decode(rig.question, None)
    else:
        ticket = rig.ticket(rig.question)
        arm(one, f"Scheduler.{hook}", when)
        reply = rig.decode(rig.question, ticket)
    assert reply.ok and reply.tokens == expected
    assert has_raised(one, f"Scheduler.{hook}") and rig.probe().ok
    assert rig.loads_again()
    rig.stack.wait_idle()
    assert errors(one)[hook] == before + 1 and not is_stopped(one)


def test_a_client_leaves_under_its_load(rig_of: Callable[..., Rig]) -> None:
    rig = rig_of("P", "D")
    before = errors(rig.decoder).get("finish", 0.0)
    rig.settle()
    arm(rig.decoder, "Scheduler.finish")
    outcome = trial.run(rig, faults.HUNG_UP)
    expect.lives(outcome)
    assert has_raised(rig.decoder, "Scheduler.finish")
    rig.warm_up()
    assert errors(rig.decoder)["finish"] == before + 1 and not is_stopped(rig.decoder)


# ---- all of an engine's ----

@pytest.mark.parametrize("pair, hook, rank", [
    (("P", "D"), "Scheduler.orders", 0), (("P", "D"), "Worker.before_forward", 0), (("P", "D"), "Worker.publish", 0),
    (("P", "D"), "Scheduler.ending", 0), (("P-two", "D-two"), "Worker.before_forward", 1)])
def test_a_prefill_engine_ends_its_leases(rig_of: Callable[..., Rig], pair: tuple[str, str], hook: str, rank: int) -> None:
    """Its old tickets are refused, and it gives no others."""
    rig = rig_of(*pair)
    for prompt in (rig.question, rig.other_question):
        rig.expected(prompt)
    rig.settle()
    ticket = rig.ticket(rig.question)
    arm(rig.producer, hook, rank=rank)
    if hook == "Scheduler.ending":
        assert rig.producer.reset_prefix_cache()
    is_right(rig, rig.other_question, ask_for_ticket(rig, rig.other_question))
    assert has_raised(rig.producer, hook, rank)
    shows(rig.producer, {"ending": "reset_prefix_cache"}.get(name := hook.split(".")[1], name), stopped=True)
    assert ask_for_ticket(rig, rig.question) is None
    rig.overwrite_prefill_blocks()
    before = rig.counters()
    is_right(rig, rig.question, ticket)
    reasons = trial.new_failures(before, rig.counters())
    assert reasons and set(reasons) <= REFUSED, reasons
    rig.stack.wait_idle()
    falls_asleep(rig.producer)


@pytest.mark.parametrize("pair, hook, rank", [
    (("P", "D"), "Scheduler.update", 0), (("P", "D"), "Worker.start_loads", 0), (("P", "D"), "Worker.report", 0),
    (("P-two", "D-two"), "Worker.start_loads", 1)])
def test_a_decode_engine_stops_its_loads(rig_of: Callable[..., Rig], pair: tuple[str, str], hook: str, rank: int) -> None:
    """It computes what it was loading, and all that comes."""
    rig = rig_of(*pair)
    for prompt in (rig.question, rig.other_question):
        rig.expected(prompt)
    rig.settle()
    ticket = rig.ticket(rig.question)
    arm(rig.decoder, hook, rank=rank)
    is_right(rig, rig.question, ticket)
    assert has_raised(rig.decoder, hook, rank)
    shows(rig.decoder, hook.split(".")[1], stopped=True)
    before = metrics.total(rig.counters(), trial.LOADED_BLOCKS)
    is_right(rig, rig.other_question, rig.ticket(rig.other_question))
    assert metrics.total(rig.counters(), trial.LOADED_BLOCKS) == before
    rig.stack.wait_idle()
    falls_asleep(rig.decoder)
