"""What is measured on fresh pairs of processes: the first load, a connected pair with nothing to do, a producer that dies or
stands still, a network that drops what is sent."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from .blocks import KIB, MIB, Memory, Shape
from .implementations import make_key
from .pair import Implementation, Pair, PeerError
from .report import GB_PER_S, MS, OF_LOAD, PERCENT, US, Row, make_row, quantiles
from .rounds import Field, Samples

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "hosts"))

from network import Network, NoNetwork  # noqa: E402

POOL_BYTES = 256 * MIB
SMALL = Shape("64x16KiB", 1, 64, 16 * KIB)
TINY = Shape("4x16KiB", 1, 4, 16 * KIB)
MANY = Shape("1024x16KiB", 1, 1024, 16 * KIB)
MANY_ROUNDS = 41
MANY_S = 2.0
LARGE = Shape("64x1MiB", 1, 64, MIB)
FIRST_LOADS = 7
CONNECTED_S = 0.3  # until a consumer has connected on its own account
IDLE_S = 2.0
FAULT_AFTER_S = 0.2
KILLS = 5
STOPS = 3
WATCH_S = 4.0  # what is not detected by then counts as not detected
STEPS = 500
SIDE_BY_SIDE_S = 5.0
FENCE_PARTS = 8
CHUNK_BYTES = 4 * MIB  # the default of the option chunk_bytes
# A new process' first connection through UCX takes 30 ms of both sides' cores: many of them at once, on this one host.
PATIENT = "handshake_timeout_ms=10000"
ANSWER_S = 3.0  # more, for a call that never comes back
HOLDER, READER = "P", "D"
Cuts = tuple[tuple[str, str], ...]
# Who no longer hears whom: both, the consumer, the producer.
CUTS: tuple[Cuts, ...] = (((HOLDER, READER), (READER, HOLDER)), ((HOLDER, READER),), ((READER, HOLDER),))


@contextmanager
def at_work(what: Implementation, memory: Memory, logs: Path, shape: Shape, parts: int = 1) -> Iterator[Pair]:
    memory.choose(shape)
    with closing(Pair(what, memory, logs, parts)) as pair:
        pair.begin(shape)
        yield pair


def who(pair: Pair) -> Row:
    return {"impl": pair.what.impl, "variant": pair.what.variant, "version": pair.version}


def first_load(what: Implementation, memory: Memory, logs: Path, case: str = "first-load", wait_s: float = 0.0) -> Row:
    """From the request to the last block, where producer and consumer have not met: connecting is in it; starting the
    processes, opening the library and registering memory are not."""
    times = []
    for _ in range(FIRST_LOADS):
        with at_work(what, memory, logs, SMALL) as pair:
            time.sleep(wait_s)
            times.append(pair.run(0, 1)[0] / 1e3)
    return make_row(f"{what.path}/{case}", who(pair), US, *quantiles(times, False), len(times))


def first_load_of_known(what: Implementation, memory: Memory, logs: Path) -> Row:
    """The same, where the consumer has connected on its own account, since its option peers names the producer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    known = replace(what, holder_options=(f"listen={address}",), reader_options=(f"peers={address}",))
    return first_load(known, memory, logs, "first-load-known", CONNECTED_S)


def idle(what: Implementation, memory: Memory, logs: Path) -> Row:
    """CPU of the busier of the two processes, connected, with nothing to do."""
    with at_work(what, memory, logs, SMALL) as pair:
        pair.run(0, 10)
        time.sleep(0.5)
        before = [side.cpu_s() for side in pair.sides]
        time.sleep(IDLE_S)
        used = max(side.cpu_s() - start for side, start in zip(pair.sides, before))
    return make_row(f"{what.path}/idle", who(pair), PERCENT, used / IDLE_S * 100, used / IDLE_S * 100, 1)


def detect_ms(pair: Pair, fault: Callable[[], None]) -> float | None:
    """Milliseconds from the fault, in the middle of a load, to the load's failure; None if there is none."""
    pair.run(1, 1)
    pair.reader.tell(f"watch {int((FAULT_AFTER_S + WATCH_S) * 1000)}")
    time.sleep(FAULT_AFTER_S)
    begin_ns = time.monotonic_ns()
    fault()
    try:
        word, _, text = pair.reader.any_answer(WATCH_S + ANSWER_S).partition(" ")
    except PeerError as error:
        return None if error.timed_out else (time.monotonic_ns() - begin_ns) / 1e6
    return (int(text.split()[0]) - begin_ns) / 1e6 if word == "failed" else None


