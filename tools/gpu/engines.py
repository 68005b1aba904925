#!/usr/bin/env python3
"""Real engines of vLLM's, several processes on one GPU, that hand KV to each other by kvferry: whether the tokens are right.

    tools/gpu/engines.py --out DIR             on a GPU, with vLLM of tools/gpu/pack --vllm, or installed
    tools/gpu/engines.py --out DIR --fake      on the CPU, with the fake of the driver; no figure means anything

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
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import children
import sizes
import vllm_set
from asks import ASKS_FOR_TICKET, Answer, Ask
from parties import Party, PartyError, answer_of, supervised
from rows import Figures, Rows, spread_ms
from sizes import HERE, Size

ROOT = HERE.parents[1]
WORK = ROOT / "build-gpu"
PACK = ROOT / ".cache/gpu"
FAKES = [ROOT / "build/tests/fake_cuda/libcuda-fake.so", WORK / "tree/build/tests/fake_cuda/libcuda-fake.so"]
RUNNERS = ["second", "first"]
"""vLLM's model runners. Its engines on the CPU have one, which comes of the first."""
ON_A_GPU = ["first use/library", "first use/reshape_and_cache", "first use/attention"]
PARTIES = {"P": {"transports": "local,tcp", "checksum": "on", "lease_wait_ms": 60000}, "D": {"transports": "local"},
           "R": {"transports": "local", "checksum": "on"}, "T": {"transports": "tcp"}}
"""kvferry's options."""
NO_START = 3
END_S = 30.0
"""After the last minute: what is left is ended then."""
FIRST_USE_LIMIT_S, START_LIMIT_S, ASK_LIMIT_S, CALL_LIMIT_S, FREE_LIMIT_S = 90.0, 300.0, 120.0, 30.0, 30.0
Tokens = list[int]


class StartError(RuntimeError):
    """vLLM does not work here; the text says why."""


