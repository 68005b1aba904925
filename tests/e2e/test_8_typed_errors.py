"""Policy fail, as the client sees it: status, reason, when to retry; and no byte of a stream before that."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pd import client, faults, web
from pd.client import Ticket
from pd.rig import Rig

Body = dict[str, Any]
STATUS = {"D-fail": 500, "D-servers": 503}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
WORDS = " ".join(f"word{number}" for number in range(60))
LIMIT_S = 30.0


def body_for(rig: Rig, path: str, **fields: Any) -> Body:
    body = {"model": "model", "max_tokens": rig.max_tokens, "temperature": 0.0, "ignore_eos": True, **fields}
    if path == CHAT:
        return {**body, "messages": [{"role": "user", "content": WORDS}]}
    return {**body, "prompt": rig.question}


def ticket_for(rig: Rig, path: str) -> Ticket:
    asked = body_for(rig, path, kv_transfer_params=client.ASK_FOR_TICKET) | {"max_tokens": 1}
    answer = web.post_json(rig.producer.url + path, asked, LIMIT_S)
    assert answer.status == 200, answer
    return answer.body["kv_transfer_params"]


def ask(rig: Rig, path: str, ticket: Ticket, **fields: Any) -> web.Answer:
    body = body_for(rig, path, kv_transfer_params=ticket, **fields)
    return web.post_json(rig.decoder.url + path, body, LIMIT_S)


def expect_typed(answer: web.Answer, status: int, reason: str, peer: str | None) -> None:
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/json"
    assert 500 <= int(answer.headers["retry-after-ms"]) <= 1500
    assert int(answer.headers["retry-after"]) in (1, 2)
    error = answer.body["error"]
    assert len(error.pop("message")) > 10
    assert error.pop("peer") == peer
    assert error == {"type": "kv_transfer_error", "reason": reason, "retryable": True, "code": status}


EVERY_WAY = [pytest.param(path, stream, id=f"{path.rsplit('v1/')[-1]}{' stream' if stream else ''}")
             for path in (COMPLETIONS, CHAT) for stream in (False, True)]


@pytest.mark.parametrize("decoder", STATUS)
@pytest.mark.parametrize("path, stream", EVERY_WAY)
def test_a_refused_ticket(rig_for: Callable[[str], Rig], decoder: str, path: str, stream: bool) -> None:
    rig = rig_for(decoder)
    rig.settle()
    answer = ask(rig, path, faults.alter(ticket_for(rig, path)), stream=stream)
    expect_typed(answer, STATUS[decoder], "bad_ticket", None)


@pytest.mark.parametrize("decoder", STATUS)
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
            expect_typed(ask(rig, path, ticket, stream=stream), STATUS[decoder], "lease_expired", peer)
    assert rig.probe().ok
    rig.settle()


@pytest.mark.parametrize("decoder", STATUS)
@pytest.mark.parametrize("path, stream", EVERY_WAY)
def test_a_good_request(rig_for: Callable[[str], Rig], decoder: str, path: str, stream: bool) -> None:
    rig = rig_for(decoder)
    rig.settle()
    answer = ask(rig, path, ticket_for(rig, path), stream=stream)
    assert answer.status == 200
    if stream:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [event.removeprefix("data: ") for event in answer.body["text"].strip().split("\n\n")]
        assert events[-1] == "[DONE]" and len(events) > 5
        choices = [json.loads(event)["choices"][0] for event in events[:-1]]
        assert choices[-1]["finish_reason"] == "length"
        assert path == COMPLETIONS or choices[0]["delta"] == {"role": "assistant", "content": ""}
    else:
        assert answer.body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("decoder", STATUS)
def test_other_errors_stay_as_they_are(rig_for: Callable[[str], Rig], decoder: str) -> None:
    rig = rig_for(decoder)
    for fields, status in (({"model": "another"}, 404), ({"max_tokens": -1}, 400)):
        answer = web.post_json(rig.decoder.url + COMPLETIONS, body_for(rig, COMPLETIONS) | fields, LIMIT_S)
        assert answer.status == status and answer.body["error"]["type"] != "kv_transfer_error"
