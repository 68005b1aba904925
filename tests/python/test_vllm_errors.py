"""The file that brings failures from the engine's process to the API servers'."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from kvferry import _kvferry  # noqa: E402
from kvferry.vllm import error_folder, failures  # noqa: E402
from kvferry.vllm.error_folder import EngineFile, Engines  # noqa: E402
from kvferry.vllm.error_ring import (  # noqa: E402
    FILE_BYTES,
    HEADER_BYTES,
    RECORD_BYTES,
    RECORDS,
    TEXT_BYTES_MAX,
    RingReader,
    RingWriter,
)

ENGINE = """
import sys, types
from pathlib import Path
package = sys.modules["kvferry.vllm"] = types.ModuleType("kvferry.vllm")  # the real one would load all of vLLM
package.__path__ = [sys.argv[2]]
from kvferry.vllm.error_folder import EngineFile
file = EngineFile(Path(sys.argv[1]))
for line in sys.stdin:
    name, text = line.split()
    file.ring.write(name, text.encode())
    print(name, flush=True)
file.close()
"""
MODULES = str(Path(error_folder.__file__).parent)


class OtherEngine:
    """A process that writes what it is told."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", ENGINE, str(folder), MODULES], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def write(self, name: str, text: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{name} {text}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().strip() == name

    def end(self, number: int | None = None) -> None:
        if number is not None:
            self.process.send_signal(number)
        self.process.communicate(timeout=60)


def ring() -> tuple[mmap.mmap, RingWriter, RingReader]:
    memory = mmap.mmap(-1, FILE_BYTES)
    writer = RingWriter(memory)
    return memory, writer, RingReader(memory)


# ---- the ring ----

@pytest.mark.parametrize("asked, engine_id", [
    ("chatcmpl-a1", "chatcmpl-a1-0123abcd"),
    ("chatcmpl-a1", "2_chatcmpl-a1-0123abcd"),
    ("chatcmpl-a1", "chatcmpl-a1_1-0123abcd"),
    ("cmpl-a1", "cmpl-a1-0-0123abcd"),
    ("cmpl-a1", "1_cmpl-a1-12-0123abcd"),
    ("cmpl-a1", "cmpl-a1-0"),
    ("cmpl-x-1", "cmpl-x-1-0-0123abcd"),
    ("cmpl-\n", "cmpl-\n-0-0123abcd"),
    ("cmpl-\ud800", "cmpl-\ud800-0-0123abcd"),
])
def test_a_request_is_found_by_the_id_of_the_api_server(asked: str, engine_id: str) -> None:
    _, writer, reader = ring()
    assert reader.find(asked, 0) is None
    writer.write(engine_id, b"why")
    assert reader.find(asked, 0) == b"why"
    assert reader.find(asked + "x", 0) is None
    assert reader.find(asked[:-1], 0) is None


def test_an_earlier_failure_of_the_same_id_is_not_this_one() -> None:
    _, writer, reader = ring()
    writer.write("cmpl-a-0-0123abcd", b"first")
    began = time.monotonic_ns()
    assert reader.find("cmpl-a", began) is None
    writer.write("cmpl-a-0-89abcdef", b"second")
    assert reader.find("cmpl-a", began) == b"second"


def test_the_oldest_are_overwritten() -> None:
    _, writer, reader = ring()
    late = RingReader(writer._memory)
    for number in range(RECORDS + 10):
        writer.write(f"cmpl-{number}x-0-0123abcd", b"%d" % number)
        if number % 1000 == 0:
            assert reader.find(f"cmpl-{number}x", 0) == b"%d" % number
    for one in (reader, late):
        assert one.find("cmpl-9x", 0) is None
        assert one.find("cmpl-10x", 0) == b"10"
        assert one.find(f"cmpl-{RECORDS + 9}x", 0) == b"%d" % (RECORDS + 9)
    assert len(reader._numbers) <= 2 * RECORDS


def test_a_record_that_is_being_overwritten_is_none() -> None:
    memory, writer, reader = ring()
    writer.write("cmpl-a-0-0123abcd", b"why")
    assert reader.find("cmpl-a", 0) == b"why"
    for byte in range(RECORD_BYTES):
        at = HEADER_BYTES + byte
        old, memory[at] = memory[at], memory[at] ^ 1
        found = reader.find("cmpl-a", 0)
        assert found is None or (found == b"why" and (byte in (50, 51) or byte >= 56 + len(b"why"))), byte
        memory[at] = old


def test_texts_are_bounded() -> None:
    _, writer, reader = ring()
    writer.write("cmpl-a-0", b"x" * TEXT_BYTES_MAX)
    assert reader.find("cmpl-a", 0) == b"x" * TEXT_BYTES_MAX
    with pytest.raises(ValueError, match="more than"):
        writer.write("cmpl-a-0", b"x" * (TEXT_BYTES_MAX + 1))


@pytest.mark.parametrize("size", [FILE_BYTES, FILE_BYTES - 1])
def test_what_is_no_ring(size: int) -> None:
    with pytest.raises(ValueError, match="version"):
        RingReader(mmap.mmap(-1, size))


# ---- the folder ----

def test_two_engines_and_two_api_servers(tmp_path: Path) -> None:
    engines = [OtherEngine(tmp_path), OtherEngine(tmp_path)]
    servers = [Engines(tmp_path), Engines(tmp_path)]
    began = time.monotonic_ns()
    for turn in range(3):
        for number, engine in enumerate(engines):
            engine.write(f"cmpl-{turn}of{number}-0-0123abcd", f"{turn}{number}")
        for server in servers:
            assert server.find(f"cmpl-{turn}of0", began) == b"%d0" % turn
            assert server.find(f"cmpl-{turn}of1", began) == b"%d1" % turn
            assert server.find("cmpl-other", began) is None
    for engine in engines:
        engine.end()
    assert list(tmp_path.iterdir()) == []
    assert servers[0].find("cmpl-0of0", began) is None


def test_the_file_of_a_killed_engine_is_stale(tmp_path: Path) -> None:
    engine, server = OtherEngine(tmp_path), Engines(tmp_path)
    engine.write("cmpl-a-0-0123abcd", "why")
    assert server.find("cmpl-a", 0) == b"why"
    engine.end(signal.SIGKILL)
    assert len(list(tmp_path.iterdir())) == 1
    assert server.find("cmpl-a", 0) is None
    assert list(tmp_path.iterdir()) == []
    assert Engines(tmp_path).find("cmpl-a", 0) is None


def test_an_engine_removes_what_dead_ones_left(tmp_path: Path) -> None:
    for _ in range(2):
        engine = OtherEngine(tmp_path)
        engine.write("a", "x")
        engine.end(signal.SIGKILL)
    (tmp_path / "1-2.errors").write_bytes(b"")
    living = OtherEngine(tmp_path)
    living.write("cmpl-a-0-0123abcd", "why")
    mine = EngineFile(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert Engines(tmp_path).find("cmpl-a", 0) == b"why"
    mine.close()
    living.end()
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_ends_takes_its_file_along(tmp_path: Path) -> None:
    file, server = EngineFile(tmp_path), Engines(tmp_path)
    file.ring.write("cmpl-a-0-0123abcd", b"why")
    assert server.find("cmpl-a", 0) == b"why"
    file.close()
    assert server.find("cmpl-a", 0) is None and list(tmp_path.iterdir()) == []


def test_a_file_system_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: int) -> None:
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(failures, "errors_folder", lambda: tmp_path)
    with pytest.raises(OSError):
        EngineFile(tmp_path)
    assert list(tmp_path.iterdir()) == []
    silent = failures.Failures(500)
    silent.record("cmpl-a-0", (_kvferry.ACTION_FAIL, _kvferry.DEADLINE, 0, 0, 0, 500), None)
    silent.close()


def test_a_folder_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_folder, "MEMORY_FOLDER", tmp_path)
    folder = error_folder.errors_folder()
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700
    assert error_folder.errors_folder() == folder
    folder.chmod(0o755)
    with pytest.raises(PermissionError):
        error_folder.errors_folder()
    folder.rmdir()
    folder.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    with pytest.raises(PermissionError):
        error_folder.errors_folder()


