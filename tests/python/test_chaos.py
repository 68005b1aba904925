"""What ./dev chaos and ./dev soak plan, and how they count."""

from __future__ import annotations

import fcntl
import os
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))

from chaos import mixes, plan, report  # noqa: E402
from chaos.clients import Outcome, Request, judge, make_questions  # noqa: E402
from chaos.cluster import Cluster  # noqa: E402
from chaos.handed import Ask, Handed  # noqa: E402
from chaos.injector import CALLS, FILE_BYTES, KINDS, VERSION  # noqa: E402
from chaos.plan import Episode  # noqa: E402
from chaos.report import Run, recovery_s  # noqa: E402
from chaos.storm import Fault  # noqa: E402
from pd import web  # noqa: E402
from pd.process import Process, shared_memory_of  # noqa: E402
from pd.progress import wait_until  # noqa: E402
from pd.stack import remove_error_files  # noqa: E402

LIMIT_S = 30.0
EXPECTED = [5, 6, 7]


def answer(status: int, body: dict[str, Any] | None = None, **fields: Any) -> web.Answer:
    return web.Answer(status, body or {}, **fields)


def tokens(*ids: int) -> dict[str, Any]:
    return {"choices": [{"token_ids": list(ids)}]}


def aborted(*ids: int) -> dict[str, Any]:
    return {"choices": [{"token_ids": list(ids), "finish_reason": "abort"}]}


def typed(reason: str) -> dict[str, Any]:
    return {"error": {"type": "kv_transfer_error", "reason": reason, "message": "…"}}


@pytest.mark.parametrize("got, outcome", [
    (answer(200, tokens(5, 6, 7)), Outcome.RIGHT),
    (answer(200, tokens(5, 6)), Outcome.WRONG),
    (answer(200, tokens(5, 6, 8)), Outcome.WRONG),
    (answer(200, {"choices": []}), Outcome.WRONG),
    (answer(200, aborted()), Outcome.OTHER),
    (answer(200, aborted(5, 6)), Outcome.OTHER),
    (answer(200, aborted(5, 8)), Outcome.WRONG),
    (answer(500, typed("peer_down")), Outcome.TYPED_ERROR),
    (answer(503, typed("lease_expired")), Outcome.TYPED_ERROR),
    (answer(500, typed("")), Outcome.OTHER),
    (answer(500, {"error": {"type": "server_error", "reason": "peer_down"}}), Outcome.OTHER),
    (answer(500, {"error": {"type": "InternalServerError", "message": "…"}}), Outcome.OTHER),
    (answer(502, {"text": "nobody there"}), Outcome.OTHER),
    (answer(web.NO_ANSWER, error="no answer", seconds=LIMIT_S + 0.1), Outcome.HUNG),
    (answer(web.NO_ANSWER, error="refused", seconds=0.1), Outcome.OTHER),
])
def test_an_answer_is_judged(got: web.Answer, outcome: Outcome) -> None:
    assert judge(got, [[EXPECTED]], LIMIT_S)[0] is outcome


@pytest.mark.parametrize("got, outcome", [
    ([(5, 6, 7), (8, 9)], Outcome.RIGHT),
    ([(8, 9), (5, 6, 7)], Outcome.WRONG),
    ([(5, 6, 7)], Outcome.WRONG),
    ([(5, 6, 7), (8, 9), (8, 9)], Outcome.WRONG),
])
def test_every_choice_is_judged(got: list[tuple[int, ...]], outcome: Outcome) -> None:
    choices = {"choices": [{"token_ids": list(one)} for one in got]}
    assert judge(answer(200, choices), [[EXPECTED], [[8, 9]]], LIMIT_S)[0] is outcome


def test_an_answer_is_right_with_any_weights_that_it_may_be_of() -> None:
    assert judge(answer(200, tokens(8, 9)), [[EXPECTED, [8, 9]]], LIMIT_S)[0] is Outcome.RIGHT
    assert judge(answer(200, tokens(5, 9)), [[EXPECTED, [8, 9]]], LIMIT_S)[0] is Outcome.WRONG


def test_an_answer_of_two_versions_begins_with_the_first() -> None:
    """What was computed from blocks of other weights is wrong from the first token on."""
    both = [[EXPECTED, [8, 9, 7]]]
    assert judge(answer(200, tokens(5, 9, 9)), both, LIMIT_S, True)[0] is Outcome.MIXED
    assert judge(answer(200, tokens(6, 6, 7)), both, LIMIT_S, True)[0] is Outcome.WRONG
    assert judge(answer(200, tokens(5, 9, 9)), both, LIMIT_S)[0] is Outcome.WRONG


def test_a_typed_error_is_told_by_its_reason() -> None:
    assert judge(answer(500, typed("peer_down")), [[EXPECTED]], LIMIT_S)[1] == "peer_down"


