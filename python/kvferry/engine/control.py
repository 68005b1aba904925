"""The scheduler's side: the engine's control node, and what it and the ranks have to say of requests."""

from __future__ import annotations

from collections.abc import Iterable

from kvferry import Node

from .consumer import Consumer, RemotePrompt
from .errors import Failures
from .messages import Ending, RankReport, StepOrders
from .metrics import Data, Meter, Counters
from .producer import Producer


class Control:
    def __init__(self, node: Node, producer: Producer, consumer: Consumer, failures: Failures, counters: Counters,
                 gauges: dict[str, int], per_block: dict[str, float]) -> None:
        """`gauges`, `per_block`: the Meter's."""
        self._node = node
        self._producer = producer
        self._consumer = consumer
        self._failures = failures
        self._counters = counters
        self._meter = Meter(node, "control", counters, gauges, per_block)

    @property
    def busy(self) -> bool:
        """Steps have to go on, be it without requests."""
        return self._producer.busy or self._consumer.busy

    def _poll(self) -> None:
        while events := self._node.poll():
            for event in events:
                self._consumer.on_event(event)

    def collect(self, orders: StepOrders) -> None:
        """The step's orders to the ranks, but for what is published in it."""
        self._poll()
        self._producer.collect(orders)
        self._consumer.collect(orders)
        orders.answer = self._producer.has_leases or self._consumer.busy

    def receive(self, reports: Iterable[RankReport]) -> None:
        for one in reports:
            self._producer.receive(one)
            self._consumer.receive(one)

    def settled(self) -> list[RemotePrompt]:
        """Requests that the engine may go on with, each once."""
        self._poll()
        return self._consumer.settled()

    def ending(self, loads: bool) -> Ending:
        """What is to be ended on every rank: all leases, and perhaps all loads, whose requests are then computed here."""
        return Ending(self._producer.end_all(), self._consumer.discard_all() if loads else [])

    def not_ended(self, ending: Ending) -> str:
        """What of it some rank has not confirmed; "" if there is none."""
        self._poll()
        leases, loads = self._producer.live(ending.leases), self._consumer.unreleased(ending.loads)
        return f"{len(leases)} leases, {len(loads)} loads" if leases or loads else ""

    def stats(self) -> Data | None:
        self._meter.set_gauge("oldest_lease", self._producer.oldest_lease_s)
        self._meter.set_gauge("oldest_waiting", self._consumer.oldest_waiting_s)
        return self._meter.read()

    def close(self) -> None:
        self._failures.close()
        self._node.close()
