"""The files that bring failures from the engine's process to the API servers'."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from fakes import verdict  # noqa: E402
from kvferry import _kvferry  # noqa: E402
from kvferry.engine import errors  # noqa: E402
from kvferry.engine.errors import Failures, find_failure  # noqa: E402
from kvferry.vllm.middleware import Failures as VllmFailures  # noqa: E402

FAILED = verdict(_kvferry.ACTION_FAIL, _kvferry.DEADLINE, retry_after_ms=500)
ENGINE = """
import sys
from pathlib import Path
from kvferry import _kvferry
from kvferry.engine import errors
errors.errors_folder = lambda: Path(sys.argv[1])
failures = errors.Failures(500)
for line in sys.stdin:
    name, peer = line.split()
    failures.record(name, _kvferry.Verdict((3, _kvferry.DEADLINE, 0, 0, 0, 500)), peer)
    print(name, flush=True)
failures.close()
"""


class OtherEngine:
    """A process that writes what it is told."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", ENGINE, str(folder)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def write(self, name: str, peer: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{name} {peer}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().strip() == name

    def end(self, number: int | None = None) -> None:
        if number is not None:
            self.process.send_signal(number)
        self.process.communicate(timeout=60)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(errors, "errors_folder", lambda: tmp_path)
    return tmp_path


def peer_of(base: Path, name: str, since_ns: int = 0) -> str | None:
    """What tells one failure of these tests from another; None: there is none."""
    reply = find_failure(base, name, since_ns)
    return None if reply is None else reply.error["peer"]


# ---- one engine ----

@pytest.mark.parametrize("asked, engine_id", [
    ("chatcmpl-a1", "chatcmpl-a1-0123abcd"),
    ("chatcmpl-a1", "2_chatcmpl-a1-0123abcd"),
    ("chatcmpl-a1", "chatcmpl-a1_1-0123abcd"),
    ("cmpl-a1", "cmpl-a1-0-0123abcd"),
    ("cmpl-a1", "1_cmpl-a1-12-0123abcd"),
    ("cmpl-a1", "cmpl-a1-0"),
    ("cmpl-x-1", "cmpl-x-1-0-0123abcd"),
    ("cmpl-\n", "cmpl-\n-0-0123abcd"),
    ("cmpl-/../x", "cmpl-/../x-0-0123abcd"),
    ("cmpl-\ud800", "cmpl-\ud800-0-0123abcd"),
])
def test_a_request_is_found_by_the_id_of_the_api_server(base: Path, asked: str, engine_id: str) -> None:
    with closing(VllmFailures(500)) as failures:
        assert peer_of(base, asked) is None
        failures.record(engine_id, FAILED, "why")
        assert peer_of(base, asked) == "why"
        assert peer_of(base, asked + "x") is None and peer_of(base, asked[:-1]) is None


def test_an_earlier_failure_of_the_same_id_is_not_this_one(base: Path) -> None:
    with closing(Failures(500)) as failures:
        failures.record("a", FAILED, "first")
        began = time.monotonic_ns()
        assert peer_of(base, "a", began) is None
        failures.record("a", FAILED, "second")
        assert peer_of(base, "a", began) == "second"


def test_files_are_bounded(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go first; one that is written again is young."""
    monkeypatch.setattr(errors, "FILES_MAX", 3)
    with closing(Failures(500)) as failures:
        for name in ("a", "b", "c", "a", "d"):
            failures.record(name, FAILED, name)
        (folder,) = base.iterdir()
        assert len(list(folder.iterdir())) == 3
        assert [peer_of(base, name) for name in "abcd"] == ["a", None, "c", "d"]


def test_only_the_user_can_read_them(base: Path) -> None:
    with closing(Failures(500)) as failures:
        failures.record("a", FAILED, None)
        (folder,) = base.iterdir()
        (file,) = folder.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700 and file.stat().st_mode & 0o777 == 0o600


def test_a_file_system_that_is_full(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine goes on; its clients get its own error."""
    failures = Failures(500)

    def full(*arguments: object, **named: object) -> int:
        raise OSError(28, "No space left on device")
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", full)
        failures.record("a", FAILED, None)
    assert peer_of(base, "a") is None
    failures.record("b", FAILED, "why")
    assert peer_of(base, "b") == "why"
    failures.close()
    monkeypatch.setattr(Path, "mkdir", full)
    silent = Failures(500)
    silent.record("a", FAILED, None)
    silent.close()
    assert list(base.iterdir()) == []


# ---- several engines, several API servers ----

def test_two_engines(base: Path) -> None:
    engines = [OtherEngine(base), OtherEngine(base)]
    began = time.monotonic_ns()
    for turn in range(3):
        for number, engine in enumerate(engines):
            engine.write(f"{turn}of{number}", f"{turn}{number}")
        assert peer_of(base, f"{turn}of0", began) == f"{turn}0" and peer_of(base, f"{turn}of1", began) == f"{turn}1"
        assert peer_of(base, "other", began) is None
    for engine in engines:
        engine.end()
    assert list(base.iterdir()) == []
    assert peer_of(base, "0of0", began) is None


def test_what_dead_engines_have_left_is_removed(base: Path) -> None:
    """By the next engine, and by an API server that ends; not what living ones have."""
    for sweeper in (errors.sweep, lambda base: Failures(500).close()):
        dead, living = OtherEngine(base), OtherEngine(base)
        dead.write("a", "x")
        living.write("b", "why")
        dead.end(signal.SIGKILL)
        assert len(list(base.iterdir())) == 2
        sweeper(base)
        assert len(list(base.iterdir())) == 1
        assert peer_of(base, "a") is None and peer_of(base, "b") == "why"
        living.end()
        assert list(base.iterdir()) == []


def test_what_is_no_failure(base: Path) -> None:
    """Neither does what else lies there disturb."""
    (base / "file").write_bytes(b"")
    folder = base / "1-2"
    folder.mkdir()
    assert peer_of(base, "a") is None
    (folder / errors._file_name("a")).write_bytes(b"[")
    with pytest.raises(ValueError):
        peer_of(base, "a")


def test_a_folder_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "MEMORY_FOLDER", tmp_path)
    folder = errors.errors_folder()
    assert folder.parent == tmp_path and folder.stat().st_mode & 0o777 == 0o700
    assert errors.errors_folder() == folder
    folder.chmod(0o755)
    with pytest.raises(PermissionError):
        errors.errors_folder()
    folder.rmdir()
    folder.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    with pytest.raises(PermissionError):
        errors.errors_folder()


# ---- what is said ----

def reply(verdict_: object, peer: str | None, http_status: int, mistake: str | None = None) -> errors.Reply:
    found = errors.reply_of(errors.failure_text(verdict_, peer, http_status, mistake))
    assert found is not None
    return found


@pytest.mark.parametrize("retry_after_ms, seconds", [(1, b"1"), (500, b"1"), (1000, b"1"), (1001, b"2")])
def test_a_failure_that_may_be_retried(retry_after_ms: int, seconds: bytes) -> None:
    said = reply(verdict(_kvferry.ACTION_FAIL, _kvferry.LEASE_EXPIRED, retry_after_ms=retry_after_ms), "10.0.0.1:7000", 503)
    assert said.status == 503
    assert dict(said.headers) == {b"retry-after": seconds, b"retry-after-ms": b"%d" % retry_after_ms}
    assert said.error == {
        "type": "kv_transfer_error", "reason": "lease_expired", "retryable": True, "peer": "10.0.0.1:7000",
        "message": "The producer has taken the blocks back.", "code": 503}


def test_a_failure_that_may_not_be_retried() -> None:
    said = reply(verdict(_kvferry.ACTION_FAIL, _kvferry.INVALID), None, 500)
    assert said.status == 500 and said.headers == [(b"x-should-retry", b"false")]
    assert said.error["retryable"] is False and said.error["peer"] is None


def test_a_mistake_of_the_client() -> None:
    said = reply(verdict(_kvferry.ACTION_FAIL, _kvferry.INVALID), None, 503, "kvferry_options: no")
    assert said.status == 400 and said.error["message"] == "kvferry_options: no"
