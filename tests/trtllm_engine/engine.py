"""The door: an engine of some ranks, each with a loop of its own.

    engine = Engine("D", ranks=2, connector_module="kvferry.trtllm", scheduler_class=..., worker_class=...)
    asked = engine.submit(prompt, 4)
    engine.run()
    assert engine.answers[asked] == right_answer(prompt, 4)
    engine.close()
"""

from __future__ import annotations

import multiprocessing
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from . import collectives, names
from .collectives import (
    CollectiveMismatch,
    EngineFailure,
    Group,
    LimitPassed,
    RankDied,
    RemoteGroup,
    RuleBroken,
    Seat,
    serve_group,
    sit,
)
from .executor import Counters, Executor, Report, Spec
from .model import Shape
from .names import NEWEST, Version
from .requests import Submission

START_LIMIT_S = 60.0
"""For the connectors to be there."""
STEP_LIMIT_S = 20.0
"""For one iteration on all ranks."""
RUN_LIMIT_S = 20.0
END_LIMIT_S = 5.0
IDLE_S = 0.001
"""Between iterations in which nothing is computed."""


class Engine:
    """See the module. Of what the connector is told: threads share the process, so that tests may look at .workers and
    .scheduler; processes do not."""

    def __init__(self, name: str, ranks: int = 1, manager: str = "v1", loop: str = "plain", version: Version = NEWEST,
                 chunk_tokens: int | None = None, blocks: int = 64, tokens_per_block: int = 4, seed: int = 1,
                 memory: str = "host", connector_module: str = "", scheduler_class: str = "Scheduler",
                 worker_class: str = "Worker", processes: bool = False, windows: tuple[int | None, ...] = (None,),
                 has_index: bool = False, shape: Shape = Shape(), **llm_args: Any) -> None:
        if manager not in ("v1", "v2") or loop not in ("plain", "overlap"):
            raise ValueError(f"{manager}, {loop}")
        if manager == "v1" and (len(windows) > 1 or has_index):
            # One pool of one tensor; several windows are refused. (_maybe_init_kv_connector_manager: is_vswa)
            raise NotImplementedError("a connector with V1 and several attention windows")
        self.name, self.version = name, version
        self.answers: dict[int, list[int]] = {}
        self.finished: dict[int, str] = {}
        """By id: length, cancelled, or error and what it was."""
        self.counters: dict[int, Counters] = {}
        """Of those that have finished."""
        self.free_blocks = blocks
        """That nobody uses, though the tree may know what is in them."""
        self.pinned: list[int] = []
        """Requests that are saving."""
        self._ids = 0
        self._items: list[Any] = []
        self._faults: list[dict[str, Any]] = [{} for _ in range(ranks)]
        self._is_idle = True
        self._has_run = False
        self._failure: EngineFailure | None = None
        self.spec = Spec(name, ranks, manager, loop, version, chunk_tokens, blocks, seed, memory, tuple(windows),
                         has_index, shape, connector_module, scheduler_class, worker_class,
                         llm_args | {"tokens_per_block": tokens_per_block})
        self._group = Group(ranks, collectives.COLLECTIVE_LIMIT_S)
        names.install(version)
        start = _start_process if processes else _start_thread
        self._ranks = [start(self.spec, rank, self._group) for rank in range(ranks)]
        self._replies(START_LIMIT_S)

    # ---- requests ----

    def submit(self, prompt: Sequence[int], max_new_tokens: int, cache_salt: str | None = None, lora: int | None = None,
               multimodal: Hashable = None) -> int:
        self._ids += 1
        self._items.append(Submission(self._ids, tuple(prompt), max_new_tokens, cache_salt, lora, multimodal))
        self.answers[self._ids] = []
        return self._ids

    def cancel(self, request_id: int) -> None:
        self._items.append(request_id)

    def nudge(self) -> None:
        """Wakes a loop that waits for a request, with one that asks for nothing: a cancel of an unknown request."""
        self._items.append(0)

    # ---- iterations ----

    def step(self) -> bool:
        """One iteration on all ranks. False: there is none, as the real loop would stand and wait for a request,
        with no call of get_finished, since none is active. (_fetch_and_enqueue_requests: idle)"""
        if self._failure is not None:
            raise self._failure
        if self._is_idle and not self._items:
            return False
        items, self._items = self._items, []
        faults, self._faults = self._faults, [{} for _ in self._ranks]
        for rank, (handle, changes) in enumerate(zip(self._ranks, faults)):
            handle.send(("iterate", items if rank == 0 else [], changes))
        self._take(self._replies(STEP_LIMIT_S))
        return True

    def run(self, until: Callable[[], bool] | None = None, limit_s: float = RUN_LIMIT_S) -> None:
        """Iterations until it is so; by default until all requests have finished."""
        is_over = until or (lambda: len(self.finished) == self._ids)
        end = time.monotonic() + limit_s
        while not is_over():
            if time.monotonic() > end:
                raise LimitPassed(f"{self.name}: not in {limit_s} s; finished {sorted(self.finished)} of {self._ids}"
                                  + (", and the loop waits for a request (see nudge)" if self._is_idle else ""))
            if not self.step() or not self._has_run:
                time.sleep(IDLE_S)

    def _take(self, reports: list[Report]) -> None:
        first = reports[0]
        for report in reports[1:]:
            if (report.active, report.free_blocks, report.pinned) != (first.active, first.free_blocks, first.pinned):
                self._fail(CollectiveMismatch(f"{self.name}: the ranks have gone different ways: {reports}"))
        self.answers.update(first.tokens)
        self.finished.update(first.finished)
        self.counters.update(first.counters)
        self.free_blocks, self.pinned, self._has_run = first.free_blocks, first.pinned, first.has_run
        self._is_idle = not first.active and not first.waiting

    def _replies(self, limit_s: float) -> list[Any]:
        end, replies = time.monotonic() + limit_s, []
        for rank, handle in enumerate(self._ranks):
            replies.append(handle.reply(end))
            if replies[-1] is None:
                replies[-1] = LimitPassed(f"{self.name}: rank {rank} has not done its iteration in {limit_s} s")
                self._group.fail(replies[-1])
        failures = [reply for reply in replies if isinstance(reply, BaseException)]
        if failures:
            self._fail(_worst(failures))
        return replies

    def _fail(self, failure: BaseException) -> None:
        self._failure = failure if isinstance(failure, EngineFailure) else None
        self._end()
        raise failure

    # ---- faults ----

    def fault(self, rank: int | None = None, **changes: Any) -> None:
        """Before the next iteration, of one rank or of all: the fields of executor.Faults."""
        for each in range(len(self._ranks)) if rank is None else [rank]:
            self._faults[each].update(changes)

    def kill(self, rank: int) -> None:
        """Its process, with no word to anybody."""
        self._ranks[rank].kill()

    # ---- what threads share ----

    @property
    def scheduler(self) -> Any:
        return self._ranks[0].executor.manager.scheduler

    @property
    def workers(self) -> list[Any]:
        return [handle.executor.manager.worker for handle in self._ranks]

    @property
    def executors(self) -> list[Executor]:
        return [handle.executor for handle in self._ranks]

    # ---- the end ----

    def close(self) -> None:
        self._failure = self._failure or EngineFailure(f"{self.name} is closed")
        self._end()

    def _end(self) -> None:
        for handle in self._ranks:
            handle.end()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _worst(failures: list[BaseException]) -> BaseException:
    """What says the most: what a rule says, then what ranks say that do not only suffer from another's end."""
    order = [RuleBroken, RankDied]
    failures = sorted(failures, key=lambda each: next((i for i, kind in enumerate(order) if isinstance(each, kind)), 9))
    hanging = [each for each in failures if type(each).__name__ == "RanksHang"]
    return hanging[0] if hanging else failures[0]


