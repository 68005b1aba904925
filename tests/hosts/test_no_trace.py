"""The tests themselves: nothing stays of them when they are killed, and they fail where the library does."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kvferry import _kvferry
from network import until_empty
from remote import Remote
from sites import BLOCKS, Pair, Site

MakeSite = Callable[..., Site]
HERE = Path(__file__).parent
PLANTED = HERE.parents[1] / ".cache" / "mutants" / "packages"
"""The packages with a planted bug each, as ./dev test --deep engine-mutants builds them."""

TWO_CHUNKS = {"chunk_bytes": "4718592", "tcp_buffer_bytes": "65536"}
"""Of a load, both under way for all of its 0.4 s."""
OVERWRITTEN_S = (0.1, 0.2, 0.05, 0.3)
"""After its beginning; a busy machine may miss the first."""

DYING = """
import signal, sys, tempfile
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from network import Network
from sites import Site
network = Network(["P", "D"])
engines = [Site(network, Path(sys.argv[2])).engine(name) for name in network.hosts]
for engine in engines:
    engine.wait()
engines[0].signal(signal.SIGSTOP)
print(*network.namespaces(), flush=True)
signal.pause()
"""


def test_nothing_stays_of_a_killed_test(allowed: None, tmp_path: Path) -> None:
    """Not even an engine that is stopped."""
    test = subprocess.Popen([sys.executable, "-c", DYING, str(HERE), str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert test.stdout is not None
    namespaces = set(test.stdout.readline().split())
    assert len(namespaces) == 3 and len(until_empty(namespaces, 0)) >= 5  # holders and engines
    test.send_signal(signal.SIGKILL)
    test.communicate()
    assert until_empty(namespaces) == []


@pytest.fixture
def mutant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Engines from now on have that planted bug."""
    def choose(name: str) -> None:
        assert (PLANTED / name / "kvferry").is_dir(), f"not built: {name}.patch must name hosts"
        monkeypatch.setenv("PYTHONPATH", str(PLANTED / name))

    return choose


@pytest.mark.deep
def test_wrong_bytes_are_seen(site: MakeSite, mutant: Callable[[str], None]) -> None:
    """Those of a chunk that is half-way when its blocks are overwritten."""
    mutant("fence_unchecked")
    made = site("P", "D")
    for overwritten_s in OVERWRITTEN_S:
        pair = Pair(made, "tcp", **TWO_CHUNKS)
        made.network.limit("D", mbit=200, queue_ms=100)
        offer = pair.p.offer(BLOCKS)
        started = pair.d.start(offer)
        time.sleep(overwritten_s)
        pair.p.ask("overwrite", lease=offer.lease, seed=1000)
        try:
            pair.d.finish(started)
        except AssertionError as error:
            assert "wrong bytes in blocks" in str(error)
            return
    pytest.fail("the planted bug was not seen")


@pytest.mark.deep
def test_a_load_without_an_end_is_seen(site: MakeSite, mutant: Callable[[str], None],
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the stall clock a load ends by its deadline, and without that not at all."""
    mutant("deadline_ignored")
    pair = Pair(site("P", "D"), "tcp", stall_timeout_ms="60000", load_timeout_ms="500")
    monkeypatch.setattr(Remote, "LIMIT_S", 1.0)
    with pytest.raises(AssertionError, match=f"waited .* for event {_kvferry.EVENT_VERDICT} of .* in vain"):
        pair.during_a_load(lambda: pair.network.cut("P", "D"))


@pytest.mark.deep
def test_a_lost_lease_is_seen(site: MakeSite, mutant: Callable[[str], None]) -> None:
    mutant("lease_never_expires")
    pair = Pair(site("P", "D"), "tcp", lease_ttl_ms="200")
    lease = pair.p.offer(BLOCKS).lease  # nobody comes for it
    with pytest.raises(AssertionError, match="waited .* in vain"):
        pair.p.ask("ended", lease=lease, limit_s=1)
