"""vLLM resets its cache, pauses or gets other weights while blocks are lent: the leases end, and weights that are not the
same on both sides are not carried."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pd import client, faults, trial, web
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
    answer = web.post_json(of.url + path, body or {}, LIMIT_S)
    assert answer.status == 200, answer
    return answer


def show_usage(of: Engine) -> None:
    """vLLM's gauge is as old as its last step."""
    assert client.complete(of.url, [1, 2, 3], 1).ok


def reload(of: Engine, folder: Path) -> None:
    call(of, "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
    show_usage(of)


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
    call(rig.producer, "/reset_prefix_cache")
    show_usage(rig.producer)


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
    call(engine, "/reset_prefix_cache")
    show_usage(engine)
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
