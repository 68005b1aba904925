"""An engine that trusts the file of digests beside its weights starts with them, and ends what it has lent and loaded when the
weights turn out to be others. Until then this test holds the lock that another engine of the host would, which reads them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kvferry.engine import digest_file, digests
from pd import faults, trial
from pd.engine import Engine, EngineSpec
from pd.paths import FAST
from pd.progress import wait_until
from pd.rig import Rig

import expect
from shapes import engine
from test_updates import ENDED, gives_tickets, reload

pytestmark = pytest.mark.deep

FILE = "model.safetensors"
LEASE_S = 60.0
"""Longer than the test: no lease ends by itself."""
LIMIT_S = 30.0
ENGINES = {"P": "right", "D": "right", "P-changed": "changed", "D-changed": "changed"}


class Reader:
    """Of the files of some folders, as another engine: those that have begun with them wait."""

    def __init__(self) -> None:
        self._held: dict[Path, ExitStack] = {}

    def hold(self, folder: Path) -> None:
        stack = self._held[folder] = ExitStack()
        stack.enter_context(digests.Cache().alone(digests.state_of(folder / FILE), lambda: True))

    def let_go(self, folder: Path) -> None:
        self._held.pop(folder, ExitStack()).close()

    def let_all_go(self) -> None:
        for folder in list(self._held):
            self.let_go(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One for each engine, with its file of digests; of some a byte has changed since."""
    made = {}
    for name, kind in ENGINES.items():
        made[name] = folder = tmp_path_factory.mktemp("models") / name
        shutil.copytree(FAST, folder)
        digest_file.make(folder, lambda line: None)
        if kind == "changed":
            with (folder / FILE).open("r+b") as file:
                file.seek((folder / FILE).stat().st_size // 2)
                byte = file.read(1)[0]
                file.seek(-1, 1)
                file.write(bytes([byte ^ 1]))
    return made


@pytest.fixture(scope="module")
def reader(folders: dict[str, Path]) -> Iterator[Reader]:
    made = Reader()
    for name in ("P", "P-changed", "D-changed"):
        made.hold(folders[name])
    yield made
    made.let_all_go()


@pytest.fixture(scope="module")
def rig_of(start: Callable[..., Callable[[str, str], Rig]], folders: dict[str, Path], reader: Reader) -> Callable[[str, str], Rig]:
    """D reads its weights first; the others trust."""
    def spec(name: str) -> EngineSpec:
        trust = {} if name == "D" else {"weights_digest": "trust"}
        return engine(name, model=folders[name], lease_ttl_ms=int(LEASE_S * 1000), **trust)
    return start([spec(name) for name in ENGINES])


def log_of(engine: Engine) -> str:
    return engine.process.log.read_text()


def mismatches(engine: Engine) -> float:
    return engine.total("kvferry_weights_digest_mismatches_total")


def is_lent(engine: Engine) -> bool:
    return engine.usage() > 0


def until_disproved(engine: Engine) -> None:
    wait_until("waiting for the digest", lambda: mismatches(engine) == 1, LIMIT_S)
    assert f"{FILE} has SHA-256" in log_of(engine)


def with_a_ticket_of_before(inject: Callable[[Rig], None]) -> faults.Fault:
    """What happens between the ticket and its use."""
    return faults.Fault("-", "a ticket that was given before the weights were read", faults.handed(inject))


def test_tickets_before_the_weights_are_read(rig_of: Callable[[str, str], Rig], reader: Reader, folders: dict[str, Path]) -> None:
    def confirm(rig: Rig) -> None:
        assert "is correct" not in log_of(rig.producer)
        reader.let_go(folders["P"])
        wait_until("waiting for the digest", lambda: "is correct" in log_of(rig.producer), LIMIT_S)
    rig = rig_of("P", "D")
    expect.loaded(trial.run(rig, faults.HEALTHY), len(rig.question))
    expect.loaded(trial.run(rig, with_a_ticket_of_before(confirm)), len(rig.question))
    assert mismatches(rig.producer) == 0


def test_a_producer_s_byte_has_changed(rig_of: Callable[[str, str], Rig], reader: Reader, folders: dict[str, Path]) -> None:
    def disprove(rig: Rig) -> None:
        assert is_lent(rig.producer) and mismatches(rig.producer) == 0
        reader.let_go(folders["P-changed"])
        until_disproved(rig.producer)
        wait_until("waiting for the lease's end", lambda: not is_lent(rig.producer), LIMIT_S)
    rig = rig_of("P-changed", "D")
    expect.loaded(trial.run(rig, faults.HEALTHY), len(rig.question))
    expect.recomputed(trial.run(rig, with_a_ticket_of_before(disprove)), *ENDED)
    assert not gives_tickets(rig.producer, rig)
    reload(rig.producer, folders["P-changed"])
    wait_until("waiting for the digest of what is there", lambda: gives_tickets(rig.producer, rig), LIMIT_S)
    expect.recomputed(trial.run(rig, faults.HEALTHY), "incompatible")


def test_a_decoder_s_byte_has_changed(rig_of: Callable[[str, str], Rig], reader: Reader, folders: dict[str, Path]) -> None:
    rig = rig_of("P", "D-changed")
    assert trial.run(rig, faults.HEALTHY).loaded >= len(rig.question) - 1
    reader.let_go(folders["D-changed"])
    until_disproved(rig.decoder)
    before = rig.decoder.total("kvferry_not_loaded_total", reason="weights_unknown")
    outcome = trial.run(rig, faults.HEALTHY)
    expect.right_tokens(outcome)
    assert outcome.loaded == 0
    assert rig.decoder.total("kvferry_not_loaded_total", reason="weights_unknown") > before
