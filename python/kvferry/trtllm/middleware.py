"""For trtllm-serve before a decode engine: an ASGI middleware that holds a request until its prompt's blocks are there, or
it is known that they will not be, or `hold_ms` have passed.

It never tokenises. It knows the ticket by a header, or the prompt by the token ids in the request's body:

    x-kvferry-ticket: kvf5.…              what the router has
    x-kvferry-producer: p-host:7301       which prefill engine is to be asked, if it is not all
    {"prompt": [1, 5, …]}                 /v1/completions
    {"prompt_token_ids": [1, 5, …]}       /v1/chat/completions, as TensorRT-LLM's own orchestrator sends it
"""

from __future__ import annotations

import base64
import binascii
import json
from array import array
from pathlib import Path
from typing import Any

from kvferry.engine.log import limited
from kvferry.engine.middleware import App, Message, Receive, Send
from kvferry.engine.wrapping import wrap_methods

from .config import Config, read_settings
from .deposit import deposit_soon, question
from .mailbox import LINE_BYTES_MAX, check_folder

PATHS = ("/v1/completions", "/v1/chat/completions")
TICKET, PRODUCER = b"x-kvferry-ticket", b"x-kvferry-producer"
BODY_BYTES_MAX = LINE_BYTES_MAX
"""Of larger bodies the token ids are not looked for."""


class Tickets:
    def __init__(self, app: App, mailbox: str | None = None, hold_ms: int | None = None) -> None:
        """Without them, as the engine's own: of the environment."""
        self._app = app
        settings = read_settings() if mailbox is None or hold_ms is None else {}
        self._mailbox = Config.mailbox_of(settings) if mailbox is None else mailbox
        self._hold_ms = Config.hold_ms_of(settings) if hold_ms is None else hold_ms

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in PATHS:
            await self._app(scope, receive, send)
            return
        read: list[Message] = []
        asked = await self._question(dict(scope["headers"]), receive, read)
        if asked is not None:
            await self._hold(asked)
        await self._app(scope, _replay(read, receive), send)

    async def _question(self, headers: dict[bytes, bytes], receive: Receive, read: list[Message]) -> bytes | None:
        ticket, producer = headers.get(TICKET), headers.get(PRODUCER)
        if ticket is not None:
            return question(ticket.decode("latin-1"), None, None, None, self._hold_ms)
        body = await _body(receive, read)
        found = None if body is None else token_ids(body)
        if found is None:
            return None
        return question(None, found[0], producer.decode("latin-1") if producer else None, found[1], self._hold_ms)

    async def _hold(self, asked: bytes) -> None:
        try:
            check_folder(Path(self._mailbox))
            await deposit_soon(self._mailbox, asked, self._hold_ms)
        except (OSError, ValueError, KeyError, TimeoutError) as error:
            limited.warning("kvferry: a request goes to the engine without its blocks: mailbox %s: %s", self._mailbox, error)


def token_ids(body: bytes) -> tuple[list[int], str | None] | None:
    """And the salt, if the body has token ids of one prompt."""
    try:
        asked: Any = json.loads(body)
        packed = asked.get("prompt_token_ids_b64")
        ids = array("i", base64.b64decode(packed, validate=True)).tolist() if packed else None
        ids = ids or asked.get("prompt_token_ids") or asked.get("prompt")
        array("I", ids)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, binascii.Error):
        return None
    salt = asked.get("cache_salt")
    return (ids, salt if isinstance(salt, str) else None) if isinstance(ids, list) and ids else None


async def _body(receive: Receive, read: list[Message]) -> bytes | None:
    """What is read is kept for the application. None: it is too large, or the client has left."""
    size = 0
    while size <= BODY_BYTES_MAX:
        message = await receive()
        read.append(message)
        if message["type"] != "http.request":
            return None
        size += len(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(one.get("body", b"") for one in read)
    return None


def _replay(read: list[Message], receive: Receive) -> Receive:
    waiting = iter(read)

    async def again() -> Message:
        return next(waiting, None) or await receive()

    return again


def install() -> None:
    """Puts it before every OpenAIServer of this process: to be called before trtllm-serve makes its own."""
    from tensorrt_llm.serve.openai_server import OpenAIServer

    def around(method: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        self.app.add_middleware(Tickets)
        return result

    wrap_methods(OpenAIServer, {"register_routes": around})
