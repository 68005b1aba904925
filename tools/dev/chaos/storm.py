"""Carries a plan of faults out on a running cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pd.engine import Engine
from pd.progress import SHOW_EVERY_S, say

from .cluster import Cluster
from .plan import EVERYBODY, PRODUCERS, Episode

LOOK_EVERY_S = 0.5
STUCK_S = 90.0
"""Without a right answer for so long, D cannot go on by itself."""
START_S = 120.0
"""What a new D may take before it can be stuck."""
ENDS = ("kill", "stop")
UPDATES = ("update", "extend")
RENEWED = Episode("ended and started anew, transfers had stopped", "stop", "", 0.0, 0.0)


@dataclass(frozen=True)
class Fault:
    """As it was. Times in seconds after the start."""

    episode: Episode
    begin_s: float
    end_s: float
    skipped: str = ""


class Storm:
    """An engine that has ended, which the plan did not say, or a D that is stuck, is started anew."""

    def __init__(self, cluster: Cluster, last_right_s: Callable[[], float], progress: Callable[[], str]) -> None:
        self.faults: list[Fault] = []
        self.restarts: list[str] = []
        self._cluster, self._now_s, self._last_right_s = cluster, cluster.now_s, last_right_s
        self._progress = progress
        self._down: set[str] = set()
        """By the plan."""
        self._patient_until_s = STUCK_S
        self._show_at_s = 0.0

    def run(self, plan: Sequence[Episode], until_s: float) -> None:
        late_s = 0.0
        for episode in plan:
            self.wait(late_s + episode.begin_s)
            self._renew_stopped()
            skipped = self._put_off(episode, min(self._now_s() + self._cluster.mix.patience_s, until_s))
            begin_s = self._now_s()
            if begin_s > until_s:
                break
            if not skipped:
                say(f"  {begin_s:4.0f} s  {episode.title}: {episode.engine}")
                self._begin(episode)
                try:
                    self.wait(begin_s + episode.end_s - episode.begin_s)
                finally:
                    self._end(episode)
            late_s = max(0.0, self._now_s() - episode.end_s)
            self.faults.append(Fault(episode, begin_s, self._now_s(), skipped))

    def _renew_stopped(self) -> None:
        """An engine whose transfers have stopped computes on, until somebody starts it anew."""
        for name in sorted(self._cluster.stopped):
            episode = replace(RENEWED, engine=name)
            if not self._why_not(episode):
                begin_s = self._now_s()
                say(f"  {begin_s:4.0f} s  {episode.title}: {name}")
                self._begin(episode)
                self._end(episode)
                self.faults.append(Fault(episode, begin_s, self._now_s()))

    def _put_off(self, episode: Episode, until_s: float) -> str:
        """Why it is left out; "" if it is not."""
        while (why := self._why_not(episode)) and self._now_s() < until_s:
            self.wait(self._now_s() + LOOK_EVERY_S)
        return why

    def wait(self, until_s: float) -> None:
        while (left_s := until_s - self._now_s()) > 0:
            self._see_to_life()
            if self._now_s() >= self._show_at_s:
                say(f"  {self._now_s():4.0f} s  {self._progress()}")
                self._show_at_s = self._now_s() + SHOW_EVERY_S
            time.sleep(min(left_s, LOOK_EVERY_S))

    def _see_to_life(self) -> None:
        for engine in self._cluster.engines:
            if engine.name not in self._down and not engine.process.running():
                self._replace(engine, "it had ended")
        if self._now_s() > max(self._last_right_s() + STUCK_S, self._patient_until_s):
            self._replace(self._cluster.decode, f"no right answer for {STUCK_S:.0f} s")

    def _replace(self, engine: Engine, why: str) -> None:
        now_s = self._now_s()
        say(f"  {now_s:4.0f} s  {engine.name} is started anew: {why}")
        self.restarts.append(f"{engine.name} at {now_s:.0f} s: {why}")
        self._cluster.take_down(engine, engine.process.kill)
        self._bring_up(engine)

    def _bring_up(self, engine: Engine) -> None:
        self._patient_until_s = self._now_s() + START_S + STUCK_S
        self._cluster.bring_up(engine)

    def _why_not(self, episode: Episode) -> str:
        """An engine that is starting is left alone, and one prefill engine is always left."""
        needed: Sequence[str] = ()
        if episode.kind in UPDATES:
            needed = EVERYBODY
        elif episode.kind in ENDS and episode.engine in PRODUCERS:
            needed = PRODUCERS
        elif episode.kind in ("pause", *ENDS):
            needed = (episode.engine,)
        return next((f"{name} was not up" for name in needed if not self._cluster.up(name)), "")

    def _begin(self, episode: Episode) -> None:
        engine = self._cluster.by_name.get(episode.engine)
        if engine is None:
            self._cluster.give_weights(extended=episode.kind == "extend")
        elif episode.kind == "pause":
            engine.process.pause()
        elif episode.kind in ENDS:
            self._down.add(engine.name)
            self._cluster.take_down(engine, engine.process.kill if episode.kind == "kill" else engine.stop)
        else:
            self._cluster.controls[engine.name].switch_on(episode.rules)

    def _end(self, episode: Episode) -> None:
        engine = self._cluster.by_name.get(episode.engine)
        if episode.kind == "extend":
            self._cluster.take_back_weights()
        elif engine is None:
            return
        elif episode.kind == "pause":
            engine.process.resume()
        elif episode.kind in ENDS:
            self._bring_up(engine)
            self._down.discard(engine.name)
        else:
            self._cluster.controls[engine.name].switch_off()
