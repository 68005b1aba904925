"""libkvferry-chaos.so before the calls of a program of its own, and the control file as ./dev chaos writes it. A verdict of
./dev chaos is wrong if faults are counted that nobody met, or if the injector harms what no rule names.

    injector_test.py LIBRARY FAKE_UCP
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import subprocess
import sys
import time
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools" / "dev"))

from chaos.injector import PER_MILLION, VARIABLE, Control, Rule  # noqa: E402

BYTES = 4096
SOURCE = b"\x5a" * BYTES
OURS, NOT_OURS = "kvf-tcp", "uvicorn"
DELAY_MS = 30
UCX_STATUS = 25
IN_PROGRESS = 1
RECEIVES = ("process_vm_readv", "recvmsg", "recv")
CAN_BE_SHORT = (*RECEIVES, "sendmsg", "send")
CALLS = (*CAN_BE_SHORT, "connect")
UCX_CALLS = ("ucp_get_nbx", "ucp_request_check_status", "ucp_am_send_nbx")
PR_SET_NAME = 15


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


class Message(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("name_bytes", ctypes.c_uint), ("iov", ctypes.POINTER(Iovec)),
                ("count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_bytes", ctypes.c_size_t),
                ("flags", ctypes.c_int)]


# ---- the program that the injector is loaded into: a line a command, a line an answer ----


def halves(buffer: Any, size: int) -> Any:
    at = ctypes.addressof(buffer)
    return (Iovec * 2)(Iovec(at, size // 2), Iovec(at + size // 2, size - size // 2))


def system_call(libc: ctypes.CDLL, call: str, size: int, target: Any) -> int:
    """Once, of so many bytes."""
    source = ctypes.create_string_buffer(SOURCE, BYTES)
    if call == "process_vm_readv":
        remote = Iovec(ctypes.addressof(source), size)
        return libc.process_vm_readv(os.getpid(), halves(target, size), 2, ctypes.byref(remote), 1, 0)
    if call == "connect":
        with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as dialler:
            port = listener.getsockname()[1]
            address = socket.AF_INET.to_bytes(2, sys.byteorder) + port.to_bytes(2, "big") + socket.inet_aton("127.0.0.1")
            return -1 if libc.connect(dialler.fileno(), address + bytes(8), 16) else size
    near, far = socket.socketpair()
    with near, far:
        message = Message(iov=halves(source if call == "sendmsg" else target, size), count=2)
        if call in RECEIVES:
            os.write(far.fileno(), SOURCE[:size])
        if call.endswith("msg"):
            return getattr(libc, call)(near.fileno(), ctypes.byref(message), 0)
        return getattr(libc, call)(near.fileno(), source if call == "send" else target, size, 0)


def ucx_call(libc: ctypes.CDLL, call: str, request: int) -> int:
    if call == "ucp_request_check_status":
        return ctypes.c_int8(libc.ucp_request_check_status(ctypes.c_void_p(request))).value
    function = getattr(libc, call)
    function.restype = ctypes.c_void_p
    return ctypes.c_int64(function(ctypes.c_void_p(request), *[ctypes.c_void_p()] * 6) or 0).value


def obey(fake_ucp: str) -> None:
    libc, ucx = ctypes.CDLL(None, use_errno=True), ctypes.CDLL(fake_ucp, os.RTLD_LOCAL)
    for line in sys.stdin:
        call, thread, number = line.split()
        libc.prctl(PR_SET_NAME, thread.encode(), 0, 0, 0)
        target = ctypes.create_string_buffer(BYTES)
        ctypes.set_errno(0)
        if call in UCX_CALLS:
            print(ucx_call(libc, call, int(number)), 0, "", flush=True)
        else:
            result = system_call(libc, call, int(number), target)
            print(result, ctypes.get_errno(), target.raw.hex(), flush=True)
    del ucx


# ---- the tests ----


class Program:
    """With the injector in it, and a control file."""

    def __init__(self, path: str | None = None) -> None:
        self.control = Control("test", 7)
        environment = {**os.environ, "LD_PRELOAD": LIBRARY, VARIABLE: path or self.control.path}
        self.process = subprocess.Popen([sys.executable, __file__, "obey", FAKE_UCP], env=environment, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def always(self, call: str, kind: str, value: int = 0) -> None:
        self.control.switch_on([Rule(call, kind, PER_MILLION, value)])

    def once(self, call: str, number: int = BYTES, thread: str = OURS) -> tuple[int, int, bytes]:
        """What the call returned, its errno, and the bytes that came."""
        self.process.stdin.write(f"{call} {thread} {number}\n")
        self.process.stdin.flush()
        result, error, data = self.process.stdout.readline().rstrip("\n").split(" ")
        return int(result), int(error), bytes.fromhex(data)

    def done(self, call: str, kind: str) -> int:
        return self.control.injected().get(f"{call} {kind}", 0)

    def close(self) -> str:
        said = self.process.communicate()[1]
        self.control.close()
        return said


def bits_changed(data: bytes) -> int:
    return sum((a ^ b).bit_count() for a, b in zip(SOURCE, data))


class Injector(unittest.TestCase):
    def setUp(self) -> None:
        self.program = Program()

    def tearDown(self) -> None:
        self.assertEqual(self.program.close(), "")

    def each(self, kind: str, value: int = 0):  # type: ignore[no-untyped-def]
        """Each call with this fault: its name, and what the call returned."""
        for call in CALLS:
            with self.subTest(call):
                before = self.program.done(call, kind)
                self.program.always(call, kind, value)
                result = self.program.once(call)
                yield call, *result, self.program.done(call, kind) - before

    def test_without_a_rule_all_goes_well(self) -> None:
        """Rules that were there before are gone."""
        self.program.control.switch_on([Rule(call, "fail", PER_MILLION, errno.EIO) for call in CALLS])
        for on in (True, False):
            for call in CALLS:
                self.program.control.switch_on([]) if on else self.program.control.switch_off()
                result, _, data = self.program.once(call)
                self.assertEqual((result, data), (BYTES, SOURCE if call in RECEIVES else bytes(BYTES)))
        self.assertEqual(self.program.control.injected(), {})

    def test_each_fails_with_the_rules_errno(self) -> None:
        for _, result, error, _, done in self.each("fail", errno.EHOSTUNREACH):
            self.assertEqual((result, error, done), (-1, errno.EHOSTUNREACH, 1))

    def test_each_is_delayed_and_then_goes_through(self) -> None:
        began = time.monotonic()
        for _, result, _, _, done in self.each("delay", DELAY_MS):
            self.assertEqual((result, done), (BYTES, 1))
            self.assertGreaterEqual(time.monotonic() - began, DELAY_MS / 1000 - 0.001)
            began = time.monotonic()

    def test_each_is_shortened_to_a_beginning(self) -> None:
        for call, result, _, data, done in self.each("shorten"):
            self.assertEqual(done, int(call in CAN_BE_SHORT))
            self.assertTrue(1 <= result < BYTES if done else result == BYTES)
            if call in RECEIVES:  # nothing came behind the short count
                self.assertEqual(data, SOURCE[:result] + bytes(BYTES - result))

    def test_a_payload_has_one_bit_flipped(self) -> None:
        for call, result, _, data, done in self.each("flip"):
            self.assertEqual((result, done), (BYTES, int(call in RECEIVES and call != "recv")))
            if call in RECEIVES:
                self.assertEqual(bits_changed(data), done)

    def test_other_threads_sockets_are_left_alone(self) -> None:
        for call in CALLS:
            self.program.always(call, "fail", errno.EIO)
            self.assertEqual(self.program.once(call, thread=NOT_OURS)[0], -1 if call == "process_vm_readv" else BYTES)

    def test_ucx_goes_through_or_fails_with_the_rules_status(self) -> None:
        """Which is loaded for its user alone. The request stands for itself in what the fake answers."""
        request = 4096
        rules = [Rule(call, "fail", PER_MILLION, UCX_STATUS) for call in UCX_CALLS]
        self.assertEqual([self.program.once(call, request)[0] for call in UCX_CALLS], [request, IN_PROGRESS, request])
        self.program.control.switch_on(rules)
        self.assertEqual([self.program.once(call, request)[0] for call in UCX_CALLS], [-UCX_STATUS, IN_PROGRESS, -UCX_STATUS])
        self.assertEqual(self.program.once("ucp_request_check_status", 0)[0], -UCX_STATUS)
        self.assertEqual([self.program.done(call, "fail") for call in UCX_CALLS], [1, 1, 1])


class Files(unittest.TestCase):
    def test_other_files_are_refused(self) -> None:
        for path in ("/nonexistent/file", "/dev/null", __file__):
            program = Program(path)
            self.assertEqual(program.once("send")[0], BYTES)
            self.assertIn("is no control file", program.close())


if __name__ == "__main__":
    if sys.argv[1] == "obey":
        obey(sys.argv[2])
    else:
        LIBRARY, FAKE_UCP = sys.argv[1:3]
        unittest.main(argv=sys.argv[:1])
