"""The official client, unconfigured, in front of two prefill engines of which one dies: it gets its tokens."""

from __future__ import annotations

from typing import Any

import pytest
from pd import client
from pd.engine import Engine
from pd.progress import wait_until
from pd.rig import Rig
from proxy import Proxy

openai = pytest.importorskip("openai")


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_retries_after_the_time_that_it_is_told(fail_rig: Rig, stream: bool) -> None:
    rig = fail_rig
    rig.warm_up()
    wait_until("loads from the other engine", lambda: rig.decode(
        rig.question, client.prefill(rig.stack.decode.url, rig.question)).ok, 30.0, every_s=0.5)
    expected = rig.expected(rig.question)
    rig.settle()
    dying, living = rig.producer, rig.stack.decode  # which is an engine of both roles

    def die(producer: Engine) -> None:
        if producer is dying:
            dying.process.kill()

    try:
        with Proxy([dying, living], rig.decoder, die) as proxy:
            tokens = ask(proxy.url, rig, stream)
    finally:
        rig.stack.restart(dying)
    assert tokens == expected
    assert [status for status, _, _ in proxy.replies] == [500, 200]
    (_, _, answered), (_, came_again, _) = proxy.replies
    assert 0.45 < came_again - answered < 3.0
    rig.stack.wait_idle()


def ask(url: str, rig: Rig, stream: bool) -> list[int]:
    asked: dict[str, Any] = {"model": "model", "prompt": rig.question, "max_tokens": rig.max_tokens, "temperature": 0.0,
                             "extra_body": {"ignore_eos": True, "return_token_ids": True}}
    completions = openai.OpenAI(base_url=url + "/v1", api_key="none").completions
    if not stream:
        return completions.create(**asked).choices[0].token_ids
    chunks = completions.create(stream=True, **asked)
    return [token for chunk in chunks for choice in chunk.choices for token in choice.token_ids or ()]
