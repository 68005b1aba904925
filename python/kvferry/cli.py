"""The command line: `kvferry COMMAND`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from . import __version__
from .engine.drain import GRACE_MS_MAX


def within(least: float, most: float, unit: str) -> Callable[[str], float]:
    """What argparse takes for a type: a whole number, if `least` is one."""
    def number(text: str) -> float:
        value = type(least)(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not {least} to {most} {unit}")
        return value
    return number


SECONDS = within(0.1, 3600, "seconds")


def run_top(arguments: argparse.Namespace) -> int:
    from .top.main import run

    return run(arguments.urls, arguments.interval, arguments.once)


def run_why(arguments: argparse.Namespace) -> int:
    from .why.main import run

    return run(arguments.urls, arguments.since, print)


def run_options(arguments: argparse.Namespace) -> int:
    from .explain import options

    return options(arguments.name, print)


def run_explain(arguments: argparse.Namespace) -> int:
    from .explain import reason

    return reason(arguments.reason, print)


def run_check(arguments: argparse.Namespace) -> int:
    from .check import run

    options = {"key_file": arguments.key_file, "tls": arguments.tls, "cuda_library": arguments.cuda_library,
               "log_level": "error"}
    return run(arguments.node, options, arguments.listen, arguments.ranks, print)


def run_key(arguments: argparse.Namespace) -> int:
    from .key import run

    return run(arguments.file, arguments.add, print)


def run_ready(arguments: argparse.Namespace) -> int:
    from .leave import ready

    return ready(arguments.engines, print)


def run_drain(arguments: argparse.Namespace) -> int:
    from .leave import drain

    return drain(arguments.engines, arguments.all, arguments.grace_ms, arguments.timeout, arguments.key_file, print)


def run_identity(arguments: argparse.Namespace) -> int:
    from .engine.digest_file import DigestFileError, make

    try:
        path, entries = make(arguments.folder, print)
    except (DigestFileError, OSError) as error:
        print(f"kvferry identity: {error}", file=sys.stderr)
        return 2
    print(f"{path}: {len(entries)} files, {sum(entry.size for entry in entries.values()) / 1e9:.1f} GB")
    return 0


def arguments_of(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="kvferry", description="Tools for engines with kvferry.")
    parser.add_argument("--version", action="version", version=f"kvferry {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    check = commands.add_parser("check", help="what works on this machine, or between it and a node",
                                description="Prints a line for each finding: ok, warn or FAIL, and the way out. Exit status: the worst of "
                                            "them (0, 1 or 2). With HOST:PORT, connects to that node: key, versions, transports, round trip, GB/s.")
    check.add_argument("node", nargs="?", metavar="HOST:PORT", help="the control address of a rank's node, as its log line names it")
    check.add_argument("--key-file", default=os.environ.get("KVFERRY_KEY_FILE", ""), metavar="FILE",
                       help="the engines' option key_file (default: KVFERRY_KEY_FILE)")
    check.add_argument("--tls", default="off_loopback", choices=("off_loopback", "always", "never"), help="the engines' option tls")
    check.add_argument("--listen", default="", metavar="HOST[:PORT]", help="the engine's option listen: which address is it, is that port free?")
    check.add_argument("--cuda-library", default="", metavar="FILE", help="the engine's option cuda_library: CUDA's driver")
    check.add_argument("--ranks", type=within(1, 64, "ranks"), default=1, metavar="N", help="of the engine: each takes the next port (default 1)")
    check.set_defaults(run=run_check)

    identity = commands.add_parser("identity", help="a file of digests beside weights, for engines that trust it",
                                   description="Reads all weights in DIR, and writes their SHA-256 to DIR/kvferry-digests.json, which an "
                                               "engine with the option weights_digest = trust starts with at once. Exit status: 0, or 2 if "
                                               "there is none.")
    identity.add_argument("folder", type=Path, metavar="DIR", help="the folder that the files of weights are in")
    identity.set_defaults(run=run_identity)

    top = commands.add_parser("top", help="a live view of engines: peers, breakers, loads, leases, rates, last failures",
                              description="Shows what engines' /metrics say of kvferry, until Ctrl-C.")
    top.add_argument("urls", nargs="+", metavar="URL", help="an engine's API server: HOST:PORT or http://HOST:PORT")
    top.add_argument("--interval", type=SECONDS, default=1.0, metavar="SECONDS", help="between two looks (default 1)")
    top.add_argument("--once", action="store_true",
                     help="look twice, print one frame and end: status 0 if all engines answered, 1 if not")
    top.set_defaults(run=run_top)

    why = commands.add_parser("why", help="prompts are recomputed on D: which step fails first, and what to do",
                              description="Reads engines' /metrics and judges the steps from P's ticket to D's load. The first line is the first "
                                          "step that fails, with its numbers and its remedy. Exit status: 0 none fails, 1 one does, 2 an engine "
                                          "cannot be read.")
    why.add_argument("urls", nargs="+", metavar="URL", help="API servers of P and D, in any order: HOST:PORT or URL; or Ray's metrics port")
    why.add_argument("--since", type=SECONDS, metavar="SECONDS", help="look twice, and judge what was counted in between (default: since "
                                                                      "the engines' start)")
    why.set_defaults(run=run_why)

    options = commands.add_parser("options", help="what options there are", description="Prints the table of options, or one of them.")
    options.add_argument("name", nargs="?", metavar="NAME", help="an option (default: all, without their meaning)")
    options.set_defaults(run=run_options)

    explain = commands.add_parser("explain", help="what a reason of metrics, logs and errors means",
                                  description="Prints what a reason means, what may be done about it, and in which step it shows.")
    explain.add_argument("reason", nargs="?", metavar="REASON", help="such as lease_expired (default: all of them)")
    explain.set_defaults(run=run_explain)

    key = commands.add_parser("key", help="make a shared key",
                              description="Writes a random key to a new file that its owner alone can read, and prints the file's path and "
                                          "the key's id, by which logs name it. Give the file to all engines: option key_file.")
    key.add_argument("file", nargs="?", type=Path, default=Path("kvferry.key"), metavar="FILE", help="default: kvferry.key")
    key.add_argument("--add", action="store_true",
                     help="a second key in this file, accepted beside the first: the first step of a change of keys")
    key.set_defaults(run=run_key)

    ready = commands.add_parser("ready", help="are the engines of this user on this host ready? For probes",
                                description="Exit status 0 if they are. Not ready is an engine whose weights have no identity yet, that leaves, "
                                            "whose loads are stuck, or whose transfers are stopped. Peers that do not answer are printed.")
    ready.add_argument("engines", nargs="*", metavar="ENGINE", help="its engine_id (default: all)")
    ready.set_defaults(run=run_ready)

    drain = commands.add_parser("drain", help="make an engine leave, and wait until nobody needs it",
                                description="Its /health is 503 from now on; after a grace it takes no new prompts; then its leases end. Exit "
                                            "status 0 when the last one has, 1 if not within the timeout, 2 if it was not begun.")
    drain.add_argument("engines", nargs="*", metavar="ENGINE",
                       help="its engine_id, of this user on this host; or HOST:PORT or URL of its API server, with the key. Default: the one here")
    drain.add_argument("--all", action="store_true", help="all engines of this user on this host")
    drain.add_argument("--grace-ms", type=within(0, GRACE_MS_MAX, "ms"), metavar="MS",
                       help="for which it still takes prompts (default: its option drain_grace_ms)")
    drain.add_argument("--timeout", type=SECONDS, default=600.0, metavar="SECONDS", help="to wait for the end (default 600)")
    drain.add_argument("--key-file", type=Path, default=os.environ.get("KVFERRY_KEY_FILE") or None, metavar="FILE",
                       help="the shared key, for an engine elsewhere (default: KVFERRY_KEY_FILE)")
    drain.set_defaults(run=run_drain)
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    arguments = arguments_of(words)
    try:
        status: int = arguments.run(arguments)
        return status
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more to be said at exit
        return 1


if __name__ == "__main__":
    sys.exit(main())
