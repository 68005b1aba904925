"""Weights whose file of digests is believed, and which are read afterwards."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines import wait_until
from kvferry.engine import digest_file, digests, weights
from kvferry.engine.weights import Weights

BYTES = 3 << 20
LIMIT_S = 10.0
SHORT_S = 0.3


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(digests, "SETTLED_NS", 0)
    monkeypatch.setattr(digests, "LOOK_AGAIN_S", 0.01)
    OTHERS.update(reader())
    return tmp_path / "cache" / "kvferry" / "weights"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    for name in "ab":
        (path / f"{name}.safetensors").write_bytes(name.encode() * BYTES)
    digest_file.make(path, lambda line: None)
    return path


def change_a_byte(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(BYTES // 2)
        file.write(b"x")


class Gate:
    """Before a piece of a file of this folder is read: an engine of another test may still read its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.open = threading.Event()
        self.read: list[Path] = []
        """Files, in full."""
        self.nice: list[int] = []
        real = digests.sha256

        def read(path: Path, has_read: Callable[[int], None] = lambda count: None) -> str:
            if path.parent != folder:
                return real(path, has_read)
            self.nice.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            while not self.open.wait(0.01):
                has_read(0)
            digest = real(path, has_read)
            self.read.append(path)
            return digest
        monkeypatch.setattr(weights, "sha256", read)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Gate]:
    made = Gate(monkeypatch, folder)
    yield made
    made.open.set()


def begun(folder: Path, trusts: bool = True) -> Weights:
    time.sleep(0.02)  # files get their times from a clock of coarse steps
    made = Weights(lambda: sorted(folder.glob("*.safetensors")), None, trusts)
    made.begin()
    return made


def started(folder: Path, trusts: bool = True) -> Weights:
    made = begun(folder, trusts)
    made.loaded()
    return made


def known(made: Weights) -> str:
    return wait_until("the digest", lambda: made.digest)


def known_when_read(made: Weights, gate: Gate) -> str:
    """And not before."""
    time.sleep(SHORT_S)
    assert made.digest is None
    gate.open.set()
    return known(made)


OTHERS: set[threading.Thread] = set()
"""Of tests of before, in other files too: nobody told them that the engine has loaded."""


def reader() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "kvferry-weights" and thread not in OTHERS]


