"""Loads straight into the blocks, on a rank. Each rank has the merged result of all ranks in the same iteration. A request
whose load has failed goes back to the tokens that are good.

While loads are open, and only then, each iteration's get_finished() exchanges once what is new. Which loads are open follows
from the steps' metadata and from these exchanges, so no rank meets the others in vain. Each has a table of recovery, which
says the same everywhere.
"""

from __future__ import annotations

from typing import Any

from kvferry import Recovery, _kvferry
from kvferry.engine.log import limited
from kvferry.engine.wrapping import wrap

from .config import Config
from .layout import Pool
from .messages import Parked, Step
from .names import manager_class, mpi, request_state
from .ranked import Ranked

REQUESTS_MAX = 4096

class Rewinder:
    def __init__(self, config: Config, pool: Pool, rank: int, side: Ranked, scheduler: Any) -> None:
        """`scheduler` is that of the first rank, else None."""
        self._side = side
        self._rank = rank
        self._scheduler = scheduler
        self._table = Recovery(config.ranks, config.block_tokens, REQUESTS_MAX, 0, [pool.blocks] * pool.groups)
        self._block_tokens = config.block_tokens
        self._open: dict[int, Parked] = {}  # by load
        self._ended: set[int] = set()  # of these, those whose requests have ended
        self._refused: list[Parked] = []
        self._rewinds: dict[int, int] = {}  # by request: the tokens that are good
        install()

    def park(self, step: Step) -> None:
        """The same on all ranks, in the same order. What the table does not take is not loaded: its request goes back to
        what the engine has of it."""
        for one in step.parked:
            status = self._table.admit(one.load_id, one.request_id, one.local_tokens, one.tokens, one.prompt_tokens, one.blocks)
            if status == _kvferry.OK:
                self._open[one.load_id] = one
                continue
            reason = _kvferry.status_name(status)
            limited.error("kvferry: request %d is not loaded: %s", one.request_id, reason, reason=reason)
            step.load = [load for load in step.load if load.request_id != one.load_id]
            self._refused.append(one)

    def exchange(self) -> tuple[list[int], list[int]]:
        """(requests that have ended and that nothing writes to, requests that may go on)."""
        if not self._open:
            return [], self._give_back()
        reports, released = self._side.take_found()
        ends = self._scheduler.take_ended_loads() if self._scheduler is not None else []
        everyone = mpi().mpi_allgather((reports, released, ends))
        for rank, (reports, released, ends) in enumerate(everyone):
            for report in reports:
                self._table.report(report)
            for load_id in released:
                self._table.released(load_id, rank)
            for load_id in ends:
                self._end(load_id)
            if self._scheduler is not None:
                self._scheduler.take_found(rank, reports, released)
        saved, loaded = self._act()
        return saved, loaded + self._give_back()

    def _give_back(self) -> list[int]:
        refused, self._refused = self._refused, []
        for one in refused:
            self._rewinds[one.request_id] = one.local_tokens
            if self._scheduler is not None:
                self._scheduler.load_is_refused(one)
        return [one.request_id for one in refused]

    def _end(self, load_id: int) -> None:
        if load_id in self._open:
            self._ended.add(load_id)
            self._table.end(load_id)

    def _act(self) -> tuple[list[int], list[int]]:
        saved: list[int] = []
        loaded: list[int] = []
        again = True
        while again:
            again = False
            for event in self._table.events():
                if event.kind == _kvferry.RECOVERY_ABORT and event.ranks_mask >> self._rank & 1:
                    self._side.abort(event.request_id)
                elif event.kind in (_kvferry.RECOVERY_READY, _kvferry.RECOVERY_REWIND):
                    loaded.append(event.user)
                    if event.kind == _kvferry.RECOVERY_REWIND:
                        self._rewinds[event.user] = event.computed_tokens
                    self._table.end(event.request_id)
                    again = True
                elif event.kind == _kvferry.RECOVERY_TERMINATE:
                    limited.error("kvferry: request %d waits for blocks whose state is unknown: %s", event.user,
                                  _kvferry.status_name(event.status))
                elif event.kind == _kvferry.RECOVERY_RELEASE:
                    self._release(event.request_id, saved)
        return saved, loaded

    def _release(self, load_id: int, saved: list[int]) -> None:
        parked = self._open.pop(load_id)
        if load_id in self._ended:
            self._ended.remove(load_id)
            saved.append(parked.request_id)
        if self._scheduler is not None:
            self._scheduler.load_is_over(parked.request_id)

    def rewind(self, requests: dict[int, Any]) -> None:
        """They may be scheduled from now on, and stand at the end of what was to be loaded."""
        rewinds, self._rewinds = self._rewinds, {}
        for request_id, tokens in rewinds.items():
            request = requests.get(request_id)
            if request is not None:
                self._take_back(request, tokens)

    def _take_back(self, request: Any, tokens: int) -> None:
        """It may stand before them already: the engine has not used all that was offered."""
        assert request.state == request_state().CONTEXT_INIT
        if tokens >= request.context_current_position:
            return
        matched = request.py_num_connector_matched_tokens
        local = request.context_current_position - matched
        request.context_current_position = tokens
        request.context_chunk_size = request.prompt_len - tokens
        request.py_num_connector_matched_tokens = max(0, tokens - local)
        request.set_prepopulated_prompt_len(tokens, self._block_tokens)  # which moves to where it is told, but not to 0


def install() -> None:
    """What get_finished() of TensorRT-LLM's manager does is followed by rewinds, on every rank. May be called again."""
    manager = manager_class()
    if not hasattr(manager.get_finished, "of_kvferry"):
        manager.get_finished = wrap(manager.get_finished, _after_get_finished)


def _after_get_finished(method: Any, manager: Any) -> Any:
    result = method(manager)
    rewind = getattr(manager.worker, "rewind", None)
    if rewind is not None:
        rewind(manager.finished_async_loading_requests)
    return result
