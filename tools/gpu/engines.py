#!/usr/bin/env python3
"""Real engines of vLLM's, several processes on one GPU, that hand KV to each other by kvferry: whether the tokens are right.

    tools/gpu/engines.py --out DIR             on a GPU, with vLLM of tools/gpu/pack --vllm, or installed
    tools/gpu/engines.py --out DIR --fake      on the CPU, with the fake of the driver; no figure means anything
    tools/gpu/engines.py --out DIR --runner first      one of vLLM's model runners; both, if none is named

P prefills, D loads and decodes, T loads over tcp. R, with checksums, computes by itself what the others should answer, and loads
in its turn. A row is a JSON line in DIR/engines.jsonl as soon as it is known. The exit status is 1 if a row is wrong, and 3 if
vLLM does not start here: then try mini.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import sizes
import vllm_set
from asks import ASKS_FOR_TICKET, Answer
from parties import Parties, PartyError, Ticket, Tokens, children, supervised
from rows import Figures, Rows, spread_ms
from sizes import HERE, Size

ROOT = HERE.parents[1]
WORK = ROOT / "build-gpu"
PACK = ROOT / ".cache/gpu"
LOGS = WORK / "logs"
FAKES = [ROOT / "build/tests/fake_cuda/libcuda-fake.so", WORK / "tree/build/tests/fake_cuda/libcuda-fake.so"]
RUNNERS = {"second": "vllm.v1.worker.gpu.model_runner", "first": "vllm.v1.worker.gpu_model_runner"}
"""vLLM's model runners. Its engines on the CPU have one, which comes of the first."""
ON_A_GPU = ["first use/library", "first use/reshape_and_cache", "first use/attention"]
PARTIES = {"P": {"transports": "local,tcp", "checksum": "on", "lease_wait_ms": 60000}, "D": {"transports": "local"},
           "R": {"transports": "local", "checksum": "on"}, "T": {"transports": "tcp"}}
"""kvferry's options."""
LEASE_REASONS = {"lease_expired", "lease_unknown"}
NO_START = 3
END_S = 30.0
"""After the last minute: what is left is ended then."""
FIRST_USE_LIMIT_S, START_LIMIT_S, FREE_LIMIT_S, FREE_EVERY_S = 60.0, 150.0, 20.0, 0.05


class StartError(RuntimeError):
    """vLLM does not work here; the text says why."""


