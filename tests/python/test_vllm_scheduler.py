"""The connector under vLLM's own schedulers, the asynchronous one included, which vLLM's CPU backend does not run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("vllm")

import model_engine  # noqa: E402
from engines import wait_until  # noqa: E402
from kvferry.engine import producer  # noqa: E402
from kvferry.engine.metrics import Counters  # noqa: E402
from model_engine import ModelEngine, right_answer  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1  # noqa: E402

ASKS = {"do_remote_decode": True, "do_remote_prefill": False}
PROMPT = [token % 50 for token in range(150)]
LIMIT_S = 20.0


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, closes: Callable[[Any], Any]) -> Callable[..., ModelEngine]:
    return lambda *args, **kwargs: closes(ModelEngine(monkeypatch, *args, **kwargs))


def run(engines: list[ModelEngine], until: Callable[[], bool]) -> None:
    def is_done() -> bool:
        return until() or any(one.step() for one in engines)
    wait_until("engines that hang", is_done, LIMIT_S, 0)


def prefill(p: ModelEngine, name: str, prompt: list[int]) -> Any:
    p.ask(name, prompt, 1, ASKS)
    run([p], lambda: name in p.finished)
    return p.finished[name][1]


def decode(p: ModelEngine, d: ModelEngine, name: str, prompt: list[int], ticket: Any) -> None:
    """D's answer is right."""
    d.ask(name, prompt, 5, ticket)
    run([p, d], lambda: name in d.finished)
    assert d.answers[name] == right_answer(prompt, 5)


def carry(p: ModelEngine, d: ModelEngine, name: str, prompt: list[int]) -> None:
    decode(p, d, name, prompt, prefill(p, name, prompt))


def used(engine: ModelEngine) -> int:
    return engine.kv.num_blocks - 1 - engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def stat(engine: ModelEngine, name: str, reason: str = "") -> int:
    return sum(value for what, why, value, _ in engine.side._node.stats() if (what, why) == (name, reason))


