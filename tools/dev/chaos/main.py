"""Two prefill engines, a decode engine, vLLM's router and steady requests, while calls below the library fail, engines
are stopped and killed, and bytes are corrupted. At the end: what the clients got."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path

from pd.connector import CONNECTORS
from pd.paths import ROOT
from pd.progress import doing, say
from pd.stack import log_folder, run_to_end

from . import report
from .clients import Clients, known_prompts, make_prompts
from .cluster import Cluster
from .plan import plan
from .storm import Storm

LIBRARY = ROOT / "build" / "tools" / "chaos" / "libkvferry-chaos.so"
QUIET_LIMIT_S = 45.0
"""After the last answer: by then every lease is over, and every block back."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="of requests and faults (default 5)")
    parser.add_argument("--seed", type=int, default=1, help="what goes wrong, and when (default 1)")
    parser.add_argument("--connector", choices=sorted(CONNECTORS), default="kvferry")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def run(connector: str, seed: int, seconds: float) -> report.Run:
    with Cluster(connector, seed, LIBRARY, log_folder(f"chaos-{connector}")) as cluster:
        with doing("asking D for the right tokens"):
            known = known_prompts(cluster.decode.url, make_prompts(seed))
            cluster.warm_up()
        start = time.monotonic()

        def now_s() -> float:
            return time.monotonic() - start

        with Clients(cluster.router.url, known, seed, now_s) as clients:
            storm = Storm(cluster, now_s, clients.last_right_s)
            storm.run(plan(seed, seconds))
            say(f"  {now_s():4.0f} s  no more faults")
            storm.wait(seconds)
        cluster.calm()
        run_s = now_s()
        problems = cluster.come_back()
        if clients.unanswered:
            problems.append(f"{clients.unanswered} clients still wait for an answer")
        with doing("waiting for every block to come back"):
            leaked = cluster.leaked_blocks(QUIET_LIMIT_S)
        injected: Counter[str] = Counter()
        for control in cluster.controls.values():
            injected.update(control.injected())
        return report.Run(connector, seed, run_s, clients.requests, storm.faults, dict(injected), leaked, storm.d_restarts,
                          problems)


def main() -> int:
    args = parse_args()
    if not LIBRARY.exists():
        raise SystemExit(f"{LIBRARY} is not there: start this as ./dev chaos")
    result = run(args.connector, args.seed, args.minutes * 60.0)
    print("\n" + report.text(result) + "\n", flush=True)
    if args.json:
        args.json.write_text(json.dumps(report.as_json(result), indent=1) + "\n")
    say(", ".join(f"{number} {name.replace('_', ' ')}" for name, number in result.counts().items()))
    return 0 if result.good else 1


if __name__ == "__main__":
    run_to_end(main)
