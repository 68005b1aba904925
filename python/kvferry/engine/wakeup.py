"""Steps of an engine that is idle: a rank whose lease has ended says so in a step, and has nobody who asks it for one.

A `Teller` in the process of each rank sends an empty message whenever its node has an event; the `Listener` in the process of
the engine's scheduler wakes the engine. The socket's name is in Linux's abstract namespace: nothing is left in a folder.
A sender causes a step at most, and no more than one in PAUSE_S.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable

from kvferry import Node

TICK_S = 1.0
"""How often the listener asks by itself whether a step is needed."""
POLL_S = 0.04
"""How often it steps the engine where a rank cannot send messages: it is on another host."""
PAUSE_S = 0.002


class Listener:
    def __init__(self, is_needed: Callable[[bool], bool], wake: Callable[[], None]) -> None:
        """Both are called in a thread of its own. The first gets True if a rank has sent a message, or could not have sent one."""
        self._is_needed = is_needed
        self._wake = wake
        self._closed = False
        self._all_tell = True
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.bind("")  # the kernel chooses a name
        self.address: bytes = self._socket.getsockname()
        self._thread = threading.Thread(target=self._run, name="kvferry-wakeup", daemon=True)

    def start(self, all_tell: bool) -> None:
        self._all_tell = all_tell
        self._socket.settimeout(TICK_S if all_tell else POLL_S)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            try:
                told = bool(self._socket.recv(1))
            except TimeoutError:
                told = not self._all_tell
            if not self._closed and self._is_needed(told):
                self._wake()
                time.sleep(PAUSE_S)

    def close(self) -> None:
        self._closed = True
        if self._thread.is_alive():
            self._socket.sendto(b"\0", self.address)  # before its descriptor is another file's
            self._thread.join()
        self._socket.close()


class Teller:
    def __init__(self, node: Node, address: bytes) -> None:
        """OSError: nobody listens there, as far as this host knows."""
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._epoll = select.epoll()
        try:
            self._socket.connect(address)
        except OSError:
            self._close()
            raise
        self._epoll.register(node.fileno(), select.EPOLLIN | select.EPOLLET)  # the node's events are for a step to take
        self._epoll.register(self._stop, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="kvferry-wakeup", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while all(fd != self._stop for fd, _ in self._epoll.poll()):
            try:
                self._socket.send(b"\0")
            except ConnectionRefusedError:
                return  # the scheduler side has gone
            except OSError:
                pass  # many messages wait to be read, or the system is short of memory: the next event is told

    def close(self) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        self._close()

    def _close(self) -> None:
        self._epoll.close()
        self._socket.close()
        os.close(self._stop)
