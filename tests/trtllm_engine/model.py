"""The language model: each token's KV is a number that follows from all tokens up to it; the next token follows from
the KV of all. Every layer, K and V, and every head of all ranks holds the number in its own code, so that what is of
another layer, head or rank is no number.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

WORDS = 1009
NO_WORD = WORDS
"""What comes of KV that layers, heads or ranks disagree about: no right answer has it."""
MODULUS = 99_991
CODES = 128
"""An element is number * CODES + code, exact as a float32."""
INDEX_CODE = 100
"""And the layer's number, of what is the same on all ranks."""
POISON = -7.0
MIXED = -1
"""In place of the number of a token whose elements do not fit each other."""


@dataclass(frozen=True)
class Shape:
    layers: int = 2
    heads: int = 4
    """Of all ranks together."""
    head_dim: int = 2


@dataclass(frozen=True)
class Identity:
    """What KV depends on besides the tokens. (A real model's KV does not depend on the salt; that it must be kept apart
    is to be noticed.)"""

    cache_salt: str | None = None
    lora: int | None = None
    multimodal: Hashable = None

    def start(self) -> int:
        """The number before the first token."""
        return 0 if self == Identity() else 1 + zlib.crc32(repr(self).encode()) % (MODULUS - 1)


def kv_of(before: int, token: int) -> int:
    return (before * 31 + token + 1) % MODULUS


def answer_of(numbers: Mapping[int, int]) -> int:
    """From the numbers of the tokens that the last one attends to, by position."""
    if MIXED in numbers.values():
        return NO_WORD
    return sum((position + 1) * number for position, number in numbers.items()) % WORDS


def right_answer(prompt: Sequence[int], tokens: int, cache_salt: str | None = None, lora: int | None = None,
                 multimodal: Hashable = None, window: int | None = None) -> list[int]:
    """What an engine by itself says. The window is of a model all of whose layers have one, the widest."""
    start = Identity(cache_salt, lora, multimodal).start()
    numbers = list(itertools.accumulate(prompt, kv_of, initial=start))[1:]
    answer: list[int] = []
    for _ in range(tokens):
        first = max(0, len(numbers) - window) if window else 0
        answer.append(answer_of(dict(enumerate(numbers[first:], first))))
        numbers.append(kv_of(numbers[-1], answer[-1]))
    return answer
