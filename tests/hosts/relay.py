"""A slow, disorderly wire: packets from one TUN device come out of the other, each some time later.

    python relay.py NAME NAME DELAY_MS JITTER_MS      ends with its standard input
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
PACKET_BYTES = 65536
HELD_MAX = 4096
"""Packets on their way; beyond them they are lost, as in a router."""


def open_device(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return device


def relay(devices: tuple[int, int], delay_s: float, jitter_s: float) -> None:
    held: list[tuple[float, int, int, bytes]] = []
    numbers = itertools.count()
    while True:
        wait_s = max(0.0, held[0][0] - time.monotonic()) if held else None
        ready, _, _ = select.select([*devices, sys.stdin], [], [], wait_s)
        if sys.stdin in ready:
            return
        for index, device in enumerate(devices):
            try:
                while device in ready and len(held) < HELD_MAX:
                    due = time.monotonic() + delay_s + random.random() * jitter_s
                    heapq.heappush(held, (due, next(numbers), devices[1 - index], os.read(device, PACKET_BYTES)))
            except OSError:  # no more, or the device is not up
                pass
        while held and held[0][0] <= time.monotonic():
            _, _, device, packet = heapq.heappop(held)
            try:
                os.write(device, packet)
            except OSError:  # full, or not up: lost
                pass


def main() -> None:
    first, second, delay_ms, jitter_ms = sys.argv[1:]
    try:
        devices = open_device(first), open_device(second)
    except OSError as error:
        print(f"/dev/net/tun: {error.strerror}", flush=True)
        return
    print("up", flush=True)
    relay(devices, float(delay_ms) / 1000, float(jitter_ms) / 1000)


if __name__ == "__main__":
    main()
