"""One child process with its own process group, ended by id, whatever ends us."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Iterator, Mapping, Sequence

import psutil

from .progress import wait_until

# Runs a program with a guard beside it, which is in a session of its own. The guard reads a pipe whose other end only we hold:
# when we are gone, however that came, it kills the program's group, stopped processes included.
GUARDED = """
exec 3<&0 </dev/null
setsid sh -c 'read -r _; kill -KILL "-$0"' $$ <&3 >/dev/null 2>&1 &
exec 3<&-
exec "$@"
"""

STOP_LIMIT_S = 20.0
REAP_LIMIT_S = 5.0
SHARED_MEMORY = Path("/dev/shm")
MAPPED = re.compile(rf" (\d+) +{SHARED_MEMORY}/")
"""The inode of a line of /proc/PID/maps."""


class Process:
    """A program, the log it writes, and the group of all processes that it started."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.name, self.argv, self.env, self.log = name, list(argv), dict(env), log
        self._child: subprocess.Popen[bytes] | None = None
        self._shared: set[Path] = set()

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            out.write(f"--- {time.strftime('%H:%M:%S')} {' '.join(self.argv)}\n".encode())
            out.flush()
            # In our session: Linux schedules sessions as groups (sched_autogroup), and vLLM's workers, which yield while
            # they wait, then kept threads of other sessions from running for more than half a second at a time.
            self._child = subprocess.Popen(
                ["sh", "-c", GUARDED, "guarded", *self.argv], env=self.env, stdin=subprocess.PIPE, stdout=out,
                stderr=subprocess.STDOUT, process_group=0)

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def family(self) -> list[psutil.Process]:
        """The program and all that it has started."""
        program = psutil.Process(self.pid)
        return [program, *program.children(recursive=True)]

    def listening_ports(self) -> set[int]:
        """Of 127.0.0.1."""
        return {connection.laddr.port for process in self.family() for connection in process.net_connections("tcp4")
                if connection.status == psutil.CONN_LISTEN and connection.laddr.ip == "127.0.0.1"}

    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def signal_group(self, number: int) -> None:
        """Does nothing where nothing runs."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)

    def pause(self) -> None:
        """Until every thread stands still: the kernel tells them one by one, the first when it next gets a core, and until
        then the others go on with their work."""
        if self._child is not None:
            self.signal_group(signal.SIGSTOP)
            wait_until(f"stopping {self.name}", lambda: not moving_threads(self.pid), STOP_LIMIT_S, every_s=0.001)

    def resume(self) -> None:
        self.signal_group(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to the whole group, and wait until none of it is left, nor what its processes shared."""
        if self._child is None:
            return
        self._shared |= shared_memory_of(self._child.pid)
        self.signal_group(signal.SIGKILL)
        self._child.wait()
        group = self._child.pid
        with suppress(TimeoutError):  # grandchildren are reaped by init, not by us, a moment after the signal
            wait_until(f"ending {self.name}", lambda: not is_there(group), REAP_LIMIT_S, every_s=0.02)
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child = None
        for path in self._shared:
            path.unlink(missing_ok=True)
        self._shared.clear()

    def stop(self, grace_s: float = 10.0) -> None:
        """Asks the program to end; what is still there after the grace is killed."""
        if self._child is None:
            return
        self.resume()
        self._shared |= shared_memory_of(self._child.pid)
        self.ask_to_end()
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(grace_s)
        self.kill()

    def ask_to_end(self) -> None:
        """SIGTERM to the program alone, as a service manager sends it."""
        assert self._child is not None
        self._child.send_signal(signal.SIGTERM)

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def members_of(group: int) -> Iterator[Path]:
    """The folders in /proc of a process group."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if int(fields_of(stat)[2]) == group:
                yield stat.parent


def moving_threads(group: int) -> list[str]:
    """Those that are neither stopped nor dead, as paths."""
    moving = []
    for member in members_of(group):
        with suppress(FileNotFoundError, ProcessLookupError):
            moving += [str(thread.parent) for thread in member.glob("task/*/stat") if fields_of(thread)[0] not in "TtZX"]
    return moving


def shared_memory_of(group: int) -> set[Path]:
    """The files that vLLM's processes share, which stay behind when they are killed. Not by the names in their maps: a
    semaphore's is that which it had before it got its own."""
    inodes: set[str] = set()
    for member in members_of(group):
        with suppress(FileNotFoundError, ProcessLookupError):
            inodes.update(MAPPED.findall((member / "maps").read_text()))
    with os.scandir(SHARED_MEMORY) as files:
        return {Path(file.path) for file in files if str(file.inode()) in inodes}


def fields_of(stat: Path) -> list[str]:
    """From the state on: the name before it may hold anything."""
    return stat.read_text().rpartition(")")[2].split()


def is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True
