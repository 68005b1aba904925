"""This build beside an older one, in two processes, either way round: clusters are upgraded an engine at a time.

The older one counts four consumers of a lease, each request of an engine as one, and knows no answer for the fifth. Of
tickets it reads version 4 alone."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
OLDER = Path(os.environ.get("KVFERRY_TEST_OLDER", HERE.parents[1] / ".cache" / "older" / "package"))
CONSUMERS_MAX = 256
"""That this build counts of a lease."""
AS_BEFORE = {"ticket_version": 4}
"""Of a P of this build, while decode engines of the older one are there."""
TTL_MS = 6000
"""A renewal in 2 s: a busy machine may be late."""
ANSWER_S = 60.0

pytestmark = [pytest.mark.deep,
              pytest.mark.skipif(not OLDER.exists(), reason="no older build: the history does not reach back to it")]


class Process:
    """Engines of one build."""

    def __init__(self, is_older: bool, engines: int, **options: object) -> None:
        env = os.environ | ({"PYTHONPATH": str(OLDER)} if is_older else {})
        self.child = subprocess.Popen([sys.executable, HERE / "older_side.py", str(engines), json.dumps(options)],
                                      env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert Path(self.answer()).is_relative_to(OLDER) == is_older

    def answer(self) -> Any:
        assert select.select([self.child.stdout], [], [], ANSWER_S)[0], "no answer"
        line = self.child.stdout.readline()
        assert line, "the process has ended"
        return json.loads(line)

    def ask(self, call: str, *arguments: object, engine: int = 0) -> Any:
        self.child.stdin.write(json.dumps([engine, call, *arguments]) + "\n")
        self.child.stdin.flush()
        return self.answer()

    def close(self) -> None:
        self.child.kill()
        self.child.communicate()


Start = Callable[..., Process]


@pytest.fixture(params=["local", "tcp"])
def start(request: pytest.FixtureRequest, closes: Callable[[Any], Any]) -> Start:
    """Makes processes that end with the test."""
    def make(is_older: bool, engines: int = 1, **options: object) -> Process:
        of_this = {} if is_older else {"lease_linger_ms": 0}  # a lease that lingers hides who has been forgotten
        return closes(Process(is_older, engines, transports=request.param, lease_ttl_ms=TTL_MS, **of_this, **options))

    return make


def attach(d: Process, ticket: str, engines: Iterable[int], requests: int = 1) -> list[tuple[int, int]]:
    """So many requests on each of the engines; P has heard of them."""
    opened = [(engine, id_) for engine in engines for id_ in d.ask("request_all", ticket, requests, engine=engine)]
    renew(d, engines)
    return opened


def renew(d: Process, engines: Iterable[int]) -> None:
    for call in ("expect_renewals", "wait_for_renewals"):
        for engine in engines:
            d.ask(call, engine=engine)


def is_live(p: Process) -> bool:
    return p.ask("stat", "leases_live") == 1


@pytest.mark.parametrize("start", ["local"], indirect=True)
def test_each_knows_a_version_of_the_others(start: Start) -> None:
    older, this = start(True), start(False)
    (_, older_max), (this_min, this_max) = (
        this.ask("protocol", this.ask("address_in", p.ask("offer")[0])) for p in (older, this))
    assert this_min <= older_max < this_max


@pytest.mark.parametrize("older, engines, requests", [("P", 1, 1), ("P", 4, 1), ("P", 1, 16),
                                                      ("D", 1, 1), ("D", 4, 1), ("D", 1, 16)])
def test_all_that_are_attached_load(start: Start, older: str, engines: int, requests: int) -> None:
    """An older P counts sixteen requests of this build's D as one consumer; this P counts an older D's as sixteen."""
    p = start(True) if older == "P" else start(False, **AS_BEFORE)
    d = start(older == "D", engines)
    ticket, lease_id, right = p.ask("offer")
    attached = attach(d, ticket, range(engines), requests)
    for engine, id_ in attached:
        assert is_live(p)
        assert d.ask("fetch", ticket, id_, engine=engine) == ["ok", right]
    assert p.ask("is_completed", lease_id)
    assert not any(d.ask("stat", "requests_lost", reason, engine=engine) for engine in range(engines)
                   for reason in ("lease_expired", "lease_crowded", "protocol"))


@pytest.mark.parametrize("start", ["local"], indirect=True)
def test_an_older_d_takes_no_ticket_of_this_version(start: Start) -> None:
    """It calls it altered, and connects to nobody; this D takes either."""
    p, older, this = start(False), start(True), start(False)
    ticket, lease_id, right = p.ask("offer")
    assert ticket.startswith("kvf5.")
    assert older.ask("refusal", ticket) == "bad_ticket"
    assert not older.ask("troubles") and is_live(p)
    [id_] = this.ask("request_all", ticket, 1)
    assert this.ask("fetch", ticket, id_) == ["ok", right]
    assert p.ask("is_completed", lease_id)


def test_more_engines_than_an_older_p_counts(start: Start) -> None:
    """Those that it has forgotten load as long as the others have it, and are told when they have not."""
    p, d = start(True), start(False, 6)
    for forgotten_first in (True, False):
        ticket, lease_id, right = p.ask("offer")
        attached = attach(d, ticket, range(4)) + attach(d, ticket, range(4, 6))
        known, forgotten = attached[:4], attached[4:]
        for engine, id_ in (forgotten if forgotten_first else []) + known:
            assert d.ask("fetch", ticket, id_, engine=engine) == ["ok", right]
        assert p.ask("is_completed", lease_id)
        if not forgotten_first:
            assert {d.ask("reason", id_, engine=engine) for engine, id_ in forgotten} == {"lease_expired"}


@pytest.fixture
def crowd(start: Start) -> tuple[Process, Process, str, str, list[int], list[int]]:
    """This P and an older D. One engine of it has all places of a lease, another one has two requests more."""
    p, d = start(False, **AS_BEFORE), start(True, 2)
    ticket, _, right = p.ask("offer")
    inside, outside = ([id_ for _, id_ in attach(d, ticket, [engine], count)]
                       for engine, count in ((0, CONSUMERS_MAX), (1, 2)))
    this = start(False)
    assert this.ask("reason", *this.ask("request_all", ticket, 1)) == "lease_crowded"
    return p, d, ticket, right, inside, outside


def assert_untroubled(p: Process, d: Process) -> None:
    assert [p.ask("troubles"), d.ask("troubles"), d.ask("troubles", engine=1)] == [[], [], []]


def test_an_older_d_waits_for_room(crowd: Any) -> None:
    p, d, ticket, right, inside, outside = crowd
    assert_untroubled(p, d)
    assert d.ask("fetch", ticket, outside[0], engine=1) == ["ok", right]  # not attached, but in time
    d.ask("cancel", inside[:1])
    renew(d, [1])
    d.ask("cancel", inside[1:])
    renew(d, [1])
    assert is_live(p)  # for the one that has come in
    assert d.ask("fetch", ticket, outside[1], engine=1) == ["ok", right]


def test_an_older_d_waits_for_a_lease_that_ends(crowd: Any) -> None:
    p, d, ticket, right, inside, outside = crowd
    assert_untroubled(p, d)
    p.ask("revoke")
    assert [d.ask("reason", id_, engine=1) for id_ in outside] == ["lease_expired"] * 2
    assert d.ask("reason", inside[0]) == "lease_expired"