def until_read() -> None:
    wait_until("the reading's end", lambda: not reader())


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_believed_at_once_and_right(folder: Path, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    made = started(folder)
    digest = known(made)
    assert gate.read == [] and len(reader()) == 1
    gate.open.set()
    until_read()
    assert len(gate.read) == 2 and made.digest == digest and not made.is_disproved
    assert any("is correct" in line for line in lines(caplog, logging.INFO)) and lines(caplog, logging.WARNING) == []
    assert known(started(folder, trusts=False)) == digest, "they are the same weights, whoever says so"


def test_without_trust_they_are_read_first(folder: Path, gate: Gate) -> None:
    made = started(folder, trusts=False)
    assert known_when_read(made, gate) and len(gate.read) == 2


def test_one_byte_has_changed(folder: Path, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    change_a_byte(folder / "b.safetensors")
    made, told = started(folder), threading.Event()
    made.on_disproved(told.set)
    made.name("step 7")
    assert known(made) and not made.is_disproved
    gate.open.set()
    assert told.wait(LIMIT_S) and made.is_disproved and made.digest is None
    error, = lines(caplog, logging.ERROR)
    assert "b.safetensors has SHA-256" in error and "kvferry identity DIR" in error and "leases and loads of this engine end" in error
    late = threading.Event()
    made.on_disproved(late.set)
    assert late.is_set()


def test_read_anew_after_that(folder: Path, gate: Gate) -> None:
    """Whoever loads them again is not believed again."""
    change_a_byte(folder / "b.safetensors")
    made = started(folder)
    believed = known(made)
    gate.open.set()
    wait_until("the end of the identity", lambda: made.is_disproved)
    time.sleep(0.02)
    made.begin()
    assert not made.is_disproved
    made.loaded()
    assert known(made) == known(started(folder, trusts=False)) != believed


@pytest.mark.parametrize("change", [
    lambda folder: (folder / digest_file.NAME).unlink(),
    lambda folder: (folder / digest_file.NAME).write_text("[]"),
    lambda folder: (folder / digest_file.NAME).chmod(0o666)])
def test_a_file_that_is_not_believed(folder: Path, gate: Gate, change: Callable[[Path], object],
                                     caplog: pytest.LogCaptureFixture) -> None:
    change(folder)
    made = started(folder)
    assert known_when_read(made, gate) and any("despite the option weights_digest" in line for line in lines(caplog, logging.WARNING))


@pytest.mark.parametrize("what", ["another size", "another name"])
def test_what_it_does_not_name_is_read_first(folder: Path, gate: Gate, what: str) -> None:
    if what == "another size":
        (folder / "b.safetensors").write_bytes(b"longer" * BYTES)
    else:
        (folder / "c.safetensors").write_bytes(b"new")
    made = started(folder)
    digest = known_when_read(made, gate)
    until_read()
    assert made.digest == digest == known(started(folder, trusts=False)) and not made.is_disproved


@pytest.mark.parametrize("change", [lambda file: file.write_bytes(file.read_bytes()), Path.unlink], ids=["written", "gone"])
def test_a_file_that_changes_after_its_load(folder: Path, gate: Gate, change: Callable[[Path], object]) -> None:
    """What is in memory cannot be read any more."""
    made = started(folder)
    known(made)
    time.sleep(0.02)
    change(folder / "b.safetensors")
    gate.open.set()
    wait_until("the end of the identity", lambda: made.is_disproved)
    assert made.digest is None


def test_a_file_that_is_younger_than_the_load_is_not_believed(folder: Path, gate: Gate) -> None:
    made = Weights(lambda: sorted(folder.glob("*.safetensors")), None, True)
    made.begin(time.time_ns() - 3600 * 10**9)
    made.loaded()
    until_read()
    assert made.digest is None and not made.is_disproved


def test_nothing_is_read_while_the_engine_loads(folder: Path, gate: Gate) -> None:
    gate.open.set()
    made = begun(folder)
    known(made)
    time.sleep(SHORT_S)
    assert gate.read == []
    made.loaded()
    until_read()
    assert len(gate.read) == 2


def test_new_weights_while_the_last_ones_are_read(folder: Path, gate: Gate) -> None:
    """The reading ends, and what it would have found does not count."""
    change_a_byte(folder / "a.safetensors")
    made, told = started(folder), threading.Event()
    made.on_disproved(told.set)
    known(made)
    wait_until("the reading", lambda: gate.nice)
    made.forget()
    until_read()
    assert gate.read == [] and made.digest is None and not told.is_set()
    time.sleep(0.02)
    made.begin()
    made.loaded()
    gate.open.set()
    assert known(made) == known(started(folder, trusts=False)) and not told.is_set()


def test_an_engine_that_ends_while_they_are_read(folder: Path, gate: Gate) -> None:
    made = started(folder)
    known(made)
    wait_until("the reading", lambda: gate.nice)
    made.close()
    until_read()
    assert gate.read == []


def test_the_reading_comes_behind_all_else(folder: Path, gate: Gate) -> None:
    gate.open.set()
    known(started(folder))
    until_read()
    assert gate.nice == [weights.NICE, weights.NICE]


def test_its_memory_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []
    real = digests.sha256
    monkeypatch.setattr(weights, "sha256", lambda path, has_read: real(path, lambda count: (pieces.append(count), has_read(count))[1]))
    known(started(folder))
    until_read()
    assert sum(pieces) == 2 * BYTES and max(pieces) <= digests.READ_BYTES


def test_it_says_how_far_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(weights, "PROGRESS_S", 0.0)
    known(started(folder))
    until_read()
    assert any("have been read" in line for line in lines(caplog, logging.INFO))


def test_one_of_several_engines_reads(folder: Path, gate: Gate) -> None:
    change_a_byte(folder / "b.safetensors")
    made = [started(folder) for _ in range(4)]
    for one in made:
        known(one)
    gate.open.set()
    for one in made:
        wait_until("the end of the identity", lambda: one.is_disproved)
    assert sorted(path.name for path in gate.read) == ["a.safetensors", "b.safetensors"]


def test_another_engine_that_stands_still_is_not_waited_for_long(folder: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "WAIT_FOR_OTHERS_S", 0.1)
    gate.open.set()
    with digests.Cache().alone(digests.state_of(folder / "a.safetensors"), lambda: True):
        known(started(folder))
        until_read()
    assert len(gate.read) == 2


def test_without_a_folder_for_digests(folder: Path, cache: Path, gate: Gate) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    gate.open.set()
    made = started(folder)
    known(made)
    until_read()
    assert len(gate.read) == 2 and not made.is_disproved and list(cache.iterdir()) == []


def test_a_name_counts_more(folder: Path) -> None:
    made = Weights(lambda: sorted(folder.glob("*.safetensors")), "given", True)
    made.begin()
    assert made.digest is not None and reader() == []
