"""Clients of a stack: what they ask, and how each answer is judged. They know OpenAI's API and nothing of kvferry."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import openai
from pd.engine import OFFLINE
from pd.paths import CACHE, FAST

QUESTIONS = 2400
ANSWER_TOKENS = 16
LIMIT_S = 120.0
WORDS = "river stone cloud engine market winter copper silent garden bridge paper yellow thunder island orbit lantern".split()
TRUTH = CACHE / "stacks" / "truth.json"
HALF = "\ufffd"
"""Half a character: at an answer's end Dynamo prints it, and vLLM does not."""
COMPUTE = """
import json, sys
from vllm import LLM, SamplingParams
model, path = sys.argv[1:]
prompts = json.load(sys.stdin)
llm = LLM(model, enforce_eager=True, dtype="float32", max_model_len=512, block_size=32, max_num_seqs=16, enable_prefix_caching=False)
answers = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=int({tokens})))
json.dump([[answer.prompt, answer.outputs[0].text] for answer in answers], open(path, "w"))
"""


@dataclass(frozen=True)
class Question:
    prompt: str
    right: str


def prompts() -> list[str]:
    """Of 130 to 300 tokens, each another one from its first word on."""
    rng = random.Random(7)
    return [f"{number} " + " ".join(rng.choice(WORDS) for _ in range(rng.randint(120, 280))) for number in range(QUESTIONS)]


def questions() -> Iterator[Question]:
    """With what a plain vLLM answers, without a connector; computed once, and kept."""
    if not TRUTH.exists():
        TRUTH.parent.mkdir(exist_ok=True)
        work = TRUTH.with_suffix(".part")
        subprocess.run([sys.executable, "-c", COMPUTE.format(tokens=ANSWER_TOKENS), str(FAST), str(work)], check=True,
                       input=json.dumps(prompts()), text=True, stdout=subprocess.DEVNULL, env=os.environ | OFFLINE)
        work.rename(TRUTH)
    return iter([Question(*pair) for pair in json.loads(TRUTH.read_text()) if HALF not in pair[1]])


@dataclass(frozen=True)
class Answer:
    seconds: float
    status: int
    text: str = ""
    error: str = ""
    reason: str = ""
    """Of a typed error."""


@dataclass
class Answers:
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    """By status and reason, or the text of an error that has no reason."""
    longest_s: float = 0.0

    @property
    def count(self) -> int:
        return self.right + len(self.wrong) + self.errors.total()

    def add(self, question: Question, answer: Answer) -> None:
        self.longest_s = max(self.longest_s, answer.seconds)
        if answer.error:
            self.errors[f"{answer.status} {answer.reason or answer.error}"] += 1
        elif answer.text.removesuffix(HALF) == question.right:
            self.right += 1
        else:
            self.wrong.append(f"{answer.text!r} is not {question.right!r}")


def ask(url: str, question: Question, stream: bool = False) -> Answer:
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=LIMIT_S)
    begin, text, status = time.monotonic(), "", 200
    error = reason = ""
    try:
        answer = client.completions.create(model="model", prompt=question.prompt, max_tokens=ANSWER_TOKENS, temperature=0, stream=stream)
        for part in answer if stream else [answer]:
            text += "".join(choice.text for choice in part.choices)
    except openai.APIError as fault:
        status = getattr(fault, "status_code", 0)
        body = fault.body if isinstance(fault.body, dict) else {}
        error, reason = f"{type(fault).__name__}: {body or fault}", str(body.get("reason", ""))
    return Answer(time.monotonic() - begin, status, text, error, reason)


CLIENTS = 6


class Load:
    """So many clients, each with the next question as soon as it has an answer."""

    def __init__(self, url: str, asked: list[Question], clients: int = CLIENTS, stream: bool = False) -> None:
        self._pool = ThreadPoolExecutor(clients)
        self._asked = asked
        self._futures: list[Future[Answer]] = [self._pool.submit(ask, url, question, stream) for question in asked]

    @property
    def answered(self) -> int:
        return sum(future.done() for future in self._futures)

    def join(self, into: Answers | None = None) -> Answers:
        answers = Answers() if into is None else into
        for question, future in zip(self._asked, self._futures):
            answers.add(question, future.result())
        self._pool.shutdown()
        return answers