@pytest.fixture
def no_tickets(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why there were none, as it is counted."""
    reasons: list[str] = []
    add = Counters.add

    def note(counters: Counters, name: str, reason: str) -> None:
        add(counters, name, reason)
        reasons.extend([reason] if name == "no_tickets" else [])

    monkeypatch.setattr(Counters, "add", note)
    return reasons


KINDS = pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "asynchronous"])


@KINDS
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_prompt_is_carried(engine: Callable[..., ModelEngine], asynchronous: bool, ranks: int) -> None:
    p, d = engine("p", asynchronous, ranks=ranks), engine("d", asynchronous, ranks=ranks)
    carry(p, d, "a", PROMPT)
    assert stat(d, "verdicts", "use") == 1
    run([p, d], lambda: used(p) == used(d) == 0)


@KINDS
def test_what_a_client_has_left_is_let_go(engine: Callable[..., ModelEngine], asynchronous: bool) -> None:
    """In each step of a load's life."""
    p, d = engine("p", asynchronous), engine("d", asynchronous)
    for steps in range(8):
        name = f"steps-{steps}"
        d.ask(name, PROMPT, 5, prefill(p, name, PROMPT))
        d.steps(steps)
        if name not in d.finished:
            d.abort(name)
        run([p, d], lambda: used(p) == used(d) == 0)
        assert d.answers[name] == right_answer(PROMPT, 5)[:len(d.answers[name])]


@KINDS
def test_a_reset_between_steps_that_are_under_way(engine: Callable[..., ModelEngine], asynchronous: bool) -> None:
    """Leases end, and loads that are under way: what they would have brought is computed. vLLM's own answer is no if D has
    what it asked for by then."""
    p, d = engine("p", asynchronous), engine("d", asynchronous)
    d.ask("a", PROMPT, 5, prefill(p, "a", PROMPT))
    d.step()
    d.reset()
    assert p.reset()
    run([p, d], lambda: "a" in d.finished)
    assert d.answers["a"] == right_answer(PROMPT, 5)
    run([p, d], lambda: used(p) == used(d) == 0)


@pytest.fixture
def waiting(engine: Callable[..., ModelEngine], asynchronous: bool) -> tuple[ModelEngine, ModelEngine, dict[str, list[int]]]:
    """P, D, and what D is asked: it has no place left for "x", whose load is over."""
    p, d = engine("p", asynchronous, blocks=100), engine("d", asynchronous, blocks=100)
    ticket = prefill(p, "x", PROMPT)
    asked = {f"busy {token}": [token] * 40 for token in range(d.config.scheduler_config.max_num_seqs)}
    for name, prompt in asked.items():
        d.ask(name, prompt, 100)
        if len(d.answers) == len(asked) - 1:
            run([d], lambda: len(d.scheduler.running) == len(asked) - 1)
            d.ask("x", PROMPT, 5, ticket)
    run([p, d], lambda: "x" in d.scheduler.finished_recving_kv_req_ids)
    assert stat(d, "verdicts", "use") == 1 and d.scheduler.requests["x"].num_computed_tokens > 0
    return p, d, asked


@KINDS
def test_a_reset_finds_no_prompt_that_is_loaded_and_waits(waiting: tuple[ModelEngine, ModelEngine, dict[str, list[int]]]) -> None:
    """It would use blocks, which vLLM's reset does not count on: /pause fails then, or the engine dies."""
    p, d, asked = waiting
    counted: list[tuple[str, str]] = []
    d.side._consumer._counters.add = lambda *what: counted.append(what)
    d.finish_steps()
    assert d.reset(running_too=True)
    run([p, d], lambda: d.finished.keys() >= {"x", *asked})
    assert d.answers == {"x": right_answer(PROMPT, 5)} | {name: right_answer(prompt, 100) for name, prompt in asked.items()}
    assert counted == [("not_loaded", "discarded")]
    run([p, d], lambda: used(p) == used(d) == 0)


@KINDS
def test_new_weights_find_no_prompt_that_is_loaded_and_waits(waiting: tuple[ModelEngine, ModelEngine, dict[str, list[int]]],
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    _, d, _ = waiting
    monkeypatch.setattr(model_engine, "kv_of", lambda before, token: (before * 31 + token * 7 + 5) % 1_000_003)
    d.reload_weights()
    run([d], lambda: "x" in d.finished)
    assert d.answers["x"] == right_answer(PROMPT, 5)


@KINDS
def test_preempted_after_its_load(engine: Callable[..., ModelEngine], asynchronous: bool) -> None:
    """Its lease has ended, and its prompt is computed."""
    p, d = engine("p", asynchronous), engine("d", asynchronous, blocks=14)
    counted: list[tuple[str, str]] = []
    d.side._consumer._counters.add = lambda *what: counted.append(what)
    others = {name: [*PROMPT[:-1], token] for token, name in enumerate("ab")}
    for name, prompt in others.items():
        d.ask(name, prompt, 100, prefill(p, name, prompt))
    run([p, d], lambda: d.finished.keys() >= others.keys())
    assert {name: d.answers[name] for name in others} == {name: right_answer(others[name], 100) for name in others}
    assert stat(d, "verdicts", "use") == 2
    assert set(counted) == {("not_loaded", "preempted")}
    run([p, d], lambda: used(p) == used(d) == 0)


@KINDS
@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_lease_that_ends_while_its_request_waits(engine: Callable[..., ModelEngine], asynchronous: bool,
                                                   policy: str) -> None:
    """It fails long before there are blocks for it, or is computed when there are."""
    p = engine("p", asynchronous, lease_ttl_ms=300)
    d = engine("d", asynchronous, blocks=34, policy=policy)
    d.ask("long", [1] * 900, 120)
    ticket = prefill(p, "a", PROMPT)
    d.steps(12)
    d.ask("a", PROMPT, 5, ticket)
    assert p.reset()
    while "a" not in d.finished and "long" not in d.finished:
        d.step()
        time.sleep(0.01)
    assert ("a" in d.finished) == (policy == "fail")
    run([p, d], lambda: d.finished.keys() >= {"a", "long"})
    assert d.answers["long"] == right_answer([1] * 900, 120)
    assert d.answers["a"] == ([] if policy == "fail" else right_answer(PROMPT, 5))
    assert d.stop_reasons == {"long": None, "a": "kvferry:lease_expired:retry=1" if policy == "fail" else None}
    assert stat(d, "verdicts", policy) == 1
    run([p, d], lambda: used(p) == used(d) == 0)


@KINDS
def test_a_request_that_fails_says_why(engine: Callable[..., ModelEngine], asynchronous: bool) -> None:
    """To whoever has vLLM's own answer: whose fault it is, and that of no other request of the step."""
    p, d = engine("p", asynchronous), engine("d", asynchronous, policy="fail")
    ticket = prefill(p, "a", PROMPT)
    d.ask("running", PROMPT[:40], 30)
    d.ask("refused", PROMPT, 5, {**ticket, "kvferry_ticket": "x" + ticket["kvferry_ticket"][1:]})
    d.ask("mistaken", PROMPT, 5, {**ticket, "kvferry_options": {"policy": "maybe"}})
    d.ask("aborted", PROMPT, 5, {**ticket, "kvferry_ticket": "x"})
    d.abort("aborted")
    run([p, d], lambda: d.finished.keys() >= {"running", "refused", "mistaken"})
    assert d.stop_reasons == {"running": None, "refused": "kvferry:bad_ticket:retry=1", "mistaken": "kvferry:invalid:retry=0"}
    assert d.side._consumer.stop_reasons == {}


# ---- more prompts than leases have room for ----

MANY = [[(first * 11 + token) % 50 for token in range(150)] for first in range(8)]
SMALL = {"blocks": 24, "lease_pool_share_percent": 50}
"""Room for two of them."""


@KINDS
def test_prompts_wait_for_their_leases(engine: Callable[..., ModelEngine], asynchronous: bool, no_tickets: list[str]) -> None:
    p, d = engine("p", asynchronous, lease_wait_ms=10_000, **SMALL), engine("d", asynchronous)
    for number, prompt in enumerate(MANY):
        p.ask(f"r{number}", prompt, 1, ASKS)
    p.steps(20)
    assert 0 < len(p.finished) < len(MANY)  # the others wait, and are not computed in vain
    carried: set[str] = set()

    def decode() -> bool:
        for name in p.finished.keys() - carried:
            carried.add(name)
            d.ask(name, MANY[int(name[1:])], 5, p.finished[name][1])
        return len(d.finished) == len(MANY)
    run([p, d], decode)
    assert [d.answers[f"r{number}"] for number in range(len(MANY))] == [right_answer(prompt, 5) for prompt in MANY]
    assert stat(d, "verdicts", "use") == len(MANY) and no_tickets == []
    run([p, d], lambda: used(p) == used(d) == 0)
    assert stat(p, "leases_reserved") == 0


@KINDS
def test_prompts_go_without_by_default(engine: Callable[..., ModelEngine], asynchronous: bool, no_tickets: list[str]) -> None:
    p = engine("p", asynchronous, **SMALL)
    for number, prompt in enumerate(MANY):
        p.ask(f"r{number}", prompt, 1, ASKS)
    run([p], lambda: len(p.finished) == len(MANY))
    without = [name for name, (_, params) in p.finished.items() if params is None]
    assert len(without) == len(MANY) - 2 and no_tickets == ["no_lease"] * len(without)


@KINDS
@pytest.mark.parametrize("wait_ms", [0, 60_000], ids=["without", "waits"])
def test_blocks_of_one_beginning_count_once(engine: Callable[..., ModelEngine], asynchronous: bool, wait_ms: int) -> None:
    """20 blocks of all prompts, and one of each, in a pool of 100 of which leases may hold 90. Who waits for its lease has no
    blocks yet: it needs room for 21."""
    p, d = engine("p", asynchronous, blocks=100, lease_wait_ms=wait_ms), engine("d", asynchronous, blocks=100)
    prompts = [[token % 50 for token in range(640)] + [number] for number in range(70)]
    tickets = [prefill(p, f"r{number}", prompt) for number, prompt in enumerate(prompts[:70 if wait_ms == 0 else 50])]
    assert None not in tickets and used(p) == 20 + len(tickets)
    p.ask("next", [*prompts[0][:-1], 70], 1, ASKS)
    if wait_ms == 0:
        run([p], lambda: "next" in p.finished)
        assert p.finished["next"][1] is None
    for number, ticket in enumerate(tickets):
        d.ask(f"r{number}", prompts[number], 3, ticket)
    run([p, d], lambda: "next" in p.finished and len(d.finished) == len(tickets))
    assert all(d.answers[f"r{number}"] == right_answer(prompts[number], 3) for number in range(len(tickets)))
    assert (p.finished["next"][1] is not None) == (wait_ms > 0)


@KINDS
def test_a_wait_for_a_lease_ends(engine: Callable[..., ModelEngine], asynchronous: bool, no_tickets: list[str]) -> None:
    """By the option's time, and at once where there is nothing to wait for."""
    p = engine("p", asynchronous, lease_wait_ms=300, **SMALL)
    began = time.monotonic()
    assert prefill(p, "a", MANY[0]) and prefill(p, "b", MANY[1])
    p.ask("large", [token % 50 for token in range(400)], 1, ASKS)  # more than the share by itself
    p.ask("plain", PROMPT, 1)
    run([p], lambda: "large" in p.finished and "plain" in p.finished)
    assert p.finished["large"][1] is None and no_tickets == ["limit"]
    assert time.monotonic() - began < 0.3
    began = time.monotonic()
    assert prefill(p, "c", MANY[2]) is None
    assert 0.3 <= time.monotonic() - began < 5 and no_tickets == ["limit", "no_lease"]


@KINDS
def test_whoever_leaves_waits_for_no_lease(engine: Callable[..., ModelEngine], asynchronous: bool) -> None:
    p, d = engine("p", asynchronous, lease_wait_ms=10_000, **SMALL), engine("d", asynchronous)
    tickets = [prefill(p, name, prompt) for name, prompt in zip("ab", MANY)]
    p.ask("c", MANY[2], 1, ASKS)
    p.ask("d", MANY[3], 9, ASKS)
    p.steps(5)
    p.abort("c")
    d.ask("a", MANY[0], 1, tickets[0])
    run([p, d], lambda: p.side._producer._reserved.keys() == {"d"} or "d" in p.answers and bool(p.answers["d"]))
    p.abort("d")
    d.ask("b", MANY[1], 1, tickets[1])
    run([p, d], lambda: used(p) == used(d) == 0)
    assert stat(p, "leases_reserved") == 0 and not p.side._producer._reserved and not p.side._producer._waits_until


@pytest.mark.skipif(not hasattr(KVConnectorBase_V1, "has_pending_block_frees"), reason="vLLM 0.29 does not ask")
@KINDS
@pytest.mark.parametrize("comes_back", [True, False], ids=["comes_back", "stays"])
def test_blocks_of_leases_are_waited_for(engine: Callable[..., ModelEngine], monkeypatch: pytest.MonkeyPatch,
                                         asynchronous: bool, comes_back: bool) -> None:
    """Instead of preempting who lacks one; for a while."""
    monkeypatch.setattr(producer, "FREES_WITHIN_S", 5.0 if comes_back else 0.2)
    p, d = engine("p", asynchronous), engine("d", asynchronous)
    tickets = [prefill(p, name, prompt) for name, prompt in zip("abc", MANY)]
    p.ask("long", MANY[3], 150)
    one = p.scheduler.requests["long"]
    run([p], lambda: used(p) == p.kv.num_blocks - 1)
    p.steps(50)
    assert one.num_preemptions == 0 and "long" not in p.finished
    if not comes_back:
        run([p], lambda: one.num_preemptions > 0)
    d.ask("a", MANY[0], 1, tickets[0])
    run([p, d], lambda: "long" in p.finished)
    assert p.answers["long"] == right_answer(MANY[3], 150) and (one.num_preemptions == 0) == comes_back


class Storm:
    """Prompts of a few beginnings go from P to D, whose pools are small; clients leave, leases run out, caches are reset."""

    def __init__(self, p: ModelEngine, d: ModelEngine, seed: int) -> None:
        self.p, self.d, self.rng = p, d, random.Random(seed)
        self.prompts: dict[str, list[int]] = {}
        self.tokens: dict[str, int] = {}
        self.tickets: list[tuple[str, Any]] = []
        self.left: set[str] = set()
        self.given: set[str] = set()

    def prompt(self) -> list[int]:
        start = self.rng.randrange(4)
        return [(start * 7 + i) % 50 for i in range(self.rng.randrange(1, 200))] + [self.rng.randrange(50)]

    def act(self) -> None:
        rng, number = self.rng, len(self.prompts)
        match rng.choices(["ask", "decode", "again", "leave", "reset", "nothing"], [4, 5, 1, 1, 0.1, 8])[0]:
            case "ask" if number < 150:
                name = f"r{number}"
                self.prompts[name], self.tokens[name] = self.prompt(), rng.randrange(1, 40)
                self.p.ask(name, self.prompts[name], rng.choice([1, 1, 3, 60]), ASKS)
            case "decode" | "again" as what if self.tickets:
                name, params = self.tickets[-1] if what == "again" else self.tickets.pop(rng.randrange(len(self.tickets)))
                alias = f"{name}.{len(self.d.answers)}"
                self.prompts[alias], self.tokens[alias] = self.prompts[name], self.tokens[name]
                self.d.ask(alias, self.prompts[name], self.tokens[name], params)
            case "leave":
                for engine in (self.p, self.d):
                    open_ = [name for name in engine.answers if name not in engine.finished and name not in self.left]
                    if open_:
                        self.left.add(rng.choice(open_))
                        engine.abort(sorted(self.left & set(open_))[0])
            case "reset":
                rng.choice([self.p, self.d]).reset()

    def collect(self) -> None:
        for name, (_, params) in self.p.finished.items():
            if params is not None:
                self.given.add(name)
            if params is not None and name not in self.left:
                self.tickets.append((name, params))
                self.p.finished[name] = (None, None)

    def open(self) -> bool:
        return any(name not in engine.finished and name not in self.left
                   for engine in (self.p, self.d) for name in engine.answers)


@KINDS
@pytest.mark.parametrize("seed", range(4))
def test_a_storm(engine: Callable[..., ModelEngine], asynchronous: bool, seed: int, no_tickets: list[str]) -> None:
    """Every answer is right as far as it goes, whoever gets no ticket is counted once, nothing hangs, and every block comes
    back."""
    p = engine("p", asynchronous, blocks=20, lease_ttl_ms=300, lease_wait_ms=50 * (seed // 2))
    bound = {"loads_in_flight": 1} if seed % 2 else {}
    d = engine("d", asynchronous, blocks=16, ranks=1, lease_ttl_ms=300, **bound)
    storm = Storm(p, d, seed)
    for _ in range(1200):
        storm.act()
        p.step()
        d.step()
        storm.collect()
    run([p, d], lambda: not storm.open())
    for name, answer in d.answers.items():
        right = right_answer(storm.prompts[name], storm.tokens[name])
        assert answer == right[:len(answer)] and (name in storm.left or len(answer) == len(right)), name
    assert stat(d, "verdicts", "use") > 0
    storm.collect()
    assert len(storm.given) + len(no_tickets) == len(p.answers)
    run([p, d], lambda: used(p) == used(d) == 0)
    assert stat(p, "leases_reserved") == 0


# ---- several answers, several prompts, one ticket ----

SEVERAL = [f"{index}_cmpl-x-0-12345678" for index in range(4)]
LIST = [f"cmpl-x-{place}-1234567{place}" for place in range(3)]


@KINDS
@pytest.mark.parametrize("order", ["first ends first", "first ends last", "first is aborted"])
def test_answers_of_one_request_share_a_lease(engine: Callable[..., ModelEngine], asynchronous: bool, order: str) -> None:
    p, d = engine("p", asynchronous, blocks=60), engine("d", asynchronous)
    for index, name in enumerate(SEVERAL):
        p.ask(name, PROMPT, 1 + (index if order == "first ends first" else len(SEVERAL) - index), ASKS)
    if order == "first is aborted":
        run([p], lambda: len(p.finished) == 3)
        p.abort(SEVERAL[0])
    run([p], lambda: len(p.finished) >= 3 + (order != "first is aborted"))
    tickets = [p.finished[name][1]["kvferry_ticket"] for name in SEVERAL if name in p.finished]
    assert len(set(tickets)) == 1 and len(p.side._producer._leases) == 1
    decode(p, d, "a", PROMPT, p.finished[SEVERAL[-1]][1])
    assert stat(d, "verdicts", "use") == 1 or order == "first is aborted"  # the lease has ended with it
    run([p, d], lambda: used(p) == used(d) == 0)


def test_an_answer_that_comes_when_the_first_is_over_shares_its_lease(engine: Callable[..., ModelEngine]) -> None:
    """And one whose client has used its name before does not share an old one's."""
    p = engine("p", blocks=60)
    tickets = []
    for prompt in (PROMPT, [7, *PROMPT]):
        for name in SEVERAL:
            p.finished.clear()
            p.ask(name, prompt, 1, ASKS)
            run([p], lambda: bool(p.finished))
            tickets.append(p.finished[name][1]["kvferry_ticket"])
    assert [tickets.count(ticket) for ticket in tickets] == [4] * 8
    assert len(p.side._producer._leases) == 2


@pytest.mark.parametrize("names, tickets", [(LIST, 1), (["cmpl-x-1-0-12345678"], 1), (["chatcmpl-x-1-12345678"], 1), (["1-12345678"], 1),
                                            (["2_cmpl-x-1-12345678"], 0), (["2_chatcmpl-x-1-12345678"], 1)])
def test_only_the_first_prompt_of_a_list_gets_a_ticket(engine: Callable[..., ModelEngine], no_tickets: list[str], names: list[str],
                                                       tickets: int) -> None:
    """The answer has no room for others: their leases would last for nobody."""
    p = engine("p", blocks=60)
    for at, name in enumerate(names):
        p.ask(name, [at, *PROMPT], 1, ASKS)
    run([p], lambda: p.finished.keys() == set(names))
    assert sum(p.finished[name][1] is not None for name in names) == tickets
    assert no_tickets == ["in_a_list"] * (len(names) - tickets)


@pytest.mark.parametrize("name, altered, error", [
    (LIST[1], False, False), (LIST[0], False, True), (LIST[1], True, True), ("cmpl-x", False, True), ("chatcmpl-x-1-12345678", False, True)])
def test_the_ticket_of_another_prompt_of_the_list(engine: Callable[..., ModelEngine], name: str, altered: bool, error: bool) -> None:
    """Under policy fail, too, it counts as a prompt without a ticket, where the id says so and the ticket is good."""
    p, d = engine("p"), engine("d", policy="fail")
    ticket = dict(prefill(p, "a", PROMPT))
    if altered:
        text = ticket["kvferry_ticket"]
        ticket["kvferry_ticket"] = text[:40] + ("A" if text[40] != "A" else "B") + text[41:]
    other = PROMPT[::-1]
    d.ask(name, other, 5, ticket)
    run([p, d], lambda: name in d.finished)
    assert (str(d.finished[name][0]) == "error") == error
    assert error or d.answers[name] == right_answer(other, 5)


# ---- a P that answers on, with checksums ----

@KINDS
@pytest.mark.parametrize("length", [150, 160, 161])
def test_what_p_writes_after_the_prompt_is_summed(engine: Callable[..., ModelEngine], asynchronous: bool, length: int) -> None:
    """Into the prompt's last block, which D reads whole."""
    p, d = (engine(name, asynchronous, policy="fail", checksum="on") for name in "pd")
    prompt = (PROMPT * 2)[:length]
    p.ask("a", prompt, 12, ASKS)
    run([p], lambda: "a" in p.finished)
    assert p.answers["a"] == right_answer(prompt, 12)
    decode(p, d, "a", prompt, p.finished["a"][1])
    assert stat(d, "verdicts", "use") == 1 and stat(d, "loads_failed", "checksum") == 0
    run([p, d], lambda: used(p) == used(d) == 0)


@pytest.mark.parametrize("end", ["abort", "reset", "preempt"])
def test_a_p_that_answers_on_and_is_interrupted(engine: Callable[..., ModelEngine], end: str) -> None:
    p = engine("p", checksum="on")
    p.ask("a", PROMPT, 12, ASKS)
    run([p], lambda: len(p.answers["a"]) == 3)
    if end == "abort":
        p.abort("a")
    else:
        p.reset(running_too=end == "preempt")
    run([p], lambda: "a" in p.finished or end == "abort")
    run([p], lambda: used(p) == 0 and not p.side._producer.busy or (end == "preempt" and p.finished["a"][1] is not None))


# ---- requests that D refuses before its scheduler has them ----

def turn_away(d: ModelEngine, name: str, ticket: Any) -> None:
    """As vLLM does: a made-up request, aborted at once."""
    d.ask(name, [0], 1, ticket, abort_immediately=True)
    d.abort(name)


def test_blocks_are_back_when_d_has_refused_the_request(engine: Callable[..., ModelEngine]) -> None:
    p, d = engine("p"), engine("d")
    ticket = prefill(p, "a", PROMPT)
    assert used(p) > 0
    start = time.monotonic()
    turn_away(d, "refused", ticket)
    run([p, d], lambda: used(p) == 0)
    assert time.monotonic() - start < 1.0 and d.scheduler.requests == {}


@pytest.mark.parametrize("why", ["paused", "ends"])
def test_what_d_refuses_for_now_another_loads(engine: Callable[..., ModelEngine], why: str) -> None:
    p, d, other = engine("p"), engine("d"), engine("other")
    ticket = prefill(p, "a", PROMPT)
    d.side.pause(True) if why == "paused" else d.side.shutting_down()
    turn_away(d, "refused", ticket)
    for _ in range(20):
        p.step()
        d.step()
        time.sleep(0.01)
    decode(p, other, "a", PROMPT, ticket)
    assert stat(other, "verdicts", "use") == 1
    d.side.pause(False)
    turn_away(d, "refused again", prefill(p, "b", PROMPT))
    run([p, d], lambda: used(p) == 0) if why == "paused" else None


@pytest.mark.parametrize("same", [False, True])
def test_what_is_in_use_is_not_ended_by_a_refusal(engine: Callable[..., ModelEngine], same: bool) -> None:
    """By another D, or by another request of this one."""
    p, d = engine("p"), engine("d")
    user = d if same else engine("other")
    ticket = prefill(p, "a", PROMPT)
    user.ask("a", PROMPT, 5, ticket)
    rank = p.ranks[0].connector._worker._node
    run([], lambda: any(value for name, _, value, _ in rank.stats() if name == "sessions_open"))
    time.sleep(0.05)  # its renewal comes with the session
    turn_away(d, "refused", ticket)
    time.sleep(0.2)
    run([p, d, user], lambda: "a" in user.finished)
    assert user.answers["a"] == right_answer(PROMPT, 5) and stat(user, "verdicts", "use") == 1
    run([p, d, user], lambda: used(p) == 0)


# ---- whatever a client, or a frontend other than vLLM's, may put into kv_transfer_params ----

def nested(depth: int) -> Any:
    made: Any = []
    for _ in range(depth):
        made = [made]
    return made


def odd(ticket: Any) -> dict[str, Any]:
    text, options = ticket["kvferry_ticket"], {"kvferry_options"}
    assert not options & ticket.keys()
    with_options = {
        "lists as deep as the limit": nested(20), "an object too deep": {"policy": nested(5000)}, "text": "fail", "a list": ["policy"],
        "numbers as names": {1: "fail"}, "NUL in a name": {"policy\0x": "fail"}, "NUL in a value": {"policy": "recompute\0x"},
        "no name": {"": ""}, "null": {"policy": None}, "a large number": {"load_timeout_ms": 10**18},
        "many digits": {"load_timeout_ms": "9" * 100_000}, "below zero": {"load_timeout_ms": -5}, "NaN": {"load_timeout_ms": float("nan")}}
    return {
        **{f"options: {name}": {**ticket, "kvferry_options": value} for name, value in with_options.items()},
        "a list": [1, 2], "a text": "do_remote_prefill", "a number": 7, "numbers as names": {1: 2}, "true": True, "bytes": b"x",
        "too deep": {**ticket, "x": nested(5000)}, "deep objects": {**ticket, "x": {"a": {"b": nested(100)}}},
        "NUL in the ticket": {**ticket, "kvferry_ticket": text[:50] + "\0" + text[51:]},
        "a ticket in a list": {**ticket, "kvferry_ticket": [text]}, "both flags": {**ticket, "do_remote_decode": True},
        "objects as flags": {"do_remote_prefill": {"a": 1}, "do_remote_decode": [0]}}


ODD = list(odd({"kvferry_ticket": "x" * 100}))
REFUSED = [name for name in ODD if name not in {
    "options: null", "NUL in the ticket", "a ticket in a list", "both flags", "objects as flags", "options: no name"}]


@pytest.mark.parametrize("of", ["p", "d"])
@pytest.mark.parametrize("name", ODD)
def test_odd_parameters_end_in_an_answer_or_an_error(engine: Callable[..., ModelEngine], caplog: pytest.LogCaptureFixture, name: str,
                                                     of: str) -> None:
    p, d = engine("p", blocks=60), engine("d", blocks=60)
    params = odd(prefill(p, "first", PROMPT))[name]
    asked = p if of == "p" else d
    asked.ask("odd", PROMPT, 5, params)
    run([p, d], lambda: "odd" in asked.finished)
    assert asked.answers["odd"] == right_answer(PROMPT, 5) or str(asked.finished["odd"][0]) == "error"
    assert "internal error" not in caplog.text and not asked.side.stopped
    if name in REFUSED and of == "d":
        assert str(asked.finished["odd"][0]) == "error"
    decode(p, asked, "next", PROMPT, None)