# ---- a rank's loop, in a thread or in a process ----


def serve(connection: Connection, seat: Seat, spec: Spec, show: Callable[[Executor], None] = lambda _: None) -> None:
    """Iterations as the door asks for them, until the rank dies or is told to end."""
    executor: Executor | None = None
    try:
        reply: Any = None
        try:
            executor = Executor(seat, spec)
            show(executor)
            executor.start()
        except BaseException as error:
            reply = _died(error, seat, spec, is_starting=True)
        while _answer(connection, reply) and not isinstance(reply, BaseException):
            command = _next(connection)
            if command[0] == "end":
                return
            try:
                reply = executor.iterate(*command[1:])
            except BaseException as error:
                reply = _died(error, seat, spec, is_starting=False)
    finally:
        if executor is not None:
            executor.close()


def _answer(connection: Connection, reply: Any) -> bool:
    try:
        connection.send(("started",) if reply is None else reply)
        return True
    except OSError:
        return False


def _next(connection: Connection) -> tuple[Any, ...]:
    try:
        return connection.recv()
    except (EOFError, OSError):
        return ("end",)


def _died(error: BaseException, seat: Seat, spec: Spec, is_starting: bool) -> BaseException:
    """Newest: hard_kill_on_rank_crash. Before: the others stay in their next collective."""
    if isinstance(error, EngineFailure):
        seat.group.fail(error)
        return error
    if is_starting and isinstance(error, (NotImplementedError, ValueError, TypeError)):
        failure: BaseException = type(error)(*error.args)
        seat.group.fail(EngineFailure(f"rank {seat.rank} has not started: {error!r}"))
        return failure
    what = f"{spec.name}: rank {seat.rank}: {type(error).__name__}: {error}"
    died = RankDied(what + "\n" + "".join(traceback.format_exception(error)), seat.rank)
    if spec.version.dies_together or is_starting:
        seat.group.fail(died)
    else:
        seat.group.leave(seat.rank, what)
    return died