class Engines:
    """Of one model runner."""

    def __init__(self, rows: Rows, runner: str, size: Size, model: Path, library: str, site: Path | None) -> None:
        self.rows, self.runner, self.size, self.fake = rows, runner, size, bool(library)
        self.prompts = sizes.prompts(size, size.prompts)
        self.fillers = sizes.prompts(size, size.prompts, sizes.SEED + 1)
        env = sizes.engine_env(runner, self.fake, site)
        self._starts: dict[str, Callable[[], Party]] = {}
        for name, own in PARTIES.items():
            words = [str(HERE / "engine_process.py"), json.dumps(sizes.engine_options(size, model, own, library))]
            self._starts[name] = lambda name=name, words=words: Party(  # type: ignore[misc]
                f"{runner}-{name}", words, env, WORK / "logs/engines")
        self._up: dict[str, Party] = {}
        self._expected: dict[tuple[int, ...], Answer] = {}

    def launch(self, *names: str) -> None:
        for name in names:
            if name not in self._up:
                self._up[name] = self._starts[name]()

    def party(self, name: str) -> Party:
        self.launch(name)
        self._up[name].ready(min(START_LIMIT_S, self.rows.left_s()))
        return self._up[name]

    def close(self) -> None:
        for party in self._up.values():
            party.close()
        self._up.clear()

    # ---- what they do ----

    def send(self, name: str, prompt: Tokens, tokens: int, params: dict[str, Any] | None = None) -> Future[Answer]:
        return self.party(name).submit("ask", Ask(prompt, tokens, params))

    def wait(self, future: Future[Any]) -> Any:
        return answer_of(future, min(ASK_LIMIT_S, self.rows.left_s()))

    def ticket(self, prompt: Tokens) -> dict[str, Any]:
        return ticket_of(self.wait(self.send("P", prompt, 1, ASKS_FOR_TICKET)))

    def load(self, name: str, prompt: Tokens, ticket: dict[str, Any]) -> Answer:
        answer: Answer = self.wait(self.send(name, prompt, self.size.answer_tokens, ticket))
        return answer

    def all_at_once(self, name: str, prompts: list[Tokens], tokens: int) -> list[Future[Answer]]:
        """Each goes on to the engine as soon as P has handed it over."""
        asked = [(prompt, self.send("P", prompt, 1, ASKS_FOR_TICKET)) for prompt in prompts]
        return [self.send(name, prompt, tokens, ticket_of(self.wait(handed))) for prompt, handed in asked]

    def expected(self, prompts: list[Tokens]) -> list[Tokens]:
        """Of R, by itself, all of them at once."""
        asked = {tuple(prompt): self.send("R", prompt, self.size.answer_tokens)
                 for prompt in prompts if tuple(prompt) not in self._expected}
        self._expected |= {key: self.wait(future) for key, future in asked.items()}
        return [self._expected[tuple(prompt)].tokens for prompt in prompts]

    def numbers(self, name: str) -> dict[str, float]:
        found: dict[str, float] = self.party(name).call("numbers", limit_s=CALL_LIMIT_S)
        return found

    @contextlib.contextmanager
    def counted(self, name: str) -> Iterator[Figures]:
        """What has come of loads meanwhile."""
        before, found = self.numbers(name), Figures()
        yield found
        after = self.numbers(name)
        grown = {key: after[key] - before.get(key, 0) for key in after}
        found["loads"] = int(grown["kvferry_loads_total"])
        found["blocks"] = int(grown["kvferry_loaded_blocks_total"])
        found["recomputed_tokens"] = int(grown.get("kvferry_recomputed_tokens_total", 0))
        found["reasons"] = {key.split()[1]: int(count) for key, count in grown.items()
                            if key.startswith("kvferry_load_failures_total ") and count}
        found["grown"] = grown

    def free_all(self) -> None:
        """P's leases end, and its blocks are free."""
        until = time.monotonic() + FREE_LIMIT_S
        while not self.party("P").call("forget", limit_s=CALL_LIMIT_S):
            if time.monotonic() > until:
                raise PartyError("P: some request uses a block")
            time.sleep(0.05)

    def judged(self, found: Figures, prompts: list[Tokens], answers: list[Answer], loads: int | None) -> Figures:
        """`loads`: how many there have to be; None: none need be, what is missing is computed."""
        expected = self.expected(prompts)
        equal = sum(answer.tokens == right for answer, right in zip(answers, expected, strict=True))
        figures: Figures = {"right": equal == len(prompts) and loads in (None, found["loads"]), "equal": equal, "of": len(prompts)}
        figures |= {key: value for key, value in found.items() if key != "grown" and value != {}}
        if failed := sorted({str(answer.reason) for answer in answers} - {"length"}):
            figures["failed"] = failed
        if equal < len(prompts):
            figures["first_apart"] = [apart_at(answer.tokens, right) for answer, right in zip(answers, expected, strict=True)
                                      if answer.tokens != right]
        return figures

    # ---- rows ----

    def start(self) -> Figures:
        facts = {name: self.party(name).ready(START_LIMIT_S) for name in self._up}
        seen = {key: sorted({str(one[key]) for one in facts.values()}) for key in ("runner", "graphs", "async")}
        return {"right": True, "start_s": {name: one["start_s"] for name, one in facts.items()}, **seen}

    def graphs(self) -> Figures:
        facts = self.party("D").ready(START_LIMIT_S)
        wanted = {"second": "vllm.v1.worker.gpu.model_runner", "first": "vllm.v1.worker.gpu_model_runner"}[self.runner]
        return {"right": facts["graphs"] == "FULL_AND_PIECEWISE" and facts["async"] and facts["runner"] == wanted, **facts}

    def zeroed_block(self) -> Figures:
        """A control: if it changes nothing, equal tokens prove nothing."""
        self.party("P").call("rpc", "wipe_kv", limit_s=CALL_LIMIT_S)
        prompts = self.prompts[:self.size.few]
        expected, same, seen = self.expected(prompts), 0, 0
        with self.counted("D") as found:
            for prompt, right in zip(prompts, expected, strict=True):
                same += self.load("D", prompt, self.ticket(prompt)).tokens == right
                ticket = self.ticket(prompt)
                self.party("P").call("rpc", "zero_a_block", limit_s=CALL_LIMIT_S)
                seen += self.load("D", prompt, ticket).tokens != right
        return {"right": same == seen == len(prompts) and found["loads"] == 2 * len(prompts), "seen": seen, "of": len(prompts),
                "whole_equal": same, "loads": found["loads"]}

    def one_by_one(self) -> Figures:
        with self.counted("D") as found:
            answers = [self.load("D", prompt, self.ticket(prompt)) for prompt in self.prompts]
        return self.judged(found, self.prompts, answers, len(self.prompts))

    def at_once(self) -> Figures:
        with self.counted("D") as found:
            asked = self.all_at_once("D", self.prompts, self.size.answer_tokens)
            answers = [self.wait(future) for future in asked]
        return self.judged(found, self.prompts, answers, len(self.prompts))

    def overwritten(self) -> Figures:
        """The leases have ended, and other prompts have been through P's blocks."""
        prompts = self.prompts[:self.size.few]
        with self.counted("D") as found:
            tickets = [self.ticket(prompt) for prompt in prompts]
            self.free_all()
            for future in [self.send("P", prompt, 1) for prompt in self.fillers]:
                self.wait(future)
            answers = [self.load("D", prompt, ticket) for prompt, ticket in zip(prompts, tickets, strict=True)]
        figures = self.judged(found, prompts, answers, 0)
        return figures | {"right": figures["right"] and set(found["reasons"]) <= {"lease_expired", "lease_unknown"} and bool(found["reasons"])}

    def stopped(self) -> Figures:
        """Over local nothing of P's processor is needed."""
        prompts = self.prompts[:self.size.few]
        with self.counted("D") as found:
            tickets = [self.ticket(prompt) for prompt in prompts]
            self.party("P").stop()
            try:
                answers = [self.load("D", prompt, ticket) for prompt, ticket in zip(prompts, tickets, strict=True)]
            finally:
                self.party("P").go_on()
        return self.judged(found, prompts, answers, len(prompts))

    def loaded_by(self, name: str, compared: bool) -> Figures:
        prompts = self.prompts[:2 * self.size.few]
        self.expected(prompts)
        with self.counted(name) as found:
            answers = [self.load(name, prompt, self.ticket(prompt)) for prompt in prompts]
        verified = int(found["grown"]["kvferry_verified_blocks_total"])
        figures = self.judged(found, prompts, answers, len(prompts))
        return figures | {"right": figures["right"] and verified == (found["blocks"] if compared else 0), "verified_blocks": verified}

    def checksum(self) -> Figures:
        return self.loaded_by("R", compared=True)

    def tcp(self) -> Figures:
        return self.loaded_by("T", compared=False)

    def latency(self) -> Figures:
        """Between two tokens of D's, alone and while it loads other prompts."""
        streams, loaded = self.prompts[:self.size.streams], self.prompts[self.size.streams:]

        def begin() -> list[Future[Answer]]:
            return [self.send("D", prompt, self.size.stream_tokens) for prompt in streams]

        alone = [self.wait(future) for future in begin()]
        with self.counted("D") as found:
            asked = begin()
            for future in self.all_at_once("D", loaded, 1):
                self.wait(future)
            beside = [self.wait(future) for future in asked]
        equal = sum(one.tokens == other.tokens for one, other in zip(alone, beside, strict=True))
        return {"right": equal == len(streams) and found["loads"] == len(loaded), "equal": equal, "of": len(streams),
                "loads": found["loads"], "alone": gaps(alone), "beside_loads": gaps(beside)}

    def first_token(self) -> Figures:
        """In parts, ms: P's answer; D's, of which the load; of that the copies, of those telling the driver. R computes the prompt."""
        prompts = self.prompts[-self.size.few:]
        begin = time.monotonic()
        tickets = [self.ticket(prompt) for prompt in prompts]
        handed_s = time.monotonic() - begin
        with self.counted("D") as found:
            answers = [self.load("D", prompt, ticket) for prompt, ticket in zip(prompts, tickets, strict=True)]
        computed = [self.wait(self.send("R", prompt, 1)) for prompt in prompts]

        def each_ms(seconds: float) -> float:
            return round(seconds / len(prompts) * 1e3, 3)

        grown = found["grown"]
        parts = {"p": each_ms(handed_s), "d": each_ms(sum(answer.times_s[0] for answer in answers)),
                 "load": each_ms(grown["kvferry_load_seconds_sum"]), "copies": each_ms(grown["kvferry_device_copy_seconds_total"]),
                 "posting": each_ms(grown["kvferry_device_posting_seconds_total"]),
                 "computed": each_ms(sum(answer.times_s[0] for answer in computed))}
        return self.judged(found, prompts, answers, len(prompts)) | {"parts_ms": parts, "mib": each_ms(grown["kvferry_loaded_bytes_total"] / 1e3 / (1 << 20))}

    def killed(self) -> Figures:
        """While D loads."""
        prompts = self.prompts[:self.size.few]
        self.expected(prompts)
        with self.counted("D") as found:
            tickets = [self.ticket(prompt) for prompt in prompts]
            asked = [self.send("D", prompt, self.size.answer_tokens, ticket) for prompt, ticket in zip(prompts, tickets, strict=True)]
            self._up.pop("P").kill()
            answers = [self.wait(future) for future in asked]
        figures = self.judged(found, prompts, answers, None)
        all_accounted = found["loads"] + sum(found["reasons"].values()) >= len(prompts)
        return figures | {"right": figures["right"] and all_accounted}


