"""Two prefill engines, a decode engine, vLLM's router and steady requests, while calls below the library fail, engines
are stopped and killed, and bytes are corrupted. At the end: what the clients got."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

import kvferry._kvferry as binding
from pd.connector import CONNECTORS
from pd.paths import ROOT
from pd.progress import doing, say
from pd.stack import exit_on_signals, log_folder

from . import report
from .clients import Clients, known_prompts, make_prompts
from .cluster import Cluster
from .report import Run, faults_of
from .schedule import plan
from .storm import Storm
from .tally import Outcome
from .watch import Watch

LIBRARY = ROOT / "build" / "tools" / "chaos" / "libkvferry-chaos.so"
QUIET_LIMIT_S = 45.0
"""After the last answer: by then every lease is over, and every block back."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="of requests and faults (default 5)")
    parser.add_argument("--seed", type=int, default=1, help="what goes wrong, and when (default 1)")
    parser.add_argument("--connector", choices=sorted(CONNECTORS), default="kvferry")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.png")
    return parser.parse_args()


def check_ready(args: argparse.Namespace) -> None:
    """Before the long run, not after it."""
    if not LIBRARY.exists():
        raise SystemExit(f"{LIBRARY} is not there: start this as ./dev chaos")
    if args.plot:
        import matplotlib  # noqa: F401


def has_checksums() -> bool:
    """Whether the library can tell that bytes are not those that were published: else none are corrupted."""
    return any(option[0] == "checksum" for option in binding.options())


def run(connector: str, seed: int, seconds: float, library: Path) -> Run:
    checksum = has_checksums()
    logs = log_folder(f"chaos-{connector}")
    with Cluster(connector, checksum, seed, library, logs) as cluster:
        with doing("asking D for the right tokens"):
            known = known_prompts(cluster.consumer.url, make_prompts(seed))
            cluster.warm_up()
        start = time.monotonic()

        def now_s() -> float:
            return time.monotonic() - start

        storm = Storm(cluster, now_s)
        clients = Clients(cluster.router.url, known, seed, now_s)
        with Watch(cluster, now_s, clients.last_right_s) as watch:
            with clients:
                storm.run(plan(seed, seconds, checksum))
                say(f"  {now_s():4.0f} s  no more faults")
                time.sleep(max(0.0, seconds - now_s()))
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
        return Run(connector, seed, checksum, run_s, clients.requests,
                   faults_of(storm.happened, clients.requests, watch.noticed_s),
                   [one for one in storm.happened if one.skipped], dict(injected), leaked, watch.d_restarts,
                   watch.detections, watch.detection_s, problems)


def main() -> int:
    args = parse_args()
    check_ready(args)
    exit_on_signals()
    result = run(args.connector, args.seed, args.minutes * 60.0, LIBRARY)
    print("\n" + report.text(result) + "\n", flush=True)
    if args.json:
        args.json.write_text(json.dumps(report.as_json(result), indent=1) + "\n")
    if args.plot:
        from .plot import draw
        draw(result, args.plot)
    found = result.tally.by_outcome
    say(f"{result.tally.requests} requests: {found[Outcome.WRONG]} wrong, {found[Outcome.HUNG]} hung, "
        f"{result.leaked_blocks} blocks leaked, D started anew {len(result.d_restarts)} times")
    return 0 if result.good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
