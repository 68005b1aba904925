"""What ./dev bench --peers computes, that it notices a copy that is wrong, and a build that is slower."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "dev"), str(ROOT / "bench")]

from peers import blocks, builds, extras, main, report
from peers.blocks import MIB, Memory, Shape
from peers.builds import PAIRS_MIN, Case, has_failed, is_slower, judge, ratios
from peers.implementations import implementations, kvferry
from peers.pair import Implementation, PeerError
from peers.rounds import SESSIONS, TURNS_MIN, Field

SMALL = Shape("4x3x4KiB", 4, 3, 4096)
US, GB_PER_S = report.US, report.GB_PER_S

# A driver without any library: what the consumer copies is its VARIANT's business.
DRIVER = """
import os, sys
sys.path.insert(0, {path!r})
import numpy as np
import side

class Fake:
    def __init__(self, role, variant, options):
        self.variant, self.options = variant, options
    def version(self):
        return "fake 1"
    def hold(self, job):
        return f"{{os.getpid()}} offers {{job.blocks}}"
    def read(self, job, offer):
        self.holder, _, blocks = offer.split()
        assert int(blocks) == job.blocks
        self.job = job
        source, _ = side.map_fd(int(sys.argv[3]), job.pool_bytes)
        destination, _ = side.map_fd(int(sys.argv[4]), job.pool_bytes)
        self.source = np.frombuffer(source, dtype=np.uint8)[: job.pool_bytes // job.block_bytes * job.block_bytes]
        self.destination = np.frombuffer(destination, dtype=np.uint8)[: len(self.source)]
    def read_once(self):
        if self.variant == "dies":
            os._exit(3)
        if self.variant.startswith("fails when"):
            with open(f"/proc/{{self.holder}}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] == "T":
                    raise RuntimeError("it stands still")
        shape = (-1, self.job.block_bytes)
        theirs, ours = self.job.segments(self.job.remote_ids), self.job.segments(self.job.local_ids)
        if self.variant == "shuffles":
            ours = np.roll(ours, 1)
        self.destination.reshape(shape)[ours] = self.source.reshape(shape)[theirs]
    def end(self):
        pass

side.main(Fake)
"""


@pytest.fixture(scope="module")
def memory() -> Memory:
    return Memory(4 * MIB, seed=3)


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    path = tmp_path / "driver.py"
    path.write_text(DRIVER.format(path=str(ROOT / "bench/peers")))
    return path


def fake(driver: Path, variant: str) -> Implementation:
    return Implementation("local", "kvferry", variant, (sys.executable, str(driver)), variant)


def who(impl: str, variant: str = "") -> dict[str, Any]:
    return {"impl": impl, "variant": variant, "version": "1"}


def rows(impl: str, ns: list[int], variant: str = "", case: str = "64x16KiB", single: bool = False) -> list[report.Row]:
    return report.rows_of("tcp", case, 1 << 20, single, who(impl, variant), ns, cpu_s_per_round=0.001)


# ---- figures ----


def test_rows_have_the_form_of_dev_bench():
    speed, latency, cpu = rows("nixl", [1_000_000] * 99 + [2_000_000])
    assert speed == {"case": "tcp/64x16KiB", "unit": GB_PER_S, "median": 1.049, "p99": 0.5243, "runs": 100, **who("nixl")}
    assert (latency["case"], latency["unit"], latency["median"], latency["p99"]) == ("tcp/64x16KiB/latency", US, 1000, 2000)
    assert (cpu["case"], cpu["unit"], cpu["median"]) == ("tcp/64x16KiB/cpu", "s/GB", 0.9537)


def test_a_single_block_is_said_by_its_time():
    latency, cpu = rows("nixl", [5000, 4000, 9000], single=True)
    assert (latency["case"], latency["unit"], latency["median"]) == ("tcp/64x16KiB", US, 5)
    assert cpu["case"] == "tcp/64x16KiB/cpu"


def test_a_ratio_above_one_is_in_favour_of_kvferry():
    fast, slow = rows("kvferry", [1000]), rows("nixl", [4000])
    for ours, theirs in list(zip(fast, slow))[:2]:
        assert report.ratio(ours, theirs) == pytest.approx(4.0, rel=1e-3)
        assert report.ratio(theirs, ours) == pytest.approx(0.25, rel=1e-3)


def test_tables_have_a_line_for_each_case_and_a_column_for_each_implementation():
    everything = [*rows("kvferry", [1000]), *rows("limit", [500], "streams x2"), *rows("kvferry", [1000], case="64x1MiB")]
    speed = "\n".join(report.tables(everything)).split("\n\n")[1].splitlines()
    assert speed[1].split() == ["kvferry", "streams", "x2"]
    assert speed[3].split() == ["64x16KiB", "1049", "2097", "(0.50)"]
    assert speed[4].split() == ["64x1MiB", "1049", "–"]


def test_goals_are_judged_by_medians():
    missed = [*rows("kvferry", [1000]), *rows("nixl", [2000]), *rows("limit", [1000], "streams x2")]
    judged = {goal.other: reached for goal, _, reached in report.judge(missed)}
    assert judged == {"nixl": pytest.approx(2.0, rel=1e-3), "streams x2": 1.0}
    assert "1 of 2 goals are met" in report.goals_table(missed) and "2.5 x nixl" in report.goals_table(missed)
    assert "All 2 goals are met" in report.goals_table([*missed[:3], *rows("nixl", [3000]), *missed[6:]])


def test_kvferry_with_other_options_is_not_judged():
    tuned = [*rows("kvferry", [4000]), *rows("nixl", [4000]), *rows("kvferry", [1000], "tcp_streams=4")]
    assert [reached for _, _, reached in report.judge(tuned)] == [1.0]


# ---- shapes ----


def test_a_shape_that_does_not_fit_says_what_was_cut():
    large = next(shape for shape in blocks.SHAPES if shape.name.startswith("Llama-3-70B"))
    assert blocks.fit(large, blocks.POOL_BYTES).blocks == large.blocks
    cut = blocks.fit(large, 100 * MIB)
    assert cut.blocks == 10 and "10 of 64 blocks" in cut.cut
    assert 2 * cut.bytes <= 100 * MIB


def test_every_shape_fits_its_pool():
    for shape in blocks.SHAPES:
        pool_blocks = shape.pool_blocks(blocks.POOL_BYTES)
        assert shape.blocks <= pool_blocks and pool_blocks * shape.layers * shape.block_bytes <= blocks.POOL_BYTES


def test_block_lists_are_of_the_seed(memory: Memory):
    memory.choose(SMALL)
    chosen = memory.plan.copy()
    memory.choose(SMALL)
    assert (memory.plan == chosen).all() and len(set(chosen[:3].tolist())) == 3


# ---- turns ----


def test_turns_are_taken_and_counted(memory: Memory, driver: Path, tmp_path: Path):
    said: list[str] = []
    field = Field(memory, 1, said.append, lambda text: None)
    for variant in ("", "dies", "shuffles"):
        field.add(fake(driver, variant), tmp_path)
    with closing(field):
        measured = field.measure(SMALL, 0.0, lambda pair: True)
    assert [pair.what.variant for pair in measured] == [""]
    (samples,) = measured.values()
    assert len(samples.ns) >= SESSIONS * TURNS_MIN and samples.cpu_s > 0
    assert len(said) == 2 and "is gone" in said[0] and "the copy is wrong" in said[1]


def test_an_implementation_that_cannot_be_started_is_left_out(memory: Memory, tmp_path: Path):
    said: list[str] = []
    field = Field(memory, 1, said.append, lambda text: None)
    field.add(
        Implementation("tcp", "nixl", "", (sys.executable, "-c", "import sys; sys.exit('no such library')"), ""), tmp_path
    )
    assert not field.pairs and "no such library" in said[0]


# ---- options ----


def test_options():
    options = main.arguments(["--peers", "--case", "tcp/", "--against", "tcp_streams=4", "--json", "x.json"])
    assert (options.case, options.against, options.json) == ("tcp/", ["tcp_streams=4"], Path("x.json"))
    with pytest.raises(SystemExit):
        main.arguments(["--against-build", "folder", "--json", "x.json"])


# ---- an older build ----

AS_FAST, SLOWER = [1.0] * PAIRS_MIN, [0.94] * PAIRS_MIN


def test_a_ratio_is_of_speeds_pair_by_pair():
    assert ratios(([100.0, 300.0], [200.0, 100.0])) == [0.5, 3.0]
    with pytest.raises(ValueError):
        ratios(([100.0], []))


def test_slower_is_a_median_of_enough_pairs_below_the_least():
    assert is_slower(SLOWER) and not is_slower([0.95] * PAIRS_MIN) and not is_slower(AS_FAST)
    assert not is_slower([0.1] * 4 + [1.0] * 5) and is_slower([0.9] * 5 + [9.0] * 4)
    with pytest.raises(ValueError):
        is_slower(SLOWER[1:])


@pytest.mark.parametrize("runs, failed", [
    ([AS_FAST], False), ([SLOWER, AS_FAST], False), ([SLOWER, SLOWER], True), ([], True),
])
def test_a_case_fails_that_is_slower_twice_or_not_measured(runs: list[list[float]], failed: bool):
    assert has_failed(runs) == failed


def cases(*names: str) -> list[Case]:
    what = kvferry(Path("b"), "u", "key_file=k")[0]
    return [Case(what, what, Shape(name, 1, 2, 4096)) for name in names]


def test_what_is_slower_is_run_again_and_nothing_else():
    ran: list[str] = []

    def run(case: Case) -> builds.Times:
        ran.append(case.shape.name)
        if case.shape.name == "breaks":
            raise PeerError("it is gone")
        new = 120.0 if case.shape.name == "slow" or ran.count("unlucky") == 1 and case.shape.name == "unlucky" else 100.0
        return [100.0] * PAIRS_MIN, [new] * PAIRS_MIN

    lines, failed = judge(cases("fine", "slow", "unlucky", "breaks"), run)
    assert ran == ["fine", "slow", "unlucky", "breaks", "slow", "unlucky"]
    assert failed == ["local/slow", "local/breaks"]
    assert [line[-1] for line in lines] == ["ok", "SLOWER", "SLOWER", "NOT MEASURED", "SLOWER", "ok"]
    assert lines[1][4] == "0.833"


def test_builds_are_measured_on_fresh_connections(memory: Memory, driver: Path, tmp_path: Path):
    old, new = fake(driver, ""), fake(driver, "")
    times = builds.measure(Case(old, new, SMALL), memory, tmp_path)
    assert [len(one) for one in times] == [builds.PAIRS] * 2 and min(map(min, times)) > 0
    with pytest.raises(PeerError, match="the copy is wrong"):
        builds.measure(Case(old, fake(driver, "shuffles"), SMALL), memory, tmp_path)


def test_a_build_is_found_in_a_checkout_or_by_itself(tmp_path: Path):
    with pytest.raises(SystemExit, match="git worktree add"):
        builds.drivers_of(tmp_path)
    program = tmp_path / "build-release" / builds.DRIVER
    program.parent.mkdir(parents=True)
    program.touch()
    assert builds.drivers_of(tmp_path) == builds.drivers_of(tmp_path / "build-release") == program.parent


# ---- first load, idle, faults ----


def test_a_death_and_a_standstill_are_timed(memory: Memory, driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(extras, "WATCH_S", 0.2)
    monkeypatch.setattr(extras, "FAULT_AFTER_S", 0.05)
    found = extras.EXTRAS["stop"](fake(driver, "holds out"), Memory(64 * MIB, 1), tmp_path)
    assert (found["case"], found["undetected"], found["median"]) == ("local/stop", 1, 200)
    monkeypatch.setattr(extras, "WATCH_S", 10.0)
    found = extras.EXTRAS["stop"](fake(driver, "fails when the producer stops"), Memory(64 * MIB, 1), tmp_path)
    assert found["undetected"] == 0 and 0 < found["median"] < 10_000 and found["runs"] == extras.STOPS


def test_limits_are_judged():
    extra = [report.make_row(f"{path}/stop", who("kvferry"), report.MS, 1600, 1600, 3) for path in ("local", "tcp")]
    assert [case for _, case, _ in report.judge_limits(extra)] == ["tcp/stop"]
    assert "at most 1500 ms" in report.goals_table(extra)
    assert "stop: from" in "\n".join(report.tables(extra))


def test_who_takes_part_in_what():
    everybody = {(what.path, what.name): what for what in implementations(Path("b"), Path("p"), "u", "key_file=k")}
    assert everybody["tcp", "kvferry tls"].options == ("key_file=k", "tls=always")
    names = {key: [name for name in extras.EXTRAS if extras.applies(what, name)] for key, what in everybody.items()}
    assert names["tcp", "kvferry tls"] == ["first-load", "first-load-known"] and everybody["tcp", "kvferry tls"].has_shapes
    steps = names["tcp", "nixl get_finished()"]
    assert steps == ["step-0", "step-100", "step-1000"] and not everybody["tcp", "nixl get_finished()"].has_shapes
    assert {path for (path, _), found in names.items() if "partition" in found} == {"tcp", "ucx"}


def test_a_partition_is_timed_in_each_direction(memory: Memory, driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cuts: list[extras.Cuts] = []

    @contextmanager
    def apart(what: Implementation, key: str) -> Iterator[tuple[Implementation, Callable[[extras.Cuts], None]]]:
        yield what, cuts.append

    monkeypatch.setattr(extras, "apart", apart)
    monkeypatch.setattr(extras, "WATCH_S", 0.2)
    monkeypatch.setattr(extras, "FAULT_AFTER_S", 0.05)
    found = extras.EXTRAS["partition"](fake(driver, "holds out"), Memory(64 * MIB, 1), tmp_path)
    assert (found["undetected"], found["median"], cuts) == (1, 200, [extras.CUTS[0]])
    monkeypatch.setattr(extras, "detect_ms", lambda pair, fault: fault() or 7.0)
    found = extras.EXTRAS["partition"](fake(driver, ""), Memory(64 * MIB, 1), tmp_path)
    assert (found["case"], found["undetected"], found["runs"], found["median"]) == ("local/partition", 0, 3, 7)
    assert cuts[1:] == list(extras.CUTS)


def test_where_there_are_no_networks_the_run_says_so(driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(names: list[str]) -> None:
        raise extras.NoNetwork("not allowed")

    monkeypatch.setattr(extras, "Network", refuse)
    said: list[str] = []
    assert extras.measure([(fake(driver, ""), "partition")], 1, tmp_path, said.append, lambda text: None) == []
    assert said == ["left out: local/partition: not allowed"]
