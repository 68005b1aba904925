"""vLLM resets its cache, pauses or gets other weights while blocks are lent: the leases end, and weights that are not the
same on both sides are not carried."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pd import client, faults, metrics, trial, web
from pd.engine import Engine
from pd.paths import FAST
from pd.progress import wait_until
from pd.rig import Rig

import expect
from shapes import engine
from test_weights import tune

pytestmark = pytest.mark.deep

SOON_S = 1.0
LEASE_S = 20.0
"""What D refuses stays with P for that long; nothing else waits for it."""
LIMIT_S = 30.0
ENDED = ("lease_expired", "lease_unknown")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`old`, and `new` with one other layer."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("old", "new"):
        shutil.copytree(FAST, folder / name)
    tune(folder / "new", ["model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.v_proj.weight"], None)
    return folder


@pytest.fixture(scope="module")
def rig(start: Callable[..., Callable[[str, str], Rig]], folders: Path) -> Rig:
    long = {"lease_ttl_ms": int(LEASE_S * 1000)}
    return start([engine("P", model=folders / "old", **long),
                  engine("D", model=folders / "old", transports=["tcp"], **long)])("P", "D")


def call(of: Engine, path: str, body: dict[str, Any] | None = None) -> web.Answer:
    return of.call(path, LIMIT_S, body)


def show_usage(of: Engine) -> None:
    """vLLM's gauge is as old as its last step."""
    assert client.complete(of.url, [1, 2, 3], 1).ok


def reset(of: Engine) -> None:
    call(of, "/reset_prefix_cache")
    show_usage(of)


def rpc(of: Engine, method: str, *args: Any, **kwargs: Any) -> None:
    call(of, "/collective_rpc", {"method": method, "args": list(args), "kwargs": kwargs})
    show_usage(of)


def reload(of: Engine, folder: Path) -> None:
    rpc(of, "reload_weights", weights_path=str(folder))


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/pause"])
def test_leases_end_at_once(rig: Rig, path: str) -> None:
    rig.settle()
    ticket = rig.ticket(rig.question)
    assert rig.producer.usage() > 0
    answer = call(rig.producer, path)  # they fail if a block is in use
    assert answer.seconds < SOON_S and answer.body.get("success", True)
    if path == "/pause":
        call(rig.producer, "/resume")
    show_usage(rig.producer)
    outcome = trial.run(rig, faults.Fault("-", "with the old ticket", lambda rig: rig.decode(rig.question, ticket)))
    expect.recomputed(outcome, *ENDED)
    expect.loaded(trial.run(rig, faults.HEALTHY), len(rig.question))


@pytest.fixture
def stopped(rig: Rig) -> Iterator[client.Ticket]:
    """A ticket of a producer that answers no more."""
    rig.expected(rig.question)
    rig.settle()
    ticket = rig.ticket(rig.question)
    rig.producer.process.pause()
    yield ticket
    rig.producer.process.resume()
    reset(rig.producer)


def test_loads_end_before_a_pause(rig: Rig, stopped: client.Ticket) -> None:
    """Frozen by mode `keep`, the request is computed when the engine goes on."""
    with ThreadPoolExecutor() as pool:
        reply = pool.submit(rig.decode, rig.question, stopped)
        wait_until("waiting for the load", lambda: rig.decoder.usage() > 0, LIMIT_S)
        answer = call(rig.decoder, "/pause?mode=keep")
        call(rig.decoder, "/resume")
        assert reply.result().tokens == rig.expected(rig.question)
    assert answer.seconds < SOON_S


def gives_tickets(engine: Engine, rig: Rig) -> bool:
    given = client.complete(engine.url, rig.question, 1, client.ASK_FOR_TICKET).ticket is not None
    reset(engine)
    return given


def test_reloaded_on_one_side_and_then_on_the_other(rig: Rig, folders: Path) -> None:
    reload(rig.producer, folders / "new")
    wait_until("waiting for the new weights' digest", lambda: gives_tickets(rig.producer, rig), LIMIT_S)
    expect.recomputed(trial.run(rig, faults.HEALTHY), "incompatible")
    reload(rig.decoder, folders / "new")
    wait_until("waiting for the new weights' digest", lambda: gives_tickets(rig.decoder, rig), LIMIT_S)
    updated = replace(rig)  # with other answers
    updated.settle()
    assert updated.expected(rig.question) != rig.expected(rig.question)
    expect.loaded(trial.run(updated, faults.HEALTHY), len(rig.question))


# ---- more tickets than D has places for ----

PLACES, MANY = 2, 8
LONG = 48
ARRIVE_S = 1.0
LOADS = "kvferry_loads_total"


@pytest.fixture(scope="module")
def full(start: Callable[..., Callable[[str, str], Rig]], folders: Path) -> Rig:
    """Most requests of many() are loaded, and wait."""
    one = {"model": folders / "old", "blocks": 120}
    made = start([engine("P-large", **one), replace(engine("D-small", **one), args=("--max-num-seqs", str(PLACES)))])
    return replace(made("P-large", "D-small"), max_tokens=LONG)


def many(rig: Rig, meanwhile: Callable[[], object]) -> list[client.Reply]:
    """Their answers; `meanwhile` runs when all are loaded, and most have no place."""
    rig.settle()
    prompts = rig.prompts[:MANY]
    before = metrics.total(rig.counters(), LOADS)
    tickets = [rig.ticket(prompt) for prompt in prompts]
    with ThreadPoolExecutor(MANY) as pool:
        call(rig.decoder, "/pause?mode=keep&clear_cache=false")
        replies = [pool.submit(rig.decode, prompt, ticket) for prompt, ticket in zip(prompts, tickets)]
        time.sleep(ARRIVE_S)  # one by one the first would have a place, and vLLM loads nothing for a D without places
        call(rig.decoder, "/resume")
        wait_until("waiting for the loads", lambda: metrics.total(rig.counters(), LOADS) >= before + MANY, LIMIT_S, every_s=0.02)
        meanwhile()
        return [reply.result() for reply in replies]


@pytest.mark.parametrize("path", ["/pause?mode=keep&clear_cache=true", "/reset_prefix_cache?reset_running_requests=true"])
def test_loaded_prompts_that_wait_are_no_obstacle(full: Rig, path: str) -> None:
    right = [full.expected(prompt) for prompt in full.prompts[:MANY]]

    def meanwhile() -> None:
        answer = call(full.decoder, path)
        assert answer.body.get("success", True)
        call(full.decoder, "/resume")
    replies = many(full, meanwhile)
    assert [reply.tokens for reply in replies] == right
    full.settle()


def test_loaded_prompts_that_wait_are_of_the_new_weights(full: Rig, folders: Path) -> None:
    """Without a pause, requests that had a place are of both weights: those are vLLM's own."""
    old = [full.expected(prompt) for prompt in full.prompts[:MANY]]
    replies = many(full, lambda: call(full.decoder, "/collective_rpc", {
        "method": "reload_weights", "kwargs": {"weights_path": str(folders / "new")}}))
    full.settle()
    updated = replace(full)
    new = [updated.expected(prompt) for prompt in full.prompts[:MANY]]
    found = [reply.tokens == right for reply, right in zip(replies, new)]
    assert sum(found) >= MANY - PLACES and all(a != b for a, b in zip(old, new))
