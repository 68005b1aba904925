"""A client of vLLM's router."""

from __future__ import annotations

import random
import time

from pd import client, web

from .clients import Outcome, Question, Request, judge
from .cluster import Cluster

RETRY_PAUSE_S = 0.3


class Routed:
    def __init__(self, cluster: Cluster) -> None:
        assert cluster.router is not None
        self._url, self._mix, self._now_s = cluster.router.url + "/v1/completions", cluster.mix, cluster.now_s

    def ask(self, question: Question, rng: random.Random) -> list[Request]:
        """An answer that says nothing of a transfer (nobody there) comes before any ticket: as any client of a router,
        it tries again until its time is up, and the router picks another prefill engine, or the same."""
        body = client.completion_body(question.prompt, self._mix.answer_tokens, model=question.model)
        begin_s = self._now_s()
        retries: list[str] = []
        while True:
            answer = web.post_json(self._url, body, self._mix.limit_s)
            outcome, detail = judge(answer, [question.right.values()], self._mix.limit_s)
            now_s = self._now_s()
            if outcome is not Outcome.OTHER or now_s - begin_s > self._mix.limit_s:
                return [Request(begin_s, now_s, outcome, detail, tuple(retries))]
            retries.append(detail)
            time.sleep(RETRY_PAUSE_S * rng.uniform(1.0, 2.0))
