"""Producer and consumer on two hosts with a network between them, of tests/hosts/network.py."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from .pair import Implementation

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests" / "hosts"))

from network import Network, NoNetwork  # noqa: E402

__all__ = ["CUTS", "NoNetwork", "apart"]

Cuts = tuple[tuple[str, str], ...]
HOLDER, READER = "P", "D"
# Who no longer hears whom: both, the consumer, the producer.
CUTS: tuple[Cuts, ...] = (((HOLDER, READER), (READER, HOLDER)), ((HOLDER, READER),), ((READER, HOLDER),))


@contextmanager
def apart(what: Implementation, key: str) -> Iterator[tuple[Implementation, Callable[[Cuts], None]]]:
    """The implementation with its processes on different hosts, and what cuts them off. NoNetwork: the system allows none."""
    try:
        network = Network([HOLDER, READER])
    except OSError as error:
        raise NoNetwork(str(error)) from error
    try:
        there = replace(
            what,
            holder_in=tuple(network.hosts[HOLDER].command()),
            reader_in=tuple(network.hosts[READER].command()),
            holder_options=options(what, network.address(HOLDER), key),
            reader_options=options(what, network.address(READER), key),
            environment={**what.environment, "UCX_NET_DEVICES": "eth0"},
        )

        def cut(cuts: Cuts) -> None:
            for source, target in cuts:
                network.cut(source, target)

        yield there, cut
    finally:
        network.close()


def options(what: Implementation, address: str, key: str) -> tuple[str, ...]:
    """Where it listens, for those that must be told. kvferry takes no other than this host's without a key."""
    if what.impl == "kvferry":
        return (f"listen={address}", key)
    return (f"address={address}",) if what.impl == "mooncake" else ()
