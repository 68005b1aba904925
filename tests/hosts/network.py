"""Hosts on one machine: each a network namespace (and a /sys) of its own, with a router between them.

A namespace has no name: it lives as long as the process that holds it, which ends when its standard input does. So
nothing stays when a test fails or is killed, and nothing but what a test made is touched. Where the caller is not root
it all happens in one user namespace.

    P ──(10.77.1.0/24, fd77:1::/64)── router ──(10.77.2.0/24, fd77:2::/64)── D
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

TOOLS = ("ip", "tc", "nft", "unshare", "nsenter", "setpriv")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
RELAY = Path(__file__).with_name("relay.py")
LIMIT_S = 30.0
HOLD = "mount -t sysfs sysfs /sys 2>/dev/null; echo up; exec cat >/dev/null"
"""UCX looks for its devices in /sys, which else shows those of the machine."""
DROPS = "kvferry"
"""The router's nftables table."""


class NoNetwork(Exception):
    """The system allows no network namespaces, or lacks a tool."""


class NoDevice(Exception):
    """The system allows no TUN device."""


class Host:
    """A network namespace, and how to run something in it."""

    def __init__(self, name: str, inside: Host | None = None) -> None:
        """`inside` is a host whose user namespace is shared."""
        self.name = name
        self.owned = inside.owned if inside else os.geteuid() != 0
        self._user = inside._user if inside else None
        enter = ["nsenter", "-t", str(self._user), "-U", "--preserve-credentials"] if inside and self.owned else []
        flags = ["-Urnm"] if self.owned and not inside else ["-nm"]
        self._holder = subprocess.Popen([*enter, "unshare", *flags, "sh", "-c", HOLD],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=os.environ | {"PATH": PATH})
        assert self._holder.stdout is not None and self._holder.stderr is not None
        if self._holder.stdout.readline() != b"up\n":
            raise NoNetwork(self._holder.stderr.read().decode().strip())
        self.pid = self._holder.pid
        if self.owned and not inside:
            self._user = self.pid
        self.run("sh", "-c", "for each in all default; do echo 0 >/proc/sys/net/ipv6/conf/$each/accept_dad; done; "
                 "ip link set lo up")

    def command(self, *command: str) -> list[str]:
        """That command in this host. It does not outlive who starts it, stopped or not."""
        user = ["-U", "--preserve-credentials"] if self.owned else []
        return ["nsenter", "-t", str(self.pid), "-n", "-m", *user, "setpriv", "--pdeathsig", "KILL", *command]

    def run(self, *command: str, text: str | None = None) -> str:
        done = subprocess.run(self.command(*command), input=text, text=True, capture_output=True, timeout=LIMIT_S,
                              env=os.environ | {"PATH": PATH}, check=False)
        if done.returncode != 0:
            raise NoNetwork(f"{self.name}: {' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def ip(self, *lines: str) -> None:
        self.run("ip", "-batch", "-", text="\n".join(lines))

    def nft(self, *lines: str) -> None:
        self.run("nft", "-f", "-", text="\n".join(lines))

    def start(self, *command: str, stdin: int | None = None, stderr: IO[str] | None = None,
              env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command(*command), stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, text=True,
                                bufsize=1, env=os.environ | {"PATH": PATH} | (env or {}))

    def namespace(self) -> str:
        return os.readlink(f"/proc/{self.pid}/ns/net")

    def close(self) -> None:
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        self._holder.wait(LIMIT_S)
        for pipe in (self._holder.stdout, self._holder.stderr):
            assert pipe is not None
            pipe.close()


class Network:
    """Hosts, each in a subnet of its own behind one router."""

    def __init__(self, names: list[str]) -> None:
        missing = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
        if missing:
            raise NoNetwork(f"no {', '.join(missing)} (Debian: iproute2, nftables, util-linux)")
        self.router = Host("router")
        self.hosts: dict[str, Host] = {}
        self.subnets: dict[str, list[int]] = {}
        self._count = 0
        self._relay: subprocess.Popen[str] | None = None
        try:
            self.router.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward && "
                            "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
            self.heal()
            for name in names:
                self.add(name)
                self.join(name)
        except BaseException:
            self.close()
            raise

    def add(self, name: str) -> Host:
        self.hosts[name] = Host(name, self.router)
        self.subnets[name] = []
        return self.hosts[name]

    def join(self, name: str) -> int:
        """One more interface of that host, in a subnet of its own: the subnet's number."""
        host = self.hosts[name]
        self._count += 1
        n, inside = self._count, f"eth{len(self.subnets[name])}"
        self.subnets[name].append(n)
        # An index that no peer has: of ends with the same one, the kernel hears up to a second late that they are up.
        self.router.ip(f"link add to{n} index {100 + n} type veth peer name {inside} netns {host.pid}",
                       f"address add 10.77.{n}.254/24 dev to{n}",
                       f"address add fd77:{n}::fe/64 dev to{n}",
                       f"link set to{n} up")
        host.ip(f"address add 10.77.{n}.1/24 dev {inside}",
                f"address add fd77:{n}::1/64 dev {inside}",
                f"link set {inside} up")
        if inside == "eth0":
            host.ip(f"route add default via 10.77.{n}.254", f"route add ::/0 via fd77:{n}::fe")
        else:  # it answers from where it was asked
            host.ip(f"route add default via 10.77.{n}.254 table {n}", f"route add ::/0 via fd77:{n}::fe table {n}",
                    f"rule add from 10.77.{n}.1 lookup {n}")
            host.run("ip", "-6", "rule", "add", "from", f"fd77:{n}::1", "lookup", str(n))
        return n

    def address(self, name: str, family: int = 4, interface: int = 0) -> str:
        n = self.subnets[name][interface]
        return f"10.77.{n}.1" if family == 4 else f"[fd77:{n}::1]"

    # ---- faults ----

    def heal(self) -> None:
        self.router.nft(f"table inet {DROPS}", f"delete table inet {DROPS}", f"table inet {DROPS} {{",
                        "chain forward { type filter hook forward priority 0; policy accept; }", "}")

    def cut(self, source: str, target: str, family: int | None = None) -> None:
        """No packet goes from one to the other; or none of that family."""
        self._drop(source, target, "" if family is None else f"meta nfproto ipv{family} ")

    def lose(self, source: str, target: str, per_mille: int) -> None:
        """Loses so many packets of a thousand."""
        self._drop(source, target, f"numgen random mod 1000 < {per_mille} ")

    def _drop(self, source: str, target: str, which: str) -> None:
        self.router.nft(*(f'add rule inet {DROPS} forward iifname "to{a}" oifname "to{b}" {which}drop'
                          for a in self.subnets[source] for b in self.subnets[target]))

    def limit(self, target: str, mbit: int, queue_ms: int = 100) -> None:
        """What goes to that host goes no faster, and waits for up to `queue_ms`."""
        for n in self.subnets[target]:
            self.router.run("tc", "qdisc", "replace", "dev", f"to{n}", "root", "tbf", "rate", f"{mbit}mbit",
                            "burst", "64kb", "latency", f"{queue_ms}ms")

    def unlimit(self, target: str) -> None:
        for n in self.subnets[target]:
            self.router.run("tc", "qdisc", "delete", "dev", f"to{n}", "root")

    def unplug(self, name: str, interface: int = 0) -> None:
        self.router.ip(f"link set to{self.subnets[name][interface]} down")

    def plug(self, name: str, interface: int = 0) -> None:
        n = self.subnets[name][interface]
        self.router.ip(f"link set to{n} up", f"address replace fd77:{n}::fe/64 dev to{n}")

    # ---- another way between two hosts ----

    def relay(self, a: str, b: str, delay_ms: float, jitter_ms: float) -> None:
        """A second way between them: each packet takes `delay_ms`, and up to `jitter_ms` more, by chance, so that packets
        overtake each other. Their addresses there: relayed()."""
        self._relay = self.router.start(sys.executable, str(RELAY), "relay0", "relay1", str(delay_ms), str(jitter_ms),
                                        stdin=subprocess.PIPE)
        assert self._relay.stdout is not None
        said = self._relay.stdout.readline().strip()
        if said != "up":
            raise NoDevice(said)
        for index, name in enumerate((a, b)):
            tun, host = f"relay{index}", self.hosts[name]
            self.router.ip(f"link set {tun} netns {host.pid}")
            host.ip(f"address add 10.78.0.{index + 1}/24 dev {tun}", f"address add fd78::{index + 1}/64 dev {tun}",
                    f"link set {tun} mtu 9000 up")

    @staticmethod
    def relayed(index: int, family: int = 4) -> str:
        return f"10.78.0.{index + 1}" if family == 4 else f"[fd78::{index + 1}]"

    # ---- the end ----

    def namespaces(self) -> set[str]:
        return {host.namespace() for host in (self.router, *self.hosts.values())}

    def close(self) -> None:
        if self._relay is not None:
            self._relay.kill()
            self._relay.communicate()
        for host in (*self.hosts.values(), self.router):
            host.close()


def processes_in(namespaces: set[str]) -> list[int]:
    """Processes that are in one of these."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                if os.readlink(process / "ns" / "net") in namespaces:
                    found.append(int(process.name))
    return found


def until_empty(namespaces: set[str], limit_s: float = 5.0) -> list[int]:
    """Waits until no process is in them; those that still are."""
    end = time.monotonic() + limit_s
    while (left := processes_in(namespaces)) and time.monotonic() < end:
        time.sleep(0.01)
    return left
