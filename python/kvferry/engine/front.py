"""What an API server says of an engine that leaves (drain.py), for the middleware:

    GET /health          503 from the beginning of its leave
    POST of a prompt     503, typed and retryable, once it is closed
    GET /kvferry/ready   whether it is ready, and why not: for probes; needs no key
    GET /kvferry/drain   its state, and a nonce; POST: it leaves, if the nonce is answered with the shared key's proof
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from .drain import DRAIN_PROVED, STATE, Notice, notices, read_notice
from .errors import make_reply
from .forms import form_of
from .log import limited
from .questions import ask

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

HEALTH = ("/health", "/ping")
READY, DRAIN = "/kvferry/ready", "/kvferry/drain"
PROMPTS = ("/v1/", "/inference/", "/generate", "/invocations")
"""How the paths of prompts begin; what else one may ask, as who runs the engine does, goes on."""
RETRY_AFTER_MS = 1000
NONCE_S = 30
LOOK_S = 1.0  # how long an answer of the engine's is good for clients without a key
ASKING_MAX = 16  # who ask for a drain at a time
GRACE = re.compile(r"[0-9]{0,9}")
LEAVES = make_reply(503, RETRY_AFTER_MS, "draining", None, "This engine is leaving and takes no new prompts: ask another one.")


class Front:
    def __init__(self) -> None:
        self._folders: list[Path] = []  # of the engines behind this server
        self._closes_ns: int | None = None  # known once, it stays: engines end before their server
        self._secret = secrets.token_bytes(32)
        self._asking = 0
        self._one_asks = asyncio.Lock()
        self._seen: tuple[float, list[dict[str, Any]]] = 0.0, []

    # ---- what an adapter says ----

    def server_ends(self) -> None:
        self._note(time.monotonic_ns())

    # ---- one request ----

    async def answers(self, scope: Message, engine: Callable[[], str | None], send: Send) -> bool:
        """False: the request is for the application."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["method"] in ("GET", "HEAD") and path in HEALTH:
            if not self._leaves(engine):
                return False
            await _send_json(send, 503, {"status": "leaving"})
        elif path == READY:
            await self._say_ready(engine(), send)
        elif path == DRAIN:
            await self._drain(scope, engine(), send)
        elif scope["method"] == "POST" and path.startswith(PROMPTS):
            if not self._leaves(engine) or not self.is_closed:
                return False
            await _send(send, LEAVES.status, form_of(scope["path"]).body(LEAVES.error), LEAVES.headers)
        else:
            return False
        return True

    @property
    def is_closed(self) -> bool:
        """As far as the last request has seen."""
        return self._closes_ns is not None and time.monotonic_ns() >= self._closes_ns

    def _note(self, closes_ns: int) -> None:
        self._closes_ns = closes_ns if self._closes_ns is None else min(closes_ns, self._closes_ns)

    def _leaves(self, engine: Callable[[], str | None]) -> bool:
        for notice in self._notices(engine):
            if notice.closes_ns is not None:
                self._note(notice.closes_ns)
        return self._closes_ns is not None

    def _notices(self, engine: Callable[[], str | None]) -> list[Notice]:
        found = [notice for folder in self._folders if (notice := read_notice(folder)) is not None]
        if found and len(found) == len(self._folders):
            return found
        id_ = engine()
        try:
            named = {folder: notice for folder, notice in notices().items() if id_ is not None and notice.is_of(id_)}
        except OSError as error:
            limited.warning("kvferry: whether the engine leaves is not known: %s", error)
            return found
        self._folders = list(named)
        return list(named.values())

    # ---- what the engine says ----

    async def _say_ready(self, engine: str | None, send: Send) -> None:
        states = await self._look(engine)
        why_not = [why for state in states for why in state["why_not"]] or ([] if states else ["no engine answers"])
        await _send_json(send, 503 if why_not else 200, {"ready": not why_not, "why_not": why_not})

    async def _drain(self, scope: Message, engine: str | None, send: Send) -> None:
        if scope["method"] != "POST":
            states = [{name: state[name] for name in ("engine", "phase", "requests", "leases", "closes_in_ms")}
                      for state in await self._look(engine)]
            await _send_json(send, 200, {"nonce": self._nonce(), "engines": states})
            return
        headers = dict(scope["headers"])
        kind, nonce, proof = (headers.get(b"authorization", b"").decode("latin-1").split(" ") + ["", "", ""])[:3]
        grace = headers.get(b"kvferry-grace-ms", b"").decode("latin-1")
        if kind.lower() != "kvferry" or not self._is_ours(nonce) or not GRACE.fullmatch(grace):
            await _send_json(send, 403, {"refused": "not proved by the shared key"})
            return
        question = {"ask": DRAIN_PROVED, "nonce": nonce, "proof": proof, "grace_ms": int(grace) if grace else None}
        if self._asking == ASKING_MAX:
            await _send_json(send, 503, {"engines": []})
            return
        self._asking += 1
        try:
            async with self._one_asks:
                self._seen = 0.0, []
                states = await self._ask(engine, question)
        except PermissionError as error:
            await _send_json(send, 403, {"refused": str(error)})
            return
        finally:
            self._asking -= 1
        await _send_json(send, 200 if states else 503, {"engines": states})

    def _nonce(self) -> str:
        """Good for NONCE_S, and for this server; nothing is kept of it. A drain that is asked for twice is one drain."""
        made = f"{int(time.monotonic()) + NONCE_S}.{secrets.token_hex(16)}"
        return f"{made}.{self._sign(made)}"

    def _sign(self, made: str) -> str:
        return hmac.digest(self._secret, made.encode(), "sha256").hex()

    def _is_ours(self, nonce: str) -> bool:
        made, _, signature = nonce.rpartition(".")
        return hmac.compare_digest(self._sign(made).encode(), signature.encode()) and time.monotonic() < int(made.split(".")[0])

    async def _look(self, engine: str | None) -> list[dict[str, Any]]:
        async with self._one_asks:  # who waits here takes what the first one was told
            if time.monotonic() >= self._seen[0]:
                states = await self._ask(engine, {"ask": STATE})
                self._seen = time.monotonic() + LOOK_S, states
            return self._seen[1]

    async def _ask(self, engine: str | None, question: dict[str, Any]) -> list[dict[str, Any]]:
        """All engines behind this server, or none of them. PermissionError: one refuses."""
        self._notices(lambda: engine)
        try:
            return [await asyncio.to_thread(ask, folder, question) for folder in self._folders]
        except PermissionError:
            raise
        except (OSError, ValueError) as error:
            limited.warning("kvferry: an engine does not answer: %s", error)
            return []


async def _send_json(send: Send, status: int, fields: dict[str, Any]) -> None:
    await _send(send, status, json.dumps(fields).encode())


async def _send(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [
        (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *(headers or [])]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
