"""Real engines under requests whose answers are known, while things go wrong. At the end: what the clients got.

chaos: calls below the library fail, bytes are corrupted, engines are stopped, prefill engines killed; three clients of
vLLM's router. soak: 16 clients, who hang up, come late, and use tickets twice or with another prompt; engines are stopped,
ended, killed and started anew, and get new weights; hooks of the connector raise."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from pathlib import Path

from pd.connector import CONNECTORS
from pd.paths import ROOT
from pd.progress import doing, say
from pd.releases import OWN, RELEASES, missing, python_path
from pd.stack import log_folder, run_to_end

from . import report
from .clients import Clients, Outcome, learn, make_questions
from .cluster import Cluster
from .handed import Handed
from .mixes import Mix, mix_named
from .plan import LEAD_OUT_S, plan
from .raiser import Raiser
from .routed import Routed
from .storm import Storm

LIBRARY = ROOT / "build" / "tools" / "chaos" / "libkvferry-chaos.so"
QUIET_LIMIT_S = 45.0
"""After the last answer: by then every lease is over, and every block back."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev", description=__doc__)
    parser.add_argument("mix", choices=("chaos", "soak"))
    parser.add_argument("--minutes", type=float, default=5.0, help="of requests and faults (default 5)")
    parser.add_argument("--seed", type=int, default=1, help="what goes wrong, and when (default 1)")
    parser.add_argument("--connector", choices=sorted(CONNECTORS), default="kvferry")
    parser.add_argument("--vllm", choices=RELEASES, default=OWN, help=f"which release the engines are of (default {OWN})")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def run(mix: Mix, connector: str, seed: int, seconds: float) -> report.Run:
    with Cluster(mix, connector, seed, LIBRARY, log_folder(f"{mix.name}-{connector}")) as cluster:
        with doing("asking D for the right tokens"):
            cluster.warm_up()
            known = learn(cluster, make_questions(mix.models, seed))
        now_s = cluster.begin()
        ask = Routed(cluster).ask if mix.below else Handed(cluster, known).ask
        raiser = Raiser(cluster, seed)
        with raiser, Clients(cluster, known, seed, ask) as clients:
            storm = Storm(cluster, clients.last_right_s, clients.in_short)
            storm.run(plan(mix.faults, seed, seconds), seconds - LEAD_OUT_S)
            say(f"  {now_s():4.0f} s  no more faults")
            storm.wait(seconds)
            raiser.stop()
            cluster.calm()
        run_s = now_s()
        cluster.come_back()
        problems = [*cluster.problems, *clients.mistakes]
        places = cluster.mix.d_places * cluster.updates
        if sum(request.outcome is Outcome.MIXED for request in clients.requests) > places:
            problems.append(f"more answers are of two versions of the weights than D had places for: {places}")
        if clients.unanswered:
            problems.append(f"{clients.unanswered} clients still wait for an answer")
        with doing("waiting for every block to come back"):
            held = cluster.left_held(QUIET_LIMIT_S)
        injected = Counter(raiser.raised)
        for control in cluster.controls.values():
            injected.update(control.injected())
        if mix.below and not injected:
            problems.append("nothing has gone wrong")
        return report.Run(mix.name, connector, seed, run_s, clients.requests, storm.faults, dict(injected), held,
                          storm.restarts, problems, cluster.counted())


def main() -> int:
    args = parse_args()
    if (why := missing(args.vllm)):
        raise SystemExit(f"vLLM {args.vllm}: {why}")
    os.environ["PYTHONPATH"] = python_path(args.vllm)
    mix = mix_named(args.mix, args.connector)
    if mix.below and not LIBRARY.exists():
        raise SystemExit(f"{LIBRARY} is not there: start this as ./dev chaos")
    result = run(mix, args.connector, args.seed, args.minutes * 60.0)
    print("\n" + report.text(result) + "\n", flush=True)
    if args.json:
        args.json.write_text(json.dumps(report.as_json(result), indent=1) + "\n")
    say("PASS" if result.good else "FAIL")
    return 0 if result.good else 1


if __name__ == "__main__":
    run_to_end(main)
