"""Processes that stand for engines: told what to do over a socket, stopped, killed. Where supervised() has run, none outlives us."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from asks import Answer, Ask
from rows import Rows

sys.path.append(str(Path(__file__).resolve().parents[1] / "dev"))

import children  # noqa: E402

STOP_LIMIT_S, END_LIMIT_S, ASK_LIMIT_S, CALL_LIMIT_S = 10.0, 10.0, 60.0, 20.0
SUPERVISED = "KVFERRY_GPU_SUPERVISED"
SAID_CHARACTERS = 2000
"""Of a log's end."""
Tokens = list[int]
Ticket = dict[str, Any]


class PartyError(RuntimeError):
    """A party has ended, did not answer in time, or its call raised; the text says which."""


class Party:
    """Calls are answered in any order. All threads of its process group stand still or go on together."""

    def __init__(self, name: str, words: Sequence[str], env: Mapping[str, str], logs: Path) -> None:
        self.name = name
        self._folder = tempfile.TemporaryDirectory(prefix="kvferry-")
        self._listener = Listener(f"{self._folder.name}/socket")
        logs.mkdir(parents=True, exist_ok=True)
        self._log = logs / f"{name}.log"
        self._answers: dict[int, Future[Any]] = {}
        self._keys = itertools.count(1)
        self._lock = threading.Lock()
        self._hello: Future[dict[str, Any]] = Future()
        with self._log.open("wb") as log:
            # In our session: Linux schedules sessions as groups (sched_autogroup), and vLLM's workers, which yield while they
            # wait, keep threads of other sessions from running.
            self._child = subprocess.Popen([sys.executable, *words, str(self._listener.address)], env={**os.environ, **env},
                                           stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, process_group=0)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._connection = self._listener.accept()
            self._hello.set_result(self._connection.recv())
            while True:
                key, answer, error = self._connection.recv()
                future = self._answers.pop(key)
                if error:
                    future.set_exception(PartyError(f"{self.name}: {error}"))
                else:
                    future.set_result(answer)
        self._fail("it has ended")

    def _fail(self, why: str) -> None:
        with self._lock:
            waiting, self._answers = [self._hello, *self._answers.values()], {}
            for future in waiting:
                with contextlib.suppress(InvalidStateError):
                    future.set_exception(PartyError(f"{self.name}: {why}: {self.said()}"))

    def ready(self, limit_s: float) -> dict[str, Any]:
        """What it says of itself, once it can work."""
        until = time.monotonic() + limit_s
        while not self._hello.done():
            if self._child.poll() is not None:
                self._fail("it has ended")
            elif time.monotonic() > until:
                raise PartyError(f"{self.name}: not ready after {limit_s:.0f} s: {self.said()}")
            time.sleep(0.02)
        return self._hello.result()

    def submit(self, call: str, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            key = next(self._keys)
            self._answers[key] = future
            try:
                self._connection.send((key, call, args))
            except OSError:
                del self._answers[key]
                future.set_exception(PartyError(f"{self.name}: it has ended"))
        return future

    def stop(self) -> None:
        """Until every thread of the group stands still: the kernel tells them one by one."""
        os.killpg(self._child.pid, signal.SIGSTOP)
        until = time.monotonic() + STOP_LIMIT_S
        while any(state not in "TtZX" for state in states_of(self._child.pid)):
            if time.monotonic() > until:
                raise PartyError(f"{self.name}: it does not stand still")
            time.sleep(0.001)

    def go_on(self) -> None:
        os.killpg(self._child.pid, signal.SIGCONT)

    def kill(self) -> None:
        """All of its processes at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._listener.close()
        self._folder.cleanup()

    def close(self) -> None:
        self._child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(END_LIMIT_S)
        self.kill()

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-SAID_CHARACTERS:]


class Parties:
    """Those of one file of rows, by name. R says what the others should answer."""

    def __init__(self, rows: Rows, prefix: str, words: Mapping[str, Sequence[str]], env: Mapping[str, str], logs: Path,
                 answer_tokens: int) -> None:
        self.rows, self._answer_tokens = rows, answer_tokens
        self._expected: dict[tuple[int, ...], Tokens] = {}
        self._up = {name: Party(f"{prefix}-{name}", words[name], env, logs) for name in words}

    def facts(self, limit_s: float) -> dict[str, dict[str, Any]]:
        """What each says of itself, once it can work."""
        return {name: party.ready(self.rows.limit(limit_s)) for name, party in self._up.items()}

    def __getitem__(self, name: str) -> Party:
        return self._up[name]

    def kill(self, name: str) -> None:
        self._up.pop(name).kill()

    def close(self) -> None:
        for party in self._up.values():
            party.close()

    def send(self, name: str, prompt: list[int], tokens: int, params: dict[str, Any] | None = None) -> Future[Answer]:
        return self._up[name].submit("ask", Ask(prompt, tokens, params))

    def send_each(self, name: str, prompts: list[Tokens], tokens: int) -> list[Future[Answer]]:
        return [self.send(name, prompt, tokens) for prompt in prompts]

    def wait(self, future: Future[Answer]) -> Answer:
        answer: Answer = answer_of(future, self.rows.limit(ASK_LIMIT_S))
        return answer

    def call(self, name: str, call: str, *args: Any) -> Any:
        return answer_of(self._up[name].submit(call, *args), self.rows.limit(CALL_LIMIT_S))

    def expected(self, prompts: list[Tokens]) -> list[Tokens]:
        """Of R, by itself, all of them at once."""
        asked = {tuple(prompt): self.send("R", prompt, self._answer_tokens)
                 for prompt in prompts if tuple(prompt) not in self._expected}
        self._expected |= {key: self.wait(future).tokens for key, future in asked.items()}
        return [self._expected[tuple(prompt)] for prompt in prompts]

    @contextlib.contextmanager
    def counted(self, name: str) -> Iterator[dict[str, float]]:
        """By how much kvferry's numbers have grown meanwhile."""
        before, grown = self.call(name, "numbers"), dict[str, float]()
        yield grown
        grown |= {key: value - before.get(key, 0) for key, value in self.call(name, "numbers").items()}


def supervised(limit_s: float) -> int | None:
    """Runs this program once more under tools/dev/children.py, which ends what it has started when it has ended, or we have. None:
    this is that run. A session has a niceness of its own: it gets ours."""
    if SUPERVISED in os.environ:
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(os.nice(0)))
        return None
    words = children.command(limit_s, [sys.executable, *sys.argv])
    return subprocess.run(words, env={**os.environ, SUPERVISED: "1"}, check=False).returncode


def answer_of(future: Future[Any], limit_s: float) -> Any:
    try:
        return future.result(limit_s)
    except TimeoutError as late:
        raise PartyError(f"no answer after {limit_s:.0f} s") from late


def states_of(group: int) -> list[str]:
    """Of each thread of a process group: a letter (proc(5))."""
    states = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):  # it has just ended
            if _fields(process / "stat")[2] == str(group):
                states += [_fields(thread)[0] for thread in process.glob("task/*/stat")]
    return states


def _fields(stat: Path) -> list[str]:
    """From the state on: the name before it may hold anything."""
    return stat.read_text().rpartition(")")[2].split()


def say_hello(address: str, **facts: Any) -> Connection:
    """In the party's process."""
    connection = Client(address)
    connection.send({"pid": os.getpid(), **facts})
    return connection