ROWS: dict[str, Callable[[Engines], Figures]] = {
    "graphs": Engines.graphs, "zeroed block": Engines.zeroed_block, "one by one": Engines.one_by_one, "at once": Engines.at_once,
    "overwritten": Engines.overwritten, "P stopped": Engines.stopped, "checksum": Engines.checksum, "tcp": Engines.tcp,
    "latency": Engines.latency, "first token": Engines.first_token, "P killed": Engines.killed}
"""What is known of engines that have started, in the order of its worth."""
NEEDS_A_GPU = ["graphs"]


def ticket_of(answer: Answer) -> dict[str, Any]:
    if not answer.params:
        raise PartyError(f"P gave no ticket ({answer.reason})")
    return answer.params


def apart_at(tokens: Tokens, right: Tokens) -> int:
    return next((at for at, (one, other) in enumerate(zip(tokens, right, strict=False)) if one != other), min(len(tokens), len(right)))


def gaps(answers: list[Answer]) -> Figures:
    return spread_ms([later - earlier for answer in answers for earlier, later in zip(answer.times_s, answer.times_s[1:], strict=False)])


def try_first_use(rows: Rows, model: Path, fake: bool, env: dict[str, str]) -> None:
    """In a process of its own: it may crash."""
    for name in ON_A_GPU if fake else []:
        rows.skip(name)
    words = [sys.executable, str(HERE / "first_use.py"), "cpu" if fake else "gpu", str(model)]
    log = WORK / "logs/engines/first_use.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as errors:
        done = subprocess.run(children.command(min(FIRST_USE_LIMIT_S, rows.left_s()), words), stdout=subprocess.PIPE, stderr=errors,
                              text=True, check=False, env=env)
    for line in done.stdout.splitlines():
        if line.startswith('{"row"'):
            found = json.loads(line)
            rows.add(found.pop("row"), found)
    if done.returncode != 0:
        raise StartError(f"first use ended with status {done.returncode}: {log.read_text(errors='replace')[-500:]}")


