"""Runs the benchmark programs, shows one table, writes one JSON list."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

PROGRAMS = ("transfer_bench", "lease_bench")
MORE_IS_BETTER = ("GB/s",)


def run(program: Path, only: str) -> list[dict]:
    rows = []
    with subprocess.Popen([program, only], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            rows.append(json.loads(line))
            if sys.stderr.isatty():
                print(f"\r\033[K{rows[-1]['case']}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    if process.returncode != 0:
        sys.exit(f"error: {program.name} ended with status {process.returncode}")
    return rows


def ratio(row: dict, limit: dict) -> str:
    if row["unit"] in MORE_IS_BETTER:
        return f"{row['median'] / limit['median']:.2f}"
    return f"{limit['median'] / row['median']:.2f}"


def show(rows: list[dict]) -> None:
    limits = {row["case"]: row for row in rows if row["impl"] == "limit"}
    print(f"{'case':<24}{'median':>10}{'p99':>10}  {'unit':<6}{'limit':>10}{'of limit':>10}{'runs':>7}")
    for row in rows:
        if row["impl"] == "limit":
            continue
        limit = limits.get(row["case"])
        beside = f"{limit['median']:>10.4g}{ratio(row, limit):>10}" if limit else f"{'':>20}"
        print(f"{row['case']:<24}{row['median']:>10.4g}{row['p99']:>10.4g}  {row['unit']:<6}{beside}{row['runs']:>7}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as a JSON list")
    parser.add_argument("--case", default="", metavar="TEXT", help="only the transfer cases whose name has this")
    options = parser.parse_args()
    programs = PROGRAMS[:1] if options.case else PROGRAMS
    rows = [row for name in programs for row in run(options.folder / name, options.case)]
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
