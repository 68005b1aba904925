"""Looks at the decode engine while faults rain: has it noticed, is it alive?"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from dataclasses import dataclass

from pd import metrics
from pd.progress import say

from .cluster import Cluster

LOOK_EVERY_S = 0.5
LAST_LOOK_S = 15.0
STUCK_S = 90.0
"""Without a right answer for so long, D cannot go on by itself."""
START_S = 120.0
"""What a new D may take before it can be stuck."""
TROUBLE = ("kvferry_load_failures_total", "kvferry_load_retries_total", "kvferry_load_stalls_total",
           "kvferry_peer_failures_total", "vllm:nixl_num_failed_transfers_total",
           "vllm:nixl_num_failed_notifications_total")
DETECTION = "kvferry_detection_seconds"


@dataclass(frozen=True)
class Look:
    """What D had counted, so many seconds after the start."""

    at_s: float
    trouble: float


class Watch:
    """Use it as a context manager. Where D, which no fault ends, has ended or is stuck, it is started anew."""

    def __init__(self, cluster: Cluster, now_s: Callable[[], float], last_right_s: Callable[[], float]) -> None:
        self.looks: list[Look] = []
        self.d_restarts: list[str] = []
        self.detections = 0
        self.detection_s = 0.0
        """How many loads failed, and how long in all they had been without a byte, as the library has measured it."""
        self._cluster, self._now_s, self._last_right_s = cluster, now_s, last_right_s
        self._patient_until_s = STUCK_S
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            self._look()
            self._see_to_life()

    def _look(self) -> None:
        try:
            samples = self._cluster.consumer.samples()
        except (OSError, http.client.HTTPException):
            return
        self.looks.append(Look(self._now_s(), sum(metrics.total(samples, name) for name in TROUBLE)))
        self.detections = int(metrics.total(samples, DETECTION + "_count"))
        self.detection_s = metrics.total(samples, DETECTION + "_sum")

    def _see_to_life(self) -> None:
        now_s = self._now_s()
        process = self._cluster.consumer.process
        why = "it had ended" if not process.running() else ""
        if not why and now_s > max(self._last_right_s() + STUCK_S, self._patient_until_s):
            why = f"no right answer for {STUCK_S:.0f} s"
        if why:
            say(f"  {now_s:4.0f} s  D is started anew: {why}")
            self.d_restarts.append(f"{now_s:.0f} s: {why}")
            self._patient_until_s = now_s + START_S + STUCK_S
            self._cluster.kill(self._cluster.consumer)
            process.start()

    def noticed_s(self, begin_s: float, until_s: float) -> float | None:
        """From a fault's begin until D had counted trouble more than before, if it had by then."""
        before = [look.trouble for look in self.looks if look.at_s < begin_s]
        for look in self.looks:
            if begin_s <= look.at_s <= until_s and look.trouble > (before[-1] if before else 0.0):
                return look.at_s - begin_s
        return None

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join(LAST_LOOK_S if kind is None else LOOK_EVERY_S)
