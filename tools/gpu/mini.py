#!/usr/bin/env python3
"""Small engines in PyTorch alone that hand KV to each other by kvferry: where vLLM does not start (engines.py).

    tools/gpu/mini.py --out DIR                on a GPU, with kvferry of tools/gpu/pack --vllm, or installed
    tools/gpu/mini.py --out DIR --fake         on the CPU, with the fake of the driver; no figure means anything

P prefills, D loads and decodes, T loads over tcp. R computes by itself what they should answer, and loads with checksums in its
turn. Tokens and the bytes of loaded blocks are judged. A row is a JSON line in DIR/mini.jsonl as soon as it is known. The exit status
is 1 if a row is wrong, and 3 if PyTorch or kvferry does not work here.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asks import Answer
from engines import END_S, LEASE_REASONS, LOGS, NO_START, arguments, gaps, run_rows, site_of_pack, ticket_of
from parties import Parties, Ticket, Tokens, supervised
from rows import Figures, Rows
from sizes import HERE, PATIENT, SEED

LAYOUTS = {"apart": False, "together": True}
"""All layers of a block side by side: fewer and larger pieces."""
PARTIES = {"P": {"transports": "local,tcp", "checksum": "on"}, "D": {"transports": "local"},
           "R": {"transports": "local", "checksum": "on"}, "T": {"transports": "tcp"}}
"""kvferry's options."""
HANDS_OVER, TOO_EARLY = {"publish": "in order"}, {"publish": "too early"}
START_LIMIT_S = 60.0
PUBLISHED_S = 1.0
"""Until a prompt whose ticket is there can be read: no number of the library's says that it can."""
STREAMS = 4


@dataclass(frozen=True)
class Size:
    model: dict[str, Any]
    """mini_process.Shape, but for the layout."""
    prompts: int
    prompt_tokens: tuple[int, int]
    answer_tokens: int
    few: int
    stream_tokens: int


GPU = Size({"layers": 16, "hidden": 2048, "heads": 16, "kv_heads": 8, "head": 128, "vocabulary": 8192, "block_tokens": 16,
            "blocks": 700, "longest": 2064, "dtype": "bfloat16"}, 300, (1, 2000), 32, 16, 256)
"""64 KiB for a block and layer."""
CPU = Size({"layers": 3, "hidden": 64, "heads": 4, "kv_heads": 2, "head": 16, "vocabulary": 512, "block_tokens": 16,
            "blocks": 110, "longest": 264, "dtype": "float32"}, 40, (1, 200), 8, 8, 48)


