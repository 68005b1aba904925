"""For the sender of a request to a decode engine: first its ticket, or the data to find it by, into the engine's mailbox.

    tokens, reason = deposit(path, ticket="kvf5.…")                    # a router that has the ticket
    tokens, reason = deposit(path, tokens=[1, 5, …], at="p-host:7301")  # the engine asks that producer for it

Then the request, after any answer: a prompt that is not loaded is computed.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import Any

ANSWER_BYTES_MAX = 4096
MARGIN_S = 1.0
"""That the mailbox may take beyond the time for which it was asked to hold."""


def question(ticket: str | None, tokens: Sequence[int] | None, at: str | None, salt: str | None, hold_ms: int) -> bytes:
    asked: dict[str, Any] = {"hold_ms": hold_ms}
    if ticket is not None:
        asked["ticket"] = ticket
    else:
        asked |= {"token_ids": list(tokens or ()), "at": at, "salt": salt}
    return json.dumps(asked, separators=(",", ":")).encode() + b"\n"


def read_answer(line: bytes) -> tuple[int, str]:
    answer = json.loads(line)
    return int(answer["tokens"]), str(answer["reason"])


def deposit(path: str, *, ticket: str | None = None, tokens: Sequence[int] | None = None, at: str | None = None,
            salt: str | None = None, hold_ms: int = 2000) -> tuple[int, str]:
    """How many tokens are ready, and if none, why. OSError, ValueError: no mailbox answers there."""
    with socket.socket(socket.AF_UNIX) as mailbox:
        mailbox.settimeout(hold_ms / 1000 + MARGIN_S)
        mailbox.connect(path)
        mailbox.sendall(question(ticket, tokens, at, salt, hold_ms))
        with mailbox.makefile("rb") as answers:
            return read_answer(answers.readline(ANSWER_BYTES_MAX))


async def deposit_soon(path: str, asked: bytes, hold_ms: int) -> tuple[int, str]:
    """The same for an event loop; `asked` is a question(). TimeoutError besides."""
    async def ask() -> tuple[int, str]:
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            writer.write(asked)
            await writer.drain()
            return read_answer(await reader.readline())
        finally:
            writer.close()
    return await asyncio.wait_for(ask(), hold_ms / 1000 + MARGIN_S)
