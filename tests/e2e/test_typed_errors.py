"""Policy fail, as the client sees it: status, reason, when to retry; and no byte of a stream before that."""

from __future__ import annotations

import json
from collections.abc import Callable
import pytest
from pd import faults, web
from pd.rig import Rig

import typed
from typed import CHAT, COMPLETIONS, LIMIT_S, MESSAGES, RESPONSES, ask, body_for, ticket_for

STATUS = {"D-fail": 500, "D-servers": 503}
OF_MESSAGES = {500: "api_error", 503: "overloaded_error"}

EVERY_WAY = [pytest.param(path, stream, id=f"{path.rsplit('v1/')[-1]}{' stream' if stream else ''}")
             for path in (COMPLETIONS, CHAT) for stream in (False, True)]


@pytest.fixture(params=["D-fail", pytest.param("D-servers", marks=pytest.mark.deep)])
def decoder(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def failing(rig_for: Callable[[str], Rig], decoder: str) -> Rig:
    rig = rig_for(decoder)
    rig.settle()
    return rig


@pytest.mark.parametrize("path, stream", EVERY_WAY)
def test_a_refused_ticket(failing: Rig, decoder: str, path: str, stream: bool) -> None:
    answer = ask(failing, path, faults.alter(ticket_for(failing, path)), stream=stream)
    typed.expect(answer, STATUS[decoder], "bad_ticket", None)


def test_a_refused_ticket_in_the_other_apis(failing: Rig, decoder: str) -> None:
    ticket = faults.alter(ticket_for(failing, COMPLETIONS))
    for path, error_type in ((RESPONSES, "kv_transfer_error"), (MESSAGES, OF_MESSAGES[STATUS[decoder]])):
        for stream in (False, True):
            answer = ask(failing, path, ticket, stream=stream)
            typed.expect(answer, STATUS[decoder], "bad_ticket", None, error_type)
            assert answer.body.get("type") == ("error" if path == MESSAGES else None)


def test_an_expired_lease(rig_for: Callable[[str], Rig], decoder: str) -> None:
    """Found out by a load, whose verdict comes long after the request's arrival."""
    rig = rig_for(decoder)
    rig.warm_up()
    rig.settle()
    peer = f"127.0.0.1:{rig.producer.connector_port}"
    for path in (COMPLETIONS, CHAT):  # all four at once would be more than P's pool may have under lease
        tickets = [ticket_for(rig, path) for _ in range(2)]
        rig.outlast_lease()
        for ticket, stream in zip(tickets, (False, True)):
            typed.expect(ask(rig, path, ticket, stream=stream), STATUS[decoder], "lease_expired", peer)
    assert rig.probe().ok
    rig.settle()


@pytest.mark.parametrize("path, stream", EVERY_WAY)
def test_a_good_request(failing: Rig, path: str, stream: bool) -> None:
    answer = ask(failing, path, ticket_for(failing, path), stream=stream)
    assert answer.status == 200
    if stream:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [event.removeprefix("data: ") for event in answer.body["text"].strip().split("\n\n")]
        assert events[-1] == "[DONE]" and len(events) > 1  # vLLM puts tokens together where it is slower than they come
        choices = [json.loads(event)["choices"][0] for event in events[:-1]]
        assert choices[-1]["finish_reason"] == "length"
        assert path == COMPLETIONS or choices[0]["delta"] == {"role": "assistant", "content": ""}
    else:
        assert answer.body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("path, first, last", [
    (RESPONSES, "response.created", ["response.completed", "response.incomplete"]),
    (MESSAGES, "message_start", ["message_stop"])], ids=["responses", "messages"])
def test_a_good_stream_of_events(failing: Rig, path: str, first: str, last: list[str]) -> None:
    answer = ask(failing, path, ticket_for(failing, path), stream=True)
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream")
    events = [event.split("\n")[0].removeprefix("event: ") for event in answer.body["text"].strip().split("\n\n")]
    assert events[0] == first and events[-1] in last and len(events) > 4


def test_other_errors_stay_as_they_are(failing: Rig) -> None:
    for fields, status in (({"model": "another"}, 404), ({"max_tokens": -1}, 400)):
        answer = web.post_json(failing.decoder.url + COMPLETIONS, body_for(failing, COMPLETIONS) | fields, LIMIT_S)
        assert answer.status == status and answer.body["error"]["type"] != "kv_transfer_error"


def test_the_plugin_gives_the_middleware_to_both_sides(rig: Rig) -> None:
    rig.warm_up()
    assert [web.get_status(engine.url + "/kvferry/ready", LIMIT_S) for engine in (rig.producer, rig.decoder)] == [200, 200]


def test_options_of_one_request_through_the_router(rig: Rig) -> None:
    """It overwrites a client's kv_transfer_params."""
    assert rig.stack.router is not None
    rig.settle()

    def routed(options: str) -> web.Answer:
        body = body_for(rig, COMPLETIONS, vllm_xargs={"kvferry_options": options},
                        kv_transfer_params={"kvferry_options": {"policy": "no such one"}})
        return web.post_json(rig.stack.router.url + COMPLETIONS, body, LIMIT_S)

    assert routed('{"policy": "fail", "load_timeout_ms": 9000}').status == 200
    refused = routed('{"policy": "maybe"}')
    assert refused.status == 400 and refused.body["error"]["reason"] == "invalid", refused
    assert refused.body["error"]["message"].startswith("kvferry_options: policy")
