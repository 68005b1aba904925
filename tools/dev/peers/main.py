"""kvferry beside its peers and the machine's limits: the same memory, the same lists of blocks, in turns."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from . import extras, shapes
from .implementations import implementations
from .memory import Memory
from .pair import Pair
from .plot import draw
from .report import Row, goals_table, rows_of, tables
from .rounds import Field, Samples

PEERS = Path(".cache/peers")
UCX_LIBRARY = PEERS / "libucx/lib/libucp.so.0"


def say(text: str) -> None:
    print(("\r\033[K" if sys.stderr.isatty() else "") + text, file=sys.stderr, flush=True)


class Progress:
    """One line that is written again and again; a line every few seconds where that is not possible."""

    def __init__(self) -> None:
        self.start = self.shown = time.monotonic()

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        line = f"{now - self.start:4.0f} s  {text}"
        if sys.stderr.isatty():
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
        elif now - self.shown > 10:
            print(line, file=sys.stderr, flush=True)
            self.shown = now


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench --peers", description=__doc__)
    parser.add_argument("folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--peers", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as a JSON list")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", default=Path(".cache/results/peers"),
                        help="where the pictures go (default: %(default)s)")  # fmt: skip
    parser.add_argument("--case", default="", metavar="TEXT", help="only the cases whose name has this: tcp/64x16KiB")
    parser.add_argument("--seconds", type=float, default=20, metavar="N", help="for each shape, about (default: %(default)s)")
    parser.add_argument("--shapes-only", action="store_true", help="speed, time and cost of the shapes, and nothing else")
    parser.add_argument("--seed", type=int, default=1, help="of the blocks' places and the order of turns")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of kvferry's nodes")
    parser.add_argument("--against", action="append", default=[], metavar="'NAME=VALUE …'",
                        help="kvferry once more, with these options")  # fmt: skip
    parser.add_argument("--ucx-library", type=Path, default=UCX_LIBRARY, metavar="FILE",
                        help="UCX of kvferry's transport ucx and of plain UCX (default: %(default)s)")  # fmt: skip
    return parser.parse_args(given)


def rows_of_samples(pair: Pair, samples: Samples) -> list[Row]:
    shape = samples.shape
    who = {"impl": pair.what.impl, "variant": pair.what.variant, "version": pair.version}
    if shape.cut:
        who["cut"] = shape.cut
    cpu_s = samples.cpu_s / samples.cpu_rounds
    return rows_of(pair.what.path, shape.name, shape.bytes, shape.layers * shape.blocks == 1, who, samples.ns, cpu_s)


def run(options: argparse.Namespace, logs: Path) -> list[Row]:
    progress = Progress()
    pool_bytes = shapes.pool_bytes_for(shapes.available_bytes())
    chosen = [shapes.fit(shape, pool_bytes) for shape in shapes.SHAPES]
    everybody = [
        (what, [shape for shape in chosen if what.has_shapes and options.case in f"{what.path}/{shape.name}"])
        for what in implementations(
            options.folder.absolute() / "peers",
            PEERS.absolute(),
            options.option,
            str(options.ucx_library.absolute() if options.ucx_library.exists() else options.ucx_library),
            options.against,
            extras.with_key(logs),
        )
    ]
    wanted = {what: cases for what, cases in everybody if cases}
    others = [(what, name) for name in extras.EXTRAS for what, _ in everybody
              if not options.shapes_only and extras.applies(what, name) and options.case in f"{what.path}/{name}"]  # fmt: skip
    if not wanted:
        return extras.measure(others, options.seed, logs, say, progress)
    field = Field(Memory(pool_bytes, options.seed), options.seed, say, progress)
    rows = []
    try:
        for what in wanted:
            progress(f"starting {what.path} {what.name}")
            field.add(what, logs)
        say("; ".join(dict.fromkeys(pair.version for pair in field.pairs)) + f"; pools of {pool_bytes // shapes.MIB} MiB")
        for shape in chosen:
            if any(shape in cases for cases in wanted.values()):
                say(f"{shape.name}{' CUT: ' + shape.cut if shape.cut else ''} …")
                samples = field.measure(shape, options.seconds, lambda pair: shape in wanted[pair.what])  # noqa: B023
                for pair, found in samples.items():
                    rows += rows_of_samples(pair, found)
    finally:
        field.close()
    return rows + extras.measure(others, options.seed, logs, say, progress)


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="kvferry-peers-") as logs:
        rows = run(options, Path(logs))
    if not rows:
        sys.exit(f"error: no case's name has '{options.case}', or nothing could be measured")
    order = {path: i for i, path in enumerate(("local", "tcp", "ucx"))}
    rows.sort(key=lambda row: order.get(row["case"].split("/")[0], len(order)))
    say("")
    print("\n".join(tables(rows)))
    print("\n" + goals_table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    pictures = draw(rows, options.plot)
    if pictures:
        print("\npictures: " + ", ".join(str(file) for file in pictures))


if __name__ == "__main__":
    main()
