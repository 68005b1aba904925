"""Methods of an engine's classes, wrapped where no hook comes in time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def wrap(method: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    """Calls become around(method, self, *args, **kwargs)."""
    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(method, self, *args, **kwargs)

    wrapped.of_kvferry = True  # type: ignore[attr-defined]
    return wrapped


def wrap_methods(cls: type, arounds: dict[str, Callable[..., Any]]) -> None:
    """Wraps the methods of a class, and of the classes that override them. May be called again. AttributeError: none of the
    classes has one of them; nothing is wrapped."""
    classes = [cls]
    for one in classes:
        classes += one.__subclasses__()
    missing = [name for name in arounds if not any(name in vars(one) for one in classes)]
    if missing:
        raise AttributeError(f"{cls.__module__}.{cls.__qualname__} has no {', '.join(missing)}")
    for one in classes:
        for name, around in arounds.items():
            method = vars(one).get(name)
            if method is not None and not hasattr(method, "of_kvferry"):
                setattr(one, name, wrap(method, around))