REQUESTS = [
    Request(0.0, 1.0, Outcome.RIGHT),
    Request(1.0, 2.0, Outcome.RIGHT, retries=("502 nobody there",)),
    Request(2.0, 3.0, Outcome.TYPED_ERROR, "peer_down"),
    Request(3.0, 4.0, Outcome.TYPED_ERROR, "peer_down"),
    Request(4.0, 5.0, Outcome.WRONG, "tokens [1]"),
    Request(5.0, 35.0, Outcome.HUNG, "no answer in 30 s"),
    Request(6.0, 7.0, Outcome.OTHER, "refused"),
    Request(12.0, 13.0, Outcome.RIGHT),
]


def test_everything_is_counted_once() -> None:
    run = a_run(REQUESTS)
    counts = run.counts()
    assert counts["requests"] == len(REQUESTS) == sum(counts[outcome.value] for outcome in Outcome)
    assert [counts[outcome.value] for outcome in Outcome] == [3, 2, 0, 0, 0, 0, 0, 1, 1, 1]
    assert run.said(Outcome.TYPED_ERROR) == {"peer_down": 2}
    assert run.said(Outcome.OTHER) == {"refused": 1}
    assert run.retried() == {"502 nobody there": 1}


def test_recovery_is_the_first_right_answer_to_a_later_request() -> None:
    assert recovery_s(REQUESTS, 0.5) == 1.5
    assert recovery_s(REQUESTS, 6.5) == 6.5, "the others were sent before the end, or are not right"
    assert recovery_s(REQUESTS, 20.0) is None


def a_run(requests: list[Request], held: dict[str, dict[str, int]] | None = None, restarts: tuple[str, ...] = (),
          problems: tuple[str, ...] = (), loaded: int = 0) -> Run:
    episode = Episode("reads fail", "fail", "D", 1.0, 2.0)
    faults = [Fault(episode, 1.0, 2.0), Fault(episode, 5.0, 5.0, "P1 was not up")]
    return Run("chaos", "kvferry", 3, 60.0, requests, faults, {"recvmsg fail": 4}, held or {}, list(restarts), list(problems),
               Counter(kvferry_loaded_blocks_total=loaded))


def test_json_has_what_it_must() -> None:
    found = report.as_json(a_run(REQUESTS, held={"D": {"blocks": 2}}, restarts=("D at 9 s: it had ended",)))
    assert {name: found[name] for name in ("requests", "right", "typed_errors", "wrong", "hung", "other_errors",
                                           "leaked", "restarts", "injected_total", "seed", "connector", "good")} == {
        "requests": 8, "right": 3, "typed_errors": 2, "wrong": 1, "hung": 1, "other_errors": 1,
        "leaked": 2, "restarts": 1, "injected_total": 4, "seed": 3, "connector": "kvferry", "good": False}
    assert found["faults"] == [{"title": "reads fail", "engine": "D", "begin_s": 1.0, "end_s": 2.0, "recovery_s": 11.0}]
    assert found["skipped"] == ["reads fail: P1 was not up"]
    assert len(found["not_right"]) == 5


RIGHT = Request(0.0, 1.0, Outcome.RIGHT)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_what_is_wrong_or_hangs_or_is_no_answer_spoils_a_run(outcome: Outcome) -> None:
    assert a_run([RIGHT, Request(0.0, 1.0, outcome, "…")]).good == (
        outcome not in (Outcome.WRONG, Outcome.HUNG, Outcome.OTHER))


def test_leaks_and_restarts_spoil_a_run() -> None:
    assert a_run([RIGHT]).good
    assert not a_run([RIGHT], held={"P1": {"kvferry_leases": 1}}).good
    assert not a_run([RIGHT], restarts=("D at 9 s: it had ended",)).good
    assert not a_run([RIGHT], problems=("P1 did not come back",)).good


def test_a_run_without_right_answers_shows_nothing() -> None:
    assert not a_run([]).good


def test_half_of_what_can_be_loaded_must_be() -> None:
    requests = [replace(RIGHT, blocks=6), Request(0.0, 1.0, Outcome.LEFT, blocks=4)]
    assert a_run(requests, loaded=5).good
    assert not a_run(requests, loaded=4).good


def test_the_report_names_what_happened() -> None:
    text = report.text(a_run(REQUESTS))
    for part in ("reads fail", "recvmsg", "peer_down", "refused", "wrong at 4.0-5.0 s", "hung at 5.0-35.0 s",
                 "P1 was not up"):
        assert part in text


@pytest.mark.parametrize("mix", [mixes.CHAOS, mixes.SOAK, mixes.PLAIN_SOAK])
def test_a_plan_follows_from_its_seed(mix: mixes.Mix) -> None:
    assert plan.plan(mix.faults, 1, 600.0) == plan.plan(mix.faults, 1, 600.0)
    assert plan.plan(mix.faults, 1, 600.0) != plan.plan(mix.faults, 2, 600.0)


