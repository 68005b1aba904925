"""kvferry beside the machine's limit, and what leases and a node's poll cost: one table, one JSON list."""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from peers.blocks import SHAPES, available_bytes, fit, pool_bytes_for
from peers.implementations import implementations, make_key
from peers.main import BUILD, PEERS, measure
from peers.pair import Implementation
from peers.report import Row, ratio

NAMES = ("1x4KiB", "64x16KiB", "1024x16KiB", "64x1MiB")
SHAPE_S = 6.0
LIMITS = ("readv x2", "streams x2")  # as many threads as kvferry has by default
CHECKSUMS = "checksum=on"
SUFFIXES = {CHECKSUMS: "+checksums", "tls": "+tls"}


def everybody(build: Path, logs: Path) -> list[Implementation]:
    """Callers that sleep while a load runs, as engines do. Nothing of UCX's."""
    found = implementations(build / "peers", PEERS.absolute(), "", make_key(logs), (CHECKSUMS,))
    ours = [replace(what, options=(*what.options, "caller=asleep")) for what in found if what.impl == "kvferry"]
    return [what for what in ours if what.path != "ucx"] + [what for what in found if what.variant in LIMITS]


def case_of(what: Implementation, shape: str) -> str:
    return f"{what.path}/{shape}{SUFFIXES.get(what.variant, '')}"


def transfers(build: Path, only: str, logs: Path) -> list[Row]:
    pool_bytes = pool_bytes_for(available_bytes())
    shapes = [fit(shape, pool_bytes) for shape in SHAPES if shape.name in NAMES]
    cases = {what: [shape for shape in shapes if only in case_of(what, shape.name)] for what in everybody(build, logs)}
    rows = [row for row in measure(cases, pool_bytes, SHAPE_S, logs) if row["case"].count("/") == 1]
    rows.sort(key=lambda row: row["case"].split("/")[0])
    return [{**row, "case": row["case"] + SUFFIXES.get(row["variant"], "")} for row in rows]


def leases(build: Path, only: str) -> list[Row]:
    names = subprocess.run([build / "lease_bench"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [row for row in map(json.loads, names.splitlines()) if only in row["case"]]


def show(rows: list[Row]) -> None:
    """What is not bare has the bare limit, too."""
    limits = {row["case"]: row for row in rows if row["impl"] == "limit"}
    print(f"{'case':<24}{'median':>10}{'p99':>10}  {'unit':<6}{'limit':>10}{'of limit':>10}{'runs':>7}")
    for row in rows:
        if row["impl"] == "limit":
            continue
        limit = limits.get(row["case"].split("+")[0])
        beside = f"{limit['median']:>10.4g}{ratio(row, limit):>10.2f}" if limit else f"{'':>20}"
        print(f"{row['case']:<24}{row['median']:>10.4g}{row['p99']:>10.4g}  {row['unit']:<6}{beside}{row['runs']:>7}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as a JSON list")
    parser.add_argument("--case", default="", metavar="TEXT", help="only the cases whose name has this: tcp/, lease/")
    options = parser.parse_args()
    build = (BUILD / "bench").absolute()
    with tempfile.TemporaryDirectory(prefix="kvferry-bench-") as folder:
        rows = transfers(build, options.case, Path(folder))
    if options.case.split("/")[0] in ("", "lease", "poll"):
        rows += leases(build, options.case)
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
