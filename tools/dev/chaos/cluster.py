"""Two prefill engines, a decode engine and what became of them: who is up, with which weights, what they have counted."""

from __future__ import annotations

import http.client
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pd import client, metrics, web
from pd.engine import Engine, EngineError, EngineSpec, Router
from pd.progress import wait_until
from pd.rig import PROBE
from pd.stack import START_LIMIT_S, Stack

from .injector import VARIABLE, Control
from .mixes import EXTENDED, Mix
from .plan import CONSUMER, PRODUCERS

ROUTER_ARGS = ("--prefill-policy", "random")
"""The router goes on asking a dead prefill engine: who tries again should not meet it each time."""
IDLE_POKE_S = 3.0
WARM_UP_LIMIT_S = 60.0
UPDATE_LIMIT_S = 20.0
COUNTED = ("kvferry_loaded_blocks_total", "vllm:num_preemptions_total")
GIVEN_BACK = "given_back"
"""Beside them: prompts that had been loaded, and waited for a place, when all was to be discarded."""
HELD = ("kvferry_leases", "kvferry_requests_open", "kvferry_loads_open", "kvferry_loads_not_released", "kvferry_blocks_quarantined")
"""What has to be 0 when all is quiet, as is the use of the pool."""


@dataclass(frozen=True)
class Deed:
    """What was done to an engine, on purpose or by itself: it is "gone", or gets other "weights"."""

    at_s: float
    engine: str
    what: str


def set_weights(engine: Engine, version: str, under_way: bool = False) -> None:
    """One that is written to by an extension has been read before."""
    if version.endswith(EXTENDED):
        engine.write_to_weights(version, UPDATE_LIMIT_S)
    else:
        engine.update_weights(Path(version), UPDATE_LIMIT_S, under_way)


def held_by(engine: Engine) -> dict[str, int]:
    """Blocks, and what stands behind them; all blocks where the engine does not answer. One block is vLLM's own."""
    try:
        samples = engine.samples()
    except (OSError, http.client.HTTPException):
        return {"blocks": engine.spec.blocks}
    found = {"blocks": round(metrics.total(samples, "vllm:kv_cache_usage_perc") * (engine.spec.blocks - 1)),
             **{name: int(metrics.total(samples, name)) for name in HELD}}
    return {name: number for name, number in found.items() if number}


