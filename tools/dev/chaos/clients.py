"""Clients that ask, again and again, for what is known, and how their answers are judged."""

from __future__ import annotations

import itertools
import random
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum

from pd import client, web
from pd.client import Prompt
from pd.prompts import numbered_prompt

from .cluster import Cluster, set_weights

PAUSE_S = 0.3
"""Between an answer and the next request of a client."""
QUESTIONS = 30
PROMPT_TOKENS = (70, 330)
CLEAR = 0.005
"""By so much a right token's logprob is above any other's: other chunks and batches change their last bits."""
ABORTED = "abort"
"""How vLLM ends an answer, with status 200, that it does not finish: it shuts down."""
TYPED = "kv_transfer_error"
CLOCK_S = 0.5
"""By so much a time limit may be measured short."""


class Outcome(Enum):
    RIGHT = "right"
    TYPED_ERROR = "typed_errors"
    LEFT = "hung_up"
    """The client did."""
    REFUSED = "refused"
    """vLLM has not taken the request, which is not as it should be."""
    CUT_OFF = "cut_off"
    """The plan ended the engine that it was asked of."""
    PAUSED = "paused"
    """The plan had that engine paused, and vLLM refused the request: it does so from 0.33 on."""
    MIXED = "mixed"
    """Begun with one version of the weights, and ended with the next: D got them while it computed the answer."""
    WRONG = "wrong"
    HUNG = "hung"
    OTHER = "other_errors"

    @property
    def good(self) -> bool:
        return self in (Outcome.RIGHT, Outcome.TYPED_ERROR, Outcome.LEFT, Outcome.REFUSED, Outcome.CUT_OFF,
                        Outcome.PAUSED, Outcome.MIXED)


@dataclass(frozen=True)
class Request:
    """Seconds after the start. `retries`: answers that named no transfer, upon which the client tried again."""

    begin_s: float
    end_s: float
    outcome: Outcome
    detail: str = ""
    retries: tuple[str, ...] = ()
    habit: str = ""
    blocks: int = 0
    """Of its prompt, if it came with a ticket that can bring them."""


@dataclass(frozen=True)
class Question:
    prompt: Prompt
    model: str = "model"
    right: dict[str, list[int]] = field(default_factory=dict)
    """Tokens, by the version of the weights."""


def is_beginning(tokens: Sequence[int], right: Collection[Sequence[int]]) -> bool:
    return any(list(one[:len(tokens)]) == list(tokens) for one in right)


def judge(answer: web.Answer, right: Sequence[Collection[Sequence[int]]], limit_s: float,
          is_updated: bool = False) -> tuple[Outcome, str]:
    """The outcome of one answer, and for those that are not right what was wrong. `right`: of each of its choices.
    `is_updated`: its engine has got new weights meanwhile."""
    if answer.status == web.NO_ANSWER:
        late = answer.seconds >= limit_s - CLOCK_S
        return (Outcome.HUNG, f"no answer in {limit_s:.0f} s") if late else (Outcome.OTHER, answer.error)
    if answer.seconds > limit_s + CLOCK_S:
        return Outcome.HUNG, f"answered after {answer.seconds:.0f} s"
    if answer.status == 200:
        choices = answer.body.get("choices", [])
        tokens = [choice.get("token_ids") for choice in choices]
        are_all = len(tokens) == len(right)
        if are_all and all(found in [list(one) for one in of] for found, of in zip(tokens, right)):
            return Outcome.RIGHT, ""
        is_aborted = ABORTED in [choice.get("finish_reason") for choice in choices]
        if are_all and is_aborted and all(is_beginning(found or [], of) for found, of in zip(tokens, right)):
            return Outcome.OTHER, "its engine has aborted it"
        # Blocks of other weights would show in the first token.
        is_mixed = is_updated and are_all and all(found and is_beginning(found[:1], of) for found, of in zip(tokens, right))
        return (Outcome.MIXED if is_mixed else Outcome.WRONG), f"tokens {tokens}"
    error = answer.body.get("error")
    if isinstance(error, dict) and error.get("type") == TYPED and error.get("reason"):
        return Outcome.TYPED_ERROR, str(error["reason"])
    return Outcome.OTHER, f"{answer.status} {str(error or answer.body)[:200]}"


