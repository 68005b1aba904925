"""Conversations through vLLM's example disagg_proxy_multiturn.py, which takes what D has computed back to P where it can."""

from __future__ import annotations

from typing import Any

import pytest
from pd import metrics, web
from pd.connector import kvferry
from upstream import EXAMPLES

from pair import Pair

PAIR = Pair("upstream-multiturn", kvferry(), EXAMPLES / "disagg_proxy_multiturn.py", "/health")
TURNS = 3
LIMIT_S = 60.0
LOADED = "kvferry_loaded_bytes_total"


def ask(url: str, messages: list[dict[str, str]], **fields: Any) -> str:
    body = {"model": "model", "messages": messages, "max_tokens": 16, "temperature": 0.0, **fields}
    answer = web.post_json(f"{url}/v1/chat/completions", body, LIMIT_S)
    assert answer.status == 200, answer
    return str(answer.body["choices"][0]["message"]["content"])


@pytest.mark.parametrize("subject", ["rivers", "numbers"])
def test_answers_are_those_of_one_engine(pair: Pair, subject: str) -> None:
    messages: list[dict[str, str]] = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"Question {turn}: what do you know about {subject}?"})
        before = metrics.total(pair.stack.decode.samples(), LOADED)
        text = ask(pair.proxy.url, messages, conversation_id=subject)
        assert metrics.total(pair.stack.decode.samples(), LOADED) > before
        assert text == ask(pair.stack.prefill.url, messages)
        messages.append({"role": "assistant", "content": text})


def test_nothing_goes_back_to_p(pair: Pair) -> None:
    """A limit (docs/limits.md): D gives the proxy nothing to take to P with the next turn."""
    messages = [{"role": "user", "content": "What do you know about trees?"}]
    messages.append({"role": "assistant", "content": ask(pair.proxy.url, messages, conversation_id="trees")})
    messages.append({"role": "user", "content": "And about leaves?"})
    ask(pair.proxy.url, messages, conversation_id="trees")
    log = pair.proxy.process.log.read_text()
    assert log.count("conv=trees: cache MISS") == 2 and "conv=trees: cache HIT" not in log
