#!/usr/bin/env python3
"""Small engines in PyTorch alone that hand KV to each other by kvferry: where vLLM does not start (engines.py).

    tools/gpu/mini.py --out DIR [--fake]

P prefills, D loads and decodes, T loads over tcp; R computes by itself what they should answer, and loads with checksums in its
turn. Tokens and the bytes of loaded blocks are judged. A row is a JSON line in DIR/mini.jsonl. The exit status is 1 if a row is
wrong, and 3 if PyTorch or kvferry does not work here.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asks import Answer, Ask
from engines import END_S, FAKES, NO_START, WORK, gaps, site_of_pack
from parties import Party, PartyError, answer_of, supervised
from rows import Figures, Rows
from sizes import HERE, SEED

LAYOUTS = {"apart": False, "together": True}
"""All layers of a block side by side: fewer and larger pieces."""
PARTIES = {"P": {"transports": "local,tcp", "checksum": "on"}, "D": {"transports": "local"},
           "R": {"transports": "local", "checksum": "on"}, "T": {"transports": "tcp"}}
START_LIMIT_S, ASK_LIMIT_S, CALL_LIMIT_S = 60.0, 60.0, 30.0
HANDS_OVER, TOO_EARLY = {"publish": "in order"}, {"publish": "too early"}
GONE = {"lease_expired", "lease_unknown"}
Tokens = list[int]


@dataclass(frozen=True)
class Size:
    model: dict[str, Any]
    prompts: int
    prompt_tokens: tuple[int, int]
    answer_tokens: int
    few: int
    stream_tokens: int


GPU = Size({"layers": 16, "hidden": 2048, "heads": 16, "kv_heads": 8, "head": 128, "vocabulary": 8192, "block_tokens": 16,
            "blocks": 700, "longest": 2064, "dtype": "bfloat16"}, 300, (1, 2000), 32, 16, 256)
"""64 KiB for a block and layer."""
CPU = Size({"layers": 3, "hidden": 64, "heads": 4, "kv_heads": 2, "head": 16, "vocabulary": 512, "block_tokens": 16,
            "blocks": 80, "longest": 264, "dtype": "float32"}, 40, (1, 200), 8, 8, 48)


class Minis:
    def __init__(self, rows: Rows, layout: str, size: Size, library: str, site: Path | None) -> None:
        self.rows, self.layout, self.size, self.fake = rows, layout, size, bool(library)
        chance = random.Random(SEED)
        self.prompts = [[chance.randrange(size.model["vocabulary"]) for _ in range(chance.randint(*size.prompt_tokens))]
                        for _ in range(size.prompts)]
        path = [*([str(site)] if site else []), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._up: dict[str, Party] = {}
        for name, own in PARTIES.items():
            options = {"shape": {**size.model, "together": LAYOUTS[layout]}, "own": own, "library": library}
            self._up[name] = Party(f"{layout}-{name}", [str(HERE / "mini_process.py"), json.dumps(options)],
                                   {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"} if self.fake else {"PYTHONPATH": os.pathsep.join(path)},
                                   WORK / "logs/mini")
        self._expected: dict[tuple[int, ...], Tokens] = {}

    def close(self) -> None:
        for party in self._up.values():
            party.close()

    def send(self, name: str, prompt: Tokens, tokens: int, params: dict[str, Any] | None = None) -> Future[Answer]:
        return self._up[name].submit("ask", Ask(prompt, tokens, params))

    def wait(self, future: Future[Answer]) -> Answer:
        answer: Answer = answer_of(future, min(ASK_LIMIT_S, self.rows.left_s()))
        return answer

    def call(self, name: str, call: str, *args: Any) -> Any:
        return self._up[name].call(call, *args, limit_s=CALL_LIMIT_S)

    def hand_over(self, prompt: Tokens, how: dict[str, str] = HANDS_OVER) -> dict[str, Any]:
        answer = self.wait(self.send("P", prompt, 0, how))
        if not answer.params:
            raise PartyError(f"P gave no ticket ({answer.reason})")
        return answer.params

    def expected(self, prompts: list[Tokens]) -> list[Tokens]:
        asked = {tuple(prompt): self.send("R", prompt, self.size.answer_tokens) for prompt in prompts if tuple(prompt) not in self._expected}
        self._expected |= {key: self.wait(future).tokens for key, future in asked.items()}
        return [self._expected[tuple(prompt)] for prompt in prompts]

    @contextmanager
    def counted(self, name: str) -> Iterator[dict[str, int]]:
        before, grown = self.call(name, "numbers"), dict[str, int]()
        yield grown
        after = self.call(name, "numbers")
        grown |= {key: after[key] - before.get(key, 0) for key in after}

    def judged(self, name: str, prompts: list[Tokens], answers: list[Answer], handed: list[dict[str, Any]], loads: int | None) -> Figures:
        """`loads`: how many there have to be; None: what is missing was computed."""
        expected = self.expected(prompts)
        equal = sum(answer.tokens == right for answer, right in zip(answers, expected, strict=True))
        loaded = [(answer.params, ticket) for answer, ticket in zip(answers, handed, strict=True) if answer.params]
        arrived = self.call(name, "digests", [params["key"] for params, _ in loaded])
        sent = self.call("P", "digests", [ticket["key"] for _, ticket in loaded]) if loads is not None else arrived
        bytes_equal = sum(one == other for one, other in zip(arrived, sent, strict=True))
        reasons = sorted({answer.reason for answer in answers if answer.reason and not answer.params})
        return {"right": equal == len(prompts) and bytes_equal == len(loaded) and loads in (None, len(loaded)), "equal": equal,
                "of": len(prompts), "loads": len(loaded), "bytes_equal": bytes_equal, **({"reasons": reasons} if reasons else {})}

    def load(self, name: str, prompts: list[Tokens], loads: int | None = None) -> Figures:
        """One after the other."""
        handed, answers = [], []
        for prompt in prompts:
            handed.append(self.hand_over(prompt))
            answers.append(self.wait(self.send(name, prompt, self.size.answer_tokens, {"ticket": handed[-1]["ticket"]})))
        return self.judged(name, prompts, answers, handed, len(prompts) if loads is None else loads)

    # ---- rows ----

    def start(self) -> Figures:
        facts = [party.ready(min(START_LIMIT_S, self.rows.left_s())) for party in self._up.values()]
        return {"right": True, **{key: facts[0][key] for key in ("device", "torch")}}

    def _control(self, spoil: Callable[[Tokens], Answer]) -> Figures:
        """Of prompts whose tokens are right by an ordinary load: how many are seen wrong."""
        prompts = [prompt for prompt in self.prompts if len(prompt) > 3 * self.size.model["block_tokens"]][:self.size.few]
        expected = self.expected(prompts)
        seen = sum(spoil(prompt).tokens != right for prompt, right in zip(prompts, expected, strict=True))
        return {"seen": seen, "of": len(prompts)}

    def _spoilt(self, how: str) -> Figures:
        def spoil(prompt: Tokens) -> Answer:
            ticket = self.hand_over(prompt)["ticket"]
            self.call("P", "spoil", how)
            return self.wait(self.send("D", prompt, self.size.answer_tokens, {"ticket": ticket}))
        figures = self._control(spoil)
        return {"right": figures["seen"] == figures["of"], **figures}

    def zeroed_block(self) -> Figures:
        return self._spoilt("zero")

    def reused_early(self) -> Figures:
        return self._spoilt("take")

    def _too_early(self, how: dict[str, str], params: dict[str, Any]) -> Figures:
        """Said, not judged: a device that is quick enough does not show it."""
        return self._control(lambda prompt: self.wait(self.send(
            "D", prompt, self.size.answer_tokens, {"ticket": self.hand_over(prompt, how)["ticket"], **params})))

    def published_early(self) -> Figures:
        return self._too_early(TOO_EARLY, {})

    def loaded_early(self) -> Figures:
        return self._too_early(HANDS_OVER, {"too early": True})

    def one_by_one(self) -> Figures:
        return self.load("D", self.prompts[:4 * self.size.few])

    def at_once(self) -> Figures:
        """P's pool and D's are too small for all: blocks go from one request to the next while the device still works."""
        with self.counted("D") as grown:
            begin = time.monotonic()
            asked = [self.send("P", prompt, 0, HANDS_OVER) for prompt in self.prompts]
            handed, loading = [], []
            for prompt, future in zip(self.prompts, asked, strict=True):
                params = self.wait(future).params
                assert params is not None
                handed.append(params)
                loading.append(self.send("D", prompt, self.size.answer_tokens, {"ticket": params["ticket"]}))
            answers = [self.wait(future) for future in loading]
            seconds = time.monotonic() - begin
        figures = self.judged("D", self.prompts, answers, handed, len(self.prompts))
        copied_s = grown.get("device_copy_ns", 0) / 1e9
        return figures | {"prompts_per_s": round(len(self.prompts) / seconds), "mib": grown.get("loaded_bytes", 0) >> 20,
                          "gb_per_s_of_copies": round(grown.get("loaded_bytes", 0) / 1e9 / copied_s, 1) if copied_s else None}

    def ended(self) -> Figures:
        """Tickets of leases that have ended, and whose blocks others have been given."""
        prompts = self.prompts[:self.size.few]
        handed = []
        for prompt in prompts:
            handed.append(self.hand_over(prompt))
            self.call("P", "end_leases")
        for prompt in self.prompts[-self.size.few:]:
            self.hand_over(prompt)
            self.call("P", "end_leases")
        answers = [self.wait(self.send("D", prompt, self.size.answer_tokens, {"ticket": ticket["ticket"]}))
                   for prompt, ticket in zip(prompts, handed, strict=True)]
        figures = self.judged("D", prompts, answers, handed, 0)
        return figures | {"right": figures["right"] and set(figures["reasons"]) <= GONE}

    def stopped(self) -> Figures:
        prompts = self.prompts[:self.size.few]
        handed, answers = [], []
        for prompt in prompts:
            handed.append(self.hand_over(prompt))
            self._up["P"].stop()
            try:
                answers.append(self.wait(self.send("D", prompt, self.size.answer_tokens, {"ticket": handed[-1]["ticket"]})))
            finally:
                self._up["P"].go_on()
        return self.judged("D", prompts, answers, handed, len(prompts))

    def checksum(self) -> Figures:
        self.expected(self.prompts[:self.size.few])
        with self.counted("R") as grown:
            figures = self.load("R", self.prompts[:self.size.few])
        compared = grown["verified_blocks"]
        return figures | {"right": figures["right"] and compared == grown["loaded_blocks"] > 0, "verified_blocks": compared}

    def tcp(self) -> Figures:
        return self.load("T", self.prompts[:self.size.few])

    def capture(self) -> Figures:
        """Of a graph, on a thread of D's, in the mode global, while D loads."""
        said = self._up["D"].submit("capture")
        figures = self.load("D", self.prompts[:self.size.few])
        why = answer_of(said, CALL_LIMIT_S)
        return figures | {"right": figures["right"] and not why, "why": why}

    def latency(self) -> Figures:
        """Between two tokens of D's, alone and beside loads."""
        streams = [prompt for prompt in self.prompts if len(prompt) + self.size.stream_tokens < self.size.model["longest"]][:4]

        def begin() -> list[Future[Answer]]:
            return [self.send("D", prompt, self.size.stream_tokens) for prompt in streams]

        alone = [self.wait(future) for future in begin()]
        asked = begin()
        loads = self.load("D", self.prompts[-self.size.few:])
        beside = [self.wait(future) for future in asked]
        same = all(one.tokens == other.tokens for one, other in zip(alone, beside, strict=True))
        return {"right": same and loads["right"], "loads": loads["loads"], "alone": gaps(alone), "beside_loads": gaps(beside)}

    def killed(self) -> Figures:
        prompts = self.prompts[:self.size.few]
        self.expected(prompts)
        handed = [self.hand_over(prompt) for prompt in prompts[:4]]
        asked = [self.send("D", prompt, self.size.answer_tokens, {"ticket": ticket["ticket"]}) for prompt, ticket in zip(prompts, handed, strict=False)]
        self._up.pop("P").kill()
        return self.judged("D", prompts[:4], [self.wait(future) for future in asked], handed, None)