class Minis(Parties):
    def __init__(self, rows: Rows, layout: str, size: Size, library: str, site: Path | None) -> None:
        self.size = size
        chance = random.Random(SEED)
        self.prompts = [[chance.randrange(size.model["vocabulary"]) for _ in range(chance.randint(*size.prompt_tokens))]
                        for _ in range(size.prompts)]
        path = [*([str(site)] if site else []), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {"PYTHONPATH": os.pathsep.join(path), **({"OMP_NUM_THREADS": "1"} if library else {})}
        patience = PATIENT if library else {}
        shape = {**size.model, "together": LAYOUTS[layout]}
        words = {name: [str(HERE / "mini_process.py"), json.dumps({"shape": shape, "own": own | patience, "library": library})]
                 for name, own in PARTIES.items()}
        super().__init__(rows, layout, words, env, LOGS / "mini", size.answer_tokens)

    def hand_over(self, prompt: Tokens, how: dict[str, str] = HANDS_OVER) -> Ticket:
        return ticket_of(self.wait(self.send("P", prompt, 0, how)))

    def begin_load(self, name: str, prompt: Tokens, ticket: Ticket, **more: Any) -> Future[Answer]:
        return self.send(name, prompt, self.size.answer_tokens, {"ticket": ticket["ticket"], **more})

    def judged(self, name: str, prompts: list[Tokens], answers: list[Answer], tickets: list[Ticket], loads: int | None) -> Figures:
        """`loads`: how many there have to be; None: what is missing was computed, and P cannot be asked for its bytes."""
        equal = sum(answer.tokens == right for answer, right in zip(answers, self.expected(prompts), strict=True))
        loaded = [(answer.params, ticket) for answer, ticket in zip(answers, tickets, strict=True) if answer.params]
        figures: Figures = {"right": equal == len(prompts) and loads in (None, len(loaded)), "equal": equal, "of": len(prompts),
                            "loads": len(loaded)}
        if loads is not None:
            arrived = self.call(name, "digests", [params["key"] for params, _ in loaded])
            sent = self.call("P", "digests", [ticket["key"] for _, ticket in loaded])
            figures["bytes_equal"] = sum(one == other for one, other in zip(arrived, sent, strict=True))
            figures["right"] = figures["right"] and figures["bytes_equal"] == len(loaded)
        if reasons := sorted({str(answer.reason) for answer in answers if not answer.params}):
            figures["reasons"] = reasons
        return figures

    def load_each(self, name: str, prompts: list[Tokens]) -> Figures:
        """One after the other."""
        tickets, answers = [], []
        for prompt in prompts:
            tickets.append(self.hand_over(prompt))
            answers.append(self.wait(self.begin_load(name, prompt, tickets[-1])))
        return self.judged(name, prompts, answers, tickets, len(prompts))

    # ---- rows ----

    def start(self) -> Figures:
        facts = self.facts(START_LIMIT_S)["D"]
        return {"right": True, "device": facts["device"], "torch": facts["torch"]}

    def _seen_wrong(self, spoilt: Callable[[Tokens], Answer]) -> Figures:
        prompts = [prompt for prompt in self.prompts if len(prompt) > 3 * self.size.model["block_tokens"]][:self.size.few]
        seen = sum(spoilt(prompt).tokens != right for prompt, right in zip(prompts, self.expected(prompts), strict=True))
        return {"seen": seen, "of": len(prompts)}

    def spoilt(self, how: str) -> Figures:
        def load(prompt: Tokens) -> Answer:
            ticket = self.hand_over(prompt)
            self.call("P", "spoil", how)
            return self.wait(self.begin_load("D", prompt, ticket))

        figures = self._seen_wrong(load)
        return {"right": figures["seen"] == figures["of"], **figures}

    def published_early(self) -> Figures:
        """Said, not judged: a device that is quick enough does not show it."""
        return self._seen_wrong(lambda prompt: self.wait(self.begin_load("D", prompt, self.hand_over(prompt, TOO_EARLY))))

    def loaded_early(self) -> Figures:
        """Said, not judged."""
        return self._seen_wrong(lambda prompt: self.wait(self.begin_load("D", prompt, self.hand_over(prompt), early=True)))

    def at_once(self) -> Figures:
        """The pools are too small for all: blocks go from one request to the next while the device still works."""
        begin = time.monotonic()
        with self.counted("D") as grown:
            handed = [self.send("P", prompt, 0, HANDS_OVER) for prompt in self.prompts]
            tickets, asked = [], []
            for prompt, future in zip(self.prompts, handed, strict=True):
                tickets.append(ticket_of(self.wait(future)))
                asked.append(self.begin_load("D", prompt, tickets[-1]))
            answers = [self.wait(future) for future in asked]
        seconds, copied_s, copied = time.monotonic() - begin, grown["device_copy_ns"] / 1e9, grown["bytes_loaded"]
        return self.judged("D", self.prompts, answers, tickets, len(self.prompts)) | {
            "prompts_per_s": round(len(self.prompts) / seconds, 1), "mib": copied >> 20,
            "copies_gb_per_s": round(copied / copied_s / 1e9, 2)}

    def ended(self) -> Figures:
        """Tickets of leases that have ended, and whose blocks others have been given."""
        prompts, tickets = self.prompts[:self.size.few], []
        for prompt in (*prompts, *self.prompts[-self.size.few:]):
            tickets.append(self.hand_over(prompt))
            self.call("P", "end_leases")
        tickets = tickets[:len(prompts)]
        answers = [self.wait(self.begin_load("D", prompt, ticket)) for prompt, ticket in zip(prompts, tickets, strict=True)]
        figures = self.judged("D", prompts, answers, tickets, 0)
        return figures | {"right": figures["right"] and set(figures["reasons"]) <= LEASE_REASONS}

    def stopped(self) -> Figures:
        """Once it has published: over local nothing more of P's processor is needed."""
        prompts, tickets, answers = self.prompts[:self.size.few], [], []
        for prompt in prompts:
            tickets.append(self.hand_over(prompt))
            time.sleep(PUBLISHED_S)
            self["P"].stop()
            try:
                answers.append(self.wait(self.begin_load("D", prompt, tickets[-1])))
            finally:
                self["P"].go_on()
        return self.judged("D", prompts, answers, tickets, len(prompts))

    def checksum(self) -> Figures:
        prompts = self.prompts[:self.size.few]
        self.expected(prompts)
        with self.counted("R") as grown:
            figures = self.load_each("R", prompts)
        compared = grown["blocks_verified"]
        return figures | {"right": figures["right"] and compared == grown["blocks_loaded"] > 0, "compared_blocks": compared}

    def capture(self) -> Figures:
        """Of a graph, on another thread of D's, in the mode global, while D loads."""
        prompts = self.prompts[:STREAMS]
        tickets = [self.hand_over(prompt) for prompt in prompts]
        asked = [self.begin_load("D", prompt, ticket) for prompt, ticket in zip(prompts, tickets, strict=True)]
        why = self.call("D", "capture")
        figures = self.judged("D", prompts, [self.wait(future) for future in asked], tickets, len(prompts))
        return figures | {"right": figures["right"] and not why, "why": why}

    def latency(self) -> Figures:
        """Between two tokens of D's, alone and beside loads."""
        streams = [prompt for prompt in self.prompts if len(prompt) + self.size.stream_tokens < self.size.model["longest"]][:STREAMS]
        alone = [self.wait(future) for future in self.send_each("D", streams, self.size.stream_tokens)]
        asked = self.send_each("D", streams, self.size.stream_tokens)
        loads = self.load_each("D", self.prompts[-self.size.few:])
        beside = [self.wait(future) for future in asked]
        same = all(one.tokens == other.tokens for one, other in zip(alone, beside, strict=True))
        return {"right": same and loads["right"], "loads": loads["loads"], "alone": gaps(alone), "beside_loads": gaps(beside)}

    def killed(self) -> Figures:
        """While D loads."""
        prompts = self.prompts[:STREAMS]
        self.expected(prompts)
        tickets = [self.hand_over(prompt) for prompt in prompts]
        asked = [self.begin_load("D", prompt, ticket) for prompt, ticket in zip(prompts, tickets, strict=True)]
        self.kill("P")
        return self.judged("D", prompts, [self.wait(future) for future in asked], tickets, None)


ROWS: dict[str, Callable[[Minis], Figures]] = {
    "start": Minis.start, "zeroed block": lambda minis: minis.spoilt("zero"), "reused early": lambda minis: minis.spoilt("take"),
    "published early": Minis.published_early, "loaded early": Minis.loaded_early,
    "one by one": lambda minis: minis.load_each("D", minis.prompts[:4 * minis.size.few]), "at once": Minis.at_once,
    "lease ended": Minis.ended, "P stopped": Minis.stopped, "checksum": Minis.checksum,
    "tcp": lambda minis: minis.load_each("T", minis.prompts[:minis.size.few]),
    "capture": Minis.capture, "latency": Minis.latency, "P killed": Minis.killed}
NEEDS_A_GPU = ["published early", "loaded early", "capture"]


def main() -> int:
    given = arguments(__doc__, 4)
    if (status := supervised(60 * given.minutes + END_S)) is not None:
        return status
    rows = Rows(given.out / "mini.jsonl", given.minutes, is_patient=given.fake)
    site = None if given.fake else site_of_pack()
    for layout in LAYOUTS:
        with closing(Minis(rows, layout, CPU if given.fake else GPU, given.library, site)) as minis:
            if not run_rows(rows, layout, ROWS, minis, NEEDS_A_GPU if given.fake else []):
                return NO_START
    return 1 if rows.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
