"""Clients that do a router's two steps themselves, and not always as they should."""

from __future__ import annotations

import http.client
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pd import client, web
from pd.client import ASK_FOR_TICKET, Ticket
from pd.engine import BLOCK_TOKENS

from .clients import Outcome, Question, Request, judge
from .cluster import Cluster
from .mixes import LEASE_S
from .plan import CONSUMER, PRODUCERS

UNAVAILABLE = 503
ABSENT_S = 0.5
"""Between two looks for a D: prompts for nobody would keep a D that starts from its processors."""
STAYS_S = 1.0
"""At most, of one that hangs up: in prefill, in the load, or while D decodes."""


class Habit(Enum):
    WAITS = "waits for its answer"
    LEAVES = "hangs up on D"
    LEAVES_P = "hangs up on P"
    TWICE = "uses its ticket twice at once"
    AGAIN = "uses its ticket again, later"
    OTHER_PROMPT = "uses its ticket with another prompt, too"
    LATE = "comes after its lease has run out"
    NEVER = "never comes with its ticket"
    SEVERAL = "asks for several answers (n) with its ticket"
    LISTED = "asks for a list of prompts with its ticket"
    REFUSED = "uses its ticket for what vLLM refuses"


SHARES = {Habit.WAITS: 45, Habit.LEAVES: 10, Habit.LEAVES_P: 4, Habit.TWICE: 6, Habit.AGAIN: 6, Habit.OTHER_PROMPT: 6,
          Habit.LATE: 5, Habit.NEVER: 3, Habit.SEVERAL: 6, Habit.LISTED: 5, Habit.REFUSED: 4}
N_MAX = 8
LISTED_MAX = 3
"""Prompts beside its own."""
ALL_ALIKE = {"temperature": 1.0, "top_k": 1}
"""With `n` vLLM wants a temperature."""
REFUSED_FIELDS = ({"model": "nobody's"}, {"max_tokens": 1 << 20}, {"temperature": -1.0})
REFUSALS = range(400, 500)


@dataclass(frozen=True)
class Lent:
    """A ticket, and of whom."""

    ticket: Ticket
    producer: str


@dataclass(frozen=True)
class Ask:
    """What is asked of an engine: each prompt `n` times."""

    questions: tuple[Question, ...]
    n: int = 1

    def body(self, max_tokens: int, ticket: Ticket | None) -> dict[str, Any]:
        first = self.questions[0]
        prompt = first.prompt if len(self.questions) == 1 else [one.prompt for one in self.questions]
        several = {"n": self.n, **ALL_ALIKE} if self.n > 1 else {}
        return {**client.completion_body(prompt, max_tokens, ticket, first.model), **several}

    def right(self, versions: set[str]) -> list[list[list[int]]]:
        return [[one.right[version] for version in versions] for one in self.questions for _ in range(self.n)]


