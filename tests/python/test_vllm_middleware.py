"""The middleware that gives errors of transfers their type, driven as a server and an application would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import anthropic  # noqa: E402
import openai  # noqa: E402
from fastapi import FastAPI, Request  # noqa: E402
from fastapi.responses import StreamingResponse  # noqa: E402
from fastapi.testclient import TestClient  # noqa: E402
from fakes import verdict  # noqa: E402
from kvferry import _kvferry  # noqa: E402
from kvferry.engine import errors, forms, middleware  # noqa: E402
from kvferry.vllm import KVErrors  # noqa: E402
from kvferry.vllm.middleware import Failures  # noqa: E402
from openai.types.responses import ResponseErrorEvent, ResponseTextDeltaEvent  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.entrypoints.anthropic.protocol import AnthropicErrorResponse, AnthropicStreamEvent  # noqa: E402
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages  # noqa: E402
from vllm.entrypoints.generate.base.protocol import DeltaMessage, RequestResponseMetadata  # noqa: E402
from vllm.entrypoints.openai.chat_completion.protocol import (  # noqa: E402
    ChatCompletionResponseStreamChoice,
    ChatCompletionStreamResponse,
)
from vllm.entrypoints.openai.responses.api_router import _convert_stream_to_sse_events  # noqa: E402
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest  # noqa: E402
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses  # noqa: E402
from vllm.entrypoints.serve.engine.protocol import UsageInfo  # noqa: E402
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response  # noqa: E402
from vllm.entrypoints.serve.exception_handling.handlers.exception import exception_handler  # noqa: E402
from vllm.entrypoints.serve.exception_handling.handlers.vllm_error import generation_error_handler  # noqa: E402
from vllm.entrypoints.serve.middleware.x_request_id import XRequestIdMiddleware  # noqa: E402
from vllm.exceptions import GenerationError  # noqa: E402

Message = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]
COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
PEER = "10.0.0.1:7000"
FAILED = verdict(_kvferry.ACTION_FAIL, _kvferry.LEASE_EXPIRED, retry_after_ms=730)
TYPED = {"error": {"type": "kv_transfer_error", "reason": "lease_expired", "retryable": True, "peer": PEER,
                   "message": "The producer has taken the blocks back.", "code": 500}}
VLLM_ERROR = create_error_response(GenerationError("Internal server error")).model_dump()
ERROR_EVENT = f"data: {json.dumps(VLLM_ERROR)}\n\n".encode()
DONE = b"data: [DONE]\n\n"
TOKEN = b'data: {"id":"cmpl-a","choices":[{"text":"x"}]}\n\n'


def chat_item(**delta: str) -> ChatCompletionStreamResponse:
    choice = ChatCompletionResponseStreamChoice(index=0, delta=DeltaMessage(**delta), logprobs=None, finish_reason=None)
    return ChatCompletionStreamResponse(id="chatcmpl-a", object="chat.completion.chunk", created=1, choices=[choice],
                                        model="m", prompt_token_ids=None)


def chat_chunk(item: ChatCompletionStreamResponse) -> bytes:
    return f"data: {item.model_dump_json(exclude_unset=True)}\n\n".encode()


ROLE = chat_chunk(chat_item(role="assistant", content=""))
WORD = chat_chunk(chat_item(content='"delta":{"role":"" "content":""'))
USAGE_ITEM = ChatCompletionStreamResponse(id="chatcmpl-a", choices=[], created=1, model="m", usage=UsageInfo())
USAGE = chat_chunk(USAGE_ITEM)


async def responses_stream(words: int, **asked: Any) -> AsyncIterator[bytes]:
    """vLLM's own, of a request that fails after so many words."""
    serving: Any = object.__new__(OpenAIServingResponses)
    serving.use_harmony = False

    async def process(*arguments: Any) -> AsyncIterator[Any]:
        for word in range(words):
            yield arguments[-1](ResponseTextDeltaEvent(
                type="response.output_text.delta", content_index=0, delta=f"{word}", item_id="msg", logprobs=[],
                output_index=0, sequence_number=-1))
        raise GenerationError("Internal server error")

    serving._process_simple_streaming_events = process
    request = ResponsesRequest(input="x", model="m", stream=True, **asked)
    events = serving.responses_stream_generator(request, SamplingParams(), None, None, "m", None, None)
    async for event in _convert_stream_to_sse_events(events):
        yield event.encode()


