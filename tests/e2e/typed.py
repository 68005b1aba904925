"""Requests with a ticket as a client sends them, and the error that it is told."""

from __future__ import annotations

from typing import Any

from pd import client, web
from pd.client import Ticket
from pd.rig import Rig

Body = dict[str, Any]
COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
TOKENS = {COMPLETIONS: "max_tokens", CHAT: "max_tokens", RESPONSES: "max_output_tokens", MESSAGES: "max_tokens"}
"""How a body bounds its answer."""
WORDS = " ".join(f"word{number}" for number in range(60))
LIMIT_S = 30.0


def body_for(rig: Rig, path: str, **fields: Any) -> Body:
    body = {"model": "model", TOKENS[path]: rig.max_tokens, "temperature": 0.0, **fields}
    if path == RESPONSES:
        return {**body, "input": WORDS}
    if path == MESSAGES:
        return {**body, "messages": [{"role": "user", "content": WORDS}]}
    if path == CHAT:
        return {**body, "messages": [{"role": "user", "content": WORDS}], "ignore_eos": True}
    return {**body, "prompt": rig.question, "ignore_eos": True}


def ticket_for(rig: Rig, path: str) -> Ticket:
    asked = body_for(rig, path, kv_transfer_params=client.ASK_FOR_TICKET) | {TOKENS[path]: 1}
    answer = web.post_json(rig.producer.url + path, asked, LIMIT_S)
    assert answer.status == 200, answer
    return answer.body["kv_transfer_params"]


def ask(rig: Rig, path: str, ticket: Ticket, **fields: Any) -> web.Answer:
    body = body_for(rig, path, kv_transfer_params=ticket, **fields)
    return web.post_json(rig.decoder.url + path, body, LIMIT_S)


def expect(answer: web.Answer, status: int, reason: str, peer: str | None,
           error_type: str = "kv_transfer_error") -> None:
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/json"
    assert 500 <= int(answer.headers["retry-after-ms"]) <= 1500
    assert int(answer.headers["retry-after"]) in (1, 2)
    error = answer.body["error"]
    assert len(error.pop("message")) > 10
    assert error.pop("peer") == peer
    assert error == {"type": error_type, "reason": reason, "retryable": True, "code": status}
