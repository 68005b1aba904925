"""Hooks of our connector raise, about once in a thousand steps of an engine (pd/raising.py)."""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter
from pathlib import Path

from pd import metrics
from pd.engine import Engine

from .cluster import Cluster

STEPS = "vllm:iteration_tokens_total_count"
STOPPED = "kvferry_transfers_stopped"
ONE_IN_STEPS = 1000
LOOK_EVERY_S = 1.0
OF_A_REQUEST = ("Scheduler.arrive", "Scheduler.offer", "Scheduler.admit", "Scheduler.finish")
OF_A_STEP = ("Scheduler.orders", "Scheduler.update", "Worker.before_forward", "Worker.start_loads")
"""All transfers of the engine stop with them."""
ONE_OF_A_STEP_IN = 10
WHEN = ("before", "after")


class Raiser:
    """Use it as a context manager. What it has armed, and nobody has met, is disarmed at the end."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.raised: Counter[str] = Counter()
        self._cluster, self._rng = cluster, random.Random(f"{seed}/hooks")
        self._steps: dict[str, int] = {}
        self._armed: dict[str, Path] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            for engine in self._cluster.engines:
                if engine.name in self._cluster.serving:
                    self._look(engine)

    def _look(self, engine: Engine) -> None:
        name, armed = engine.name, self._armed.get(engine.name)
        if armed is not None and not armed.exists():
            self.raised[f"{self._armed.pop(name).stem} raises"] += 1
        try:
            samples = engine.samples()
        except (OSError, http.client.HTTPException):
            return
        if metrics.total(samples, STOPPED):
            self._cluster.stopped.add(name)
        steps = int(metrics.total(samples, STEPS))
        new = max(0, steps - self._steps.get(name, steps))
        self._steps[name] = steps
        if name not in self._armed and any(self._rng.randrange(ONE_IN_STEPS) == 0 for _ in range(new)):
            self._arm(name)

    def _arm(self, name: str) -> None:
        hook = self._rng.choice(OF_A_STEP if self._rng.randrange(ONE_OF_A_STEP_IN) == 0 else OF_A_REQUEST)
        folder = self._cluster.raising[name]
        unseen = folder / "new"
        unseen.write_text(self._rng.choice(WHEN))
        self._armed[name] = unseen.rename(folder / f"{hook}.0")

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        for armed in self._armed.values():
            armed.unlink(missing_ok=True)

    def __enter__(self) -> Raiser:
        if self._cluster.mix.hooks_raise:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
