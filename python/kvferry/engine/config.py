"""From an engine's configuration to a node's options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvferry import Error, Node

from .log import node_log

OF_ENGINE = ("rank", "ranks", "block_tokens", "group_block_tokens")  # options that follow from the engine's own configuration


class ConfigError(ValueError):
    """An engine that cannot be started like this; the text says what to change."""


def option_text(value: Any) -> str:
    """An option's value, as the library takes it, from one of JSON's."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    return str(value)


class Options:
    """What a user has given: options of the library, and the adapter's own."""

    def __init__(self, given: Mapping[str, Any], where: str) -> None:
        self._given = given
        self.where = where

    def of_library(self, of_adapter: Iterable[str]) -> dict[str, str]:
        for name in OF_ENGINE:
            if name in self._given:
                raise ConfigError(f"{self.where}: {name} follows from the engine's configuration and cannot be set")
        return {name: option_text(value) for name, value in self._given.items() if name not in of_adapter}

    def choice(self, name: str, *allowed: str) -> str:
        """The first is the default."""
        given = option_text(self._given.get(name, allowed[0]))
        if given not in allowed:
            raise ConfigError(f'{self.where}: {name} = "{given}" is not allowed: it must be {" or ".join(allowed)}')
        return given

    def count(self, name: str, default: int, least: int = 1, most: int | None = None) -> int:
        given = option_text(self._given.get(name, default))
        if not given.isascii() or not given.isdigit() or int(given) < least or most is not None and int(given) > most:
            allowed = f"{least} or more" if most is None else f"{least} to {most}"
            raise ConfigError(f'{self.where}: {name} = "{given}" is not allowed: it must be a whole number, {allowed}')
        return int(given)

    def names(self, name: str) -> set[str]:
        given = self._given.get(name, [])
        if not isinstance(given, (list, tuple)) or not all(isinstance(one, str) for one in given):
            raise ConfigError(f"{self.where}: {name} is a list of names")
        return set(given)


def open_node(options: dict[str, str], identity: dict[str, str], where: str, index: int | None = None) -> Node:
    """The node of a rank, the `index`-th on its host, or the scheduler's, which takes no connections."""
    if index is None:
        options["listen"] = ""
    try:
        return Node(options, identity, index or 0, node_log())
    except Error as error:
        raise ConfigError(f"{where}: {error}") from error
