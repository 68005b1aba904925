"""What a client and a proxy send: the two-step request by hand, or one request through the router."""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import web

Ticket = dict[str, Any]
Prompt = list[int]
ASK_FOR_TICKET: Ticket = {
    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
    "remote_block_ids": None, "remote_host": None, "remote_port": None,
}


WITH_LOGPROBS = {"logprobs": 2, "return_tokens_as_token_ids": True}
"""Of the token that came and of the two best ones: by their numbers, as several may have the same text."""


@dataclass(frozen=True, repr=False)
class Reply:
    status: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    ticket: Ticket | None = None
    seconds: float = 0.0
    error: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    """Of an error of kvferry's."""
    logprobs: list[float] = field(default_factory=list)
    """Of the tokens, where they were asked for (WITH_LOGPROBS)."""
    leads: list[float] = field(default_factory=list)
    """By how much the best candidate for each token was better than the second."""

    @property
    def ok(self) -> bool:
        return self.status == 200

    def __repr__(self) -> str:
        return f"Reply({self.in_short(200)}, {len(self.tokens)} tokens, {self.seconds:.1f} s)"

    def in_short(self, width: int = 28) -> str:
        """The status and the first words, or the reason why there are none."""
        if self.status == web.NO_ANSWER:
            return self.error
        words = " ".join((self.text if self.ok else self.error).split())
        return f"{self.status} {words[:width]}" + ("…" if len(words) > width else "")


def completion_body(prompt: Prompt | str, max_tokens: int, ticket: Ticket | None = None,
                    model: str = "model") -> dict[str, Any]:
    """`model` may name an adapter."""
    body: dict[str, Any] = {
        "model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0,
        "ignore_eos": True, "return_token_ids": True,
    }
    return body if ticket is None else {**body, "kv_transfer_params": ticket}


def read_reply(answer: web.Answer) -> Reply:
    if answer.status != 200:
        return Reply(answer.status, seconds=answer.seconds, headers=answer.headers,
                     error=answer.error or error_text(answer.body), reason=error_reason(answer.body))
    choice = answer.body["choices"][0]
    logprobs = choice.get("logprobs") or {"token_logprobs": [], "top_logprobs": []}
    return Reply(200, choice["text"], choice.get("token_ids") or [], answer.body.get("kv_transfer_params"),
                 answer.seconds, headers=answer.headers, logprobs=logprobs["token_logprobs"],
                 leads=[lead(candidates) for candidates in logprobs["top_logprobs"]])


def lead(candidates: dict[str, float]) -> float:
    best, second, *_ = sorted(candidates.values(), reverse=True)
    return best - second


def error_text(body: dict[str, Any]) -> str:
    error = body.get("error", body)
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def error_reason(body: dict[str, Any]) -> str:
    error = body.get("error")
    return str(error.get("reason", "")) if isinstance(error, dict) else ""


def complete(url: str, prompt: Prompt | str, max_tokens: int, ticket: Ticket | None = None,
             timeout_s: float = 120.0, fields: Mapping[str, Any] | None = None) -> Reply:
    body = completion_body(prompt, max_tokens, ticket) | (fields or {})
    return read_reply(web.post_json(url + "/v1/completions", body, timeout_s))


def prefill(url: str, prompt: Prompt, options: dict[str, Any] | None = None, timeout_s: float = 120.0) -> Ticket:
    """The first step: P computes the prompt and answers with the ticket for D. `options` are the request's own."""
    ask = {**ASK_FOR_TICKET, "kvferry_options": options} if options else ASK_FOR_TICKET
    reply = complete(url, prompt, 1, ask, timeout_s)
    if not reply.ok or not reply.ticket:
        raise RuntimeError(f"P gave no ticket: {reply.in_short(200)}")
    return reply.ticket


def ask(url: str, prompt: Prompt, max_tokens: int, ticket: Ticket | None = None,
        stream: bool = False) -> http.client.HTTPConnection:
    """Sends a request whose client may leave: by closing the connection."""
    body = completion_body(prompt, max_tokens, ticket)
    return web.post(url + "/v1/completions", {**body, "stream": stream})


def tokenize(url: str, text: str) -> Prompt:
    answer = web.post_json(url + "/tokenize", {"model": "model", "prompt": text}, timeout_s=60.0)
    if answer.status != 200:
        raise RuntimeError(f"tokenize: {answer.error or answer.body}")
    return list(answer.body["tokens"])
