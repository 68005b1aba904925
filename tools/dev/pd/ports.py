"""Free ports of the loopback interface."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack, suppress

LOWEST, HIGHEST = 12000, 30000
"""Below those that the system gives to connections: one of these would be taken again before an engine listens there."""
IN_A_ROW = 8
"""The ranks of an engine take ports in a row."""
_given: set[int] = set()
"""Who was given a row listens there later."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, nor on the IN_A_ROW - 1 after each."""
    rows: list[int] = []
    for row in random.sample(range(LOWEST, HIGHEST, IN_A_ROW), k=(HIGHEST - LOWEST) // IN_A_ROW):
        if len(rows) == count:
            _given.update(rows)
            return rows
        if row not in _given and _free(range(row, row + IN_A_ROW)):
            rows.append(row)
    raise RuntimeError(f"there are no {count} free ports between {LOWEST} and {HIGHEST}")


def _free(row: range) -> bool:
    with ExitStack() as held, suppress(OSError):
        for port in row:
            held.enter_context(socket.socket()).bind(("127.0.0.1", port))
        return True
    return False
