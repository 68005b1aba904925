"""A rank's side: carries the scheduler side's orders to the rank's node, and the node's events back."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kvferry import _kvferry

from .log import limited
from .messages import LORA_CHANGED, Ending, RankReport, StepOrders
from .metrics import Counters, Data, Meter
from .wakeup import Teller

if TYPE_CHECKING:
    from kvferry import Node, Point

CONFIRM_S = 0.8  # how long a rank may take to end all of its leases and loads
CONFIRM_POLL_S = 0.001


class Worker:
    def __init__(self, node: Node, rank: int) -> None:
        self._node = node
        self._rank = rank
        self._counters = Counters()
        self._meter = Meter(node, f"rank {rank}", self._counters)
        self._report = RankReport(rank)
        self._loading: set[int] = set()
        self._teller: Teller | None = None

    # ---- an engine's adapter may override ----

    def has_adapter(self, content: Any) -> bool:
        """The LoRA adapter is in memory, with this content."""
        return True

    def adapters_changed(self) -> dict[int, Any]:
        """Since the last call."""
        return {}

    def work_so_far(self) -> Point | None:
        """All that the engine has given its device until now; None: its memory is the host's."""
        return None

    def work_before_loads(self) -> Point | None:
        """What must be done before a load writes anything."""
        return self.work_so_far()

    # ---- in the order of one step ----

    def before_forward(self, orders: StepOrders) -> None:
        """Nothing that the step overwrites may be under a lease, or the destination of a load that is not wanted."""
        self._node.lease_end(orders.end)
        if orders.make_room:
            self._node.leases_end_lingering()
        self._node.load_abort(orders.abort)

    def start_loads(self, orders: StepOrders) -> None:
        refused = self._have_another_adapter(orders.load_adapters)
        self._report.refused |= refused
        self._report.released |= refused
        loads = [load for load in orders.load if load.request_id not in refused]
        for load, status in zip(loads, self._node.load_start(loads, self.work_before_loads())):
            if status == _kvferry.OK:
                self._loading.add(load.request_id)
            else:  # no event will come, and nothing has been written; the report is for the reason
                self._report.reports.append(_kvferry.report(load.request_id, self._rank, load.user, 0, status))
                self._report.released.add(load.request_id)
                reason = _kvferry.status_name(status)
                limited.warning("kvferry: load %d does not start: %s; the step's last failure: %s", load.request_id,
                                reason, _kvferry.error_text(), reason=reason)

    def publish(self, orders: StepOrders) -> None:
        """The step's forward, and its drafter's, are over, or given to the device: with them the bytes of its prompts are
        complete."""
        failed = dict.fromkeys(self._have_another_adapter(orders.lease_adapters), LORA_CHANGED)
        publications = [publication for publication in orders.publish if publication.user not in failed]
        for publication, status in zip(publications, self._node.lease_publish(publications, self.work_so_far())):
            if status != _kvferry.OK:
                failed[publication.user] = _kvferry.status_name(status)
        for lease_id, reason in failed.items():
            said = "" if reason == LORA_CHANGED else f"; the step's last failure: {_kvferry.error_text()}"
            limited.warning("kvferry: lease %d cannot be published: %s%s", lease_id, reason, said, reason=reason)
        self._report.unpublished |= failed.keys()
        self._report.ended |= failed.keys()

    def _have_another_adapter(self, contents: dict[int, Any]) -> set[int]:
        return {id_ for id_, content in contents.items() if not self.has_adapter(content)}

    def _poll(self) -> None:
        report = self._report
        while events := self._node.poll():
            for event in events:
                if event.kind == _kvferry.EVENT_LEASE_ENDED:
                    report.ended.add(event.id)
                elif event.kind == _kvferry.EVENT_LOAD:
                    assert event.report is not None
                    report.reports.append(event.report)
                elif event.kind == _kvferry.EVENT_RELEASED:
                    report.released.add(event.id)
                    self._loading.discard(event.id)
        if self._loading and not self._node.healthy():
            loads = list(self._loading)
            report.stuck |= {id_ for id_, status in zip(loads, self._node.load_stuck(loads)) if status == _kvferry.OK}

    def finished(self, orders: StepOrders) -> set[str]:
        return set(orders.finished)

    def answer(self, orders: StepOrders) -> RankReport | None:
        """None: there is none, and nobody waits for it."""
        report = self.report()
        return report if orders.answer or not report.is_empty() else None

    def report(self) -> RankReport:
        self._poll()
        report, self._report = self._report, RankReport(self._rank)
        report.adapters = self.adapters_changed()
        report.healthy = self._node.healthy()
        return report

    # ---- between steps ----

    def end_transfers(self, ending: Ending) -> RankReport:
        """Ends these leases and loads, and waits for the library to confirm each. What it does not know has ended."""
        for ended, ids, statuses in (
                (self._report.ended, list(ending.leases), self._node.lease_end(list(ending.leases.values()))),
                (self._report.released, ending.loads, self._node.load_abort(ending.loads))):
            ended |= {id_ for id_, status in zip(ids, statuses) if status == _kvferry.NOT_FOUND}
        deadline = time.monotonic() + CONFIRM_S
        self._poll()
        while not (self._report.ended >= ending.leases.keys() and self._report.released >= set(ending.loads)):
            if time.monotonic() > deadline:
                break
            time.sleep(CONFIRM_POLL_S)
            self._poll()
        return self.report()

    def leave_memory(self, wait_s: float = CONFIRM_S) -> bool:
        """Ends all leases and loads, the leases at once. False: a read has not ended yet."""
        deadline = time.monotonic() + wait_s
        while self._node.unregister() == _kvferry.AGAIN:
            self._poll()  # a load is the library's until its release has been taken
            if time.monotonic() > deadline:
                return bool(self._node.unregister() == _kvferry.OK)
            time.sleep(CONFIRM_POLL_S)
        return True

    def stats(self) -> Data | None:
        return self._meter.read()

    def notify(self, address: bytes) -> bool:
        """From now on the listener there hears when this rank has something to say. False: nobody can be told."""
        if self._teller is None:
            with suppress(OSError):
                self._teller = Teller(self._node, address)
        return self._teller is not None

    def close(self) -> None:
        if self._teller is not None:
            self._teller.close()
            self._teller = None
        self._node.close()
