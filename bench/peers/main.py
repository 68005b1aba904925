"""kvferry beside its peers and the machine's limits: the same memory, the same lists of blocks, in turns."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from pd.progress import say

from . import builds, extras
from .blocks import MIB, SHAPES, Memory, Shape, available_bytes, fit, pool_bytes_for
from .implementations import implementations, make_key
from .pair import Implementation, Pair
from .report import Row, goals_table, rows_of, tables
from .rounds import Field, Samples

BUILD = Path("build-release")
PEERS = Path(".cache/peers")
UCX_LIBRARY = PEERS / "libucx/lib/libucp.so.0"
SEED = 1
SHAPE_S = 20.0  # all that is measured of one shape, about
SHOW_EVERY_S = 10.0


class Progress:
    """A line every few seconds."""

    def __init__(self) -> None:
        self.start = self.shown = time.monotonic()

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now - self.shown > SHOW_EVERY_S:
            say(f"{now - self.start:4.0f} s  {text}")
            self.shown = now


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench --peers", description=__doc__)
    parser.add_argument("--peers", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as a JSON list")
    parser.add_argument("--case", default="", metavar="TEXT", help="only the cases whose name has this: tcp/64x16KiB")
    parser.add_argument("--against", action="append", default=[], metavar="'NAME=VALUE …'",
                        help="kvferry once more, with these options")  # fmt: skip
    parser.add_argument("--against-build", type=Path, metavar="FOLDER",
                        help="an older build instead of the peers: fails where this one is slower")  # fmt: skip
    options = parser.parse_args(given)
    if options.against_build and (options.against or options.json):
        parser.error("--against-build goes with --case alone")
    return options


def rows_of_samples(pair: Pair, samples: Samples) -> list[Row]:
    shape = samples.shape
    who = {"impl": pair.what.impl, "variant": pair.what.variant, "version": pair.version}
    if shape.cut:
        who["cut"] = shape.cut
    cpu_s = samples.cpu_s / samples.cpu_rounds
    return rows_of(pair.what.path, shape.name, shape.bytes, shape.layers * shape.blocks == 1, who, samples.ns, cpu_s)


def measure(cases: dict[Implementation, list[Shape]], pool_bytes: int, shape_s: float, logs: Path) -> list[Row]:
    """Of each implementation those shapes, all in turns."""
    if not any(cases.values()):
        return []
    rows = []
    with closing(Field(Memory(pool_bytes, SEED), SEED, say, Progress())) as field:
        for what, mine in cases.items():
            if mine:
                field.add(what, logs)
        say("; ".join(dict.fromkeys(pair.version for pair in field.pairs)) + f"; pools of {pool_bytes // MIB} MiB")
        for shape in dict.fromkeys(shape for mine in cases.values() for shape in mine):
            say(f"{shape.name}{' CUT: ' + shape.cut if shape.cut else ''} …")
            samples = field.measure(shape, shape_s, lambda pair: shape in cases[pair.what])  # noqa: B023
            for pair, found in samples.items():
                rows += rows_of_samples(pair, found)
    return rows


def run(options: argparse.Namespace, logs: Path) -> list[Row]:
    pool_bytes = pool_bytes_for(available_bytes())
    chosen = [fit(shape, pool_bytes) for shape in SHAPES]
    everybody = implementations(
        (BUILD / builds.DRIVER.parent).absolute(), PEERS.absolute(), str(UCX_LIBRARY.absolute()), make_key(logs), options.against
    )
    cases = {what: [shape for shape in chosen if what.has_shapes and options.case in f"{what.path}/{shape.name}"]
             for what in everybody}  # fmt: skip
    others = [(what, name) for name in extras.EXTRAS for what in everybody
              if extras.applies(what, name) and options.case in f"{what.path}/{name}"]  # fmt: skip
    rows = measure(cases, pool_bytes, SHAPE_S, logs)
    return rows + extras.measure(others, SEED, logs, say, Progress())


def main() -> int:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="kvferry-peers-") as folder:
        logs = Path(folder)
        if options.against_build:
            return builds.compare(options.against_build, BUILD, options.case, UCX_LIBRARY, logs)
        rows = run(options, logs)
    if not rows:
        sys.exit(f"error: no case's name has '{options.case}', or nothing could be measured")
    order = ("local", "tcp", "ucx")
    rows.sort(key=lambda row: order.index(row["case"].split("/")[0]))
    print("\n" + "\n".join(tables(rows)) + "\n\n" + goals_table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
