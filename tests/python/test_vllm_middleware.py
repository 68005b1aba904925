"""The middleware that gives errors of transfers their type, driven as a server and an application would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from fastapi import FastAPI, Request  # noqa: E402
from fastapi.responses import StreamingResponse  # noqa: E402
from fastapi.testclient import TestClient  # noqa: E402
from fakes import verdict  # noqa: E402
from kvferry import _kvferry  # noqa: E402
from kvferry.engine import errors, middleware  # noqa: E402
from kvferry.vllm import KVErrors  # noqa: E402
from kvferry.vllm.middleware import Failures  # noqa: E402
from vllm.entrypoints.generate.base.protocol import DeltaMessage, RequestResponseMetadata  # noqa: E402
from vllm.entrypoints.openai.chat_completion.protocol import (  # noqa: E402
    ChatCompletionResponseStreamChoice,
    ChatCompletionStreamResponse,
)
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response  # noqa: E402
from vllm.entrypoints.serve.exception_handling.handlers.vllm_error import generation_error_handler  # noqa: E402
from vllm.entrypoints.serve.middleware.x_request_id import XRequestIdMiddleware  # noqa: E402
from vllm.exceptions import GenerationError  # noqa: E402

Message = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]
PEER = "10.0.0.1:7000"
FAILED = verdict(_kvferry.ACTION_FAIL, _kvferry.LEASE_EXPIRED, retry_after_ms=730)
TYPED = {"error": {"type": "kv_transfer_error", "reason": "lease_expired", "retryable": True, "peer": PEER,
                   "message": "The producer has taken the blocks back.", "code": 500}}
VLLM_ERROR = create_error_response(GenerationError("Internal server error")).model_dump()
ERROR_EVENT = f"data: {json.dumps(VLLM_ERROR)}\n\n".encode()
DONE = b"data: [DONE]\n\n"
TOKEN = b'data: {"id":"cmpl-a","choices":[{"text":"x"}]}\n\n'


def chat_chunk(**delta: str) -> bytes:
    choice = ChatCompletionResponseStreamChoice(index=0, delta=DeltaMessage(**delta), logprobs=None, finish_reason=None)
    chunk = ChatCompletionStreamResponse(id="chatcmpl-a", object="chat.completion.chunk", created=1, choices=[choice],
                                         model="m", prompt_token_ids=None)
    return f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n".encode()


ROLE = chat_chunk(role="assistant", content="")
WORD = chat_chunk(content='"delta":{"role":"" "content":""')


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Failures]:
    """What an engine's process has."""
    for module in (errors, middleware):
        monkeypatch.setattr(module, "errors_folder", lambda: tmp_path)
    made = Failures(500)
    yield made
    made.close()


def start(status: int = 200, kind: bytes = b"application/json", *headers: tuple[bytes, bytes]) -> Message:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", kind), *headers]}


