"""Runs the fuzz targets of build-fuzz, says what each did, and fails with a command that replays what was found."""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

BUILD = Path("build-fuzz/tests/fuzz")
KEPT = Path("tests/fuzz/corpus")
CACHE = Path(".cache/fuzz")

# The kept inputs of a target, each a line of hex digits: they are in the repository, and every test run replays them.
KEPT_INPUTS_MAX = 200
KEPT_BYTES_MAX = 4096  # of one

# One input may take and use so much; beyond it, it is a finding.
LIMITS = ["-timeout=10", "-rss_limit_mb=2048", "-malloc_limit_mb=512", "-max_len=4096", "-len_control=20"]
SAID = re.compile(r"broken: |ERROR: |runtime error: |SUMMARY: ")


class Outcome(NamedTuple):
    target: str
    runs: int
    coverage: int
    code: int
    found: list[Path]


def target_names() -> list[str]:
    return sorted(path.name.removeprefix("fuzz_") for path in BUILD.glob("fuzz_*") if path.is_file())


def program(kind: str, target: str) -> str:
    return str(BUILD / f"{kind}_{target}")


def folder(target: str, name: str) -> Path:
    path = CACHE / target / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def kept_inputs(target: str) -> Path:
    """A folder of the kept inputs, one file each, as libFuzzer wants them."""
    inputs, kept = folder(target, "kept"), KEPT / f"{target}.hex"
    for i, line in enumerate(kept.read_text().splitlines() if kept.exists() else []):
        (inputs / str(i)).write_bytes(bytes.fromhex(line))
    return inputs


def number(pattern: str, text: str) -> int:
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def artifacts(target: str) -> set[Path]:
    """What libFuzzer has written of findings; slow units are none."""
    return {path for path in folder(target, "found").iterdir() if not path.name.startswith("slow-unit-")}


def fuzz(target: str, seconds: int) -> Outcome:
    inputs = folder(target, "inputs")
    before = artifacts(target)
    subprocess.run([program("replay", target), "--write-seeds", inputs], check=True, stderr=subprocess.DEVNULL)
    command = [program("fuzz", target), f"-max_total_time={seconds}", "-print_final_stats=1", *LIMITS]
    command += [f"-artifact_prefix={folder(target, 'found')}/", str(inputs), str(kept_inputs(target))]
    log = CACHE / target / "log"
    with log.open("w") as out:
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    text = log.read_text(errors="replace")
    runs, coverage = number(r"stat::number_of_executed_units: (\d+)", text), number(r"\bcov: (\d+)", text)
    return Outcome(target, runs, coverage, code, sorted(artifacts(target) - before))


def keep(target: str) -> str:
    """Adds to the kept inputs a few that cover what they do not. Hits are not counted: otherwise there would be
    thousands."""
    shutil.rmtree(folder(target, "kept"))
    inputs = kept_inputs(target)
    kept = {path.name for path in inputs.iterdir()}
    command = [program("fuzz", target), "-merge=1", "-use_counters=0", *LIMITS, str(inputs)]
    subprocess.run([*command, str(folder(target, "inputs"))], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    new = sorted((path.read_bytes() for path in inputs.iterdir() if path.name not in kept), key=len)
    added = [each for each in new if len(each) <= KEPT_BYTES_MAX][:max(0, KEPT_INPUTS_MAX - len(kept))]
    with (KEPT / f"{target}.hex").open("a") as file:
        file.writelines(f"{each.hex()}\n" for each in added)
    return f"{target}: {len(added)} more" + (f"; {len(new) - len(added)} left out" if len(added) < len(new) else "")


def show(each: Outcome) -> None:
    print(f"{each.target:12} {each.runs:9} runs, coverage {each.coverage}{'' if each.code == 0 else ': FAILED'}", flush=True)
    if each.code != 0:
        log = CACHE / each.target / "log"
        said = [line.strip() for line in log.read_text(errors="replace").splitlines() if SAID.search(line)]
        replays = ["replay: " + shlex.join([program("replay", each.target), str(path)]) for path in each.found]
        print("\n".join(f"    {line}" for line in [f"exit status {each.code}; see {log}", *said[:4], *replays]))


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=30, help="for each target (30)")
    parser.add_argument("--target", action="append", choices=target_names(), help="only this one; may be repeated")
    parser.add_argument("--keep", action="store_true", help="afterwards keep what covers more in tests/fuzz/corpus")
    arguments = parser.parse_args()
    targets = arguments.target or target_names()
    os.environ.setdefault("ASAN_OPTIONS", "quarantine_size_mb=64:detect_stack_use_after_return=0")
    os.environ.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
    with concurrent.futures.ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        failed = False
        for outcome in pool.map(lambda target: fuzz(target, arguments.seconds), targets):
            show(outcome)
            failed |= outcome.code != 0
        if arguments.keep:
            print("\nkept:")
            for line in pool.map(keep, targets):
                print(f"  {line}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
