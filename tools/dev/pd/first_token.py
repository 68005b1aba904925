"""Time to the first token without any fault: kvferry's engines beside those with vLLM's NixlConnector, in one run.

Both pairs of engines are up at once, and are asked in turn, each time with a prompt that no engine has seen."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import client
from .connector import CONNECTORS
from .engine import NO_SPINNING
from .paths import FAST, SMOLLM2
from .progress import say
from .prompts import numbered_prompt
from .stack import Stack, log_folder, pair, run_to_end
from .table import table

MODELS = {"fast": FAST, "smollm2": SMOLLM2}
BLOCKS = 128
PROMPT_TOKENS = 400
WARM_UP_ROUNDS = 3
NAMES = ("kvferry", "nixl")


@dataclass
class Times:
    """Seconds, a value a round."""

    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)

    @property
    def first_token(self) -> list[float]:
        return [p + d for p, d in zip(self.prefill, self.decode)]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev first-token", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40, metavar="COUNT")
    parser.add_argument("--model", choices=sorted(MODELS), default="smollm2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures")
    return parser.parse_args()


def stack_of(model: Path, name: str) -> Stack:
    """Four engines share the cores: threads that spin while they wait would be what is measured."""
    quiet = replace(CONNECTORS[name](), env=NO_SPINNING)
    return Stack(pair(model, quiet, BLOCKS, BLOCKS), log_folder(f"first-token-{name}"), with_router=False)


def ask(stack: Stack, prompt: client.Prompt) -> tuple[float, float]:
    """How long P took for the prompt, and D from the ticket to its first token."""
    start = time.monotonic()
    ticket = client.prefill(stack.prefill.url, prompt)
    handed_over = time.monotonic()
    reply = client.complete(stack.decode.url, prompt, 1, ticket)
    if not reply.ok:
        raise RuntimeError(f"D has not answered: {reply.in_short(200)}")
    return handed_over - start, time.monotonic() - handed_over


def measure(stacks: dict[str, Stack], rounds: int) -> dict[str, Times]:
    times = {name: Times() for name in stacks}
    for number in range(-WARM_UP_ROUNDS, rounds):
        order = list(stacks) if number % 2 == 0 else list(reversed(stacks))
        for name in order:
            prefill_s, decode_s = ask(stacks[name], numbered_prompt(number + WARM_UP_ROUNDS, PROMPT_TOKENS))
            if number >= 0:
                times[name].prefill.append(prefill_s)
                times[name].decode.append(decode_s)
        if number >= 0 and number % 10 == 9:
            say(f"  {number + 1} of {rounds} rounds")
    return times


def ratios(times: dict[str, Times]) -> list[float]:
    """kvferry's time to the first token to NixlConnector's, round by round."""
    return [ours / theirs for ours, theirs in zip(times["kvferry"].first_token, times["nixl"].first_token)]


def show(times: dict[str, Times]) -> str:
    rows = [(name, *(f"{1000 * statistics.median(part):.1f}" for part in (each.prefill, each.decode, each.first_token)))
            for name, each in times.items()]
    quarters = statistics.quantiles(ratios(times), n=4, method="inclusive") if len(ratios(times)) > 1 else 3 * ratios(times)
    return (table(("connector", "P, ms", "D from the ticket on, ms", "first token, ms"), rows) +
            f"\n\nkvferry to nixl, first token: median {statistics.median(ratios(times)):.3f}"
            f" (quartiles {quarters[0]:.3f} to {quarters[2]:.3f}, {len(ratios(times))} rounds)")


def main() -> int:
    args = parse_args()
    model = MODELS[args.model]
    with ExitStack() as running:
        stacks = {name: running.enter_context(stack_of(model, name)) for name in NAMES}
        times = measure(stacks, args.rounds)
    print("\n" + show(times))
    if args.json:
        args.json.write_text(json.dumps({
            "rounds": args.rounds, "tokens": PROMPT_TOKENS, "model": args.model,
            "ratio_median": statistics.median(ratios(times)),
            **{name: {"prefill_s": each.prefill, "decode_s": each.decode} for name, each in times.items()},
        }, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    run_to_end(main)