async def messages_stream(words: int, fails: bool = True) -> AsyncIterator[bytes]:
    """The same of messages. Or it ends well."""
    serving: Any = object.__new__(AnthropicServingMessages)
    serving.stop_reason_map = {"stop": "end_turn"}  # of vLLM before 0.32
    takes_text = "str" in str(AnthropicServingMessages.message_stream_converter.__annotations__["generator"])
    end = create_error_response(GenerationError("Internal server error")) if fails else USAGE_ITEM
    items = [chat_item(role="assistant", content=""), *(chat_item(content=f"{word}") for word in range(words)), end]

    async def chat() -> AsyncIterator[Any]:
        for item in items:
            yield chat_chunk(item).decode() if takes_text else item
        if takes_text:
            yield DONE.decode()

    async for event in serving.message_stream_converter(chat()):
        yield event.encode()


def chunks_of(made: AsyncIterator[bytes]) -> list[bytes]:
    """Until it raises."""
    chunks: list[bytes] = []

    async def collect() -> None:
        async for chunk in made:
            chunks.append(chunk)

    with suppress(ValueError):
        asyncio.run(collect())
    return chunks


def responses_chunks(words: int, **asked: Any) -> list[bytes]:
    return chunks_of(responses_stream(words, **asked))


def messages_chunks(words: int) -> list[bytes]:
    """Without the error."""
    return [chunk for chunk in chunks_of(messages_stream(words)) if not chunk.startswith(b"event: error")]


CREATED, IN_PROGRESS = responses_chunks(0)
IN_BACKGROUND = responses_chunks(0, background=True, store=True)[0]
MESSAGE_START, MESSAGE_ERROR = chunks_of(messages_stream(0))
MESSAGE_ENDS = chunks_of(messages_stream(0, fails=False))[1:]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closes: Callable[[Any], Any]) -> Failures:
    """What an engine's process has."""
    for module in (errors, middleware):
        monkeypatch.setattr(module, "errors_folder", lambda: tmp_path)
    return closes(Failures(500))


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
        self.got: list[Message] = []
        self.errors = KVErrors(self._app)

    async def _app(self, scope: Message, receive: Any, send: Send) -> None:
        name = scope["name"]
        scope.setdefault("state", {})["request_metadata"] = SimpleNamespace(request_id=name)
        for item in self.answers[name]:
            if callable(item):
                item()
            else:
                await send(item)
            await asyncio.sleep(0)

    async def ask(self, name: str, method: str = "POST", path: str = COMPLETIONS) -> list[Message]:
        got = self.got = []

        async def send(message: Message) -> None:
            got.append(message)

        async def receive() -> Message:
            return {"type": "http.disconnect"}

        await self.errors({"type": "http", "method": method, "path": path, "name": name, "headers": []}, receive, send)
        return got

    def answer(self, *items: Any, name: str = "cmpl-a", **asked: str) -> list[Message]:
        self.answers[name] = list(items)
        return asyncio.run(self.ask(name, **asked))


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


def test_another_status(engine: Failures, closes: Callable[[Any], Any]) -> None:
    unavailable = closes(Failures(503))
    got = Server().answer(fail(unavailable), *plain(500, VLLM_ERROR))
    assert_typed(got, 503, {"error": {**TYPED["error"], "code": 503}})


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


def test_twice_on_one_server(engine: Failures) -> None:
    """By the plugin, and by --middleware."""
    server = Server()
    server.errors = KVErrors(server.errors)
    assert_typed(server.answer(fail(engine), *plain(500, VLLM_ERROR)))
    sent = stream(ROLE, WORD, ERROR_EVENT, DONE)
    got = server.answer(*sent[:3], fail(engine, "cmpl-b"), *sent[3:], name="cmpl-b")
    assert got[:3] == sent[:3] and got[4:] == sent[4:]
    assert json.loads(got[3]["body"].removeprefix(b"data: ")) == TYPED


# ---- the other APIs ----

