"""One implementation at work: a process that holds the blocks, one that reads them, and what both cost."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from .blocks import Memory, Shape

ANSWER_S = 60.0


class PeerError(Exception):
    def __init__(self, text: str, timed_out: bool = False):
        super().__init__(text)
        self.timed_out = timed_out


@dataclass(frozen=True, eq=False)
class Implementation:
    path: str  # what is compared with what: "local", "tcp", "ucx"
    impl: str  # "kvferry", "nixl", "mooncake", "ucx", "limit"
    variant: str  # what distinguishes several of one impl: "process_vm_readv, 2 threads"
    command: tuple[str, ...]
    argument: str
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    extras: tuple[str, ...] | None = None  # of those that are measured apart, the ones it takes part in; None: as its kind does
    has_shapes: bool = True
    holder_in: tuple[str, ...] = ()  # the command that runs another on the producer's host
    reader_in: tuple[str, ...] = ()
    holder_options: tuple[str, ...] = ()
    reader_options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.impl} {self.variant}" if self.variant else self.impl


def cpu_s(pid: int) -> float:
    """CPU time of all threads of another process so far: its clock, as clock_getcpuclockid() makes it."""
    return time.clock_gettime((~pid << 3) | 2)


class Side:
    def __init__(self, role: str, what: Implementation, memory: Memory, logs: Path, number: int):
        self.what = f"{what.path} {what.name} ({role})"
        self.log = logs / f"{what.path}-{what.name}-{role}-{number}.log".replace("/", "-")
        place, options = (what.holder_in, what.holder_options) if role == "hold" else (what.reader_in, what.reader_options)
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [*place, *what.command, role, what.argument, *memory.arguments, *what.options, *options],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env={**os.environ, **what.environment}, pass_fds=memory.fds,
            )  # fmt: skip
        self.rest = b""

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self.error("is gone") from None

    def any_answer(self, limit_s: float = ANSWER_S) -> str:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        end = time.monotonic() + limit_s
        while b"\n" not in self.rest:
            if not select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
                raise self.error(f"does not answer in {limit_s:.0f} s", timed_out=True)
            part = os.read(fd, 1 << 20)
            if not part:
                raise self.error("is gone")
            self.rest += part
        line, _, self.rest = self.rest.partition(b"\n")
        return line.decode().strip()

    def answer(self, kind: str, limit_s: float = ANSWER_S) -> str:
        line = self.any_answer(limit_s)
        word, _, text = line.partition(" ")
        if word != kind:
            raise self.error(f"answers {line[:80]!r}")
        return text

    def ask(self, line: str, kind: str, limit_s: float = ANSWER_S) -> str:
        self.tell(line)
        return self.answer(kind, limit_s)

    def error(self, what: str, timed_out: bool = False) -> PeerError:
        last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
        return PeerError(f"{self.what} {what}: {last[0] if last else 'it said nothing'}", timed_out)

    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # a line that the process no longer read
                    pipe.close()


class Pair:
    """One consumer, and its producer; or several, which share the blocks out among themselves."""

    def __init__(self, what: Implementation, memory: Memory, logs: Path, parts: int = 1):
        self.what = what
        self.memory = memory
        self.sides: list[Side] = []
        try:
            for i in range(parts + 1):
                self.sides.append(Side("hold" if i < parts else "read", what, memory, logs, i))
            *self.holders, self.reader = self.sides
            for side in self.sides:
                self.version = side.ask("version", "version")
        except PeerError:
            self.close()
            raise

    def begin(self, shape: Shape) -> None:
        pool_blocks = shape.pool_blocks(self.memory.pool_bytes)
        line = f"begin {shape.layers} {shape.blocks} {shape.block_bytes} {pool_blocks} {len(self.holders)}"
        offers = [holder.ask(f"{line} {i}", "offer") for i, holder in enumerate(self.holders)]
        self.reader.ask(f"{line} {'|'.join(offers)}", "done")

    def run(self, warm_up: int, rounds: int) -> list[int]:
        """Nanoseconds of each round."""
        text = self.reader.ask(f"run {warm_up} {rounds}", "ns")
        return [int(word) for word in text.split()]

    def end(self) -> None:
        for side in reversed(self.sides):
            side.ask("end", "done")

    def cpu_s(self) -> float:
        return sum(side.cpu_s() for side in self.sides)

    def pause(self) -> None:
        """Stops both processes: NIXL's progress threads take all of a core even with nothing to do."""
        for side in self.sides:
            side.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        for side in self.sides:
            side.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        for side in reversed(self.sides):
            side.close()
