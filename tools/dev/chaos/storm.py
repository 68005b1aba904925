"""Carries a plan of faults out on a running cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pd.progress import say

from .cluster import Cluster
from .plan import PRODUCERS, Episode

LOOK_EVERY_S = 0.5
STUCK_S = 90.0
"""Without a right answer for so long, D cannot go on by itself."""
START_S = 120.0
"""What a new D may take before it can be stuck."""


@dataclass(frozen=True)
class Fault:
    """As it was. Times in seconds after the start."""

    episode: Episode
    begin_s: float
    end_s: float
    skipped: str = ""


class Storm:
    """Where D, which no fault ends, has ended or is stuck, it is started anew."""

    def __init__(self, cluster: Cluster, now_s: Callable[[], float], last_right_s: Callable[[], float]) -> None:
        self.faults: list[Fault] = []
        self.d_restarts: list[str] = []
        self._cluster, self._now_s, self._last_right_s = cluster, now_s, last_right_s
        self._patient_until_s = STUCK_S

    def run(self, plan: Sequence[Episode]) -> None:
        for episode in plan:
            self.wait(episode.begin_s)
            begin_s = self._now_s()
            skipped = self._why_not(episode)
            if not skipped:
                say(f"  {begin_s:4.0f} s  {episode.title}: {episode.engine}")
                self._begin(episode)
                try:
                    self.wait(episode.end_s)
                finally:
                    self._end(episode)
            self.faults.append(Fault(episode, begin_s, self._now_s(), skipped))

    def wait(self, until_s: float) -> None:
        while (left_s := until_s - self._now_s()) > 0:
            self._see_to_life()
            time.sleep(min(left_s, LOOK_EVERY_S))

    def _see_to_life(self) -> None:
        now_s, consumer = self._now_s(), self._cluster.decode
        why = "it had ended" if not consumer.process.running() else ""
        if not why and now_s > max(self._last_right_s() + STUCK_S, self._patient_until_s):
            why = f"no right answer for {STUCK_S:.0f} s"
        if why:
            say(f"  {now_s:4.0f} s  D is started anew: {why}")
            self.d_restarts.append(f"{now_s:.0f} s: {why}")
            self._patient_until_s = now_s + START_S + STUCK_S
            consumer.process.kill()
            consumer.start()

    def _why_not(self, episode: Episode) -> str:
        """An engine that is starting is left alone, and one prefill engine is always left."""
        needed = {"kill": PRODUCERS, "pause": (episode.engine,)}.get(episode.kind, ())
        return next((f"{name} was not up" for name in needed if not self._cluster.up(name)), "")

    def _begin(self, episode: Episode) -> None:
        engine = self._cluster.by_name[episode.engine]
        if episode.kind == "pause":
            engine.process.pause()
        elif episode.kind == "kill":
            engine.process.kill()
        else:
            self._cluster.controls[episode.engine].switch_on(episode.rules)

    def _end(self, episode: Episode) -> None:
        engine = self._cluster.by_name[episode.engine]
        if episode.kind == "pause":
            engine.process.resume()
        elif episode.kind == "kill":
            engine.start()
        else:
            self._cluster.controls[episode.engine].switch_off()