class Handed:
    def __init__(self, cluster: Cluster, known: list[Question]) -> None:
        self._cluster, self._mix, self._now_s, self._known = cluster, cluster.mix, cluster.now_s, known
        self._seconds = ThreadPoolExecutor(cluster.mix.threads)

    def ask(self, question: Question, rng: random.Random) -> list[Request]:
        if CONSUMER not in self._cluster.serving:
            time.sleep(ABSENT_S)
            return []
        habit = rng.choices(list(SHARES), list(SHARES.values()))[0]
        if habit is Habit.LEAVES_P:
            return self._leave(rng.choice(PRODUCERS), question, ASK_FOR_TICKET, habit, rng)
        ask = self._ask_for(habit, question, rng)
        asked, lent = self._prefill(rng.choice(PRODUCERS), ask)
        if lent is None or habit is Habit.NEVER:
            # as a router: what comes without a ticket is D's to compute
            return asked if habit is Habit.NEVER else asked + self._decode(ask, None, Habit.WAITS)
        if habit is Habit.REFUSED:
            return asked + self._be_refused(ask, lent, rng)
        if habit is Habit.LEAVES:
            return asked + self._leave(CONSUMER, question, lent.ticket, habit, rng)
        if habit is Habit.LATE:
            time.sleep(LEASE_S * rng.uniform(1.0, 2.0))
        second = None
        if habit is Habit.TWICE:
            second = self._seconds.submit(self._decode, ask, lent, habit, True)
        elif habit is Habit.OTHER_PROMPT:
            second = self._seconds.submit(self._decode, Ask((rng.choice(self._others(question)),)), lent, habit)
        asked += self._decode(ask, lent, habit, habit is not Habit.LATE)
        if habit is Habit.AGAIN:
            asked += self._decode(ask, lent, habit, True)
        return asked + (second.result() if second else [])

    def _others(self, question: Question) -> list[Question]:
        return [other for other in self._known if other.prompt != question.prompt]

    def _ask_for(self, habit: Habit, question: Question, rng: random.Random) -> Ask:
        if habit is Habit.SEVERAL:
            return Ask((question,), rng.randint(2, N_MAX))
        if habit is not Habit.LISTED:
            return Ask((question,))
        same_model = [other for other in self._others(question) if other.model == question.model]
        return Ask((question, *rng.sample(same_model, min(len(same_model), rng.randint(1, LISTED_MAX)))))

    def _prefill(self, producer: str, ask: Ask) -> tuple[list[Request], Lent | None]:
        """What there is to say of it if there is no answer."""
        begin_s = self._now_s()
        if producer not in self._cluster.serving:
            return [], None
        answer = self._post(producer, ask.body(1, ASK_FOR_TICKET))
        if answer.status == 200:
            ticket = answer.body.get("kv_transfer_params")
            return [], Lent(ticket, producer) if ticket else None
        return [self._judged(begin_s, producer, answer, ask, "asks P")], None

    def _decode(self, ask: Ask, lent: Lent | None, habit: Habit, may_load: bool = False) -> list[Request]:
        begin_s = self._now_s()
        if CONSUMER not in self._cluster.serving:
            return []
        answer = self._post(CONSUMER, ask.body(self._mix.answer_tokens, lent.ticket if lent else None))
        return [self._judged(begin_s, CONSUMER, answer, ask, habit.value, lent, may_load)]

    def _be_refused(self, ask: Ask, lent: Lent, rng: random.Random) -> list[Request]:
        begin_s = self._now_s()
        if CONSUMER not in self._cluster.serving:
            return []
        answer = self._post(CONSUMER, {**ask.body(self._mix.answer_tokens, lent.ticket), **rng.choice(REFUSED_FIELDS)})
        if answer.status in REFUSALS:
            return [Request(begin_s, self._now_s(), Outcome.REFUSED, habit=Habit.REFUSED.value)]
        return [self._judged(begin_s, CONSUMER, answer, ask, Habit.REFUSED.value, lent)]

    def _post(self, engine: str, body: dict[str, Any]) -> web.Answer:
        return web.post_json(self._cluster.by_name[engine].url + "/v1/completions", body, self._mix.limit_s)

    def _judged(self, begin_s: float, engine: str, answer: web.Answer, ask: Ask, habit: str,
                lent: Lent | None = None, may_load: bool = False) -> Request:
        now_s = self._now_s()
        outcome, detail = judge(answer, ask.right(self._cluster.versions_between(begin_s, now_s)), self._mix.limit_s,
                                engine == CONSUMER and self._cluster.may_be_mixed(begin_s))
        if outcome is Outcome.OTHER and "gone" in self._cluster.done_to(engine, begin_s):
            outcome = Outcome.CUT_OFF
        if outcome is Outcome.OTHER and answer.status == UNAVAILABLE and self._cluster.was_paused(engine, begin_s):
            outcome = Outcome.PAUSED
        if not outcome.good:
            detail = f"{engine}, {ask.questions[0].model}, {habit}, ticket of {lent.producer if lent else None}: {detail}"
        return Request(begin_s, now_s, outcome, detail, habit=habit, blocks=blocks_of(ask.questions[0]) if may_load else 0)

    def _leave(self, engine: str, question: Question, ticket: Ticket, habit: Habit, rng: random.Random) -> list[Request]:
        begin_s = self._now_s()
        if engine not in self._cluster.serving:
            return []
        body = {**client.completion_body(question.prompt, self._mix.answer_tokens, ticket, question.model),
                "stream": rng.random() < 0.5}
        outcome, detail = Outcome.LEFT, ""
        try:
            with closing(web.post(self._cluster.by_name[engine].url + "/v1/completions", body, self._mix.limit_s)):
                time.sleep(rng.uniform(0.0, STAYS_S))
        except (OSError, http.client.HTTPException) as error:
            gone = "gone" in self._cluster.done_to(engine, begin_s)
            outcome, detail = (Outcome.CUT_OFF if gone else Outcome.OTHER), f"{engine}: {error}"
        blocks = blocks_of(question) if engine == CONSUMER else 0
        return [Request(begin_s, self._now_s(), outcome, detail, habit=habit.value, blocks=blocks)]


def blocks_of(question: Question) -> int:
    return -(-len(question.prompt) // BLOCK_TOKENS)
