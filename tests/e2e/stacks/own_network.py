"""A network of this process and of all that it starts: stacks bind the machine's own address, and find it by the default route."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "hosts"))

from network import PATH, Host, Network, NoNetwork, processes_in  # noqa: E402
from pd.progress import wait_until  # noqa: E402

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
MACHINE = "10.77.0.1"
END_LIMIT_S = 20.0
UP = (f"for each in all default; do echo 0 >/proc/sys/net/ipv6/conf/$each/accept_dad; done; ip link set lo up && "
      "ip link add own0 type veth peer name own1 && ip link set own0 up && ip link set own1 up && "
      f"ip address add {MACHINE}/24 dev own0 && ip route add default dev own0")


def enter() -> None:
    """Before this process has a second thread. Its network is gone when it and all that it started have ended."""
    user, group = os.geteuid(), os.getegid()
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(CLONE_NEWNET | (CLONE_NEWUSER if user else 0)) != 0:
        raise NoNetwork(f"unshare: {os.strerror(ctypes.get_errno())}")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    done = subprocess.run(["sh", "-c", UP], env=os.environ | {"PATH": PATH}, capture_output=True, text=True)
    if done.returncode != 0:
        raise NoNetwork(done.stderr.strip())


def processes() -> list[psutil.Process]:
    """Those in this network, but for this one."""
    found = []
    for pid in set(processes_in({os.readlink("/proc/self/ns/net")})) - {os.getpid()}:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def end_all() -> None:
    """What a stack has left behind, whose processes are in sessions and groups of their own."""
    def are_gone() -> bool:
        for process in (left := processes()):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return not left
    wait_until("the end of all processes", are_gone, END_LIMIT_S)


class Here(Host):
    """This process's own network, as one of the hosts."""

    def __init__(self) -> None:
        self.name, self.pid, self.owned = "client", os.getpid(), False

    def command(self, *command: str) -> list[str]:
        return list(command)

    def close(self) -> None:
        """It goes with this process."""


def two_hosts(names: list[str]) -> Network:
    """These, and this process as one more behind the router, with routes to them alone: its default route stays."""
    made = Network(names)
    number = len(names) + 1
    made.router.ip(f"link add to{number} index {100 + number} type veth peer name eth0 netns {os.getpid()}",
                   f"address add 10.77.{number}.254/24 dev to{number}", f"address add fd77:{number}::fe/64 dev to{number}",
                   f"link set to{number} up")
    Here().ip(f"address add 10.77.{number}.1/24 dev eth0", f"address add fd77:{number}::1/64 dev eth0", "link set eth0 up",
              *(line for n in range(1, number)
                for line in (f"route add 10.77.{n}.0/24 via 10.77.{number}.254", f"route add fd77:{n}::/64 via fd77:{number}::fe")))
    return made