class _Handle:
    """A rank, from the door's side."""

    executor: Executor

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, command: tuple[Any, ...]) -> None:
        """One that is gone has its end in the reply."""
        with suppress(OSError):
            self._connection.send(command)

    def reply(self, end: float) -> Any:
        """None: it has not come in time."""
        try:
            return self._connection.recv() if self._connection.poll(max(0.0, end - time.monotonic())) else None
        except (EOFError, OSError):
            return RankDied("a rank's process is gone")

    def end(self) -> None:
        self.send(("end",))
        self._wait()
        self._connection.close()

    def kill(self) -> None:
        raise NotImplementedError("a rank that is a thread")

    def _wait(self) -> None:
        raise NotImplementedError


class _Thread(_Handle):
    def __init__(self, connection: Connection, thread: threading.Thread) -> None:
        super().__init__(connection)
        self._thread = thread

    def _wait(self) -> None:
        self._thread.join(END_LIMIT_S)


class _Process(_Handle):
    def __init__(self, connection: Connection, process: Any) -> None:
        super().__init__(connection)
        self._process = process

    def kill(self) -> None:
        self._process.kill()
        self._process.join(END_LIMIT_S)

    def _wait(self) -> None:
        self._process.join(END_LIMIT_S)
        if self._process.is_alive():
            self.kill()


def _start_thread(spec: Spec, rank: int, group: Group) -> _Handle:
    ours, theirs = multiprocessing.Pipe()

    def loop() -> None:
        seat = Seat(group, rank)
        sit(seat)
        serve(theirs, seat, spec, lambda executor: setattr(handle, "executor", executor))

    thread = threading.Thread(target=loop, name=f"{spec.name}-{rank}", daemon=True)
    handle = _Thread(ours, thread)
    thread.start()
    return handle


def _start_process(spec: Spec, rank: int, group: Group) -> _Handle:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    group_ours, group_theirs = context.Pipe()
    process = context.Process(target=_process_main, args=(theirs, group_theirs, spec, rank), daemon=True)
    process.start()
    theirs.close()
    group_theirs.close()
    threading.Thread(target=serve_group, args=(group, group_ours, rank), daemon=True).start()
    return _Process(ours, process)


def _process_main(connection: Connection, group: Connection, spec: Spec, rank: int) -> None:
    seat = Seat(RemoteGroup(spec.ranks, group), rank)
    sit(seat, whole_process=True)
    serve(connection, seat, spec)
