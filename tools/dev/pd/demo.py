"""A prefill and a decode engine with a real model: a question, then faults, and what each did to the client."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import client, faults, web
from .connector import CONNECTORS
from .paths import SMOLLM2
from .progress import say
from .prompts import country_prompts
from .rig import Rig
from .stack import Stack, log_folder, pair, run_to_end
from .table import table
from .trial import Outcome, run

QUESTION = "What is the capital of France? Answer in one sentence."
LEASE_S = 3.0
# So few that every block of P has another owner after a handful of prompts.
P_BLOCKS = 24
D_BLOCKS = 64
HEAD = ("fault", "connector", "the client got", "tokens", "seconds", "loaded", "recomputed", "why", "D's next", "blocks back")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__)
    parser.add_argument("--connector", choices=sorted(CONNECTORS), default="kvferry")
    parser.add_argument("--compare", action="store_true", help="both connectors, one table")
    parser.add_argument("--faults", default="", metavar="LETTERS", help="only these, e.g. abg")
    parser.add_argument("--transport", choices=("local", "tcp", "ucx"), help="kvferry: use only this one")
    parser.add_argument("--memory", choices=("host", "cuda-fake"), default="host",
                        help="kvferry: the engines' pools are host memory, or pass for a GPU's")
    return parser.parse_args()


def ask(url: str) -> None:
    """One question to the router, as any OpenAI client asks it."""
    body = {"model": "model", "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": 24, "temperature": 0.0}
    answer = web.post_json(url + "/v1/chat/completions", body, timeout_s=180.0)
    print(f"\n  question  {QUESTION}")
    if answer.status == 200:
        print(f"  answer    {answer.body['choices'][0]['message']['content'].strip()}")
        print(f"  ({answer.seconds:.1f} s, through the router: computed by P, its KV blocks loaded by D)\n", flush=True)
    else:
        print(f"  no answer: {answer.status} {answer.error or client.error_text(answer.body)}\n", flush=True)


def demo_one(args: argparse.Namespace, name: str) -> list[Outcome]:
    say(f"\n=== {name}")
    options = {"transports": [args.transport]} if args.transport and name == "kvferry" else {}
    connector = CONNECTORS[name](LEASE_S, **options)
    if args.memory == "cuda-fake" and name == "kvferry":
        connector = connector.on_fake_gpu()
    specs = pair(SMOLLM2, connector, P_BLOCKS, D_BLOCKS)
    with Stack(specs, log_folder(f"demo-{name}")) as stack:
        assert stack.router is not None
        ask(stack.router.url)
        prompts = country_prompts(lambda text: client.tokenize(stack.decode.url, text))
        rig = Rig(stack, name, prompts, LEASE_S)
        return [run_one(rig, fault) for fault in faults.ALL if not args.faults or fault.letter in args.faults + "-"]


def outcomes_table(results: Sequence[Outcome]) -> str:
    ordered = sorted(results, key=lambda result: result.fault.letter)
    return table(HEAD, [row(result) for result in ordered])


def run_one(rig: Rig, fault: faults.Fault) -> Outcome:
    say(f"({fault.letter}) {fault.title} …")
    outcome = run(rig, fault)
    say("    " + "; ".join(f"{name}: {cell}" for name, cell in list(zip(HEAD, row(outcome)))[2:] if cell != "-"))
    return outcome


def row(result: Outcome) -> tuple[str, ...]:
    ours = result.connector == "kvferry"
    return (
        f"({result.fault.letter}) {result.fault.title}", result.connector,
        "(it hung up)" if result.reply is None else result.reply.in_short(),
        verdict(result),
        "-" if result.reply is None else f"{result.reply.seconds:.1f}",
        f"{result.loaded_blocks} blocks" if ours else "-",
        str(result.recomputed) if ours else "-",
        ", ".join(result.reasons) or "-" if ours else "-",
        f"{result.probe.seconds:.1f} s" if result.probe.ok else result.probe.in_short(),
        f"{result.blocks_back_s:.1f} s" if result.blocks_back_s is not None else "NOT BACK",
    )


def verdict(result: Outcome) -> str:
    if result.same_tokens is None:
        return "-" if result.reply is None else "none"
    return "right" if result.same_tokens else "WRONG"


def main() -> int:
    args = parse_args()
    names = ["kvferry", "nixl"] if args.compare else [args.connector]
    results = [outcome for name in names for outcome in demo_one(args, name)]
    print("\n" + outcomes_table(results))
    return 0 if all(result.good for result in results if result.connector == "kvferry") else 1


if __name__ == "__main__":
    run_to_end(main)
