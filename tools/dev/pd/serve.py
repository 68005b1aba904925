"""P, D and the router as one OpenAI endpoint, until Ctrl-C."""

from __future__ import annotations

import argparse
import time

from .connector import CONNECTORS
from .paths import SMOLLM2
from .progress import say
from .stack import Stack, log_folder, pair, run_to_end

BLOCKS = 512
LOOK_EVERY_S = 2.0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev serve", description=__doc__)
    parser.add_argument("--connector", choices=sorted(CONNECTORS), default="kvferry")
    parser.add_argument("--port", type=int, default=8000, help="of the router")
    return parser.parse_args()


def tell_how(stack: Stack) -> None:
    assert stack.router is not None
    print(f"\nserving {SMOLLM2.name} on {stack.router.url}; try:\n"
          f"  curl {stack.router.url}/v1/completions -H 'Content-Type: application/json' \\\n"
          "    -d '{\"model\": \"model\", \"prompt\": \"The capital of France is\", \"max_tokens\": 8}'\n"
          f"P is {stack.prefill.url}, D is {stack.decode.url} (metrics at /metrics); logs in {stack.logs}\n"
          "Ctrl-C ends all three.", flush=True)


def watch(stack: Stack) -> int:
    """Stays until one of the three has ended."""
    while True:
        for member in stack.members:
            if not member.process.running():
                say(f"{member.name} has ended; its log ends so:\n{member.process.log_tail()}")
                return 1
        time.sleep(LOOK_EVERY_S)


def main() -> int:
    args = parse_args()
    specs = pair(SMOLLM2, CONNECTORS[args.connector](), BLOCKS, BLOCKS)
    with Stack(specs, log_folder("serve"), args.port) as stack:
        tell_how(stack)
        return watch(stack)


if __name__ == "__main__":
    run_to_end(main)
