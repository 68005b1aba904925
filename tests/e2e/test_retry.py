"""Two prefill engines, one of which dies with a ticket out: the router passes D's error on, and the official client, as
it comes, waits as long as it is told, asks again, and gets its tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from openai import OpenAI
from pd.engine import Engine, Router
from pd.front import Front, Passed
from pd.progress import wait_until
from pd.rig import Rig
from pd.stack import START_LIMIT_S

pytestmark = pytest.mark.deep

MODEL = "model"


@pytest.fixture
def revived(fail_rig: Rig) -> Iterator[None]:
    yield
    fail_rig.stack.restart(fail_rig.producer)


@pytest.fixture
def router_for(fail_rig: Rig) -> Iterator[Callable[[list[str]], Router]]:
    """A router for these prefill engines, in turn, and the decode engine that fails."""
    with ExitStack() as routers:
        def make(prefill_urls: list[str]) -> Router:
            router = Router(prefill_urls, fail_rig.decoder.url, fail_rig.stack.logs, name="router-2",
                            args=("--prefill-policy", "round_robin"))
            routers.callback(router.stop)
            router.start()
            wait_until("waiting for router-2", router.healthy, START_LIMIT_S)
            return router
        yield make


def ask(url: str, rig: Rig, stream: bool) -> str:
    """An unconfigured client: it retries twice, by its own rules."""
    client = OpenAI(base_url=url + "/v1", api_key="none")
    answer = client.completions.create(model=MODEL, prompt=rig.question, max_tokens=rig.max_tokens, temperature=0.0,
                                       stream=stream, extra_body={"ignore_eos": True})
    return "".join(part.choices[0].text for part in answer) if stream else answer.choices[0].text


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_the_client_tries_again(fail_rig: Rig, other_prefill: Engine, revived: None,
                                router_for: Callable[[list[str]], Router], stream: bool) -> None:
    rig = fail_rig
    rig.warm_up()
    rig.settle()
    expected = ask(rig.decoder.url, rig, stream=False)

    def kill_producer(passed: Passed) -> None:
        if passed.status == 200:
            rig.producer.process.kill()

    with Front(rig.producer.url, kill_producer) as dying:
        router = router_for([dying.url, other_prefill.url])
        with Front(router.url) as watched:
            assert ask(watched.url, rig, stream) == expected
        tickets = [passed for passed in dying.posts if passed.status == 200]
    assert len(tickets) == 1, "the first prefill engine was not asked, or did not die"
    first, *others = watched.posts
    assert first.status == 500 and b'"kv_transfer_error"' in first.body, first
    assert others and others[-1].status == 200
    assert others[0].asked_s - first.answered_s >= int(first.headers["retry-after-ms"]) / 1000
