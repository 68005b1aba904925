"""Ports of 127.0.0.1 for servers that must be told theirs."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress

IN_A_ROW = 8
"""The ranks of an engine take ports in a row."""
_until_the_end = ExitStack()


def free_ports(count: int, held: ExitStack = _until_the_end) -> list[int]:
    """Each the first of IN_A_ROW. Held are sockets that are bound and do not listen: the system gives their ports to nobody else,
    and only who names one may listen there, as SO_REUSEADDR of both allows. vLLM, its router and kvferry set it."""
    rows: list[int] = []
    while len(rows) < count:
        with suppress(OSError, OverflowError), ExitStack() as row:  # of a row that is not free all through, none is kept
            first = _hold(row, 0)
            for port in range(first + 1, first + IN_A_ROW):
                _hold(row, port)
            held.push(row.pop_all())
            rows.append(first)
    return rows


def _hold(row: ExitStack, port: int) -> int:
    held = row.enter_context(socket.socket())
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", port))
    return int(held.getsockname()[1])
