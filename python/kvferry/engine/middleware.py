"""Tells the client of a failed request why it failed, and when to retry: an ASGI middleware for servers of OpenAI's and
Anthropic's APIs.

An engine's own error says nothing, and comes inside a stream that has begun with status 200. The start of a stream is
therefore held until its first chunk with content, or its error, is there: it comes in one go with the chunk before.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from .errors import Reply, errors_folder, find_failure, sweep
from .forms import form_of
from .front import LEAVES, Front
from .log import limited, logger

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

HELD_MAX = 256  # chunks that may be held: one opens each choice of a chat
IS_HERE = "kvferry.errors"
"""In the scope of a request that goes through one already: a server may have it twice."""
REPLACED_HEADERS = (b"content-type", b"content-length", b"cache-control")


class KVErrors:
    def __init__(self, app: App) -> None:
        self._app = app
        self.front = Front()

    def request_id_of(self, scope: Message) -> str | None:
        """The server's, once its handler has left it in the request's scope."""
        raise NotImplementedError

    def engine_of(self, scope: Message) -> str | None:
        """The id of the engine behind this server, as the engine itself is told it."""
        return None

    def watch(self, scope: Message) -> None:
        """The server starts: front.server_ends() is to be called once it has been asked to end."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            self.watch(scope)
            await self._app(scope, receive, send)
            self._leave()
            return
        if scope["type"] == "http" and await self.front.answers(scope, lambda: self.engine_of(scope), send):
            return
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        if scope.setdefault(IS_HERE, self) is not self:
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})  # it has to be the same object all the way down
        gate = _Gate(self, scope, send)
        try:
            await self._app(scope, receive, gate)
        except Exception:
            if not await gate.break_off():
                raise
        else:
            await gate.end()

    def _leave(self) -> None:
        """A server that ends may have killed its engine, which could not remove its folder."""
        try:
            sweep(errors_folder())
        except OSError as error:
            logger.warning("kvferry: files of failures may be left: %s", error)

    def reply_to(self, scope: Message, since_ns: int) -> Reply | None:
        """None if the request has not failed for a transfer."""
        request_id = self.request_id_of(scope)
        if request_id is None:
            return None
        try:
            return find_failure(errors_folder(), request_id, since_ns)
        except (OSError, ValueError) as error:
            limited.warning("kvferry: request %s: why it failed is not known: %s", request_id, error)
            return None


class _Gate:
    """What one response goes through; each step takes a message."""

    __slots__ = ("_began_ns", "_errors", "_events", "_form", "_held", "_scope", "_send", "_step")

    def __init__(self, errors: KVErrors, scope: Message, send: Send) -> None:
        self._errors = errors
        self._scope = scope
        self._send = send
        self._form = form_of(scope["path"])
        self._began_ns = time.monotonic_ns()
        self._events = 0  # that the client has
        self._held: list[Message] = []
        self._step: Send = self._start

    async def __call__(self, message: Message) -> None:
        await self._step(message)

    async def _start(self, message: Message) -> None:
        if message["type"] != "http.response.start":
            await self._send(message)
        elif message["status"] >= 400:
            self._held.append(message)
            self._step = self._failed
        elif message["status"] == 200 and _is_stream(message):
            self._held.append(message)
            self._step = self._opening
        else:
            self._step = self._send
            await self._send(message)

    async def _failed(self, message: Message) -> None:
        reply = self._reply()
        if reply is None and self._held[0]["status"] >= 500 and self._errors.front.is_closed:
            reply = LEAVES  # the server is being taken down: vLLM's words are of that
        if reply is not None:
            await self._answer(reply)
        else:
            await self._release(message, self._send)

    async def _opening(self, message: Message) -> None:
        body = message.get("body", b"")
        is_over = body.startswith(self._form.ERRORS) or self._form.ends(body)
        if is_over and (reply := self._reply()) is not None:
            await self._answer(reply)
        elif self._form.opens(body) and len(self._held) <= HELD_MAX:
            self._held.append(message)
        else:
            await self._release(message, self._streaming)

    async def _streaming(self, message: Message) -> None:
        """A choice may fail after another has begun: its error can only be an event of the stream."""
        body = message.get("body", b"")
        if body.startswith(self._form.ERRORS) and (reply := self._reply()) is not None:
            message = {**message, "body": self._form.event(reply.error, self._events)}
        if not message.get("more_body", False):
            self._step = self._send
        await self._pass(message)

    async def _pass(self, message: Message) -> None:
        self._events += message.get("body", b"") != b""
        await self._send(message)

    async def _ignore(self, message: Message) -> None:
        """The client has its answer."""

    def _reply(self) -> Reply | None:
        return self._errors.reply_to(self._scope, self._began_ns)

    async def _release(self, message: Message, then: Send) -> None:
        await self.end()
        self._step = then
        await then(message)

    async def _answer(self, reply: Reply) -> None:
        body = self._form.body(reply.error)
        kept = [header for header in self._held[0].get("headers", ()) if header[0].lower() not in REPLACED_HEADERS]
        self._held = []
        self._step = self._ignore
        await self._send({"type": "http.response.start", "status": reply.status, "headers": [
            *kept, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *reply.headers]})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def end(self) -> None:
        """Lets go of what is held."""
        held, self._held = self._held, []
        for message in held:
            await self._pass(message)

    async def break_off(self) -> bool:
        """The application has raised: vLLM does so in streams of responses, which have no event for a failure.
        True: the client has been told of it."""
        is_stream = self._step in (self._opening, self._streaming)
        reply = self._reply() if is_stream else None
        if reply is None:
            await self.end()
        elif self._step == self._opening:
            await self._answer(reply)
        else:
            await self._send({"type": "http.response.body", "body": self._form.event(reply.error, self._events),
                              "more_body": False})
        return reply is not None


def _is_stream(start: Message) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(b"text/event-stream")
               for name, value in start.get("headers", ()))
