"""Clients that do a router's two steps themselves, and not always as they should."""

from __future__ import annotations

import http.client
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from enum import Enum

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


class Claim(Enum):
    """What a ticket may still bring."""

    DUE = "D has to load it, if nothing is done to the engines"
    POSSIBLE = "D may load it"
    NONE = "D must not load it"


SHARES = {Habit.WAITS: 60, Habit.LEAVES: 10, Habit.LEAVES_P: 4, Habit.TWICE: 6, Habit.AGAIN: 6, Habit.OTHER_PROMPT: 6,
          Habit.LATE: 5, Habit.NEVER: 3}


@dataclass(frozen=True)
class Lent:
    """A ticket, of whom, and since when nothing may have happened to its producer."""

    ticket: Ticket
    producer: str
    since_s: float


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
        asked, lent = self._prefill(rng.choice(PRODUCERS), question)
        if lent is None or habit is Habit.NEVER:
            # as a router: what comes without a ticket is D's to compute
            return asked if habit is Habit.NEVER else asked + self._decode(question, None, Habit.WAITS)
        if habit is Habit.LEAVES:
            return asked + self._leave(CONSUMER, question, lent.ticket, habit, rng)
        if habit is Habit.LATE:
            time.sleep(LEASE_S * rng.uniform(1.0, 2.0))
        second = None
        if habit is Habit.TWICE:
            second = self._seconds.submit(self._decode, question, lent, habit, Claim.POSSIBLE)
        elif habit is Habit.OTHER_PROMPT:
            others = [other for other in self._known if other.prompt != question.prompt]
            second = self._seconds.submit(self._decode, rng.choice(others), lent, habit, Claim.NONE)
        asked += self._decode(question, lent, habit, Claim.NONE if habit is Habit.LATE else Claim.DUE)
        if habit is Habit.AGAIN:
            asked += self._decode(question, lent, habit, Claim.POSSIBLE)
        return asked + (second.result() if second else [])

    def _prefill(self, producer: str, question: Question) -> tuple[list[Request], Lent | None]:
        """What there is to say of it if there is no answer."""
        begin_s = self._now_s()
        if producer not in self._cluster.serving:
            return [], None
        answer = self._post(producer, question, 1, ASK_FOR_TICKET)
        if answer.status == 200:
            ticket = answer.body.get("kv_transfer_params")
            return [], Lent(ticket, producer, begin_s) if ticket else None
        return [self._judged(begin_s, producer, answer, question, "asks P")], None

    def _decode(self, question: Question, lent: Lent | None, habit: Habit, claim: Claim = Claim.NONE) -> list[Request]:
        begin_s = self._now_s()
        if CONSUMER not in self._cluster.serving:
            return []
        answer = self._post(CONSUMER, question, self._mix.answer_tokens, lent.ticket if lent else None)
        return [self._judged(begin_s, CONSUMER, answer, question, habit.value, lent, claim)]

    def _post(self, engine: str, question: Question, max_tokens: int, ticket: Ticket | None) -> web.Answer:
        return web.post_json(self._cluster.by_name[engine].url + "/v1/completions",
                             client.completion_body(question.prompt, max_tokens, ticket, question.model), self._mix.limit_s)

    def _judged(self, begin_s: float, engine: str, answer: web.Answer, question: Question, habit: str,
                lent: Lent | None = None, claim: Claim = Claim.NONE) -> Request:
        now_s = self._now_s()
        right = [question.right[version] for version in self._cluster.versions_between(begin_s, now_s)]
        outcome, detail = judge(answer, right, self._mix.limit_s)
        if outcome is Outcome.OTHER and "gone" in self._cluster.done_to(engine, begin_s):
            outcome = Outcome.CUT_OFF
        if outcome is Outcome.OTHER and answer.status == UNAVAILABLE and self._cluster.was_paused(engine, begin_s):
            outcome = Outcome.PAUSED
        if not outcome.good:
            detail = f"{engine}, {question.model}, {habit}, ticket of {lent.producer if lent else None}: {detail}"
        eligible = (lent is not None and claim is Claim.DUE and outcome not in (Outcome.CUT_OFF, Outcome.PAUSED)
                    and not self._cluster.done_to(lent.producer, lent.since_s) | self._cluster.done_to(CONSUMER, lent.since_s))
        return Request(begin_s, now_s, outcome, detail, habit=habit, eligible=eligible,
                       blocks=0 if claim is Claim.NONE else blocks_of(question))

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