ROWS: dict[str, Callable[[Minis], Figures]] = {
    "zeroed block": Minis.zeroed_block, "reused early": Minis.reused_early, "published early": Minis.published_early,
    "loaded early": Minis.loaded_early, "one by one": Minis.one_by_one, "at once": Minis.at_once, "lease ended": Minis.ended,
    "P stopped": Minis.stopped, "checksum": Minis.checksum, "tcp": Minis.tcp, "capture": Minis.capture, "latency": Minis.latency,
    "P killed": Minis.killed}
NEEDS_A_GPU = ["published early", "loaded early", "capture"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--fake", action="store_true", help="on the CPU, with the fake of the driver")
    parser.add_argument("--minutes", type=float, default=4)
    given = parser.parse_args()
    if (status := supervised(60 * given.minutes + END_S)) is not None:
        return status
    rows = Rows(given.out / "mini.jsonl", given.minutes)
    library = next((str(path) for path in FAKES if path.exists()), "") if given.fake else ""
    if given.fake and not library:
        print("error: the fake of the driver is not built", file=sys.stderr)
        return 2
    site = None if given.fake else site_of_pack()
    for layout in LAYOUTS:
        minis = Minis(rows, layout, CPU if given.fake else GPU, library, site)
        try:
            if not rows.run(f"{layout}/start", minis.start)["right"]:
                return NO_START
            for name, judge in ROWS.items():
                if given.fake and name in NEEDS_A_GPU:
                    rows.skip(f"{layout}/{name}")
                else:
                    rows.run(f"{layout}/{name}", lambda judge=judge: judge(minis))  # type: ignore[misc]  # noqa: B023
        finally:
            minis.close()
    return 1 if rows.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