def detection_row(case: str, mine: Row, found: list[float | None]) -> Row:
    times = [WATCH_S * 1000 if each is None else each for each in found]
    row = make_row(case, mine, MS, *quantiles(times, False), len(times))
    return {**row, "undetected": found.count(None)}


def detection(name: str, fault: signal.Signals, runs: int) -> Callable[[Implementation, Memory, Path], Row]:
    def measure(what: Implementation, memory: Memory, logs: Path) -> Row:
        found: list[float | None] = []
        while len(found) < runs and None not in found:  # each of those costs WATCH_S
            with at_work(what, memory, logs, LARGE) as pair:
                pid = pair.holders[0].process.pid
                found.append(detect_ms(pair, lambda: os.kill(pid, fault)))  # noqa: B023
        return detection_row(f"{what.path}/{name}", who(pair), found)

    return measure


@contextmanager
def apart(what: Implementation, key: str) -> Iterator[tuple[Implementation, Callable[[Cuts], None]]]:
    """The implementation with its processes on different hosts, and what cuts them off. NoNetwork: the system allows none."""
    try:
        network = Network([HOLDER, READER])
    except OSError as error:
        raise NoNetwork(str(error)) from error
    with closing(network):
        there = replace(
            what,
            holder_in=tuple(network.hosts[HOLDER].command()),
            reader_in=tuple(network.hosts[READER].command()),
            holder_options=address_options(what, network.address(HOLDER), key),
            reader_options=address_options(what, network.address(READER), key),
            environment={**what.environment, "UCX_NET_DEVICES": "eth0"},
        )

        def cut(cuts: Cuts) -> None:
            for source, target in cuts:
                network.cut(source, target)

        yield there, cut


def address_options(what: Implementation, address: str, key: str) -> tuple[str, ...]:
    """Where it listens, for those that must be told. kvferry takes no other than this host's without a key."""
    if what.impl == "kvferry":
        return (f"listen={address}", key)
    return (f"address={address}",) if what.impl == "mooncake" else ()


def partition(what: Implementation, memory: Memory, logs: Path) -> Row:
    """From the moment when the network between two hosts begins to drop what one sends the other, either or both, to the
    load's failure."""
    found: list[float | None] = []
    for cuts in CUTS:
        with apart(what, make_key(logs)) as (there, cut), at_work(there, memory, logs, LARGE) as pair:
            found.append(detect_ms(pair, lambda: cut(cuts)))  # noqa: B023
        if None in found:
            break
    return detection_row(f"{what.path}/partition", who(pair), found)


def engine_step(loads: int) -> Callable[[Implementation, Memory, Path], Row]:
    """What an engine's step pays for loads that are still on their way: their producer stands still."""

    def measure(what: Implementation, memory: Memory, logs: Path) -> Row:
        patient = ("stall_timeout_ms=60000", "load_timeout_ms=600000") if what.impl == "kvferry" else ()
        with at_work(replace(what, options=(*what.options, *patient)), memory, logs, TINY) as pair:
            pair.run(0, 1)
            os.kill(pair.holders[0].process.pid, signal.SIGSTOP)
            pair.reader.ask(f"start {loads}", "done")
            pair.reader.ask("step 10", "ns")
            times = [int(word) / 1e3 for word in pair.reader.ask(f"step {STEPS}", "ns").split()]
        return make_row(f"{what.path}/step-{loads}", who(pair), US, *quantiles(times, False), len(times))

    return measure


def side_by_side(what: Implementation, memory: Memory, logs: Path, *options: tuple[str, ...]) -> tuple[list[Samples], Row]:
    """Loads of LARGE with each of these options, in turns."""
    with closing(Field(memory, memory.seed, lambda text: None, lambda text: None)) as field:
        for i, more in enumerate(options):
            field.add(replace(what, variant=f"variant-{i}", options=(*what.options, *more)), logs)
        samples = list(field.measure(LARGE, SIDE_BY_SIDE_S, lambda pair: True).values())
        if len(samples) < len(options):
            raise PeerError(f"{what.path} {what.name}: options that it does not take")
        return samples, {**who(field.pairs[0]), "variant": what.variant}