@pytest.mark.parametrize("mix", [mixes.CHAOS, mixes.SOAK])
def test_a_plan_has_every_fault_one_at_a_time_and_calm_at_the_end(mix: mixes.Mix) -> None:
    episodes = plan.plan(mix.faults, 5, 600.0)
    assert {episode.title for episode in episodes} == {draft.title for draft in mix.faults}
    assert all(first.end_s + plan.CALM_S[0] <= then.begin_s for first, then in zip(episodes, episodes[1:]))
    assert episodes[-1].end_s <= 600.0 - plan.LEAD_OUT_S
    assert any(later.begin_s - first.end_s > plan.CALM_WINDOW_S[0] for first, later in zip(episodes, episodes[1:]))


def test_other_connectors_get_no_other_weights_and_no_adapters() -> None:
    mix = mixes.mix_named("soak", "nixl")
    assert plan.NEW_WEIGHTS not in mix.faults and mix.models == ("model",) and len(mix.versions) == 1
    assert mixes.mix_named("soak", "kvferry").faults[:len(mix.faults)] == mix.faults


def test_every_prompt_is_asked_of_every_adapter() -> None:
    questions = make_questions(mixes.SOAK.models, 3)
    assert len({(tuple(question.prompt), question.model) for question in questions}) == len(questions)
    assert len({tuple(question.prompt) for question in questions}) * len(mixes.SOAK.models) == len(questions)


def test_between_two_weights_an_answer_may_be_of_either(tmp_path: Path) -> None:
    cluster = Cluster(mixes.SOAK, "kvferry", 1, tmp_path, tmp_path)
    old, new = mixes.SOAK.versions
    cluster.served += [(10.0, {old, new}), (12.0, {new})]
    assert cluster.versions_between(1.0, 9.0) == {old}
    assert cluster.versions_between(9.0, 13.0) == cluster.versions_between(11.0, 11.5) == {old, new}
    assert cluster.versions_between(12.5, 13.0) == {new}


@pytest.mark.parametrize("status, outcome", [(503, Outcome.PAUSED), (500, Outcome.OTHER)])
def test_a_refusal_is_good_only_while_the_engine_is_paused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int,
                                                           outcome: Outcome) -> None:
    cluster = Cluster(mixes.SOAK, "kvferry", 1, tmp_path, tmp_path)
    question = make_questions(mixes.SOAK.models, 1)[0]
    question.right.update(dict.fromkeys(mixes.SOAK.versions, EXPECTED))
    client = Handed(cluster, [question])
    seen: dict[str, Outcome] = {}

    def judged(engine: str) -> Outcome:
        return client._judged(cluster.now_s(), engine, answer(status, {"error": {"message": "paused"}}), Ask((question,)), "").outcome

    for name, engine in cluster.by_name.items():
        monkeypatch.setattr(engine, "update_weights", lambda *_, name=name: seen.update({name: judged(name)}))
    cluster.give_weights(extended=False)
    assert seen == dict.fromkeys(cluster.by_name, outcome)
    assert {judged(name) for name in cluster.by_name} == {Outcome.OTHER}


def test_the_control_file_is_the_injectors() -> None:
    header = (ROOT / "tools/chaos/control.h").read_text()
    names = re.findall(r"^  CHAOS_(\w+),", header, re.M)
    assert [name.lower() for name in names] == [*CALLS, *KINDS]
    assert int(re.search(r"CHAOS_VERSION (\d+)u", header)[1]) == VERSION
    assert FILE_BYTES == 64 + len(CALLS) * 16 * len(KINDS)


def test_files_of_dead_engines_are_removed(tmp_path: Path) -> None:
    dead, living, other = (tmp_path / name for name in ("1-a", "2-b", "3-c"))
    dead.mkdir()
    living.mkdir()
    for path in (dead / "why", other):
        path.write_bytes(b"")
    held = os.open(living, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    remove_error_files(tmp_path)
    os.close(held)
    assert not dead.exists() and living.exists() and other.exists()


def test_what_a_killed_program_shared_is_removed(tmp_path: Path) -> None:
    program = "import multiprocessing, time; lock = multiprocessing.get_context('spawn').Lock(); time.sleep(60)"
    killed = Process("killed", [sys.executable, "-c", program], dict(os.environ), tmp_path / "log")
    killed.start()
    try:
        wait_until("waiting for its semaphore", lambda: bool(shared_memory_of(killed.pid)), 20.0)
        shared = shared_memory_of(killed.pid)
    finally:
        killed.kill()
    assert not any(path.exists() for path in shared)