class Engines(Parties):
    """Of one model runner."""

    def __init__(self, rows: Rows, runner: str, size: Size, model: Path, library: str, site: Path | None) -> None:
        self.runner, self.size = runner, size
        self.prompts = sizes.prompts(size, size.prompts)
        self.others = sizes.prompts(size, size.prompts, sizes.SEED + 1)
        patience = sizes.PATIENT if library else {}
        words = {name: [str(HERE / "engine_process.py"), json.dumps(sizes.engine_options(size, model, own | patience, library))]
                 for name, own in PARTIES.items()}
        super().__init__(rows, runner, words, sizes.engine_env(runner, bool(library), site), LOGS / "engines", size.answer_tokens)

    def ticket(self, prompt: Tokens) -> Ticket:
        return ticket_of(self.wait(self.send("P", prompt, 1, ASKS_FOR_TICKET)))

    def load(self, name: str, prompt: Tokens, ticket: Ticket) -> Answer:
        return self.wait(self.send(name, prompt, self.size.answer_tokens, ticket))

    def load_each(self, name: str, prompts: list[Tokens], tickets: list[Ticket]) -> list[Answer]:
        """One after the other."""
        return [self.load(name, prompt, ticket) for prompt, ticket in zip(prompts, tickets, strict=True)]

    def hand_over_at_once(self, name: str, prompts: list[Tokens], tokens: int) -> list[Future[Answer]]:
        """Each goes on to the engine as soon as P has it."""
        asked = [(prompt, self.send("P", prompt, 1, ASKS_FOR_TICKET)) for prompt in prompts]
        return [self.send(name, prompt, tokens, ticket_of(self.wait(future))) for prompt, future in asked]

    def judged(self, grown: dict[str, float], prompts: list[Tokens], answers: list[Answer], loads: int | None) -> Figures:
        """`loads`: how many there have to be; None: what is missing was computed."""
        pairs = [(answer.tokens, right) for answer, right in zip(answers, self.expected(prompts), strict=True)]
        equal, loaded = sum(tokens == right for tokens, right in pairs), int(grown["kvferry_loads_total"])
        maybe = {"recomputed_tokens": int(grown.get("kvferry_recomputed_tokens_total", 0)), "reasons": reasons_of(grown),
                 "apart_at": [apart_at(*pair) for pair in pairs if pair[0] != pair[1]],
                 "ended": sorted({str(answer.reason) for answer in answers} - {"length"})}
        return {"right": equal == len(prompts) and loads in (None, loaded), "equal": equal, "of": len(prompts), "loads": loaded,
                **{key: value for key, value in maybe.items() if value}}

    def free_all(self) -> None:
        """P's leases end, and its blocks are free."""
        until = time.monotonic() + self.rows.limit(FREE_LIMIT_S)
        while not self.call("P", "forget"):
            if time.monotonic() > until:
                raise PartyError("P: some request uses a block")
            time.sleep(FREE_EVERY_S)

    # ---- rows ----

    def start(self) -> Figures:
        facts = self.facts(START_LIMIT_S)
        seen = {key: sorted({str(one[key]) for one in facts.values()}) for key in ("runner", "graphs", "async", "torch")}
        return {"right": True, "start_s": {name: one["start_s"] for name, one in facts.items()}, **seen}

    def graphs(self) -> Figures:
        good = [one["graphs"] == "FULL_AND_PIECEWISE" and one["async"] and one["runner"] == RUNNERS[self.runner]
                for one in self.facts(0).values()]
        return {"right": all(good)}

    def zeroed_block(self) -> Figures:
        """A control: if it changes nothing, equal tokens prove nothing."""
        self.call("P", "rpc", "wipe_kv")
        prompts = self.prompts[:self.size.few]
        same = seen = 0
        with self.counted("D") as grown:
            for prompt, right in zip(prompts, self.expected(prompts), strict=True):
                same += self.load("D", prompt, self.ticket(prompt)).tokens == right
                ticket = self.ticket(prompt)
                self.call("P", "rpc", "zero_a_block")
                seen += self.load("D", prompt, ticket).tokens != right
        loads = int(grown["kvferry_loads_total"])
        return {"right": same == seen == len(prompts) and loads == 2 * len(prompts), "seen": seen, "of": len(prompts), "whole": same,
                "loads": loads}

    def one_by_one(self) -> Figures:
        with self.counted("D") as grown:
            answers = [self.load("D", prompt, self.ticket(prompt)) for prompt in self.prompts]
        return self.judged(grown, self.prompts, answers, len(self.prompts))

    def at_once(self) -> Figures:
        with self.counted("D") as grown:
            answers = [self.wait(future) for future in self.hand_over_at_once("D", self.prompts, self.size.answer_tokens)]
        return self.judged(grown, self.prompts, answers, len(self.prompts))

    def overwritten(self) -> Figures:
        """The leases have ended, and other prompts have been through P's blocks."""
        prompts = self.prompts[:self.size.few]
        with self.counted("D") as grown:
            tickets = [self.ticket(prompt) for prompt in prompts]
            self.free_all()
            for future in self.send_each("P", self.others, 1):
                self.wait(future)
            answers = self.load_each("D", prompts, tickets)
        figures = self.judged(grown, prompts, answers, 0)
        return figures | {"right": figures["right"] and reasons_of(grown).keys() <= LEASE_REASONS}

    def stopped(self) -> Figures:
        """Over local nothing of P's processor is needed."""
        prompts = self.prompts[:self.size.few]
        with self.counted("D") as grown:
            tickets = [self.ticket(prompt) for prompt in prompts]
            self["P"].stop()
            try:
                answers = self.load_each("D", prompts, tickets)
            finally:
                self["P"].go_on()
        return self.judged(grown, prompts, answers, len(prompts))

    def loaded_by(self, name: str, is_compared: bool) -> Figures:
        prompts = self.prompts[:2 * self.size.few]
        self.expected(prompts)
        with self.counted(name) as grown:
            answers = [self.load(name, prompt, self.ticket(prompt)) for prompt in prompts]
        compared = int(grown["kvferry_verified_blocks_total"])
        wanted = int(grown["kvferry_loaded_blocks_total"]) if is_compared else 0
        figures = self.judged(grown, prompts, answers, len(prompts))
        return figures | {"right": figures["right"] and compared == wanted, "compared_blocks": compared}

    def latency(self) -> Figures:
        """Between two tokens of D's, alone and while it loads other prompts."""
        streams, loaded = self.prompts[:self.size.streams], self.prompts[self.size.streams:]
        alone = [self.wait(future) for future in self.send_each("D", streams, self.size.stream_tokens)]
        with self.counted("D") as grown:
            asked = self.send_each("D", streams, self.size.stream_tokens)
            for future in self.hand_over_at_once("D", loaded, 1):
                self.wait(future)
            beside = [self.wait(future) for future in asked]
        equal, loads = sum(one.tokens == other.tokens for one, other in zip(alone, beside, strict=True)), int(grown["kvferry_loads_total"])
        return {"right": equal == len(streams) and loads == len(loaded), "equal": equal, "of": len(streams), "loads": loads,
                "alone": gaps(alone), "beside_loads": gaps(beside)}

    def first_token(self) -> Figures:
        """In parts: P's answer; D's; of that the load, of that the copies, of those telling the driver. R computes the prompt."""
        prompts = self.prompts[-self.size.few:]
        begin = time.monotonic()
        tickets = [self.ticket(prompt) for prompt in prompts]
        handed_s = time.monotonic() - begin
        with self.counted("D") as grown:
            answers = self.load_each("D", prompts, tickets)
        computed = [self.wait(self.send("R", prompt, 1)) for prompt in prompts]
        parts_s = {"p": handed_s, "d": sum(answer.times_s[0] for answer in answers), "load": grown["kvferry_load_seconds_sum"],
                   "copies": grown["kvferry_device_copy_seconds_total"], "posting": grown["kvferry_device_posting_seconds_total"],
                   "computed": sum(answer.times_s[0] for answer in computed)}
        return self.judged(grown, prompts, answers, len(prompts)) | {
            "mean_ms": {name: round(seconds / len(prompts) * 1e3, 3) for name, seconds in parts_s.items()},
            "mean_mib": round(grown["kvferry_loaded_bytes_total"] / len(prompts) / (1 << 20), 1)}

    def killed(self) -> Figures:
        """While D loads."""
        prompts = self.prompts[:self.size.few]
        self.expected(prompts)
        with self.counted("D") as grown:
            tickets = [self.ticket(prompt) for prompt in prompts]
            asked = [self.send("D", prompt, self.size.answer_tokens, ticket) for prompt, ticket in zip(prompts, tickets, strict=True)]
            self.kill("P")
            answers = [self.wait(future) for future in asked]
        return self.judged(grown, prompts, answers, None)