# ---- what is said ----

@pytest.mark.parametrize("retry_after_ms, seconds", [(1, b"1"), (500, b"1"), (1000, b"1"), (1001, b"2")])
def test_a_failure_that_may_be_retried(retry_after_ms: int, seconds: bytes) -> None:
    verdict = (_kvferry.ACTION_FAIL, _kvferry.LEASE_EXPIRED, 0, 0, 0, retry_after_ms)
    reply = failures.reply_of(failures.failure_text(verdict, "10.0.0.1:7000", 503))
    assert reply.status == 503
    assert dict(reply.headers) == {b"retry-after": seconds, b"retry-after-ms": b"%d" % retry_after_ms}
    assert json.loads(reply.body()) == {"error": {
        "type": "kv_transfer_error", "reason": "lease_expired", "retryable": True, "peer": "10.0.0.1:7000",
        "message": "The producer has taken the blocks back.", "code": 503}}


def test_a_failure_that_may_not_be_retried() -> None:
    verdict = (_kvferry.ACTION_FAIL, _kvferry.INVALID, 0, 0, 0, 0)
    reply = failures.reply_of(failures.failure_text(verdict, None, 500))
    assert reply.status == 500 and reply.headers == [(b"x-should-retry", b"false")]
    assert reply.error["retryable"] is False and reply.error["peer"] is None


def test_a_mistake_of_the_client() -> None:
    verdict = (_kvferry.ACTION_FAIL, _kvferry.INVALID, 0, 0, 0, 0)
    reply = failures.reply_of(failures.failure_text(verdict, None, 503, "kvferry_options: no"))
    assert reply.status == 400 and reply.error["message"] == "kvferry_options: no"


@pytest.mark.parametrize("character", ["x", '"', "\N{SNOWMAN}", "\N{GRINNING FACE}"])
def test_every_mistake_fits(character: str) -> None:
    with closing(_kvferry.Node({"listen": ""}, {})) as node:
        for options in ({character * 300: "1"}, {"policy": character * 300}, {"load_timeout_ms": character * 300}):
            with pytest.raises(_kvferry.Error) as refused:
                node.request_refused(_kvferry.BAD_TICKET, 1, options)
            text = failures.failure_text((3, _kvferry.INVALID, 0, 0, 0, 0), None, 503, f"kvferry_options: {refused.value}")
            assert len(text) <= TEXT_BYTES_MAX


def test_every_reason_fits() -> None:
    statuses = {getattr(_kvferry, name) for name in dir(_kvferry)
                if name.isupper() and isinstance(getattr(_kvferry, name), int)}
    longest = max(len(failures.failure_text((3, status, 0, 0, 0, 2**32 - 1), "x" * 64, 503)) for status in statuses)
    assert longest <= TEXT_BYTES_MAX
