"""What the ranks of a model engine do together: collectives that fail when the ranks enter different ones."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

COLLECTIVE_LIMIT_S = 5.0
"""So long a rank waits for the others."""


class EngineFailure(Exception):
    """The engine is at its end, on all ranks."""


class RuleBroken(EngineFailure):
    """The connector has broken one of TensorRT-LLM's rules."""


class CollectiveMismatch(EngineFailure):
    """Ranks have entered different collectives, or one has not come."""


class RankDied(EngineFailure):
    """An exception has left a rank's loop."""

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message, rank)
        self.rank = rank

    def __str__(self) -> str:
        return str(self.args[0])


class RanksHang(RankDied):
    """One has died, and the others wait for it in a collective."""


class LimitPassed(EngineFailure):
    """It has taken too long."""


class Group:
    """The ranks of one engine. Each collective has a number; all must come to the same one with the same purpose."""

    def __init__(self, ranks: int, limit_s: float) -> None:
        self.ranks = ranks
        self._limit_s = limit_s
        self._turn = threading.Condition()
        self._counts = [0] * ranks
        self._met: dict[int, dict[int, tuple[str, str, bytes]]] = {}
        self._gone: dict[int, str] = {}
        self._failure: EngineFailure | None = None

    def meet(self, rank: int, kind: str, purpose: str, value: bytes) -> list[bytes]:
        with self._turn:
            number = self._counts[rank]
            self._counts[rank] += 1
            calls = self._met.setdefault(number, {})
            calls[rank] = (kind, purpose, value)
            self._met.pop(number - 2, None)
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._is_over(number, calls), self._limit_s)
            self._check(number, calls)
            return [calls[each][2] for each in range(self.ranks)]

    def fail(self, failure: EngineFailure) -> None:
        """All ranks end in their next collective, or in the one where they wait."""
        with self._turn:
            self._failure = self._failure or failure
            self._turn.notify_all()

    def leave(self, rank: int, why: str) -> None:
        """The rank will not come any more, and nobody tells the others."""
        with self._turn:
            self._gone[rank] = why
            self._turn.notify_all()

    def _missing(self, calls: dict[int, Any]) -> list[int]:
        return [rank for rank in range(self.ranks) if rank not in calls]

    def _is_over(self, number: int, calls: dict[int, Any]) -> bool:
        return (self._failure is not None or len(calls) == self.ranks
                or any(rank in self._gone for rank in self._missing(calls)))

    def _check(self, number: int, calls: dict[int, tuple[str, str, bytes]]) -> None:
        if self._failure is None and len(calls) < self.ranks:
            self._failure = self._absence(number, calls)
        if self._failure is None and len({call[:2] for call in calls.values()}) > 1:
            what = ", ".join(f"rank {rank}: {calls[rank][0]} in {calls[rank][1]}" for rank in sorted(calls))
            self._failure = CollectiveMismatch(f"collective {number} is not the same one on all ranks: {what}")
        if self._failure is not None:
            self._turn.notify_all()
            raise self._failure

    def _absence(self, number: int, calls: dict[int, tuple[str, str, bytes]]) -> EngineFailure:
        kind, purpose, _ = next(iter(calls.values()))
        missing = self._missing(calls)
        dead = [rank for rank in missing if rank in self._gone]
        if dead:
            return RanksHang(f"ranks {sorted(calls)} hang in collective {number} ({kind} in {purpose}): "
                             f"rank {dead[0]} has died: {self._gone[dead[0]]}", dead[0])
        return CollectiveMismatch(f"collective {number} ({kind} in {purpose}) of ranks {sorted(calls)}: "
                                  f"ranks {missing} have not come in {self._limit_s} s")


class RemoteGroup:
    """A group that is in another process. One call at a time."""

    def __init__(self, ranks: int, connection: Connection) -> None:
        self.ranks = ranks
        self._connection = connection

    def meet(self, rank: int, kind: str, purpose: str, value: bytes) -> list[bytes]:
        return self._call("meet", rank, kind, purpose, value)

    def fail(self, failure: EngineFailure) -> None:
        self._call("fail", failure)

    def leave(self, rank: int, why: str) -> None:
        self._call("leave", rank, why)

    def _call(self, name: str, *arguments: Any) -> Any:
        self._connection.send((name, arguments))
        result = self._connection.recv()
        if isinstance(result, EngineFailure):
            raise result
        return result


def serve_group(group: Group, connection: Connection, rank: int) -> None:
    """For the one rank at the other end, until it is gone."""
    while True:
        try:
            name, arguments = connection.recv()
        except (EOFError, OSError):
            group.leave(rank, "its process is gone")
            return
        try:
            result = getattr(group, name)(*arguments)
        except EngineFailure as failure:
            result = failure
        try:
            connection.send(result)
        except OSError:
            return


class Seat:
    """A rank's place, which the thread of its loop has."""

    def __init__(self, group: Group | RemoteGroup, rank: int) -> None:
        self.group = group
        self.rank = rank
        self.ranks = group.ranks
        self.thread = threading.get_ident()
        self.no_collectives: str | None = None

    def broadcast(self, purpose: str, value: Any, root: int = 0) -> Any:
        # bcast gives the root its own object back, and pickles for the others. (_utils.py: mpi_broadcast)
        values = self._meet("broadcast", purpose, value if self.rank == root else None)
        return value if self.rank == root else pickle.loads(values[root])

    def allgather(self, purpose: str, value: Any) -> list[Any]:
        return [pickle.loads(each) for each in self._meet("allgather", purpose, value)]

    def _meet(self, kind: str, purpose: str, value: Any) -> list[bytes]:
        if self.no_collectives is not None:
            self._break(f"{kind} in {purpose}: no collectives in {self.no_collectives}")
        if threading.get_ident() != self.thread:
            self._break(f"{kind} in {purpose}: collectives are for the thread of the executor's loop")
        try:
            data = pickle.dumps(value)
        except Exception as error:
            self._break(f"{kind} in {purpose}: cannot be pickled: {error!r}")
        return self.group.meet(self.rank, kind, purpose, data)

    def _break(self, what: str) -> None:
        failure = RuleBroken(f"rank {self.rank}: {what}")
        self.group.fail(failure)
        raise failure


_here = threading.local()
_process_seat: Seat | None = None


def sit(seat: Seat | None, whole_process: bool = False) -> None:
    """This thread is the rank's from here on; all threads of its process may ask for its number."""
    global _process_seat
    _here.seat = seat
    if whole_process:
        _process_seat = seat


def seat() -> Seat:
    found = getattr(_here, "seat", None) or _process_seat
    if found is None:
        raise RuleBroken("this thread is no rank's: where ranks are threads, ask for the rank in the constructor")
    return found


def _purpose(call: Callable[..., Any]) -> str:
    frame = sys._getframe(2)
    return f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}"


# ---- tensorrt_llm._utils ----


def mpi_rank() -> int:
    return seat().rank


def mpi_world_size() -> int:
    return seat().ranks


def mpi_broadcast(obj: Any, root: int = 0) -> Any:
    return seat().broadcast(_purpose(mpi_broadcast), obj, root)


def mpi_allgather(obj: Any) -> list[Any]:
    return seat().allgather(_purpose(mpi_allgather), obj)