def break_off() -> None:
    raise RuntimeError("Caught handled exception, but response already started.")


def in_form_of(path: str, error_type: str, **fields: Any) -> Message:
    """What a body of that API says."""
    error = {**TYPED["error"], **fields}
    return {"type": "error", "error": {**error, "type": error_type}} if path == MESSAGES else {"error": error}


def begun(path: str) -> list[bytes]:
    return responses_chunks(1) if path == RESPONSES else messages_chunks(1)


def test_a_stream_of_responses_fails_before_any_byte(engine: Failures) -> None:
    """vLLM has no event for that, and breaks off."""
    sent = stream(CREATED, IN_PROGRESS)[:-1]
    assert_typed(Server().answer(*sent, fail(engine), break_off, path=RESPONSES))


@pytest.mark.parametrize("chunks", [(), (MESSAGE_START,)], ids=["at once", "after the start"])
def test_a_stream_of_messages_fails_before_any_byte(engine: Failures, chunks: tuple[bytes, ...]) -> None:
    got = Server().answer(fail(engine), *stream(*chunks, MESSAGE_ERROR), path=MESSAGES)
    assert_typed(got, expected=in_form_of(MESSAGES, "api_error"))


@pytest.mark.parametrize("path, chunks", [
    (CHAT, [ROLE, DONE]), (CHAT, [ROLE, USAGE, DONE]), (MESSAGES, [MESSAGE_START, *MESSAGE_ENDS]),
    (MESSAGES, [MESSAGE_START, MESSAGE_ENDS[-1]])], ids=["chat", "with usage", "messages", "messages without usage"])
def test_a_stream_that_ends_as_if_it_had_not_failed(engine: Failures, path: str, chunks: list[bytes]) -> None:
    """vLLM 0.31's, of requests that fail before their first token."""
    assert_typed(Server().answer(fail(engine), *stream(*chunks), path=path), expected=in_form_of(path, "api_error"))
    assert Server().answer(*stream(*chunks), path=path, name="cmpl-b") == stream(*chunks)


@pytest.mark.parametrize("event", [b"error", b"response.failed"])
def test_a_vllm_that_has_an_event_for_it(engine: Failures, event: bytes) -> None:
    failed = b"event: " + event + b'\ndata: {"type":"' + event + b'"}\n\n'
    assert_typed(Server().answer(fail(engine), *stream(CREATED, IN_PROGRESS, failed), path=RESPONSES))


@pytest.mark.parametrize("status, mistake, error_type", [
    (500, None, "api_error"), (503, None, "overloaded_error"), (503, "no such policy", "invalid_request_error")])
def test_a_plain_request_for_a_message(engine: Failures, closes: Callable[[Any], Any], status: int, mistake: str | None,
                                       error_type: str) -> None:
    failures = closes(Failures(status))
    sent = plain(500, {"type": "error", "error": {"type": "api_error", "message": "Internal server error"}})
    got = Server().answer(lambda: failures.record("cmpl-a-0-0123abcd", FAILED, PEER, mistake), *sent, path=MESSAGES)
    code, said = (400, {"message": mistake}) if mistake else (status, {})
    assert_typed(got, code, in_form_of(MESSAGES, error_type, code=code, **said))


def test_a_path_before_the_apis_own(engine: Failures) -> None:
    got = Server().answer(fail(engine), *stream(MESSAGE_START, MESSAGE_ERROR), path="/a/model" + MESSAGES)
    assert_typed(got, expected=in_form_of(MESSAGES, "api_error"))


def test_a_stream_of_responses_that_has_begun(engine: Failures) -> None:
    sent = stream(*responses_chunks(2))[:-1]
    got = Server().answer(*sent, fail(engine), break_off, path=RESPONSES)
    assert got[:-1] == sent and not got[-1]["more_body"]
    name, data = got[-1]["body"].removesuffix(b"\n\n").split(b"\ndata: ")
    said = json.loads(data)
    assert name == b"event: error" and said["error"] == TYPED["error"]
    event = ResponseErrorEvent.model_validate(said, strict=True)
    assert (event.code, event.message) == ("kv_transfer_error", TYPED["error"]["message"])
    assert event.sequence_number == 1 + json.loads(sent[-1]["body"].split(b"data: ")[1])["sequence_number"] == 4


