"""The scheduler side and its ranks in touch, independent of the engine's steps: a connection from each rank, a thread at
either end. For engines whose own messages go with the steps of a batch, and that may have none for a while.

All of an engine's ranks are processes of one user on one host.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import MEMORY_FOLDER
from .log import logger

if TYPE_CHECKING:
    from kvferry import Node

POLL_S = 0.001
"""How often a rank looks at what no descriptor tells of."""
CLOSED = None
"""A rank's last word."""
CONNECT_S = 60.0
"""How long the ranks of an engine may take to connect, one after the other."""


def _folder() -> Path:
    """Of this user alone, which is all that keeps others out; gone with close()."""
    base = MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK | os.X_OK) else None
    return Path(tempfile.mkdtemp(prefix="kvferry-ranks-", dir=base))


@contextmanager
def _survived() -> Iterator[None]:
    """What goes wrong with one request must not end what serves all."""
    try:
        yield
    except Exception:
        logger.exception("kvferry: internal error (please report it): the engine goes on")


class Waker:
    """Readable once it has been set."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._reader

    def set(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def clear(self) -> None:
        with suppress(BlockingIOError):
            while os.read(self._reader, 4096):
                pass

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


class Hub:
    """The scheduler side's end. Its thread calls `on_report` with what a rank has sent, and `on_events` when the node may
    have some, and now and then."""

    def __init__(self, node: Node, ranks: int, on_report: Callable[[Any], None], on_events: Callable[[], None],
                 idle_s: Callable[[], float]) -> None:
        self._node = node
        self._on_report = on_report
        self._on_events = on_events
        self._idle_s = idle_s
        self._orders: deque[Any] = deque()
        self._waker = Waker()
        self._closing = False
        self._folder = _folder()
        self.address = str(self._folder / "hub")
        """For the ranks, and good on this host."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(CONNECT_S)
        self._listener.bind(self.address)
        self._listener.listen(ranks)
        self._links: list[Connection] = []
        self._ranks = ranks
        self._thread = threading.Thread(target=self._run, name="kvferry-hub", daemon=True)

    def accept(self) -> None:
        """Each rank is about to connect: waits for all of them, then begins. TimeoutError."""
        while len(self._links) < self._ranks:
            accepted, _ = self._listener.accept()
            accepted.setblocking(True)
            self._links.append(Connection(accepted.detach()))
        self._forget_address()
        self._thread.start()

    def _forget_address(self) -> None:
        """Nobody else is to connect, and nothing is left behind by however the process ends."""
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def send(self, orders: Any) -> None:
        """To all ranks, in this order. Does not wait."""
        self._orders.append(orders)
        self._waker.set()

    def _run(self) -> None:
        while not self._closing:
            ready = wait([*self._links, self._waker, self._node], self._idle_s())
            self._waker.clear()
            for link in [link for link in self._links if link in ready]:
                self._receive(link)
            with _survived():
                self._on_events()
            while self._orders:
                orders = self._orders.popleft()
                for link in list(self._links):
                    self._emit(link, orders)

    def _receive(self, link: Connection) -> None:
        try:
            report = link.recv()
        except (EOFError, OSError):
            logger.error("kvferry: a rank of this engine is gone")
            self._drop(link)
            return
        if report is CLOSED:
            self._drop(link)
        else:
            with _survived():
                self._on_report(report)

    def _emit(self, link: Connection, orders: Any) -> None:
        try:
            link.send(orders)
        except OSError:
            self._drop(link)

    def _drop(self, link: Connection) -> None:
        """Its loads are said to be lost by the deadline."""
        self._links.remove(link)
        link.close()

    def close(self) -> None:
        self._closing = True
        self._waker.set()
        if self._thread.is_alive():
            self._thread.join()
        for link in self._links:
            link.close()
        self._forget_address()
        self._waker.close()


class Link:
    """A rank's end. Its thread calls `on_orders` with what has come, and `on_events`, whose result it sends unless it is
    None: when the node may have some, and while `is_busy()`."""

    def __init__(self, node: Node, address: str, on_orders: Callable[[Any], None], on_events: Callable[[], Any],
                 is_busy: Callable[[], bool]) -> None:
        self._node = node
        self._on_orders = on_orders
        self._on_events = on_events
        self._is_busy = is_busy
        self._waker = Waker()
        self._closing = False
        with socket.socket(socket.AF_UNIX) as connecting:
            connecting.connect(address)
            self._link = Connection(connecting.detach())
        self._thread = threading.Thread(target=self._run, name="kvferry-link", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._waker.set()

    def _run(self) -> None:
        with suppress(EOFError, OSError):  # its scheduler side is gone, and the engine with it
            while not self._closing:
                ready = wait([self._link, self._waker, self._node], POLL_S if self._is_busy() else None)
                self._waker.clear()
                if self._link in ready:
                    orders = self._link.recv()
                    with _survived():
                        self._on_orders(orders)
                report = None
                with _survived():
                    report = self._on_events()
                if report is not None:
                    self._link.send(report)

    def close(self) -> None:
        self._closing = True
        self._waker.set()
        self._thread.join()
        with suppress(OSError):
            self._link.send(CLOSED)
        self._link.close()
        self._waker.close()
