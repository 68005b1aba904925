"""When an answer is right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from pd.client import Reply

NOISE_MAX = 1e-2
"""More than this between two answers of vLLM's own, and they say nothing."""
NOISE_LEAST = 1e-4
"""Of float32: ranks sum up in another order."""
FAR = float("inf")


@dataclass(frozen=True)
class Local:
    """What D answers by itself: to a prompt that it computes in one piece, and to one whose last token it computes apart, as
    after a load; and what P answers by itself, where it has other ranks: they round in another order what is loaded."""

    whole: Reply
    apart: Reply
    of_p: Reply | None = None

    @property
    def noise(self) -> float:
        return max(difference(other, self.whole, NOISE_MAX) for other in (self.apart, self.of_p) if other is not None)


def difference(found: Reply, expected: Reply, doubt: float) -> float:
    """The largest between their logprobs, up to where one took another token though its lead was within the doubt. FAR if it
    was not."""
    pairs = list(zip(found.tokens, expected.tokens, strict=True))
    alike = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
    if alike < len(pairs) and expected.leads[alike] > doubt:
        return FAR
    return max((abs(a - b) for a, b in zip(found.logprobs[:alike], expected.logprobs[:alike])), default=0.0)


def doubt_of(locals_: Iterable[Local]) -> float:
    """By how much answers may differ."""
    noise = max(local.noise for local in locals_)
    assert noise <= NOISE_MAX, f"vLLM's own answers differ by {noise:.3g}"
    return max(noise, NOISE_LEAST)


def distance(found: Reply, local: Local, doubt: float) -> float:
    return min(difference(found, local.whole, doubt), difference(found, local.apart, doubt))


def same(found: Reply, local: Local) -> bool:
    """To the last bit."""
    return any((found.tokens, found.logprobs) == (reply.tokens, reply.logprobs) for reply in (local.apart, local.whole))