ROWS: dict[str, Callable[[Engines], Figures]] = {
    "start": Engines.start, "graphs": Engines.graphs, "zeroed block": Engines.zeroed_block, "one by one": Engines.one_by_one,
    "at once": Engines.at_once, "overwritten": Engines.overwritten, "P stopped": Engines.stopped,
    "checksum": lambda engines: engines.loaded_by("R", is_compared=True), "tcp": lambda engines: engines.loaded_by("T", is_compared=False),
    "latency": Engines.latency, "first token": Engines.first_token, "P killed": Engines.killed}
"""In the order of their worth."""
NEEDS_A_GPU = ["graphs"]


def ticket_of(answer: Answer) -> Ticket:
    if not answer.params:
        raise PartyError(f"P gave no ticket ({answer.reason})")
    return answer.params


def reasons_of(grown: dict[str, float]) -> dict[str, int]:
    return {key.split()[1]: int(count) for key, count in grown.items() if key.startswith("kvferry_load_failures_total ") and count}


def apart_at(tokens: Tokens, right: Tokens) -> int:
    differ = (at for at, (one, other) in enumerate(zip(tokens, right, strict=False)) if one != other)
    return next(differ, min(len(tokens), len(right)))


def gaps(answers: list[Answer]) -> Figures:
    return spread_ms([later - earlier for answer in answers for earlier, later in zip(answer.times_s, answer.times_s[1:], strict=False)])


