"""A rank's side, asked by two threads: the executor's, and that of the link."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from kvferry import Point, _kvferry
from kvferry import Staging as StagingMemory
from kvferry.engine import worker
from kvferry.engine.log import limited
from kvferry.engine.messages import RankReport

from .config import Config
from .layout import Pool
from .messages import Between, Handover, Step

if TYPE_CHECKING:
    from kvferry import Load


class Ranked(worker.Worker):
    def __init__(self, config: Config, node: Any, rank: int, pool: Pool, staging: StagingMemory | None) -> None:
        super().__init__(node, rank)
        self.node = node
        self._pool = pool
        self._staging = staging
        self._loads_into_blocks = config.loads_into_blocks
        self._lock = threading.RLock()
        self._held: dict[int, tuple[int, Load]] = {}  # loads that wait for the end of a copy
        self._lease_of: dict[int, int] = {}  # by the engine's request that is published
        self._ended: set[int] = set()
        self._saving: list[int] = []  # requests that the engine keeps for us
        self._stream: Any = None

    def work_so_far(self) -> Point | None:
        if self._pool.memory == _kvferry.MEMORY_HOST or self._stream is None:
            return None
        return Point(self._pool.memory, self._pool.device, self._stream.cuda_stream)

    def work_before_loads(self) -> Point | None:
        """Blocks of the staging are nobody else's."""
        return None if self._staging is not None else self.work_so_far()

    # ---- the executor's thread ----

    def copy_staged(self, step: Step, stream: Any) -> None:
        with self._lock:
            self._stream = stream
            if step.copy is None:
                return
            assert self._staging is not None
            status = self._staging.copy(step.copy.number, step.copy.source, step.copy.destination, self.work_so_far())
            if status != _kvferry.OK:
                # The engine counts on these blocks: there is no way to tell it otherwise.
                raise RuntimeError(f"kvferry: the device does not take copies: {_kvferry.status_name(status)}")

    def remember(self, stream: Any) -> None:
        """All of the engine's work is given to this stream."""
        with self._lock:
            self._stream = stream

    # ---- loads straight into the blocks ----

    def start_parked(self, step: Step, stream: Any) -> None:
        with self._lock:
            self._stream = stream
            self.start_loads(step)

    def take_found(self) -> tuple[list[bytes], list[int]]:
        """What is new of them."""
        with self._lock:
            report = self.report()
            return report.reports, sorted(report.released)

    def abort(self, load_id: int) -> None:
        self.node.load_abort([load_id])

    def finished_saving(self, saving: list[int]) -> list[int]:
        """Of the requests that the engine keeps, those whose lease has ended on this rank. It may be asked of them before
        they are handed over here."""
        with self._lock:
            self._saving += saving
            done = [id_ for id_ in self._saving if self._lease_of.get(id_) in self._ended]
            for id_ in done:
                self._saving.remove(id_)
                self._ended.remove(self._lease_of.pop(id_))
            return done

    # ---- the link's thread ----

    def take_orders(self, orders: Between) -> None:
        with self._lock:
            self.before_forward(orders)
            for load in orders.load:
                self._held[load.request_id] = (orders.after.get(load.request_id, 0), load)
            self._start_held()
            if isinstance(orders, Handover):
                self._hand_over(orders)

    def _hand_over(self, orders: Handover) -> None:
        """These prompts' bytes are complete with what the engine has given its stream."""
        self._lease_of |= {request_id: lease_id for lease_id, request_id in orders.requests.items()}
        self.publish(orders)
        for ticket in orders.tickets if self._rank == 0 else ():
            status = self.node.ticket_offer(ticket)
            if status != _kvferry.OK:
                reason = _kvferry.status_name(status)
                limited.warning("kvferry: a prompt's ticket cannot be asked for: %s: %s", reason, _kvferry.error_text(),
                                reason=reason)

    def _start_held(self) -> None:
        copied = 0 if self._staging is None else self._staging.copied()
        ready = [load for after, load in self._held.values() if after <= copied]
        for load in ready:
            del self._held[load.request_id]
        if ready:
            self.start_loads(Between(load=ready))

    def is_busy(self) -> bool:
        return bool(self._held)

    def look(self) -> RankReport | None:
        """Of loads into the blocks the executor's thread asks by itself."""
        with self._lock:
            if self._loads_into_blocks:
                self._poll()
                return None
            self._start_held()
            report = self.report()
            self._ended |= report.ended
            return None if report.is_empty() else report

    def close(self) -> None:
        with self._lock:
            super().close()
            if self._staging is not None:
                self._staging.close()