def run_rows(rows: Rows, engines: Engines) -> None:
    started = rows.run(f"{engines.runner}/start", engines.start)
    if not started["right"]:
        raise StartError(str(started.get("why")))
    for name, judge in ROWS.items():
        if engines.fake and name in NEEDS_A_GPU:
            rows.skip(f"{engines.runner}/{name}")
        else:
            rows.run(f"{engines.runner}/{name}", lambda judge=judge: judge(engines))  # type: ignore[misc]


def site_of_pack() -> Path | None:
    """None: vLLM is installed."""
    if not (PACK / vllm_set.ARCHIVE).exists() or (ROOT / ".venv").exists():
        return None
    vllm_set.unpack(PACK, WORK / "site")
    return WORK / "site"


def measure(rows: Rows, library: str) -> None:
    site, size, model = None if library else site_of_pack(), sizes.CPU if library else sizes.GPU, WORK / "model"
    shutil.rmtree(model, ignore_errors=True)
    try_first_use(rows, model, bool(library), {**os.environ, **sizes.engine_env("first", bool(library), site)})
    for runner in RUNNERS:
        if library and runner == "second":
            for name in ("start", *ROWS):
                rows.skip(f"{runner}/{name}")
            continue
        engines = Engines(rows, runner, size, model, library, site)
        try:
            engines.launch(*PARTIES)
            run_rows(rows, engines)
        finally:
            engines.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--fake", action="store_true", help="on the CPU, with the fake of the driver")
    parser.add_argument("--minutes", type=float, default=5)
    given = parser.parse_args()
    if (status := supervised(60 * given.minutes + END_S)) is not None:
        return status
    rows = Rows(given.out / "engines.jsonl", given.minutes)
    library = next((str(path) for path in FAKES if path.exists()), "") if given.fake else ""
    if given.fake and not library:
        print("error: the fake of the driver is not built", file=sys.stderr)
        return 2
    try:
        measure(rows, library)
    except StartError as error:
        rows.add("vLLM", {"right": False, "why": str(error)})
        return NO_START
    return 1 if rows.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
