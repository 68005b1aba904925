"""Runs a command so that no process of it is left behind: when it has ended, is over its limit, or the caller has died.

    children.py CALLER LIMIT_S COMMAND…        CALLER: the process whose death ends the command

All processes that come of the command are this one's in the end, whatever sessions and groups they have made: a process whose
parent dies becomes the child of its nearest subreaper. So this process ends its children until it has none. Its status is the
command's, 128 and the signal's number where a signal has ended that, and TIMED_OUT where the limit has.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TIMED_OUT = 124
LOOK_S, END_S = 0.2, 20.0
ENDING = {signal.SIGTERM, signal.SIGINT}


def command(limit_s: float, words: list[str]) -> list[str]:
    """For subprocess. The thread that starts it has to outlive it."""
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(os.getpid()), f"{limit_s:.2f}", *words]


def prctl(what: int, value: int) -> None:
    if ctypes.CDLL(None).prctl(what, value, 0, 0, 0) != 0:
        raise OSError("prctl")


def begin(words: list[str]) -> subprocess.Popen[bytes]:
    """A session of its own: what somebody sends to a group stays within it. To be kept: what is thrown away asks for the status,
    which is there once."""

    def prepare() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING | {signal.SIGCHLD})

    return subprocess.Popen(words, start_new_session=True, preexec_fn=prepare)


def ended() -> dict[int, int]:
    """The status of each child that has ended and was not asked for yet."""
    found: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (one := os.waitpid(-1, os.WNOHANG))[0] != 0:
            found[one[0]] = one[1]
    return found


def wait(child: int, until: float) -> int:
    while child not in (found := ended()):
        left = until - time.monotonic()
        if left <= 0:
            return TIMED_OUT
        seen = signal.sigtimedwait(ENDING | {signal.SIGCHLD}, min(left, LOOK_S))
        if seen is not None and seen.si_signo in ENDING:
            return 128 + seen.si_signo
    code = os.waitstatus_to_exitcode(found[child])
    return code if code >= 0 else 128 - code


def children() -> list[int]:
    own, found = str(os.getpid()), []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if stat.read_text().rpartition(")")[2].split()[1] == own:
                found.append(int(stat.parent.name))
    return found


def end_all() -> list[int]:
    """Returns those that do not die: a driver's call that hangs keeps its process."""
    until = time.monotonic() + END_S
    while (left := children()) and time.monotonic() < until:
        for child in left:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
        ended()
    return left


def main(caller: int, limit_s: float, words: list[str]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING | {signal.SIGCHLD})
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != caller:
        return 1
    until = time.monotonic() + limit_s
    try:
        begun = begin(words)
        status = wait(begun.pid, until)
    except OSError as error:
        print(f"{words[0]}: {error}", file=sys.stderr)
        status = 127
    if left := end_all():
        print(f"{words[0]}: processes that do not end: {left}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