def body(data: bytes, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def stream(*chunks: bytes) -> list[Message]:
    return [start(200, b"text/event-stream; charset=utf-8"), *(body(chunk, True) for chunk in chunks), body(b"")]


def plain(status: int, content: object) -> list[Message]:
    return [start(status), body(json.dumps(content).encode())]


class Server:
    """Sends requests through the middleware; the application answers with messages and calls of functions."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Any]] = {}
        self.errors = KVErrors(self._app)

    async def _app(self, scope: Message, receive: Any, send: Send) -> None:
        name = scope["path"]
        scope.setdefault("state", {})["request_metadata"] = SimpleNamespace(request_id=name)
        for item in self.answers[name]:
            if callable(item):
                item()
            else:
                await send(item)
            await asyncio.sleep(0)

    async def ask(self, name: str, method: str = "POST") -> list[Message]:
        got: list[Message] = []

        async def send(message: Message) -> None:
            got.append(message)

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        await self.errors({"type": "http", "method": method, "path": name, "headers": []}, receive, send)
        return got

    def answer(self, *items: Any, name: str = "cmpl-a", method: str = "POST") -> list[Message]:
        self.answers[name] = list(items)
        return asyncio.run(self.ask(name, method))


def fail(engine: Failures, name: str = "cmpl-a", peer: str | None = PEER) -> Callable[[], None]:
    return lambda: engine.record(f"{name}-0-0123abcd", FAILED, peer)


def assert_typed(got: list[Message], status: int = 500, expected: Message = TYPED) -> None:
    first, second = got
    headers = dict(first["headers"])
    assert first["status"] == status and headers[b"content-type"] == b"application/json"
    assert headers[b"retry-after"] == b"1" and headers[b"retry-after-ms"] == b"730"
    assert len(first["headers"]) == len(headers)
    assert int(headers[b"content-length"]) == len(second["body"]) and not second["more_body"]
    assert json.loads(second["body"]) == expected


# ---- errors of transfers ----

def test_a_plain_request(engine: Failures) -> None:
    assert_typed(Server().answer(fail(engine), *plain(500, VLLM_ERROR)))


@pytest.mark.parametrize("chunks", [(), (ROLE,), (ROLE, ROLE)], ids=["completion", "chat", "chat of two choices"])
def test_a_stream_fails_before_any_byte(engine: Failures, chunks: tuple[bytes, ...]) -> None:
    assert_typed(Server().answer(fail(engine), *stream(*chunks, ERROR_EVENT, DONE)))


def test_an_error_that_comes_in_pieces(engine: Failures) -> None:
    assert_typed(Server().answer(fail(engine), start(500), body(b'{"err', True), body(b'or":1}', True), body(b"")))


def test_other_headers_stay(engine: Failures) -> None:
    got = Server().answer(fail(engine), start(500, b"x", (b"X-Request-Id", b"7"), (b"Content-Length", b"9")), body(b""))
    assert (b"X-Request-Id", b"7") in got[0]["headers"]
    assert [value for name, value in got[0]["headers"] if name.lower() == b"content-length"] != [b"9"]
    assert_typed(got)


def test_another_status(tmp_path: Path, engine: Failures) -> None:
    unavailable = Failures(503)
    got = Server().answer(fail(unavailable), *plain(500, VLLM_ERROR))
    assert_typed(got, 503, {"error": {**TYPED["error"], "code": 503}})
    unavailable.close()


def test_a_choice_that_fails_after_another_has_begun(engine: Failures) -> None:
    sent = stream(ROLE, WORD, ERROR_EVENT, DONE)
    got = Server().answer(*sent[:3], fail(engine), *sent[3:])
    assert got[:3] == sent[:3] and got[4:] == sent[4:]
    assert json.loads(got[3]["body"].removeprefix(b"data: ")) == TYPED and got[3]["body"].endswith(b"\n\n")


def test_many_at_once(engine: Failures) -> None:
    server = Server()
    kinds = [plain(500, VLLM_ERROR), stream(ERROR_EVENT, DONE), stream(ROLE, ERROR_EVENT, DONE)]
    good = stream(ROLE, WORD, DONE)
    for number in range(60):
        name = f"cmpl-{number}"
        failing = [fail(engine, name, f"peer {number}"), *kinds[number % 3]]
        server.answers[name] = good if number % 4 == 3 else failing

    async def ask_all() -> list[list[Message]]:
        return await asyncio.gather(*(server.ask(f"cmpl-{number}") for number in range(60)))

    for number, got in enumerate(asyncio.run(ask_all())):
        if number % 4 == 3:
            assert got == good
        else:
            assert_typed(got, expected={"error": {**TYPED["error"], "peer": f"peer {number}"}})


# ---- everything else ----

@pytest.mark.parametrize("sent", [
    plain(200, {"choices": []}), plain(404, {"error": "none"}), plain(500, VLLM_ERROR), plain(503, {"error": "full"}),
    stream(TOKEN, TOKEN, DONE), stream(ROLE, WORD, DONE), stream(ERROR_EVENT, DONE), stream(ROLE, ERROR_EVENT, DONE),
    stream(b": keep-alive\n\n", ROLE, WORD, DONE), stream(), stream(ROLE), [start(204), body(b"")],
    [start(200, b"text/event-stream")], [{"type": "http.response.debug"}, *plain(500, VLLM_ERROR)],
], ids=lambda sent: "")
def test_what_is_no_failed_transfer_stays_as_it_is(engine: Failures, sent: list[Message]) -> None:
    engine.record("cmpl-other-0-0123abcd", FAILED, PEER)
    assert Server().answer(*sent) == sent


def test_an_earlier_failure_is_not_this_one(engine: Failures) -> None:
    fail(engine)()
    sent = plain(500, VLLM_ERROR)
    assert Server().answer(*sent) == sent


def test_a_good_answer_of_a_request_that_had_failed(engine: Failures) -> None:
    sent = stream(ROLE, WORD, DONE)
    assert Server().answer(fail(engine), *sent) == sent


def test_other_methods_pass(engine: Failures) -> None:
    sent = plain(500, VLLM_ERROR)
    assert Server().answer(fail(engine), *sent, method="GET") == sent


def test_nothing_is_held_after_the_first_content(engine: Failures) -> None:
    """Each chunk is out before the application makes the next."""
    seen: list[int] = []
    server, got = Server(), []
    chunks = stream(ROLE, WORD, ROLE, WORD, DONE)

    async def app(scope: Message, receive: Any, send: Send) -> None:
        for chunk in chunks:
            await send(chunk)
            seen.append(len(got))

    async def send(message: Message) -> None:
        got.append(message)

    server.errors = KVErrors(app)
    asyncio.run(server.errors({"type": "http", "method": "POST", "headers": []}, None, send))
    assert seen == [0, 0, 3, 4, 5, 6, 7]


def test_holding_is_bounded(engine: Failures) -> None:
    sent = stream(*[ROLE] * (middleware.HELD_MAX + 5), ERROR_EVENT)
    got = Server().answer(*sent[:-2], fail(engine), *sent[-2:])
    assert got[:-2] == sent[:-2] and json.loads(got[-2]["body"].removeprefix(b"data: ")) == TYPED


def test_an_application_that_breaks_off(engine: Failures) -> None:
    def break_off() -> None:
        raise RuntimeError("broken")
    with pytest.raises(RuntimeError, match="broken"):
        Server().answer(start(500), break_off)


def test_without_a_folder(engine: Failures, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise PermissionError("not ours")
    monkeypatch.setattr(middleware, "errors_folder", none)
    sent = plain(500, VLLM_ERROR)
    assert Server().answer(fail(engine), *sent) == sent


def test_websockets_pass() -> None:
    called = []

    async def app(scope: Message, receive: Any, send: Any) -> None:
        called.append((scope, receive, send))

    asyncio.run(KVErrors(app)({"type": "websocket"}, "receive", "send"))  # type: ignore[arg-type]
    assert called == [({"type": "websocket"}, "receive", "send")]


def test_the_end_of_an_api_server_removes_what_killed_engines_left(engine: Failures, tmp_path: Path) -> None:
    left = tmp_path / "1-2"
    left.mkdir()

    async def app(scope: Message, receive: Any, send: Any) -> None:
        assert left.exists()

    asyncio.run(KVErrors(app)({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert not left.exists() and len(list(tmp_path.iterdir())) == 1


def test_the_folder_is_that_of_the_engines() -> None:
    assert middleware.errors_folder is errors.errors_folder


# ---- what it leans on in vLLM ----

def test_chat_streams_open_with_a_role_and_no_content() -> None:
    assert middleware.ROLE in ROLE and middleware.NO_CONTENT in ROLE
    assert middleware.ROLE not in WORD
    assert ERROR_EVENT.startswith(middleware.ERROR_EVENT) and not ROLE.startswith(middleware.ERROR_EVENT)


def test_an_engines_error_is_an_internal_one() -> None:
    assert VLLM_ERROR["error"]["code"] == 500


@pytest.mark.parametrize("path", ["/plain", "/stream"])
def test_inside_vllms_web_framework(engine: Failures, path: str) -> None:
    """What a handler leaves in its request's state is where the middleware looks, whatever lies between."""
    app = FastAPI()
    app.add_middleware(XRequestIdMiddleware)
    app.add_middleware(KVErrors)
    app.exception_handler(GenerationError)(generation_error_handler)

    def fail_request(request: Request) -> None:
        request.state.request_metadata = RequestResponseMetadata(request_id="cmpl-a")
        fail(engine)()

    @app.post("/plain")
    async def plain_request(request: Request) -> None:
        fail_request(request)
        raise GenerationError("Internal server error")

    @app.post("/stream")
    async def stream_request(request: Request) -> StreamingResponse:
        async def chunks() -> Any:
            fail_request(request)
            for chunk in (ROLE, ERROR_EVENT, DONE):
                yield chunk
        return StreamingResponse(chunks(), media_type="text/event-stream")

    reply = TestClient(app).post(path, headers={"X-Request-Id": "a"})
    assert reply.status_code == 500 and reply.json() == TYPED
    assert reply.headers["retry-after-ms"] == "730" and reply.headers["x-request-id"] == "a"
