"""`kvferry ready` and `kvferry drain`: what engines say of themselves, and how one is made to leave (engine/drain.py).

An engine of this user on this host is asked by its Unix socket. One elsewhere is asked by its API server, whose middleware
passes it on, with the shared key's proof.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .engine.drain import CLOSED, DRAIN, ENDED, ENDING, LEAVING, RANK, READY, STATE, notices, proof_of
from .engine.front import DRAIN as DRAIN_PATH
from .engine.questions import ask
from .key import read_keys

OK, NOT_YET, FAILED = range(3)
POLL_S = 0.5
HTTP_LIMIT_S = 5.0
MEANS = {LEAVING: "/health is 503, new prompts are computed", CLOSED: "new prompts are refused",
         ENDING: "no prompt is under way", ENDED: "nothing is under way, and no lease is out"}

Say = Callable[[str], object]
States = list[dict[str, Any]]


class Unreachable(Exception):
    """The text says who, and why."""


def _line(state: dict[str, Any]) -> str:
    left = f" for {state['closes_in_ms'] / 1000:.0f} s more" if state["phase"] == LEAVING else ""
    return (f"engine {state['engine']}: {state['phase']}: {MEANS.get(state['phase'], 'it takes prompts')}{left}; "
            f"{state['requests']} prompts under way, {state['leases']} leases out")


# ---- engines of this user on this host ----

def _folders(names: Sequence[str]) -> dict[Path, str]:
    """By folder the engine's id, all ranks of it. Unreachable: one of these names is no engine's."""
    try:
        found = notices()
    except OSError as error:
        raise Unreachable(f"no engine of this user can be found: {error}") from error
    for name in names:
        if not any(notice.is_of(name) for notice in found.values()):
            raise Unreachable(f"no engine {name} of this user on this host" + _listed(notice.engine for notice in found.values()))
    return {folder: notice.engine for folder, notice in found.items() if not names or any(map(notice.is_of, names))}


def _listed(engines: Iterable[str]) -> str:
    return "".join(f"\n  {engine}" for engine in sorted({RANK.sub("", one) for one in engines}))


def _ask(folder: Path, engine: str, question: dict[str, Any]) -> dict[str, Any]:
    try:
        return ask(folder, question)
    except PermissionError as error:
        raise Unreachable(f"engine {engine}: {error}") from error
    except (OSError, ValueError) as error:
        raise Unreachable(f"engine {engine} does not answer: {error}") from error


class Local:
    def __init__(self, names: Sequence[str], all_of_them: bool) -> None:
        self._engines = _folders(names)
        several = {RANK.sub("", engine) for engine in self._engines.values()}
        if not several:
            raise Unreachable("no engine of this user on this host")
        if len(several) > 1 and not names and not all_of_them:
            raise Unreachable("several engines of this user on this host: name one, or say --all" + _listed(several))

    def begin(self, grace_ms: int | None) -> States:
        return [_ask(folder, engine, {"ask": DRAIN, "grace_ms": grace_ms}) for folder, engine in self._engines.items()]

    def states(self) -> States:
        return [_ask(folder, engine, {"ask": STATE}) for folder, engine in self._engines.items()]


# ---- an engine anywhere, by its API server ----

class Remote:
    def __init__(self, url: str, key_file: Path | None) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise Unreachable(f"{url}: {error}") from error
        if parts.scheme not in ("http", "https") or host is None:
            raise Unreachable(f"{url} is not HOST:PORT, http:// or https://")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._url = url
        self._path = parts.path.rstrip("/") + DRAIN_PATH
        self._connect = lambda: kind(host, port, timeout=HTTP_LIMIT_S)
        try:
            self._key = read_keys(key_file)[0] if key_file is not None else None
        except (OSError, IndexError) as error:
            raise Unreachable(f"{key_file}: no key can be read: {error}") from error

    def begin(self, grace_ms: int | None) -> States:
        grace = "" if grace_ms is None else str(grace_ms)
        with closing(self._connect()) as connection:  # one, since each API server knows its own nonces
            nonce = self._exchange(connection, "GET", {}).get("nonce", "")
            if self._key is None:
                raise Unreachable(f"{self._url}: an engine elsewhere asks for the shared key: give --key-file, or KVFERRY_KEY_FILE")
            headers = {"authorization": f"kvferry {nonce} {proof_of(self._key, nonce, grace)}"}
            if grace:
                headers["kvferry-grace-ms"] = grace
            return list(self._exchange(connection, "POST", headers)["engines"])

    def states(self) -> States:
        with closing(self._connect()) as connection:
            return list(self._exchange(connection, "GET", {})["engines"])

    def _exchange(self, connection: http.client.HTTPConnection, method: str, headers: dict[str, str]) -> dict[str, Any]:
        try:
            connection.request(method, self._path, headers=headers)
            response = connection.getresponse()
            text = response.read(1 << 20)
            if response.status == 404:
                raise Unreachable(f"{self._url}: kvferry does not answer there: it is not the API server of a vLLM with kvferry, or "
                                  "VLLM_PLUGINS leaves kvferry out: then give vLLM --middleware kvferry.vllm.KVErrors")
            fields: dict[str, Any] = json.loads(text)
            if response.status == 403:
                raise Unreachable(f"{self._url}: refused: {fields['refused']}")
            if not fields.get("engines"):
                raise Unreachable(f"{self._url}: no engine answers behind it")
            for state in fields["engines"]:
                _line(state)  # raises where it is none
            return fields
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unreachable(f"{self._url}: {type(error).__name__}: {error}") from error


# ---- commands ----

def drain(targets: Sequence[str], all_of_them: bool, grace_ms: int | None, timeout_s: float, key_file: Path | None,
          say: Say) -> int:
    """Begins, and waits for the end: 0; 1: not within `timeout_s`, or an engine was gone before; 2: not all have begun."""
    try:
        remote = [target for target in targets if ":" in target]
        found: list[Local | Remote] = [Remote(url, key_file) for url in remote]
        if len(remote) < len(targets) or not targets:
            found.append(Local([target for target in targets if target not in remote], all_of_them))
        states = [state for one in found for state in one.begin(grace_ms)]
    except Unreachable as error:
        say(f"kvferry drain: {error}")
        return FAILED
    said: dict[str, str] = {}
    deadline = time.monotonic() + timeout_s
    while True:
        for state in states:
            line = _line(state)
            news = line.split(" for ")[0]  # the seconds that are left are none
            if said.get(state["engine"]) != news:
                say(line)
                said[state["engine"]] = news
        if all(state["phase"] == ENDED for state in states):
            return OK
        if time.monotonic() >= deadline:
            say(f"kvferry drain: not ended after {timeout_s:.0f} s")
            return NOT_YET
        time.sleep(POLL_S)
        try:
            states = [state for one in found for state in one.states()]
        except Unreachable as error:
            say(f"kvferry drain: {error}")
            return NOT_YET


def ready(names: Sequence[str], say: Say) -> int:
    """0: all of them are."""
    try:
        engines = _folders(names)
        states = [_ask(folder, engine, {"ask": READY}) for folder, engine in engines.items()]
    except Unreachable as error:
        say(f"not ready: {error}")
        return NOT_YET
    if not states:
        say("not ready: no engine of this user on this host, or none yet")
    for state in states:
        say(f"engine {state['engine']}: {'ready' if state['ready'] else 'not ready: ' + '; '.join(state['why_not'])}")
        for note in state["notes"]:
            say(f"  {note}")
    return OK if states and all(state["ready"] for state in states) else NOT_YET
