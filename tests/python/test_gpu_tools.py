"""tools/gpu: what it measures on a machine with a GPU is kept, and no process is left, whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines import wait_until

ROOT = Path(__file__).resolve().parents[2]
TOOLS, DEV = ROOT / "tools/gpu", ROOT / "tools/dev"
sys.path += [str(TOOLS), str(DEV)]

import cases  # noqa: E402
import children  # noqa: E402
import patches  # noqa: E402
import results  # noqa: E402

MUTANTS = sorted((ROOT / "tests/mutants").glob("*.patch"))
FAKE_CUDA = ROOT / "build/tests/fake_cuda/libcuda-fake.so"
PROBE = ROOT / "build/bench/gpu/gpu_probe"
MARK = "KVFERRY_TEST_MARK"
GONE_S, KILLS, KILLED_WITHIN_S, REHEARSAL_S = 30, 5, 60, 1200


def marked(mark: str) -> list[int]:
    """The processes that have it in their environment, but for this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            has = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if has and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    yield tmp_path.name
    for one in marked(tmp_path.name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def until_gone(mark: str) -> None:
    wait_until(lambda: f"the end of {marked(mark)}", lambda: not marked(mark), GONE_S, 0.05)


# ---- patches ----


def changed_by(tool: str, patch: Path, folder: Path) -> dict[str, str]:
    names = {hunk.file for hunk in patches.hunks(patch.read_text())}
    assert len(names) == patch.read_text().count("\n+++ b/")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    if tool == "ours":
        patches.apply(patch, folder)
    else:
        subprocess.run(["patch", "-p1", "-s", "--fuzz=0", "--no-backup-if-mismatch"], stdin=patch.open(), cwd=folder, check=True)
    return {name: (folder / name).read_text() for name in names}


@pytest.mark.skipif(shutil.which("patch") is None, reason="there is no patch(1) to compare with")
def test_planted_bugs_are_applied_as_patch_does_it(tmp_path: Path) -> None:
    for patch in MUTANTS:
        assert changed_by("ours", patch, tmp_path / "ours") == changed_by("patch", patch, tmp_path / "theirs"), patch.name


def test_a_patch_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\nthree\n")
    (tmp_path / "b").write_text("one\nTWO\nthree\n")
    hunk = "@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
    (tmp_path / "bad.patch").write_text(f"--- a/a\n+++ b/a\n{hunk}--- a/b\n+++ b/b\n{hunk}")
    with pytest.raises(patches.PatchError, match="^b: "):
        patches.apply(tmp_path / "bad.patch", tmp_path)
    assert (tmp_path / "a").read_text() == "one\ntwo\nthree\n"


# ---- processes ----

LEAVES = "(setsid sleep 300 & setsid sh -c 'sleep 300 & sleep 300' &); sleep 0.2; "


@pytest.mark.parametrize(("limit_s", "script", "status"), [
    (20, LEAVES + "exit 3", 3), (20, LEAVES + "kill -ABRT $$", 134), (1, LEAVES + "setsid sleep 300", children.TIMED_OUT)])  # fmt: skip
def test_nothing_of_a_command_is_left(limit_s: float, script: str, status: int, mark: str) -> None:
    done = subprocess.run(children.command(limit_s, ["sh", "-c", script]), env=os.environ | {MARK: mark}, check=False)
    assert (done.returncode, marked(mark)) == (status, [])


def test_nothing_of_a_command_is_left_when_its_caller_is_killed(mark: str) -> None:
    program = ("import sys, subprocess; sys.path.append(sys.argv[1]); import children; "
               "subprocess.run(children.command(300, ['sh', '-c', sys.argv[2]]))")  # fmt: skip
    caller = subprocess.Popen([sys.executable, "-c", program, str(DEV), LEAVES + "sleep 300"], env=os.environ | {MARK: mark})
    wait_until("the caller, its supervisor, the shell, and three that have left it", lambda: len(marked(mark)) >= 6, GONE_S, 0.05)
    caller.kill()
    caller.wait()
    until_gone(mark)


# ---- cases ----

PROGRAM = """#!/bin/sh
run() {
  echo "[ RUN      ] $1"
  case $1 in
    aborts) kill -ABRT $$ ;;
    breaks) broken=yes; echo "it is broken"; echo "[  FAILED  ] breaks" ;;
    *) [ -n "$broken" ] && echo "[  FAILED  ] $1" || echo "[       OK ] $1" ;;
  esac
}
case $1 in
  --list) echo first; echo breaks; echo second; echo aborts; echo last ;;
  =*) run "${1#=}" ;;
  *) run first; run breaks; run second; run aborts; run last ;;
esac
[ -z "$broken" ]
"""


def test_a_case_takes_no_other_along(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    told: list[tuple[str, str, bool]] = []

    def command(words: list[str], limit_s: float, log: str, tell: cases.Callable[[str], None]) -> int:
        done = subprocess.run(children.command(limit_s, words), capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            tell(line)
        return done.returncode

    found = cases.run(command, program, 60, "log", lambda case: told.append((case.name, case.result, case.alone)))
    assert {case.name: (case.result, case.alone) for case in found.cases.values()} == {
        "first": ("passed", False), "breaks": ("failed", True), "second": ("passed", True),
        "aborts": (cases.NO_RESULT, True), "last": ("passed", True)}  # fmt: skip
    assert told[:4] == [("first", "passed", False), ("breaks", "failed", False), ("second", "failed", False),
                        ("aborts", cases.NO_RESULT, False)]  # fmt: skip
    assert found.cases["breaks"].said.startswith("it is broken")
    assert not found.is_good and found.not_passed == ["breaks", "aborts"]


# ---- results ----


def test_results_fit_what_is_copied(tmp_path: Path) -> None:
    kept = results.Results(tmp_path / "out", tmp_path / "logs")
    (tmp_path / "logs/engines").mkdir()
    for name in ("a", "b", "c", "engines/d"):
        (tmp_path / f"logs/{name}.log").write_bytes(random.Random(name).randbytes(5 << 20))
    kept.add("device", case="one", result="passed")
    kept.say("a table")
    kept.keep_logs()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["logs.tgz", "rows.jsonl", "tables.txt"]
    assert (tmp_path / "out/logs.tgz").stat().st_size <= results.ARCHIVE_BYTES_MAX
    with tarfile.open(tmp_path / "out/logs.tgz") as archive:
        end = archive.extractfile("logs/engines/d.log")
        assert end is not None and (tmp_path / "logs/engines/d.log").read_bytes().endswith(end.read())
    assert json.loads((tmp_path / "out/rows.jsonl").read_text())["case"] == "one"


# ---- the probe ----

INTERPOSER = """
#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
int open(const char *path, int flags, ...)
{
  while (strstr(path, "ptrace_scope") != NULL) pause();
  va_list more;
  va_start(more, flags);
  return ((int (*)(const char *, int, int))dlsym(RTLD_NEXT, "open"))(path, flags, va_arg(more, int));
}
int open64(const char *path, int flags, ...) __attribute__((alias("open")));
int prctl(int option, ...)
{
  if (option == PR_SET_TIMERSLACK) abort();
  va_list more;
  va_start(more, option);
  return ((int (*)(int, unsigned long))dlsym(RTLD_NEXT, "prctl"))(option, va_arg(more, unsigned long));
}
"""


def answers(**environment: str) -> dict[str, dict[str, object]]:
    done = subprocess.run([PROBE, FAKE_CUDA], capture_output=True, text=True, env=os.environ | environment, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == (1 if any("failed" in row for row in rows) else 0)
    return {row["question"]: row for row in rows}


def test_a_question_takes_no_other_along(tmp_path: Path) -> None:
    (tmp_path / "interposer.c").write_text(INTERPOSER)
    subprocess.run(["gcc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", "interposer.so", "interposer.c", "-ldl"], cwd=tmp_path, check=True)
    whole = answers()
    assert len(whole) == 18 and not any("failed" in row for row in whole.values())
    hurt = answers(LD_PRELOAD=str(tmp_path / "interposer.so"))
    assert {name: row["failed"] for name, row in hurt.items() if "failed" in row} == {
        "system": "not over after 6 s", "polling": "ended by signal 6"}
    assert "event_query_us" in hurt["polling"]  # what had been answered before
    assert hurt.keys() == whole.keys()


# ---- all of it ----


def finished_rows(out: Path) -> list[dict[str, object]]:
    """Each line is whole."""
    return [json.loads(line) for file in out.glob("*.jsonl") for line in file.read_text().splitlines()]


def said_without_row(said: str, rows: list[dict[str, object]]) -> list[str]:
    """What was said to have been answered or tested, of which there is no row."""
    there = {row.get("question") for row in rows} | {row.get("program") for row in rows if "status" in row} | {
        row.get("what") for row in rows}  # fmt: skip
    words = [line.removeprefix("building ").split(":")[0] if line.startswith("building ") else line.split(":")[0].split()[0]
             for line in said.splitlines() if line.startswith(("building ", "  ", "device", "local_cuda"))]  # fmt: skip
    return [word for word in words if word not in there]


@pytest.mark.deep
def test_a_run_that_is_killed_loses_nothing_and_leaves_nobody(tmp_path: Path, mark: str) -> None:
    command = [str(TOOLS / "run"), "--fake", "--minutes", "15", "--part", "probe", "--part", "device", "--part", "gather", "--out"]
    assert subprocess.run([*command, str(tmp_path / "whole")], check=False).returncode == 0  # builds
    seed = time.time_ns()
    print(f"seed {seed}")
    moments = random.Random(seed)
    for i in range(KILLS):
        out, moment = tmp_path / f"out{i}", moments.uniform(1, KILLED_WITHIN_S)
        run = subprocess.Popen([*command, str(out)], stdout=subprocess.PIPE, text=True, env=os.environ | {MARK: mark})
        time.sleep(moment)
        run.send_signal(signal.SIGKILL)
        said = run.communicate()[0]
        until_gone(mark)
        rows = finished_rows(out)
        print(f"killed after {moment:.1f} s: {len(rows)} rows")
        assert said_without_row(said, rows) == []
        assert len(list(out.iterdir())) <= 8


@pytest.mark.deep
def test_a_run_ends_before_its_limit(tmp_path: Path) -> None:
    parts = ["probe", "device", "gather", "bench", "suites", "planted"]
    begin = time.monotonic()
    command = [str(TOOLS / "run"), "--fake", "--minutes", "1.2", "--out", str(tmp_path), *(f"--part={part}" for part in parts)]
    assert subprocess.run(command, check=False).returncode == 1
    assert time.monotonic() - begin < 72
    assert [row["part"] for row in finished_rows(tmp_path) if "result" in row and "bug" not in row and "case" not in row] == parts


@pytest.mark.deep
def test_the_rehearsal(tmp_path: Path) -> None:
    begin = time.monotonic()
    assert subprocess.run([str(TOOLS / "rehearsal"), "--minutes", "18", "--out", str(tmp_path)], check=False).returncode == 0
    assert time.monotonic() - begin < REHEARSAL_S
    rows = finished_rows(tmp_path)
    assert [row["failed"] for row in rows if row.get("part") == "run" and "failed" in row] == [[]]
    assert len(list(tmp_path.iterdir())) <= 8 and all(file.stat().st_size < 16 << 20 for file in tmp_path.iterdir())
    assert all(row["result"] == "found" for row in rows if "bug" in row)
