"""A TCP relay between two engines that can be told to stop passing bytes on, as a network that breaks half-way."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass

HOST = "127.0.0.2"
"""Where an engine that listens on 127.0.0.1 can be reached through a relay, at the same ports."""
PIECE_BYTES = 65536
LOOK_EVERY_S = 0.1


@dataclass
class Pair:
    """One connection to the relay, and the one that the relay has made for it."""

    near: socket.socket
    far: socket.socket
    port: int
    budget_bytes: int | None = None
    """How much more comes back from the far end; None: no limit."""

    def close(self) -> None:
        self.near.close()
        self.far.close()


class Relay:
    """Use it as a context manager. It passes everything on to the same port of 127.0.0.1, until cut_after() is called."""

    def __init__(self) -> None:
        self._listeners: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._pairs: list[Pair] = []
        self._lock = threading.Lock()
        self._new_budget_bytes: int | None = None
        self._held_but: int | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run)

    def serve(self, ports: Iterable[int]) -> None:
        """Those that it does not serve yet."""
        with self._lock:
            for port in set(ports) - self._listeners.keys():
                self._listeners[port] = socket.create_server((HOST, port))
                self._selector.register(self._listeners[port], selectors.EVENT_READ, port)

    def cut_after(self, budget_bytes: int) -> None:
        """Each connection that is open passes so many bytes more back from the target, and those to come none."""
        with self._lock:
            for pair in self._pairs:
                pair.budget_bytes = budget_bytes
            self._new_budget_bytes = 0

    def mend(self) -> None:
        """Ends the connections that were cut; new ones pass everything on."""
        with self._lock:
            for pair in [pair for pair in self._pairs if pair.budget_bytes is not None]:
                self._end(pair)
            self._new_budget_bytes = None

    def hold(self, but: int) -> None:
        """Nothing comes back from the targets, but from this port, until let_go(). Nothing is lost, and what goes to
        them passes."""
        with self._lock:
            self._held_but = but
            for pair in self._pairs:
                if self._holds(pair):
                    self._leave_unread(pair.far)

    def let_go(self) -> None:
        with self._lock:
            self._held_but = None
            for pair in self._pairs:
                if pair.budget_bytes != 0 and pair.far not in self._selector.get_map():
                    self._selector.register(pair.far, selectors.EVENT_READ, pair)

    def _holds(self, pair: Pair) -> bool:
        return self._held_but is not None and pair.port != self._held_but

    def _leave_unread(self, end: socket.socket) -> None:
        if end in self._selector.get_map():
            self._selector.unregister(end)

    def _run(self) -> None:
        while not self._stopping:
            for key, _ in self._selector.select(LOOK_EVERY_S):
                with self._lock:
                    if isinstance(key.data, int):
                        self._accept(key.data)
                    elif key.data in self._pairs and not (self._holds(key.data) and key.fileobj is key.data.far):
                        self._pass_on(key.data, key.fileobj)

    def _accept(self, port: int) -> None:
        near, _ = self._listeners[port].accept()
        try:
            far = socket.create_connection(("127.0.0.1", port), timeout=5.0)
        except OSError:
            near.close()
            return
        pair = Pair(near, far, port, self._new_budget_bytes)
        self._pairs.append(pair)
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(end, selectors.EVENT_READ, pair)
        if self._holds(pair):
            self._leave_unread(far)

    def _pass_on(self, pair: Pair, source: socket.socket) -> None:
        back = source is pair.far
        try:
            piece = source.recv(PIECE_BYTES)
            if piece and back and pair.budget_bytes is not None:
                piece = piece[:pair.budget_bytes]
                pair.budget_bytes -= len(piece)
                if pair.budget_bytes == 0:
                    self._leave_unread(source)  # stays open, and says no more
            elif not piece:
                self._end(pair)
                return
            (pair.near if back else pair.far).sendall(piece)
        except OSError:
            self._end(pair)

    def _end(self, pair: Pair) -> None:
        self._pairs.remove(pair)
        for end in (pair.near, pair.far):
            self._leave_unread(end)
        pair.close()

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._thread.join()
        for pair in list(self._pairs):
            self._end(pair)
        self._selector.close()
        for listener in self._listeners.values():
            listener.close()
