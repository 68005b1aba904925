"""How each API tells an error, in a body and in a stream, and by what its streams open before there is any content."""

from __future__ import annotations

import json
from typing import Any

Error = dict[str, Any]


class Form:
    """Of OpenAI's completions and chats, and of other forms with the same errors."""

    ERRORS: tuple[bytes, ...] = (b'data: {"error"',)
    """How an event that tells one begins."""
    ROLE = b'"delta":{"role":'
    """Only the chunks that open a chat have it: in a text its quotation marks would be escaped."""
    NO_CONTENT = b'"content":""'
    DONE, USAGE_ALONE = b"data: [DONE]", b'"choices":[]'

    def opens(self, chunk: bytes) -> bool:
        return self.ROLE in chunk and self.NO_CONTENT in chunk

    def ends(self, chunk: bytes) -> bool:
        """No content comes any more. vLLM before 0.32 has nothing else for a chat that fails before its first token."""
        return chunk.startswith(self.DONE) or self.USAGE_ALONE in chunk

    def body(self, error: Error) -> bytes:
        return json.dumps({"error": error}).encode()

    def event(self, error: Error, number: int) -> bytes:
        """`number` events have gone out before it."""
        return b"data: " + self.body(error) + b"\n\n"


class Responses(Form):
    """OpenAI's. An event has the words of its own kind, and the error as bodies have it, which their clients raise."""

    ERRORS = (b"event: error\n", b"event: response.failed\n")
    OPENINGS = (b"event: response.created\n", b"event: response.in_progress\n")
    BACKGROUND = b'"background":true'
    """Its client waits for the response's name, by which it may come again."""

    def opens(self, chunk: bytes) -> bool:
        return chunk.startswith(self.OPENINGS) and self.BACKGROUND not in chunk

    def ends(self, chunk: bytes) -> bool:
        return False

    def event(self, error: Error, number: int) -> bytes:
        said = {"type": "error", "code": error["type"], "message": error["message"], "param": None,
                "sequence_number": number, "error": error}
        return b"event: error\ndata: " + json.dumps(said).encode() + b"\n\n"


class Messages(Form):
    """Anthropic's, which has a type for each status."""

    ERRORS = (b"event: error\n",)
    OPENING = b"event: message_start\n"
    ENDS = (b"event: message_delta\n", b"event: message_stop\n")
    TYPES = {400: "invalid_request_error", 503: "overloaded_error"}
    ANY_TYPE = "api_error"

    def opens(self, chunk: bytes) -> bool:
        return chunk.startswith(self.OPENING)

    def ends(self, chunk: bytes) -> bool:
        return chunk.startswith(self.ENDS)

    def body(self, error: Error) -> bytes:
        kind = self.TYPES.get(error["code"], self.ANY_TYPE)
        return json.dumps({"type": "error", "error": {**error, "type": kind}}).encode()

    def event(self, error: Error, number: int) -> bytes:
        return b"event: error\ndata: " + self.body(error) + b"\n\n"


OPENAI = Form()
OF_PATHS = {"v1/responses": Responses(), "v1/messages": Messages()}


def form_of(path: str) -> Form:
    """A server may have a path before its API's own."""
    return OF_PATHS.get("/".join(path.split("/")[-2:]), OPENAI)
