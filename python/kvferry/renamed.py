"""Names of the last release, which work in this one with a warning."""

from __future__ import annotations

import warnings
from typing import Any

from . import _kvferry


def _warn(old: str, new: str) -> None:
    warnings.warn(f"kvferry: {old} is called {new} now; the old name goes with the next release", DeprecationWarning, stacklevel=3)


def _paths(peer: _kvferry.Peer) -> list[_kvferry.Link]:
    _warn("Peer.paths", "links")
    return peer.links


def _of_module(name: str) -> Any:
    if name == "Path":
        _warn("Path", "Link")
        return _kvferry.Link
    raise AttributeError(f"module 'kvferry._kvferry' has no attribute {name!r}")


def keep_old_names() -> None:
    setattr(_kvferry.Peer, "paths", property(_paths))
    setattr(_kvferry, "__getattr__", _of_module)
