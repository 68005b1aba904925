"""The loads that are under way on an engine, and whether there may be another one."""

from __future__ import annotations


class InFlight:
    def __init__(self, loads_max: int, tokens_max: int) -> None:
        self._loads_max = loads_max
        self._tokens_max = tokens_max
        self._tokens = 0
        self._loads: dict[int, int] = {}

    def has_room(self, tokens: int) -> bool:
        """A load that is too large for the bound goes alone."""
        return not self._loads or (len(self._loads) < self._loads_max and self._tokens + tokens <= self._tokens_max)

    def add(self, id_: int, tokens: int) -> None:
        self._loads[id_] = tokens
        self._tokens += tokens

    def drop(self, id_: int) -> None:
        self._tokens -= self._loads.pop(id_, 0)