class Cluster(Stack):
    """A Stack whose engines are P1, D, P2. Where calls below the library are to fail, with the injector in each."""

    def __init__(self, mix: Mix, connector: str, seed: int, library: Path, logs: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pd-")
        specs = mix.engines(connector, Path(self._folder.name))
        self.raising = {spec.name: Path(self._folder.name) / spec.name for spec in specs}
        """Folders of armed hooks."""
        for folder in self.raising.values():
            folder.mkdir()
        self.controls = {spec.name: Control(spec.name, seed + place) for place, spec in enumerate(specs) if mix.below}
        super().__init__([self._with_injector(spec, library) for spec in specs], logs, with_router=False)
        self.by_name = {engine.name: engine for engine in self.engines}
        if mix.below:
            self.router = Router([self.by_name[p].url for p in PRODUCERS], self.decode.url, logs, args=ROUTER_ARGS)
        self.mix = mix
        self.version = mix.versions[0]
        self.served = [(0.0, {self.version})]
        """Weights that D has had, and since when."""
        self.now_s: Callable[[], float] = time.monotonic
        self.deeds: list[Deed] = []
        self.serving: set[str] = set(self.by_name)
        self.stopped: set[str] = set()
        """Engines whose transfers have stopped, since a hook has raised."""
        self.problems: list[str] = []
        self.updates = 0  # of D
        self._paused = ""
        """The engine that gets new weights now."""
        self._counted: Counter[str] = Counter()
        """By D's former lives."""

    def _with_injector(self, spec: EngineSpec, library: Path) -> EngineSpec:
        if spec.name not in self.controls:
            return spec
        env = {**spec.connector.env, "LD_PRELOAD": str(library), VARIABLE: self.controls[spec.name].path}
        return replace(spec, connector=replace(spec.connector, env=env))

    # ---- what is done to engines ----

    def begin(self) -> Callable[[], float]:
        """Starts the clock."""
        start = time.monotonic()
        self.now_s = lambda: time.monotonic() - start
        return self.now_s

    def _note(self, engine: str, what: str) -> None:
        self.deeds.append(Deed(self.now_s(), engine, what))

    def done_to(self, engine: str, since_s: float) -> set[str]:
        return {deed.what for deed in self.deeds if deed.engine == engine and deed.at_s >= since_s}

    def was_paused(self, engine: str, since_s: float) -> bool:
        return engine == self._paused or "weights" in self.done_to(engine, since_s)

    def take_down(self, engine: Engine, end: Callable[[], None]) -> None:
        if engine.name == CONSUMER:
            self._counted = self.counted()
        self.serving.discard(engine.name)
        self._note(engine.name, "gone")
        end()

    def bring_up(self, engine: Engine) -> None:
        """In a thread of its own: that takes half a minute, and the first answer nearly as much again."""
        self.stopped.discard(engine.name)
        place = engine.process.argv.index("--model") + 1
        engine.process.argv[place] = self.version
        engine.start()
        threading.Thread(target=self._wait_for, args=(engine,), daemon=True).start()

    def _wait_for(self, engine: Engine) -> None:
        life = engine.process.pid
        try:
            wait_until(f"waiting for {engine.name}, started anew", engine.healthy, START_LIMIT_S)
        except (EngineError, TimeoutError):
            return  # who looks after life sees to it
        client.complete(engine.url, PROBE, 1, timeout_s=WARM_UP_LIMIT_S)
        if engine.process.running() and engine.process.pid == life:
            self.serving.add(engine.name)

    def give_weights(self, extended: bool) -> None:
        """The next version, or this one with what an extension writes to it."""
        old = self.version
        if extended:
            self._set_weights(old, old + EXTENDED)
        else:
            self.version = self.mix.versions[self.mix.versions.index(old) - 1]
            self._set_weights(old, self.version)

    def take_back_weights(self) -> None:
        """What an extension has written. D is the first, and under way: prompts are loaded, and wait for a place."""
        self._set_weights(self.version + EXTENDED, self.version, (CONSUMER,), under_way=True)
        self._set_weights(self.version + EXTENDED, self.version, PRODUCERS)

    def may_be_mixed(self, since_s: float) -> bool:
        return "weights" in self.done_to(CONSUMER, since_s)

    def _set_weights(self, old: str, new: str, names: Sequence[str] = (*PRODUCERS, CONSUMER), under_way: bool = False) -> None:
        """One engine after the other: between them, tickets are of other weights."""
        for name in names:
            self._note(name, "weights")
            self._paused = name
            if name == CONSUMER:
                self.updates += 1
                self.served.append((self.now_s(), {old, new}))
            try:
                set_weights(self.by_name[name], new, under_way)
            except EngineError as error:
                self.problems.append(f"weights could not be updated at {self.now_s():.0f} s: {error}")
            self._note(name, "weights")
            if name == CONSUMER:
                self.served.append((self.now_s(), {new}))
        self._paused = ""

    def versions_between(self, begin_s: float, end_s: float) -> set[str]:
        """Weights that D may have answered with."""
        first = max(place for place, (at_s, _) in enumerate(self.served) if at_s <= begin_s)
        return set().union(*(versions for at_s, versions in self.served[first:] if at_s <= end_s))

    def up(self, name: str) -> bool:
        engine = self.by_name[name]
        return (name in self.serving and engine.process.running()
                and web.get_status(engine.url + "/health", timeout_s=2.0) == 200)

    def warm_up(self) -> None:
        """An engine's first request takes seconds."""
        for engine in self.engines:
            client.complete(engine.url, PROBE, 1, timeout_s=WARM_UP_LIMIT_S)

    # ---- the end ----

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        for control in self.controls.values():
            control.switch_off()
        for engine in self.engines:
            engine.process.resume()

    def come_back(self) -> None:
        """Waits until all engines answer."""
        for engine in self.engines:
            try:
                wait_until(f"waiting for {engine.name}", lambda: engine.healthy() and engine.name in self.serving,  # noqa: B023
                           START_LIMIT_S)
            except (EngineError, TimeoutError) as error:
                self.problems.append(f"{engine.name} did not come back: {str(error)[:200]}")

    def left_held(self, limit_s: float) -> dict[str, dict[str, int]]:
        """What engines still hold after the limit. They tell when they step: each is given something to do."""
        end = time.monotonic() + limit_s
        while True:
            for engine in self.engines:
                client.complete(engine.url, PROBE, 1, timeout_s=IDLE_POKE_S)
            time.sleep(0.5)
            held = {engine.name: found for engine in self.engines if (found := held_by(engine))}
            if not held or time.monotonic() > end:
                return held

    def counted(self) -> Counter[str]:
        """By D, in all of its lives; without what it did just before it was killed by others."""
        try:
            samples = self.decode.samples()
        except (OSError, http.client.HTTPException):
            return self._counted
        found = Counter({name: int(metrics.total(samples, name)) for name in COUNTED})
        found[GIVEN_BACK] = int(metrics.total(samples, "kvferry_not_loaded_total", reason="discarded"))
        return self._counted + found

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for control in self.controls.values():
            control.close()
        self._folder.cleanup()