def fence(what: Implementation, memory: Memory, logs: Path) -> Row:
    """The share of a load's time that goes into the looks at the fence, from above: chunks of an eighth have eight times as
    many looks, and eight times as much of whatever else a chunk costs."""
    chunks = ((f"chunk_bytes={CHUNK_BYTES}",), (f"chunk_bytes={CHUNK_BYTES // FENCE_PARTS}",))
    samples, mine = side_by_side(what, memory, logs, *chunks)
    few, many = (quantiles(found.ns, False)[0] for found in samples)
    share = (many - few) / (FENCE_PARTS - 1) / few * 100
    return make_row(f"{what.path}/fence", mine, OF_LOAD, share, share, len(samples[0].ns))


def first_load_with_key(what: Implementation, memory: Memory, logs: Path) -> Row:
    return first_load(replace(what, options=(*what.options, make_key(logs))), memory, logs, "first-load-key")


def key(what: Implementation, memory: Memory, logs: Path) -> Row:
    """How much longer loads take between nodes that have a key."""
    samples, mine = side_by_side(what, memory, logs, (), (make_key(logs),))
    without, having = (quantiles(found.ns, False)[0] for found in samples)
    share = (having / without - 1) * 100
    return make_row(f"{what.path}/key", mine, OF_LOAD, share, share, len(samples[0].ns))


def producers(parts: int) -> Callable[[Implementation, Memory, Path], Row]:
    """The speed of one load of MANY from so many producers at once, each of which has its share of the blocks."""

    def measure(what: Implementation, memory: Memory, logs: Path) -> Row:
        patient = replace(what, options=(*what.options, PATIENT)) if (what.path, what.impl) == ("ucx", "kvferry") else what
        with at_work(patient, memory, logs, MANY, parts) as pair:
            memory.clear(MANY)
            pair.run(0, 1)
            if not memory.is_copied(MANY):
                raise PeerError(f"{what.path} {what.name}: {parts} producers: the copy is wrong")
            begin = time.monotonic()
            ns: list[int] = []
            while len(ns) < MANY_ROUNDS and time.monotonic() - begin < MANY_S:
                ns += pair.run(0, 1)
        speeds = [MANY.bytes / one for one in ns]
        return make_row(f"{what.path}/producers-{parts}", who(pair), GB_PER_S, *quantiles(speeds, True), len(ns))

    return measure


EXTRAS = {
    "first-load": first_load,
    "idle": idle,
    "kill": detection("kill", signal.SIGKILL, KILLS),
    "stop": detection("stop", signal.SIGSTOP, STOPS),
    "partition": partition,
    "fence": fence,
    "first-load-known": first_load_of_known,
    "first-load-key": first_load_with_key,
    "key": key,
    **{f"step-{loads}": engine_step(loads) for loads in (0, 100, 1000)},
    **{f"producers-{parts}": producers(parts) for parts in (1, 8, 64)},
}


def applies(what: Implementation, name: str) -> bool:
    if what.extras is not None:
        return name in what.extras
    if what.variant:
        return False
    if name == "partition":
        return what.path != "local"
    if name in ("fence", "key", "first-load-key", "first-load-known"):
        return what.impl == "kvferry"
    if name.startswith("step-"):
        return what.path == "tcp" and what.impl in ("kvferry", "nixl")
    if name.startswith("producers-"):
        return what.impl == "kvferry" or (what.impl == "nixl" and name != "producers-64")
    return True


def measure(
    wanted: list[tuple[Implementation, str]], seed: int, logs: Path, say: Callable[[str], None], show: Callable[[str], None]
) -> list[Row]:
    memory = Memory(POOL_BYTES, seed)
    rows = []
    for what, name in wanted:
        show(f"{name}: {what.path} {what.name}")
        try:
            rows.append(EXTRAS[name](what, memory, logs))
        except (PeerError, NoNetwork) as error:
            say(f"left out: {what.path}/{name}: {error}")
    return rows