# ---- questions ----

def make_questions(models: Sequence[str], seed: int) -> list[Question]:
    """Each prompt for every model. Together many more blocks than an engine has, so that a prompt is out of the prefix
    caches when it comes again."""
    rng = random.Random(seed)
    prompts = [numbered_prompt(number, rng.randint(*PROMPT_TOKENS)) for number in range(QUESTIONS // len(models))]
    questions = [Question(prompt, model) for model in models for prompt in prompts]
    rng.shuffle(questions)
    return questions


def learn(cluster: Cluster, questions: list[Question]) -> list[Question]:
    """Fills in what D computes by itself. Returns those whose tokens are clear, whatever else is in D's steps."""
    mix, engine, clear = cluster.mix, cluster.decode, set(range(len(questions)))
    for version in mix.all_versions:
        if len(mix.all_versions) > 1:
            set_weights(engine, version)
        with ThreadPoolExecutor(mix.threads) as pool:
            answers = list(pool.map(lambda question: ask_alone(engine.url, question, mix.answer_tokens), questions))
        for place, (tokens, gap) in enumerate(answers):
            questions[place].right[version] = tokens
            if gap < CLEAR:
                clear.discard(place)
    if len(mix.all_versions) > 1:
        set_weights(engine, mix.versions[0])
    if not clear:
        raise RuntimeError("D answers nothing clearly: there is nothing to compare with")
    return [questions[place] for place in sorted(clear)]


def ask_alone(url: str, question: Question, max_tokens: int) -> tuple[list[int], float]:
    """The tokens, and by how much the least certain was ahead of the next."""
    body = {**client.completion_body(question.prompt, max_tokens, model=question.model), "logprobs": 2}
    answer = web.post_json(url + "/v1/completions", body, timeout_s=120.0)
    if answer.status != 200:
        raise RuntimeError(f"D cannot compute a prompt by itself: {answer.status} {answer.error or answer.body}")
    choice = answer.body["choices"][0]
    best = [sorted(two.values()) for two in choice["logprobs"]["top_logprobs"]]
    return choice["token_ids"], min(two[-1] - two[-2] if len(two) > 1 else 0.0 for two in best)


class Clients:
    """Use it as a context manager: the threads run inside its block, and their last answers are in after it.

    `ask` asks one question, and says what came of it."""

    def __init__(self, cluster: Cluster, known: list[Question], seed: int,
                 ask: Callable[[Question, random.Random], Iterable[Request]]) -> None:
        self.requests: list[Request] = []
        self.mistakes: list[str] = []
        """Of ours."""
        self._known, self._ask, self._limit_s = known, ask, cluster.mix.limit_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._turns = itertools.count()
        self._threads = [threading.Thread(target=self._run, args=(random.Random(f"{seed}/{place}"),), daemon=True)
                         for place in range(cluster.mix.threads)]

    def last_right_s(self) -> float:
        with self._lock:
            return max((r.end_s for r in self.requests if r.outcome is Outcome.RIGHT), default=0.0)

    def in_short(self) -> str:
        with self._lock:
            found = [request.outcome for request in self.requests]
        return f"{len(found)} requests: " + ", ".join(
            f"{found.count(outcome)} {outcome.value.replace('_', ' ')}" for outcome in Outcome if outcome in found)

    def _run(self, rng: random.Random) -> None:
        try:
            while not self._stop.wait(PAUSE_S * rng.uniform(0.5, 1.5)):
                for request in self._ask(self._next(), rng):
                    with self._lock:
                        self.requests.append(request)
        except Exception:
            self.mistakes.append(f"a client ended: {traceback.format_exc()}")

    def _next(self) -> Question:
        """One after the other, so that the prefix caches have always lost the oldest, which is next."""
        with self._lock:
            return self._known[next(self._turns) % len(self._known)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for the last answers, unless all is over anyhow."""
        self._stop.set()
        for thread in self._threads if kind is None else []:
            thread.join(2 * self._limit_s + 5.0)  # it asks two engines, or tries again until its time is up

    @property
    def unanswered(self) -> int:
        """Requests that are not in `requests`, after the block."""
        return sum(thread.is_alive() for thread in self._threads)
