"""The boundary around an engine's hooks: what an exception of kvferry's own costs. Three kinds:

- `of_request`: a hook about one request. The request is given up: it goes on without a transfer.
- `of_all`: a hook that ends leases, stops loads, or changes identity; and all hooks of ranks. All transfers of this side
  are stopped until the engine starts anew: after it, nobody knows which leases and loads are right.
- Hooks of the start have no boundary: the engine does not start.

If stopping fails, too, the exception goes through: a dead engine is better than wrong tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from .log import logger

INTERNAL_ERROR = "internal_error"


class Refused(RuntimeError):
    """The engine's call is refused, as it is meant to be: no internal error."""


class NotStoppedError(RuntimeError):
    """Nobody knows whether all leases have ended."""


class Side(Protocol):
    """Of an engine: its scheduler's, or a rank's."""

    stopped: bool

    def count_error(self, hook: str) -> None: ...

    def stop(self, why: str) -> Any:
        """Ends all leases and loads, and lets no other begin; nothing more, if that is done. Its exceptions go through."""


class RequestSide(Side, Protocol):
    def give_up(self, request: Any) -> None:
        """No ticket, no load. Blocks that a load may still write to stay where they are."""


Hook = Callable[..., Any]


def _report(side: Side, hook: str, what_follows: str) -> None:
    side.count_error(hook)
    if not side.stopped:  # then one has said it all
        logger.exception("kvferry: internal error in %s: %s. Please report it.", hook, what_follows)


@contextmanager
def all_of(side: Side, hook: str) -> Iterator[None]:
    """An exception within stops all transfers, and ends here."""
    try:
        yield
    except (Refused, NotStoppedError):
        raise
    except Exception as error:
        _report(side, hook, "this engine hands nothing over and loads nothing until it is started anew")
        side.stop(f"{hook}: {error!r}")


def of_all(instead: Callable[..., Any]) -> Callable[[Hook], Hook]:
    """`instead` gets the hook's arguments, once all is stopped: the answer to the engine."""
    def decorate(hook: Hook) -> Hook:
        @functools.wraps(hook)
        def bounded(side: Side, *args: Any) -> Any:
            if side.stopped:
                side.stop(hook.__name__)
                return instead(side, *args)
            with all_of(side, hook.__name__):
                return bounded.__wrapped__(side, *args)  # type: ignore[attr-defined]
            return instead(side, *args)
        return bounded
    return decorate


def of_request(instead: Callable[..., Any]) -> Callable[[Hook], Hook]:
    """`instead` gets the hook's arguments, once the request is given up: the answer to the engine."""
    def decorate(hook: Hook) -> Hook:
        @functools.wraps(hook)
        def bounded(side: RequestSide, request: Any, *args: Any) -> Any:
            if side.stopped:
                side.stop(hook.__name__)
                return instead(side, request, *args)
            try:
                return bounded.__wrapped__(side, request, *args)  # type: ignore[attr-defined]
            except Exception:
                _report(side, hook.__name__, "the request goes on without a transfer")
                with all_of(side, "give_up"):
                    side.give_up(request)
                return instead(side, request, *args)
        return bounded
    return decorate
