"""A running stack with the prompts that faults are tried on, and what each prompt's tokens should be."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from . import client, metrics
from .client import Prompt, Reply
from .engine import Engine
from .progress import wait_until
from .stack import Stack

RECOMPUTED = "kvferry_recomputed_tokens_total"
PROBE_TOKENS = 2
PROBE_LIMIT_S = 15.0
PROBE: Prompt = [504, 3575, 282, 4649, 314]


@dataclass
class Rig:
    stack: Stack
    connector: str
    prompts: list[Prompt]
    lease_s: float
    max_tokens: int = 16
    client_limit_s: float = 60.0
    consumer: Engine | None = None
    source: Engine | None = None
    options: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    """Of every request that D answers, beside the usual ones."""

    def __post_init__(self) -> None:
        self._expected: dict[tuple[int, ...], list[int]] = {}

    @property
    def producer(self) -> Engine:
        """The engine that prefills: the stack's P unless another one was named."""
        return self.source or self.stack.prefill

    @property
    def decoder(self) -> Engine:
        """The engine that decodes: the stack's D unless another one was named."""
        return self.consumer or self.stack.decode

    @property
    def question(self) -> Prompt:
        return self.prompts[0]

    @property
    def other_question(self) -> Prompt:
        """A prompt of the same length."""
        assert len(self.prompts[1]) == len(self.prompts[0])
        return self.prompts[1]

    @property
    def fillers(self) -> list[Prompt]:
        return self.prompts[2:]

    def expected(self, prompt: Prompt) -> list[int]:
        """What D answers when it computes the prompt by itself."""
        key = tuple(prompt)
        if key not in self._expected:
            reply = client.complete(self.decoder.url, prompt, self.max_tokens)
            if not reply.ok:
                raise RuntimeError(f"D cannot compute a prompt by itself: {reply.in_short(200)}")
            self._expected[key] = reply.tokens
        return self._expected[key]

    def with_options(self, **options: Any) -> Rig:
        """Requests that differ from their decode engine."""
        return replace(self, options=options)

    def settle(self) -> float:
        """Waits until every block is back, then empties the prefix caches."""
        seconds = self.stack.wait_idle()
        self.stack.forget_prompts()
        return seconds

    def ticket(self, prompt: Prompt) -> client.Ticket:
        return client.prefill(self.producer.url, prompt, self.options)

    def decode(self, prompt: Prompt, ticket: client.Ticket) -> Reply:
        return client.complete(self.decoder.url, prompt, self.max_tokens, ticket, self.client_limit_s, self.fields)

    def overwrite_prefill_blocks(self) -> None:
        """Other prompts go through P until every block of its pool has had another owner."""
        for filler in self.fillers:
            client.complete(self.producer.url, filler, 1)

    def probe(self) -> Reply:
        """The next request to D: does it answer at once?"""
        return client.complete(self.decoder.url, PROBE, PROBE_TOKENS, timeout_s=PROBE_LIMIT_S)

    def loads_again(self) -> bool:
        """Sends an ordinary request; True if it was loaded from P, with nothing recomputed."""
        self.settle()
        before = metrics.total(self.counters(), RECOMPUTED)
        reply = self.decode(self.question, self.ticket(self.question))
        return reply.ok and metrics.total(self.counters(), RECOMPUTED) == before

    def warm_up(self, limit_s: float = 30.0) -> None:
        """After a fault a breaker may be open for a while: waits until loads go through."""
        wait_until(f"loads into {self.decoder.name}", self.loads_again, limit_s, every_s=0.5)

    def counters(self) -> metrics.Samples:
        return self.decoder.samples()

    def outlast_lease(self) -> None:
        time.sleep(self.lease_s + 1.0)