def test_a_stream_of_messages_that_has_begun(engine: Failures) -> None:
    sent = stream(*messages_chunks(2), MESSAGE_ERROR)
    got = Server().answer(*sent[:-2], fail(engine), *sent[-2:], path=MESSAGES)
    assert got[:-2] == sent[:-2] and got[-1] == sent[-1]
    name, data = got[-2]["body"].removesuffix(b"\n\n").split(b"\ndata: ")
    assert name == b"event: error" and json.loads(data) == in_form_of(MESSAGES, "api_error")
    for form in (AnthropicStreamEvent, AnthropicErrorResponse):
        assert form.model_validate_json(data).error.type == "api_error"


def read_by_client(path: str, got: list[Message]) -> Exception:
    """What that API's own client makes of an answer."""
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(got[0]["status"])
            for name, value in got[0]["headers"]:
                self.send_header(name.decode(), value.decode())
            self.end_headers()
            self.wfile.write(b"".join(message["body"] for message in got[1:]))

        def log_message(self, *_: Any) -> None:
            """The test says what was wrong."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.handle_request, daemon=True).start()
        arguments = {"api_key": "none", "base_url": f"http://127.0.0.1:{server.server_port}", "max_retries": 0}
        with pytest.raises((openai.APIError, anthropic.APIError)) as raised:
            if path == RESPONSES:
                list(openai.OpenAI(**arguments).responses.create(model="m", input="x", stream=True))
            else:
                client = anthropic.Anthropic(**arguments)
                list(client.messages.create(model="m", max_tokens=1, messages=[], stream=True))
    return raised.value


@pytest.mark.parametrize("path, error_type", [(RESPONSES, "kv_transfer_error"), (MESSAGES, "api_error")])
@pytest.mark.parametrize("has_begun", [False, True])
def test_its_own_client_raises_it(engine: Failures, path: str, error_type: str, has_begun: bool) -> None:
    opening = [CREATED, IN_PROGRESS] if path == RESPONSES else [MESSAGE_START]
    sent = stream(*(begun(path) if has_begun else opening))[:-1]
    end = [break_off] if path == RESPONSES else [body(MESSAGE_ERROR, True), body(b"")]
    error = read_by_client(path, Server().answer(*sent, fail(engine), *end, path=path))
    said = error.body if path == RESPONSES else error.body["error"]
    assert said == {**TYPED["error"], "type": error_type}
    assert getattr(error, "status_code", 200) == (200 if has_begun else 500)


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


@pytest.mark.parametrize("sent, asked", [
    (stream(ROLE, WORD, DONE), {}), (plain(500, VLLM_ERROR), {"method": "GET"}), (stream(MESSAGE_ERROR), {"path": "/v1/other"}),
], ids=["a good answer", "another method", "another path"])
def test_what_a_failed_request_may_say_all_the_same(engine: Failures, sent: list[Message], asked: dict[str, str]) -> None:
    assert Server().answer(fail(engine), *sent, **asked) == sent


@pytest.mark.parametrize("path, chunks, held", [
    (CHAT, [ROLE, WORD, ROLE, WORD, DONE], 2), (RESPONSES, [*responses_chunks(1), CREATED], 3),
    (RESPONSES, [IN_BACKGROUND, CREATED], 1), (MESSAGES, [*messages_chunks(1), MESSAGE_START], 2),
], ids=["chat", "responses", "responses in the background", "messages"])
def test_nothing_is_held_after_the_first_content(engine: Failures, path: str, chunks: list[bytes], held: int) -> None:
    """Each chunk is out before the application makes the next."""
    seen: list[int] = []
    server, got = Server(), []
    messages = stream(*chunks)

    async def app(scope: Message, receive: Any, send: Send) -> None:
        for message in messages:
            await send(message)
            seen.append(len(got))

    async def send(message: Message) -> None:
        got.append(message)

    server.errors = KVErrors(app)
    asyncio.run(server.errors({"type": "http", "method": "POST", "path": path, "headers": []}, None, send))
    assert seen == [0] * held + list(range(held + 1, len(messages) + 1)) and got == messages


def test_holding_is_bounded(engine: Failures) -> None:
    sent = stream(*[ROLE] * (middleware.HELD_MAX + 5), ERROR_EVENT)
    got = Server().answer(*sent[:-2], fail(engine), *sent[-2:])
    assert got[:-2] == sent[:-2] and json.loads(got[-2]["body"].removeprefix(b"data: ")) == TYPED


@pytest.mark.parametrize("path, sent", [
    (COMPLETIONS, [start(500)]), (CHAT, stream(ROLE)[:-1]), (RESPONSES, stream(CREATED, IN_PROGRESS)[:-1]),
    (RESPONSES, stream(*responses_chunks(1))[:-1]), (MESSAGES, [])], ids=lambda value: "")
def test_an_application_that_breaks_off(engine: Failures, path: str, sent: list[Message]) -> None:
    server = Server()
    with pytest.raises(RuntimeError, match="already started"):
        server.answer(*sent, break_off, path=path)
    assert server.got == sent


@pytest.mark.parametrize("sent", [[start(200), body(b"{", True)], stream(*responses_chunks(1))], ids=["body", "end"])
def test_an_application_that_breaks_off_elsewhere(engine: Failures, sent: list[Message]) -> None:
    """In a body, and after the end of a stream, no event can be told, of a failed transfer either."""
    server = Server()
    with pytest.raises(RuntimeError):
        server.answer(*sent, fail(engine), break_off, path=RESPONSES)
    assert server.got == sent


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
    assert forms.OPENAI.opens(ROLE) and not forms.OPENAI.opens(WORD)
    assert ERROR_EVENT.startswith(forms.OPENAI.ERRORS) and not ROLE.startswith(forms.OPENAI.ERRORS)


def test_an_engines_error_is_an_internal_one() -> None:
    assert VLLM_ERROR["error"]["code"] == 500


def test_streams_of_the_other_apis_open_with_events_of_no_content() -> None:
    responses, messages = forms.form_of(RESPONSES), forms.form_of(MESSAGES)
    assert responses.opens(CREATED) and responses.opens(IN_PROGRESS) and messages.opens(MESSAGE_START)
    assert not responses.opens(IN_BACKGROUND) and not any(map(messages.opens, messages_chunks(1)[1:]))
    assert MESSAGE_ERROR.startswith(messages.ERRORS)
    assert all(map(messages.ends, MESSAGE_ENDS)) and len(MESSAGE_ENDS) == 2


ENDS = [("/plain", TYPED), (CHAT, TYPED), (RESPONSES, TYPED), (MESSAGES, in_form_of(MESSAGES, "api_error"))]


@pytest.mark.parametrize("path, expected", ENDS, ids=[path for path, _ in ENDS])
def test_inside_vllms_web_framework(engine: Failures, path: str, expected: Message) -> None:
    """What a handler leaves in its request's state is where the middleware looks, whatever lies between."""
    app = FastAPI()
    app.add_middleware(XRequestIdMiddleware)
    app.add_middleware(KVErrors)
    for kind, handler in ((GenerationError, generation_error_handler), (ValueError, exception_handler)):
        app.exception_handler(kind)(handler)

    def fail_request(request: Request) -> None:
        request.state.request_metadata = RequestResponseMetadata(request_id="cmpl-a")
        fail(engine)()

    @app.post("/plain")
    async def plain_request(request: Request) -> None:
        fail_request(request)
        raise GenerationError("Internal server error")

    async def chat() -> AsyncIterator[bytes]:
        for chunk in (ROLE, ERROR_EVENT, DONE):
            yield chunk

    async def stream_request(request: Request) -> StreamingResponse:
        fail_request(request)
        return StreamingResponse(streams[request.url.path](), media_type="text/event-stream")

    streams = {CHAT: chat, RESPONSES: lambda: responses_stream(0), MESSAGES: lambda: messages_stream(0)}
    for name in streams:
        app.post(name)(stream_request)
    reply = TestClient(app).post(path, headers={"X-Request-Id": "a"})
    assert reply.status_code == 500 and reply.json() == expected
    assert reply.headers["retry-after-ms"] == "730" and reply.headers["x-request-id"] == "a"