def try_first_use(rows: Rows, size: Size, model: Path, env: dict[str, str]) -> None:
    """In a process of its own: it may crash. StartError: something is not as vLLM needs it."""
    is_cpu = size is sizes.CPU
    for name in ON_A_GPU if is_cpu else []:
        rows.skip(name)
    shutil.rmtree(model, ignore_errors=True)
    log = LOGS / "engines/first_use.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, str(HERE / "first_use.py"), "cpu" if is_cpu else "gpu", str(model)]
    with log.open("w") as errors:
        done = subprocess.run(children.command(rows.limit(FIRST_USE_LIMIT_S), words), stdout=subprocess.PIPE, stderr=errors, text=True,
                              check=False, env={**os.environ, **env})
    for line in done.stdout.splitlines():
        if line.startswith('{"row"'):
            found = json.loads(line)
            rows.add(found.pop("row"), found)
    if done.returncode != 0:
        raise StartError(f"first use ended with status {done.returncode}: {log.read_text(errors='replace')[-500:]}")


def run_rows(rows: Rows, prefix: str, table: dict[str, Callable[[Any], Figures]], parties: Any, skipped: list[str]) -> bool:
    """False: they have not started."""
    for name, judge in table.items():
        if name in skipped:
            rows.skip(f"{prefix}/{name}")
            continue
        figures = rows.run(f"{prefix}/{name}", lambda judge=judge: judge(parties))  # type: ignore[misc]
        if name == "start" and not figures["right"]:
            return False
    return True


def site_of_pack() -> Path | None:
    """None: vLLM is installed."""
    if not (PACK / vllm_set.ARCHIVE).exists() or (ROOT / ".venv").exists():
        return None
    vllm_set.unpack(PACK, WORK / "site")
    return WORK / "site"


def measure(rows: Rows, library: str, runners: list[str]) -> None:
    """StartError: no engine has started."""
    site, size, model = None if library else site_of_pack(), sizes.CPU if library else sizes.GPU, WORK / "model"
    try_first_use(rows, size, model, sizes.engine_env("first", bool(library), site))
    started = False
    for runner in runners:
        if library and runner == "second":
            for name in ROWS:
                rows.skip(f"{runner}/{name}")
            continue
        with contextlib.closing(Engines(rows, runner, size, model, library, site)) as engines:
            started |= run_rows(rows, runner, ROWS, engines, NEEDS_A_GPU if library else [])
    if not started:
        raise StartError("no engine has started")


def arguments(text: str | None, minutes: float) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--fake", action="store_true", help="on the CPU, with the fake of the driver")
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--runner", choices=list(RUNNERS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.library = next((str(path) for path in FAKES if path.exists()), "") if given.fake else ""
    if given.fake and not given.library:
        parser.error("the fake of the driver is not built")
    return given


def main() -> int:
    given = arguments(__doc__, 5)
    if (status := supervised(60 * given.minutes + END_S)) is not None:
        return status
    rows = Rows(given.out / "engines.jsonl", given.minutes, is_patient=given.fake)
    try:
        measure(rows, given.library, [given.runner] if given.runner else list(RUNNERS))
    except StartError as error:
        rows.add("vLLM", {"right": False, "why": str(error)})
        return NO_START
    return 1 if rows.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
