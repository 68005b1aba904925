"""The class that TensorRT-LLM makes on its first rank: hands each call to the side that this engine has."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvferry import _kvferry
from kvferry.engine.channel import Hub
from kvferry.engine.log import logger
from kvferry.engine.messages import NotCarried, RankReport, log_left_out
from kvferry.engine.metrics import Counters, Meter

from .config import Config
from .finder import Finder
from .identity import Model, Prompts, identity_fields
from .layout import Pool
from .loader import Loader
from .mailbox import MALFORMED, Done, Mailbox
from .messages import Between, Handover, Parked, Step
from .names import SchedulerBase
from .parked import Parking
from .prefill import Producer
from .staged import Staged

if TYPE_CHECKING:
    from kvferry import Node

IDLE_S = 0.25
"""How often what has grown old is looked for."""
NUMBERS_S = 60.0
"""How often the log has what has been counted since: TensorRT-LLM has no place for a connector's numbers."""

_schedulers: dict[int, KVFerryScheduler] = {}
"""By the id of the arguments that the first rank's worker has, too: it opens them."""


def scheduler_of(llm_args: Any) -> KVFerryScheduler | None:
    return _schedulers.get(id(llm_args))


class KVFerryScheduler(SchedulerBase):
    """Its lock is held by the executor's thread, that of the ranks' news, and that of the mailbox, each for a moment."""

    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self._config = Config(llm_args)
        self._model = Model(self._config)
        self._prompts = Prompts(self._config, self._model)
        self._lock = threading.RLock()
        self._counters = Counters()
        self._node: Node | None = None
        self._producer: Producer | None = None
        self._consumer: Loader | None = None
        self._mailbox: Mailbox | None = None
        _schedulers[id(llm_args)] = self

    # ---- start-up, from the first rank's worker ----

    def open(self, pool: Pool, staging_blocks: int) -> str:
        """The engine's memory is there: where the ranks are to connect."""
        config = self._config
        node = self._node = config.open_node(identity_fields(config, self._model))
        self._prompts.loaded()
        if config.is_prefill:
            self._producer = Producer(node, self._prompts, self._counters, pool.blocks * pool.groups, config.block_tokens)
        else:
            if config.loads_into_blocks:
                self._consumer = Parking(node, self._counters, config.block_tokens, config.staged_ttl_s)
            else:
                self._consumer = Staged(node, self._counters, config.block_tokens, pool.groups, staging_blocks,
                                      config.staged_ttl_s)
            self._finder = Finder(node, self._counters, self._consumer.deposit)
        self._meter = Meter(node, "control", self._counters)
        self._numbers_at = time.monotonic() + NUMBERS_S
        self._hub = Hub(node, config.ranks, self._receive, self._look, self._idle_s)
        return self._hub.address

    def join(self, addresses: list[bytes]) -> None:
        """Every rank has its node, and is about to connect."""
        assert self._node is not None
        self._node.set_ranks(addresses)
        self._hub.accept()
        if self._consumer is not None:
            self._mailbox = Mailbox(self._config.mailbox, self._deposit, self._config.hold_ms)
            logger.info("kvferry: tickets may be deposited at %s", self._config.mailbox)

    # ---- other threads ----

    def _idle_s(self) -> float:
        return IDLE_S if self._consumer is None else self._finder.wait_s(IDLE_S)

    def _receive(self, report: RankReport) -> None:
        with self._lock:
            if self._producer is not None:
                self._producer.receive(report)
                self._send(Handover())
            if self._consumer is not None and not self._config.loads_into_blocks:
                self._consumer.receive(report)

    def _look(self) -> None:
        with self._lock:
            assert self._node is not None
            while events := self._node.poll():
                for event in events:
                    if event.kind == _kvferry.EVENT_TICKET:
                        self._finder.on_event(event)
                    elif self._consumer is not None:
                        self._consumer.on_event(event)
            if time.monotonic() > self._numbers_at:
                self._say_numbers()
            if self._consumer is not None:
                self._finder.ask_again()
                self._consumer.settled()
                self._consumer.forget_old()
                self._send_loads(self._consumer)

    def _say_numbers(self) -> None:
        self._numbers_at = time.monotonic() + NUMBERS_S
        data = self._meter.read()
        counted = {} if data is None else data["counters"]
        said = [f"{name}{f'/{reason}' if reason else ''} {count}" for name, reasons in sorted(counted.items())
                for reason, count in sorted(reasons.items()) if count]
        if said:
            logger.info("kvferry: counted since the last such line: %s", ", ".join(said))

    def _send(self, orders: Handover) -> None:
        assert self._producer is not None
        self._producer.collect(orders)
        if orders.publish or orders.end:
            self._hub.send(orders)

    def _send_loads(self, consumer: Loader) -> None:
        if isinstance(consumer, Staged):  # else with the step's metadata
            orders = Between()
            consumer.collect(orders)
            orders.after = consumer.take_after()
            if orders.load or orders.abort:
                self._hub.send(orders)

    def _deposit(self, asked: dict[str, Any], hold_ms: int, done: Done) -> None:
        with self._lock:
            assert self._consumer is not None
            if isinstance(asked.get("ticket"), str):
                self._consumer.deposit(asked["ticket"], done)
            else:
                self._find(asked, hold_ms, done)
            self._send_loads(self._consumer)

    def _find(self, asked: dict[str, Any], hold_ms: int, done: Done) -> None:
        """A ticket that a producer is to be asked for."""
        at, salt, ids = asked.get("at"), asked.get("salt"), asked.get("token_ids")
        if not isinstance(at, (str, type(None))) or not isinstance(salt, (str, type(None))) or not isinstance(ids, list):
            done(0, MALFORMED)
            return
        try:
            prompt = self._prompts.of_tokens(ids, salt)
        except (TypeError, OverflowError):
            done(0, MALFORMED)
            return
        if isinstance(prompt, NotCarried):
            self._counters.add("not_loaded", prompt.value)
            done(0, prompt.value)
            return
        self._finder.find(prompt, at, hold_ms, done)

    # ---- what TensorRT-LLM's scheduler says ----

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        with self._lock:
            tokens = 0 if self._consumer is None else self._offer(self._consumer, request, num_computed_tokens)
            return tokens, tokens > 0 and self._config.loads_into_blocks

    def _offer(self, consumer: Loader, request: Any, computed: int) -> int:
        prompt = self._prompts.of_request(request)
        if isinstance(prompt, NotCarried):
            log_left_out("kvferry: request %s: its ticket is ignored (%s): the prompt is computed here", str(request.request_id), prompt.value)
            self._counters.add("not_loaded", prompt.value)
            return 0
        return consumer.offer(request.request_id, prompt, computed)

    def update_state_after_alloc(self, request: Any, block_ids: Sequence[int]) -> None:
        self.update_state_after_alloc_by_layer_group(request, [block_ids])

    def update_state_after_alloc_by_layer_group(self, request: Any, block_ids_by_layer_group: Sequence[Sequence[int]]) -> None:
        with self._lock:
            if self._consumer is not None:
                self._consumer.admit(request, block_ids_by_layer_group)

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        with self._lock:
            step = Step()
            if isinstance(self._consumer, Staged):
                step.copy = self._consumer.take_copy()
            elif self._consumer is not None:
                self._consumer.collect(step)
                step.parked = self._consumer.take_parked()
            return step

    def request_finished(self, request: Any, cache_block_ids: Sequence[int]) -> bool:
        return self.request_finished_by_layer_group(request, [cache_block_ids])

    def request_finished_by_layer_group(self, request: Any, cache_block_ids_by_layer_group: Sequence[Sequence[int]]) -> bool:
        with self._lock:
            if self._consumer is not None:
                return self._consumer.finish(request.request_id)
            assert self._producer is not None
            orders = Handover()
            keeps = self._producer.finish(orders, request, cache_block_ids_by_layer_group)
            self._send(orders)
            return keeps

    def request_reset(self, request: Any) -> None:
        with self._lock:
            if self._consumer is not None:
                self._consumer.drop_offer(request.request_id)

    def cancel_load(self, request: Any, start: int, end: int) -> None:
        with self._lock:
            if self._consumer is not None:
                self._consumer.cut(request.request_id, start, end)

    def wait_for_initialization(self) -> None:
        """All was done when the memory was registered."""

    # ---- what the ranks have agreed on, of loads straight into the blocks: rewind.py ----

    def take_ended_loads(self) -> list[int]:
        with self._lock:
            assert isinstance(self._consumer, Parking)
            return self._consumer.take_ended()

    def take_found(self, rank: int, reports: list[bytes], released: list[int]) -> None:
        with self._lock:
            assert self._consumer is not None
            self._consumer.receive(RankReport(rank, reports=reports, released=set(released)))

    def load_is_refused(self, parked: Parked) -> None:
        """By the ranks' tables: none of them has begun it."""
        for rank in range(self._config.ranks):
            self.take_found(rank, [], [parked.load_id])
        self.load_is_over(parked.request_id)

    def load_is_over(self, request_id: int) -> None:
        with self._lock:
            assert isinstance(self._consumer, Parking)
            self._consumer.over(request_id)

    def close(self) -> None:
        _schedulers.pop(id(self._config.args), None)
        if self._mailbox is not None:
            self._mailbox.close()
        if self._node is not None:
            self._hub.close()
            self._node.close()


