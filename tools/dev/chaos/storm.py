"""Carries a plan of faults out on a running cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pd.progress import say

from .cluster import Cluster
from .schedule import PRODUCERS, Act, Episode


@dataclass
class Happened:
    """A fault as it was. Times in seconds after the start."""

    episode: Episode
    begin_s: float
    end_s: float
    skipped: str = ""


class Storm:
    def __init__(self, cluster: Cluster, now_s: Callable[[], float]) -> None:
        self.happened: list[Happened] = []
        self.current: Episode | None = None
        self._cluster, self._now_s = cluster, now_s

    def run(self, plan: list[Episode]) -> None:
        for episode in plan:
            self._wait(episode.begin_s)
            why_not = self._why_not(episode)
            if why_not:
                now_s = self._now_s()
                self.happened.append(Happened(episode, now_s, now_s, why_not))
                continue
            say(f"  {self._now_s():4.0f} s  {episode.title}: {episode.engine}")
            self.current = episode
            begin_s = self._now_s()
            self._begin(episode)
            try:
                self._wait(episode.end_s)
            finally:
                self._end(episode)
                self.current = None
            self.happened.append(Happened(episode, begin_s, self._now_s()))

    def _wait(self, until_s: float) -> None:
        time.sleep(max(0.0, until_s - self._now_s()))

    def _why_not(self, episode: Episode) -> str:
        """An engine that is starting is left alone, and one prefill engine is always left."""
        if episode.act is Act.INJECT:
            return ""
        needed = PRODUCERS if episode.act is Act.KILL else (episode.engine,)
        return next((f"{name} was not up" for name in needed if not self._cluster.up(name)), "")

    def _begin(self, episode: Episode) -> None:
        engine = self._cluster.by_name[episode.engine]
        if episode.act is Act.INJECT:
            self._cluster.controls[episode.engine].switch_on(list(episode.rules))
        elif episode.act is Act.PAUSE:
            engine.process.pause()
        else:
            self._cluster.kill(engine)

    def _end(self, episode: Episode) -> None:
        engine = self._cluster.by_name[episode.engine]
        if episode.act is Act.INJECT:
            self._cluster.controls[episode.engine].switch_off()
        elif episode.act is Act.PAUSE:
            engine.process.resume()
        else:
            engine.start()
