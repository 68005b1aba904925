"""What bench/gpu/gpu_report.py computes, and that NIXL's side of it copies what it says: in host memory here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench/gpu"


sys.path.append(str(BENCH))

import gpu_report as report  # noqa: E402
import nixl_gpu  # noqa: E402

SHAPE = {"case": "local/a", "layers": 2, "block_bytes": [4096, 576], "pool_blocks": 50, "blocks": 40, "pieces": 160, "bytes": 373760}
SINGLE = {"case": "local/b", "layers": 1, "block_bytes": [4096, 0], "pool_blocks": 3, "blocks": 1, "pieces": 1, "bytes": 4096}

# ---- NIXL ----


def test_nixl_reads_and_writes() -> None:
    command = [sys.executable, str(BENCH / "nixl_gpu.py"), json.dumps([SHAPE, SINGLE]), "600", "host"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["case"], row["impl"]) for row in rows] == [
        (case + suffix, impl) for case in ("local/a", "local/b") for impl in ("nixl", "nixl-write")
        for suffix in ("", "/cpu-consumer", "/cpu-producer")]  # fmt: skip
    assert all(row["median"] > 0 for row in rows)


@pytest.mark.parametrize("lost", ["READ", "WRITE"])
def test_a_transfer_of_nixl_s_that_does_nothing_is_seen(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(nixl_gpu, "DEVICE", "cpu")
    offsets, sizes, size = nixl_gpu.layout(SHAPE)
    pool, theirs = torch.full((size,), nixl_gpu.CLEAR, dtype=torch.uint8), nixl_gpu.pattern(torch, size)
    local, remote = (nixl_gpu.indices(SHAPE, ids) for ids in (nixl_gpu.np.arange(40), nixl_gpu.np.arange(40)[::-1]))

    def copy(how: str) -> None:
        for ours, their in zip(local, remote) if how != lost else ():
            a, b, n = int(offsets.flat[ours]), int(offsets.flat[their]), int(sizes.flat[ours])
            (to, at), (source, begin) = ((pool, a), (theirs, b)) if how == "READ" else ((theirs, b), (pool, a))
            to[at : at + n] = source[begin : begin + n]

    with pytest.raises(RuntimeError, match="wrong bytes"):
        nixl_gpu.verify(torch, pool, SHAPE, local, remote, copy)


# ---- the report ----


def shape(case: str, piece: int, pieces: int = 2048) -> dict[str, Any]:
    return {"case": case, "layers": 1, "blocks": pieces, "block_bytes": [piece, 0], "pool_blocks": pieces, "pieces": pieces,
            "bytes": piece * pieces}  # fmt: skip


def speed(case: str, impl: str, median: float, unit: str = "GB/s") -> dict[str, Any]:
    return {"case": case, "impl": impl, "unit": unit, "median": median, "p99": median, "runs": 3}


def missed(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(case, what) for case, what, ratio, least in report.goals(report.Rows(rows)) if ratio is None or ratio < least]


def test_goals_depend_on_the_size_of_a_piece() -> None:
    for piece, goal in ((16384, 0.65), (32768, 0.65), (65536, 0.75), (262144, 0.85)):
        rows = [shape("local/x", piece, (64 << 20) // piece), speed("local/x", "one", 1000), speed("local/x", "gather", 100)]
        assert missed([*rows, speed("local/x", "kvferry", 1000 * goal)]) == []
        assert missed([*rows, speed("local/x", "kvferry", 1000 * goal - 1)]) == [("local/x", "kvferry/one")]
        assert missed(rows) == [("local/x", "kvferry/one"), ("local/x", "kvferry/gather")]  # nothing was measured
    assert missed([shape("local/x", 8192), speed("local/x", "one", 1000), speed("local/x", "kvferry", 1)]) == []


def test_goals_beside_batches_and_nixl() -> None:
    host = [shape("gpu-to-host/x", 65536), speed("gpu-to-host/x", "batch-2048", 100)]
    assert missed([*host, speed("gpu-to-host/x", "kvferry", 90)]) == []
    assert missed([*host, speed("gpu-to-host/x", "kvferry", 89)]) == [("gpu-to-host/x", "kvferry/batch-2048")]
    cpu = [speed(f"local/x/cpu-{side}", "nixl", 50, "us") for side in ("consumer", "producer")]
    for ours, expected in ((50, []), (51, [("local/x", "CPU, NIXL's/kvferry's")])):
        rows = [shape("local/x", 65536, 2), *cpu, *(speed(f"local/x/cpu-{side}", "kvferry", ours, "us") for side in ("consumer", "producer"))]
        assert missed(rows) == expected


def test_rows_that_were_there_and_a_line_that_was_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_text('{"case": "old"}\n')
    begin = file.stat().st_size
    report.add(file, case="new")
    with file.open("a") as rows:
        rows.write("NIXL says something\n" + '{"case": "cut')
    assert report.rows_since(file, begin) == [{"case": "new"}]


def test_clocks_are_those_at_work() -> None:
    clocks = {"case": "local/x", "sm_mhz": {"idle": 345, "warm": 1980, "end": 1965}, "memory_mhz": {"idle": 0, "warm": 0, "end": 0}}
    assert report.clocks_text(report.Rows([clocks])) == "clocks at work: SM 1965 to 1980 MHz"
    assert report.clocks_text(report.Rows([])) == "clocks at work: nobody says"
