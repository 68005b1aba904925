"""What ./dev test --deep mutants --matrix decides: what is a catch, which tests fail, what is kept, what the table says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engines import wait_until
from test_gpu_tools import GONE_S, LEAVES, MARK, mark, marked, until_gone  # noqa: F401

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools/dev"))

import children  # noqa: E402
import mutant_matrix  # noqa: E402
from mutant_matrix import Suite, alone, baseline, failing_tests, make_row, ranked, run, suite_of  # noqa: E402
from mutants import MutantError  # noqa: E402

PASSED, FAILED, BEGUN = ("[       OK ] ", "[  FAILED  ] ", "[ RUN      ] ")


def shell(text: str, **fields: Any) -> Suite:
    return Suite("core/some", ["sh", "-c", text], **fields)


def program(tmp_path: Path, text: str) -> Suite:
    path = tmp_path / "some_test"
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return Suite("core/some", [str(path)])


@pytest.mark.parametrize("suite, failed", [
    (shell("exit 0"), False),
    (shell("exit 1"), True),
    (shell("kill -9 $$"), True),
    (shell("exit 0", found=0), True),
    (shell("exit 1", found=0), False),
    (shell("kill -9 $$", found=0), True),
])
def test_a_status_is_a_failure_or_not(suite: Suite, failed: bool) -> None:
    assert run(suite, 10).failed is failed


def test_what_hangs_has_failed_and_leaves_nobody(tmp_path: Path) -> None:
    left = tmp_path / "left"
    outcome = run(shell(f"setsid sh -c 'sleep 2; touch {left}' & sleep 60"), 0.5)
    assert (outcome.failed, outcome.code) == (True, children.TIMED_OUT) and outcome.seconds < 10
    time.sleep(2)
    assert not left.exists()


def test_nothing_of_a_suite_is_left_when_the_run_is_killed(mark: str) -> None:  # noqa: F811
    program = ("import sys; sys.path.append(sys.argv[1]); from mutant_matrix import Suite, run_all; "
               "run_all([Suite('core/some', ['sh', '-c', sys.argv[2]])], lambda suite: 300)")
    tools = str(Path(mutant_matrix.__file__).parent)
    killed = subprocess.Popen([sys.executable, "-c", program, tools, LEAVES + "sleep 300"], env=os.environ | {MARK: mark})
    wait_until("the run, the shell, and three that have left it", lambda: len(marked(mark)) >= 6, GONE_S, 0.05)
    killed.kill()
    killed.wait()
    until_gone(mark)


def test_a_suite_stops_at_its_first_failure() -> None:
    suite = shell(f"echo '{FAILED}a_test'; sleep 60")
    outcome = run(suite, 30)
    assert (outcome.failed, outcome.code) == (True, 128 + signal.SIGTERM) and outcome.seconds < 10


def test_the_simulator_has_its_own_seeds() -> None:
    test = {"name": "sim/seeds", "cmd": ["sim", "--seeds", "1..2"], "env": {}, "suite": ["kvferry:sim"], "is_parallel": True,
            "timeout": 30}
    assert suite_of(test).words[1:] == ["--search", "--starts=1", f"--most={mutant_matrix.SEEDS}"] and suite_of(test).found == 0
    assert suite_of({**test, "name": "churn", "is_parallel": False}).kind == "alone"
    assert [suite_of({**test, "name": "some", "suite": [of]}).tries for of in ("kvferry:fuzz", "kvferry:unit")] == [2, 3]


@pytest.mark.parametrize("text, tests", [
    (f"echo '{FAILED}a'; echo '{PASSED}b'; echo '{FAILED}2 test(s), listed below:'; echo '{FAILED}a'; echo '{FAILED}c'; exit 2",
     ["a", "c"]),
    (f"case $1 in --list) echo a; echo b; echo c;; =b) ;; =*) exit 1;; *) echo '{BEGUN}a'; kill -6 $$;; esac", ["a", "c"]),
    (f"echo '{BEGUN}a'; kill -6 $$", ["a"]),
    ("exit 1", []),
])
def test_all_failing_tests_are_named(tmp_path: Path, text: str, tests: list[str]) -> None:
    assert failing_tests(program(tmp_path, text), 10) == tests


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mutant_matrix, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(mutant_matrix, "build", lambda *_: None)
    return tmp_path


def test_who_fails_without_a_bug_catches_nothing(world: Path) -> None:
    with pytest.raises(MutantError, match="core/some"):
        baseline([shell("exit 1")], "key")


def test_a_catch_is_seen_each_time_and_in_a_program_that_the_bug_changed(world: Path) -> None:
    suites = [program(world, "exit 0"), shell(f"! rm {world}/once")._replace(name="once"), shell("exit 1")._replace(name="same")]
    base = {"seconds": dict.fromkeys(["core/some", "once", "same"], 0.1),
            "prints": {"core/some": "", "once": "", "same": mutant_matrix.print_of(suites[2])}}
    (world / "once").touch()
    program(world, f"echo '{FAILED}1 test(s), listed below:'; echo '{FAILED}a'; exit 1")
    row = make_row("a_bug", suites, base)
    assert row == {"caught": {"core/some": "a"}, "sometimes": ["once"], "tests": {"core/some": ["a"]}}


def test_suites_of_two_and_of_three_tries_catch_beside_each_other(world: Path) -> None:
    suites = [shell("exit 1", tries=tries)._replace(name=name) for name, tries in (("steady", 2), ("threads", 3))]
    base = {"seconds": dict.fromkeys(["steady", "threads"], 0.1), "prints": dict.fromkeys(["steady", "threads"], "")}
    assert make_row("a_bug", suites, base) == {"caught": {"steady": "", "threads": ""}}


def test_a_bug_that_many_catch_needs_no_more_suites(world: Path) -> None:
    names = ["sim/seeds", *"abcdef"]
    suites = [shell(f"exit {int(name not in 'def')}", kind="alone")._replace(name=name) for name in reversed(names)]
    base = {"seconds": {name: second for second, name in enumerate(names)}, "prints": dict.fromkeys(names, "")}
    assert make_row("a_bug", suites, base, many=2) == {"caught": {"a": "", "b": "", "sim/seeds": ""}, "not_run": 4}


def test_another_source_is_another_tree(world: Path) -> None:
    (world / "src").mkdir()
    (world / "meson.build").touch()
    (world / "meson_options.txt").touch()
    source = world / "src/a.c"
    source.write_text("int a;")
    before = mutant_matrix.tree_key(world)
    source.write_text("int b;")
    assert mutant_matrix.tree_key(world) != before


def test_a_row_is_kept_until_its_patch_changes_other_lines(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutant_matrix, "PATCHES", world)
    keys = []
    for text in ("--- a/x.c\n+++ b/x.c\n near\n-old\n+new\n", "--- a/y.c\n+++ b/y.c\n far\n-old\n+new\n",
                 "--- a/x.c\n+++ b/x.c\n near\n-old\n+newer\n"):
        (world / "a_bug.patch").write_text(text)
        keys.append(mutant_matrix.patch_key("a_bug"))
    assert keys[0] == keys[1] != keys[2]


def test_the_matrix_is_read_as_it_was_written(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutant_matrix, "MATRIX", world / "matrix.json")
    assert mutant_matrix.read_matrix() == {"bugs": {}, "suites": {}}
    rows, seconds = {"a_bug": {"patch": "1", "tree": "2", "caught": {"core/some": "a"}}}, {"core/some": 0.5}
    mutant_matrix.write_matrix(rows, seconds)
    assert mutant_matrix.read_matrix() == {"bugs": rows, "suites": seconds}


def test_the_table_ranks_by_what_is_caught_alone() -> None:
    rows = {name: {"caught": dict.fromkeys(caught, "a_test"), "tests": {suite: ["a_test"] for suite in caught}} for name, caught in {
        "sole": ["core/a"], "simulated": ["core/a", "sim/seeds"], "by_two": ["core/b", "core/c"], "unseen": []}.items()}
    assert alone(rows, set()) == {"core/a": {"sole": ["a_test"]}}
    assert alone(rows, mutant_matrix.SIMULATOR) == {"core/a": {"simulated": ["a_test"], "sole": ["a_test"]}}
    told = list(ranked(rows, dict.fromkeys(["core/a", "core/b", "core/c", "core/d", "sim/seeds"], 1.0)))
    assert told[-6:] == ["  1  sim/seeds: 1 bugs, 1.0 s", "  2  core/b: 1 bugs, 1.0 s", "  2  core/c: 1 bugs, 1.0 s",
                         "1 suites catch nothing of what they were run with:", "  core/d, 1.0 s", "by no suite: unseen"]
