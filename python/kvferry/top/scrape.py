"""Asks engines for their metrics."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from kvferry.metric_table import PREFIX, VLLM_PREFIX

ANSWER_BYTES_MAX = 32 << 20
SAMPLES_MAX = 100_000
LABEL_CHARS_MAX = 200
ENGINE_PREFIXES = (VLLM_PREFIX, PREFIX)
RAY_PREFIXES = tuple("ray_" + prefix.replace(":", "_") for prefix in ENGINE_PREFIXES)
"""Ray shows all its replicas on one page."""
OF_VLLM = ("vllm:", "ray_vllm_")
OLD_NAMES = {"path": "link"}
"""Labels as engines of the last release have them; those of this one have both names, with the same value."""


class Sample(NamedTuple):
    name: str
    """Without the prefix."""
    labels: dict[str, str]
    value: float


@dataclass
class Snapshot:
    """What one URL answered at one time, or why it did not."""

    url: str
    at: float
    samples: list[Sample] = field(default_factory=list)
    trouble: str = ""

    def total(self, name: str, **labels: str) -> float:
        return sum(sample.value for sample in self.samples if sample.name == name and labels.items() <= sample.labels.items())

    def by(self, name: str, *labels: str, **wanted: str) -> dict[tuple[str, ...], float]:
        """The sums of the series that have the wanted labels, by their values of `labels`."""
        sums: dict[tuple[str, ...], float] = {}
        for sample in self.samples:
            if sample.name == name and wanted.items() <= sample.labels.items():
                key = tuple(sample.labels.get(label, "") for label in labels)
                sums[key] = sums.get(key, 0.0) + sample.value
        return sums


class Trouble(Exception):
    """Text for a person: what is wrong, and what to do."""


def metrics_url(text: str) -> str:
    """The address of the metrics of an engine that was named as "host:port", or with scheme, or in full."""
    url = urllib.parse.urlsplit(text if "://" in text else "http://" + text)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise Trouble(f"'{text}' is not the URL of an engine: give it as HOST:PORT or http://HOST:PORT")
    try:
        _ = url.port
    except ValueError:
        raise Trouble(f"'{text}' has no good port: give it as HOST:PORT") from None
    path = url.path.rstrip("/")
    return url._replace(path=path if path.endswith("/metrics") else path + "/metrics", query="", fragment="").geturl()


def clean(text: str) -> str:
    """What an engine, or a peer of it, has named must not steer the terminal."""
    return "".join(c if c.isprintable() else "?" for c in text[:LABEL_CHARS_MAX])


def bare(name: str, prefixes: Sequence[str]) -> str:
    return next((name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)), name)


def parse(text: str, prefixes: Sequence[str] = ENGINE_PREFIXES, of_vllm: Sequence[str] = ()) -> list[Sample]:
    """kvferry's own samples, and vLLM's of these names, which begin with "vllm:" then. The rest, which may be much, is not looked at."""
    starts = (*prefixes, *(f"{start}{name}" for start in OF_VLLM for name in of_vllm))
    wanted = [line for line in text.split("\n") if line.removeprefix("# TYPE ").startswith(starts)]
    own, others = [], []
    for family in text_string_to_metric_families("\n".join(wanted[:SAMPLES_MAX]) + "\n"):
        for sample in family.samples:
            labels = {OLD_NAMES.get(name, name): clean(value) for name, value in sample.labels.items()}
            if sample.name.startswith(tuple(prefixes)):
                own.append(Sample(bare(sample.name, prefixes), labels, sample.value))
            else:
                others.append(Sample("vllm:" + bare(sample.name, OF_VLLM), labels, sample.value))
    if not own:
        raise Trouble("it has no kvferry metrics: start the engine with KVFerryConnector and without --disable-log-stats")
    return own + others


def read(url: str, timeout_s: float) -> str:
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            body: bytes = answer.read(ANSWER_BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise Trouble(f"it answers HTTP {error.code}: is this the port of a vLLM API server?") from None
    except (OSError, http.client.HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(cause, TimeoutError):
            raise Trouble(f"no answer in {timeout_s:g} s: the engine hangs, or cannot be reached from here") from None
        if isinstance(cause, ConnectionRefusedError):
            raise Trouble("connection refused: the engine is not up (yet), or listens on another port") from None
        if isinstance(cause, http.client.HTTPException):
            raise Trouble("it does not speak HTTP: is this the port of a vLLM API server?") from None
        said = clean(str(cause) or type(cause).__name__)
        raise Trouble(f"no answer ({said}): check host, port and network") from None
    if len(body) > ANSWER_BYTES_MAX:
        raise Trouble(f"its metrics are longer than {ANSWER_BYTES_MAX >> 20} MiB: this is not a vLLM API server")
    return body.decode(errors="replace")


def take(url: str, timeout_s: float, prefixes: Sequence[str] = ENGINE_PREFIXES, of_vllm: Sequence[str] = ()) -> Snapshot:
    try:
        text = read(url, timeout_s)
        try:
            return Snapshot(url, time.time(), parse(text, prefixes, of_vllm))
        except ValueError:
            raise Trouble("what it answers is not Prometheus text: is this the port of a vLLM API server?") from None
    except Trouble as trouble:
        return Snapshot(url, time.time(), trouble=str(trouble))


def take_all(urls: Sequence[str], timeout_s: float, prefixes: Sequence[str] = ENGINE_PREFIXES,
             of_vllm: Sequence[str] = ()) -> list[Snapshot]:
    """All at once: one that hangs keeps nobody waiting longer than the timeout."""
    with ThreadPoolExecutor(max_workers=min(len(urls), 32)) as pool:
        return list(pool.map(lambda url: take(url, timeout_s, prefixes, of_vllm), urls))
