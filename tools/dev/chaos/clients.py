"""Steady requests through the router, from a few threads, to prompts whose right tokens are known."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum

from pd import client, web
from pd.client import Prompt
from pd.prompts import numbered_prompt

LOAD_TIMEOUT_S = 10.0
BUDGET_S = 20.0
"""What a request may take besides its load: a stopped prefill engine, prefill and decoding."""
LIMIT_S = LOAD_TIMEOUT_S + BUDGET_S
THREADS = 3
PAUSE_S = 0.3
"""Between an answer and the next request of a thread."""
RETRY_PAUSE_S = 0.3
PROMPTS = 30
PROMPT_TOKENS = (70, 330)
MAX_TOKENS = 12
TYPED = "kv_transfer_error"
CLOCK_S = 0.5
"""By so much a time limit may be measured short."""


class Outcome(Enum):
    RIGHT = "right"
    TYPED_ERROR = "typed_errors"
    WRONG = "wrong"
    HUNG = "hung"
    OTHER = "other_errors"


@dataclass(frozen=True)
class Request:
    """Seconds after the start. `retries`: answers that named no transfer, upon which the client tried again."""

    begin_s: float
    end_s: float
    outcome: Outcome
    detail: str = ""
    retries: tuple[str, ...] = ()


def judge(answer: web.Answer, expected: Sequence[int], limit_s: float) -> tuple[Outcome, str]:
    """The outcome of one answer, and for those that are not right what was wrong."""
    if answer.status == web.NO_ANSWER:
        late = answer.seconds >= limit_s - CLOCK_S
        return (Outcome.HUNG, f"no answer in {limit_s:.0f} s") if late else (Outcome.OTHER, answer.error)
    if answer.seconds > limit_s + CLOCK_S:
        return Outcome.HUNG, f"answered after {answer.seconds:.0f} s"
    if answer.status == 200:
        tokens = [choice.get("token_ids") for choice in answer.body.get("choices", [])]
        return (Outcome.RIGHT, "") if tokens == [list(expected)] else (Outcome.WRONG, f"tokens {tokens}")
    error = answer.body.get("error")
    if isinstance(error, dict) and error.get("type") == TYPED and error.get("reason"):
        return Outcome.TYPED_ERROR, str(error["reason"])
    return Outcome.OTHER, f"{answer.status} {str(error or answer.body)[:200]}"


def make_prompts(seed: int) -> list[Prompt]:
    """Together many more blocks than an engine has, so that a prompt is out of the prefix caches when it comes again"""
    rng = random.Random(seed)
    return [numbered_prompt(number, rng.randint(*PROMPT_TOKENS)) for number in range(PROMPTS)]


def known_prompts(url: str, prompts: list[Prompt]) -> list[tuple[Prompt, list[int]]]:
    """With the tokens that D computes by itself; without those whose tokens depend on what else is in D's step."""
    def ask(prompt: Prompt) -> list[int]:
        reply = client.complete(url, prompt, MAX_TOKENS)
        if not reply.ok:
            raise RuntimeError(f"D cannot compute a prompt by itself: {reply.in_short(200)}")
        return reply.tokens

    alone = [ask(prompt) for prompt in prompts]
    with ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(ask, prompts))
    known = [(prompt, tokens) for prompt, tokens, again in zip(prompts, alone, together) if tokens == again]
    if not known:
        raise RuntimeError("D answers no prompt twice alike: there is nothing to compare with")
    return known


class Clients:
    """Use it as a context manager: the threads run inside its block, and their last answers are in after it."""

    def __init__(self, url: str, known: list[tuple[Prompt, list[int]]], seed: int, now_s: Callable[[], float]) -> None:
        self.requests: list[Request] = []
        self._url, self._known, self._now_s = url + "/v1/completions", known, now_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._turns = itertools.count()
        self._threads = [threading.Thread(target=self._run, args=(random.Random(f"{seed}/{place}"),), daemon=True)
                         for place in range(THREADS)]

    def last_right_s(self) -> float:
        with self._lock:
            return max((r.end_s for r in self.requests if r.outcome is Outcome.RIGHT), default=0.0)

    def _run(self, rng: random.Random) -> None:
        while not self._stop.wait(PAUSE_S * rng.uniform(0.5, 1.5)):
            request = self._ask(*self._next(), rng)
            with self._lock:
                self.requests.append(request)

    def _next(self) -> tuple[Prompt, list[int]]:
        """One after the other, so that the prefix caches have always lost the oldest, which is next."""
        with self._lock:
            return self._known[next(self._turns) % len(self._known)]

    def _ask(self, prompt: Prompt, expected: list[int], rng: random.Random) -> Request:
        """An answer that says nothing of a transfer (nobody there) comes before any ticket: as any client of a router,
        it tries again until its time is up, and the router picks another prefill engine, or the same."""
        begin_s = self._now_s()
        retries: list[str] = []
        while True:
            answer = web.post_json(self._url, client.completion_body(prompt, MAX_TOKENS), LIMIT_S)
            outcome, detail = judge(answer, expected, LIMIT_S)
            now_s = self._now_s()
            if outcome is not Outcome.OTHER or now_s - begin_s > LIMIT_S:
                return Request(begin_s, now_s, outcome, detail, tuple(retries))
            retries.append(detail)
            time.sleep(RETRY_PAUSE_S * rng.uniform(1.0, 2.0))

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for the last answers, unless all is over anyhow."""
        self._stop.set()
        for thread in self._threads if kind is None else []:
            thread.join(2 * LIMIT_S + 5.0)  # it may try again until its time is up, and wait as long for that answer

    @property
    def unanswered(self) -> int:
        """Requests that are not in `requests`, after the block."""
        return sum(thread.is_alive() for thread in self._threads)
