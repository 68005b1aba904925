"""An engine that leaves: its phases, who may ask for them, and what its API server, its operator and a probe are told."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import uvicorn  # noqa: E402
from engines import wait_until  # noqa: E402
from fastapi import FastAPI, Response  # noqa: E402
from fastapi.testclient import TestClient  # noqa: E402
from kvferry import cli, leave  # noqa: E402
from kvferry.engine import drain, errors, front, questions  # noqa: E402
from kvferry.engine.drain import (  # noqa: E402
    CLOSED,
    DRAIN,
    DRAIN_PROVED,
    ENDED,
    ENDING,
    LEAVING,
    OPEN,
    READY,
    SETTLE_NS,
    STATE,
    Drain,
    Look,
    Notice,
)
from kvferry.engine.questions import Questions, ask  # noqa: E402
from kvferry.vllm import KVErrors  # noqa: E402
from sides import Sides  # noqa: E402

KEY, OTHER_KEY = b"0123456789abcdef", b"fedcba9876543210"
NOBODY = 65534
COMPLETIONS = "/v1/completions"


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folders of engines of this test alone; a socket's path is short."""
    with tempfile.TemporaryDirectory(prefix="kvf-") as folder:
        monkeypatch.setattr(errors, "MEMORY_FOLDER", Path(folder))
        yield Path(folder)


class Engine:
    """What an engine core's process has of it."""

    def __init__(self, name: str = "engine", grace_ms: int = 60000, keys: tuple[bytes, ...] = (KEY,)) -> None:
        self.look = Look(0, 0, [], [])
        self.failures = errors.Failures(500)
        assert self.failures.folder is not None
        self.folder = self.failures.folder
        self.drain = Drain(self.folder, name, grace_ms, keys, lambda: self.look)
        self.questions = Questions(self.folder, self.drain.answer)

    def close(self) -> None:
        self.questions.close()
        self.failures.close()


@pytest.fixture
def engine(closes: Callable[[Any], Any]) -> Callable[..., Engine]:
    return lambda *arguments, **more: closes(Engine(*arguments, **more))


class Client:
    """vLLM's engine client, as far as an API server shows it."""

    def __init__(self, engine: str) -> None:
        self.vllm_config = SimpleNamespace(kv_transfer_config=SimpleNamespace(engine_id=engine))
        self.stopped: list[Any] = []

    def shutdown(self, timeout: float | None = None) -> None:
        self.stopped.append(timeout)


def server_of(name: str = "engine", status: int = 200) -> FastAPI:
    app = FastAPI()
    app.add_middleware(KVErrors)
    app.state.engine_client = Client(name)
    for path in (COMPLETIONS, "/v1/messages", "/pause"):
        app.post(path)(lambda: Response(status_code=status))
    for path in front.HEALTH:
        app.get(path)(lambda: Response(status_code=200))
    return app


# ---- phases ----

@pytest.mark.parametrize(("now_ns", "requests", "leases", "phase"), [
    (-1, 0, 0, LEAVING), (-1, 1, 1, LEAVING), (0, 0, 0, CLOSED), (SETTLE_NS - 1, 0, 3, CLOSED), (SETTLE_NS, 1, 0, CLOSED),
    (SETTLE_NS, 0, 1, ENDING), (SETTLE_NS, 0, 0, ENDED)])
def test_phases(now_ns: int, requests: int, leases: int, phase: str) -> None:
    assert drain.phase_of(10, 10 + now_ns, requests, leases) == phase
    assert drain.phase_of(None, 10 + now_ns, requests, leases) == OPEN


def test_ranks_are_of_their_engine() -> None:
    assert all(Notice(name, None).is_of("a") for name in ("a", "a_dp0", "a_dp11"))
    assert not any(Notice(name, None).is_of("a") for name in ("b", "ab", "a_dp", "a_dp1x", "b_dp0"))


def test_asked_twice_it_never_closes_later(engine: Callable[..., Engine]) -> None:
    one = engine(grace_ms=60000)
    assert ask(one.folder, {"ask": STATE})["phase"] == OPEN
    left_ms = ask(one.folder, {"ask": DRAIN})["closes_in_ms"]
    assert 50000 < left_ms <= 60000
    assert ask(one.folder, {"ask": DRAIN, "grace_ms": 3600_000})["closes_in_ms"] <= left_ms
    assert ask(one.folder, {"ask": DRAIN, "grace_ms": 5000})["closes_in_ms"] <= 5000
    one.drain.begin(0)
    assert ask(one.folder, {"ask": STATE})["phase"] == CLOSED


@pytest.mark.parametrize("question", [{}, {"ask": "end"}, {"ask": DRAIN, "grace_ms": -1}, {"ask": DRAIN, "grace_ms": True},
                                      {"ask": DRAIN, "grace_ms": "5"}, {"ask": DRAIN, "grace_ms": drain.GRACE_MS_MAX + 1}])
def test_what_is_no_question(engine: Callable[..., Engine], question: dict[str, Any]) -> None:
    one = engine()
    with pytest.raises(ValueError):
        ask(one.folder, question)
    assert ask(one.folder, {"ask": STATE})["phase"] == OPEN


# ---- who may ask ----

@pytest.mark.parametrize("line", [b"", b"x\n", b"[]\n", b"[" * 60000 + b"\n", b"{" + b" " * questions.LINE_BYTES_MAX + b"}\n"])
def test_words_that_are_no_question(engine: Callable[..., Engine], line: bytes) -> None:
    one = engine()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(one.folder / questions.SOCKET))
        try:
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(4096)
            assert answer.startswith(b'{"error"') and b"internal" not in answer
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has read enough
    assert ask(one.folder, {"ask": STATE})["phase"] == OPEN


def test_a_question_that_comes_byte_by_byte_holds_up_nobody(engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "LIMIT_S", 0.3)
    one = engine()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(one.folder / questions.SOCKET))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(20):
                connection.sendall(b" ")
                time.sleep(0.1)
    assert ask(one.folder, {"ask": STATE})["phase"] == OPEN


def as_another_user(do: Callable[[], bool]) -> bool:
    """In a process of its own."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os._exit(0 if do() else 1)
        finally:
            os._exit(2)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1)
    return status == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="to be another user takes root")
def test_another_user_of_this_host(engine: Callable[..., Engine], memory: Path) -> None:
    one = engine()

    def refuses(by_its_engine: bool) -> bool:
        try:
            ask(one.folder, {"ask": DRAIN})
        except PermissionError as error:
            return by_its_engine == (str(error) == questions.OTHER_USER)
        return False
    memory.chmod(0o755)
    assert as_another_user(lambda: refuses(by_its_engine=False)), "it has come to the socket"
    for path in (one.folder.parent, one.folder):  # as if somebody had opened them
        path.chmod(0o755)
    (one.folder / questions.SOCKET).chmod(0o777)
    assert as_another_user(lambda: refuses(by_its_engine=True)), "the kernel has not said who asks"
    assert ask(one.folder, {"ask": STATE})["phase"] == OPEN


def proved(client: TestClient, key: bytes, grace: str = "", nonce: str | None = None, said: str | None = None) -> Any:
    nonce = nonce or client.get(front.DRAIN).json()["nonce"]
    proof = drain.proof_of(key, nonce, grace)
    return client.post(front.DRAIN, headers={"authorization": f"kvferry {nonce} {proof}",
                                             "kvferry-grace-ms": grace if said is None else said})


def test_from_elsewhere_with_the_key_alone(engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    one, client = engine(keys=(OTHER_KEY, KEY)), TestClient(server_of())
    refused = [client.post(front.DRAIN), proved(client, b"x" * 16), proved(client, b""), proved(client, KEY, nonce="1.2.3"),
               proved(client, KEY, grace="5", said="6"), proved(client, KEY, grace="9" * 5000), proved(client, KEY, grace="x"),
               client.post(front.DRAIN, headers={"kvferry-grace-ms": "9" * 5000}),
               proved(client, KEY, nonce=TestClient(server_of()).get(front.DRAIN).json()["nonce"])]
    nonce = client.get(front.DRAIN).json()["nonce"]
    monkeypatch.setattr(front, "NONCE_S", -1)
    refused.append(proved(client, KEY))
    assert [reply.status_code for reply in refused] == [403] * len(refused)
    assert ask(one.folder, {"ask": STATE})["phase"] == OPEN
    reply = proved(client, KEY, grace="5000", nonce=nonce)
    assert reply.status_code == 200 and reply.json()["engines"][0]["phase"] == LEAVING
    assert ask(one.folder, {"ask": STATE})["closes_in_ms"] <= 5000
    assert client.get(front.DRAIN).json()["engines"][0]["phase"] == LEAVING, "and not what was seen before"


def test_an_engine_without_a_key_is_drained_on_its_host_alone(engine: Callable[..., Engine]) -> None:
    one, client = engine(keys=()), TestClient(server_of())
    reply = proved(client, b"")
    assert reply.status_code == 403 and "has no key" in reply.json()["refused"]
    assert ask(one.folder, {"ask": STATE})["phase"] == OPEN


# ---- what an API server says ----

def test_phases_at_an_api_server(engine: Callable[..., Engine]) -> None:
    """Several data-parallel ranks, of which one leaves; and a stranger of the same user that leaves too."""
    engine("engine_dp0")
    one, other = engine("engine_dp1"), engine("other")
    client = TestClient(server_of())
    other.drain.begin(0)
    assert [client.get(path).status_code for path in front.HEALTH] == [200, 200]
    assert client.post(COMPLETIONS).status_code == 200
    one.drain.begin(60000)
    assert [client.get(path).status_code for path in front.HEALTH] == [503, 503]
    assert client.post(COMPLETIONS).status_code == 200
    one.drain.begin(0)
    reply = client.post(COMPLETIONS)
    assert (reply.status_code, reply.headers["retry-after"], reply.headers["retry-after-ms"]) == (503, "1", "1000")
    assert reply.json()["error"] == front.LEAVES.error == front.LEAVES.error | {"reason": "draining", "retryable": True, "code": 503}
    assert client.post("/v1/messages").json()["error"]["type"] == "overloaded_error"
    assert client.post("/pause").status_code == 200, "who runs it may still ask"
    for each in (one, other):
        each.close()
    assert client.get("/health").status_code == 503 and client.post(COMPLETIONS).status_code == 503, "its engine has ended"


def test_an_engine_that_comes_later_is_found(engine: Callable[..., Engine]) -> None:
    client = TestClient(server_of())
    assert client.get("/health").status_code == 200 and client.get(front.READY).status_code == 503
    engine().drain.begin(0)
    assert client.get("/health").status_code == 503


def test_a_server_that_is_asked_to_end(engine: Callable[..., Engine]) -> None:
    """Before vLLM takes anything down, and whatever it says of a prompt that was on its way."""
    one, app = engine(), server_of(status=500)
    with TestClient(app) as client:
        assert client.post(COMPLETIONS).status_code == 500
        assert client.get("/health").status_code == 200
        app.state.engine_client.shutdown(timeout=7)
        assert app.state.engine_client.stopped == [7]
        one.drain.begin(60000)
        assert client.get("/health").status_code == 503
        assert client.post(COMPLETIONS).json()["error"] == front.LEAVES.error, "it does not open again"


@pytest.mark.parametrize("client", [None, SimpleNamespace(), SimpleNamespace(vllm_config=SimpleNamespace())])
def test_a_server_that_is_made_otherwise(client: Any) -> None:
    """By a vLLM that nobody knows: prompts go on."""
    app = server_of()
    app.state.engine_client = client
    with TestClient(app) as asks:
        assert [asks.post(COMPLETIONS).status_code, asks.get("/health").status_code] == [200, 200]


def test_a_prompt_that_the_end_overtakes(engine: Callable[..., Engine]) -> None:
    one, app = engine(), server_of()

    def overtaken() -> Response:
        one.drain.begin(0)
        client.get("/health")
        return Response("cannot schedule new futures after shutdown", 500)
    app.post("/v1/chat/completions")(overtaken)
    with TestClient(app) as client:
        reply = client.post("/v1/chat/completions")
    assert (reply.status_code, reply.json()["error"]) == (503, front.LEAVES.error)


def test_ready_by_http(engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "LOOK_S", 0.0)
    one, client = engine(), TestClient(server_of())
    one.look = Look(3, 2, [], ["peer 10.0.0.1:7000: control: not tried for now (peer_down)"])
    reply = client.get(front.READY)
    assert (reply.status_code, reply.json()) == (200, {"ready": True, "why_not": []}), "peers are nobody's business"
    one.look = Look(3, 2, ["no weights"], [])
    assert (client.get(front.READY).status_code, client.get(front.READY).json()["why_not"]) == (503, ["no weights"])
    one.look = Look(0, 0, [], [])
    one.drain.begin(60000)
    assert client.get(front.READY).json() == {"ready": False, "why_not": ["it leaves: leaving"]}


def test_who_asks_often_asks_the_engine_seldom(engine: Callable[..., Engine]) -> None:
    one, client = engine(), TestClient(server_of())
    assert client.get(front.READY).status_code == 200
    one.look = Look(0, 0, ["no weights"], [])
    assert client.get(front.READY).status_code == 200


def test_many_who_ask_at_once_cost_one_question_and_all_are_answered(engine: Callable[..., Engine],
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    engine()
    asked = []

    def slowly(folder: Path, question: dict[str, Any]) -> dict[str, Any]:
        asked.append(question)
        time.sleep(0.1)
        return ask(folder, question)
    monkeypatch.setattr(front, "ask", slowly)

    async def all_of_them() -> list[list[dict[str, Any]]]:
        one = front.Front()
        return await asyncio.gather(*(one._look("engine") for _ in range(100)))
    assert [len(states) for states in asyncio.run(all_of_them())] == [1] * 100
    assert len(asked) == 1


# ---- commands ----

def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = cli.main(list(words))
    return status, capsys.readouterr().out


def test_ready(engine: Callable[..., Engine], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "ready") == (1, "not ready: no engine of this user on this host, or none yet\n")
    one, _ = engine("a"), engine("b_dp0")
    assert run(capsys, "ready") in [(0, "engine a: ready\nengine b_dp0: ready\n"), (0, "engine b_dp0: ready\nengine a: ready\n")]
    one.look = Look(0, 0, ["no weights"], ["peer 10.0.0.1:7000: control: not tried for now (peer_down)"])
    assert run(capsys, "ready", "a") == (1, "engine a: not ready: no weights\n  peer 10.0.0.1:7000: control: not tried for now (peer_down)\n")
    one.look = one.look._replace(why_not=[])
    assert run(capsys, "ready", "a")[0] == 0
    one.drain.begin(60000)
    assert run(capsys, "ready", "a")[1].startswith("engine a: not ready: it leaves: leaving\n")
    assert run(capsys, "ready", "b") == (0, "engine b_dp0: ready\n")
    assert run(capsys, "ready", "c")[0] == 1
    one.questions.close()
    assert run(capsys, "ready", "a")[0] == 1


def test_drain_waits_for_the_last_lease(engine: Callable[..., Engine], capsys: pytest.CaptureFixture[str],
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "SETTLE_NS", 0)
    monkeypatch.setattr(leave, "POLL_S", 0.01)
    one = engine()
    one.look = Look(1, 2, [], [])
    assert run(capsys, "drain", "--timeout", "0.1", "--grace-ms", "0")[0] == 1
    threading.Timer(0.2, lambda: setattr(one, "look", Look(0, 2, [], []))).start()
    threading.Timer(0.5, lambda: setattr(one, "look", Look(0, 0, [], []))).start()
    status, said = run(capsys, "drain", "--grace-ms", "0")
    assert (status, said.splitlines()) == (0, [
        "engine engine: closed: new prompts are refused; 1 prompts under way, 2 leases out",
        "engine engine: ending: no prompt is under way; 0 prompts under way, 2 leases out",
        "engine engine: ended: nothing is under way, and no lease is out; 0 prompts under way, 0 leases out"])


def test_drain_names_the_engine(engine: Callable[..., Engine], capsys: pytest.CaptureFixture[str],
                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "SETTLE_NS", 0)
    assert run(capsys, "drain")[0] == 2
    ranks, other = [engine("a_dp0", 0), engine("a_dp1", 0)], engine("b", 0)
    assert run(capsys, "drain") == (2, "kvferry drain: several engines of this user on this host: name one, or say --all\n  a\n  b\n")
    assert run(capsys, "drain", "c")[0] == 2
    assert run(capsys, "drain", "a")[0] == 0
    assert [ask(one.folder, {"ask": STATE})["phase"] for one in (*ranks, other)] == [ENDED, ENDED, OPEN]
    assert run(capsys, "drain", "--all")[0] == 0 and ask(other.folder, {"ask": STATE})["phase"] == ENDED


def test_drain_of_an_engine_that_goes_before(engine: Callable[..., Engine], capsys: pytest.CaptureFixture[str],
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leave, "POLL_S", 0.3)
    one = engine(grace_ms=0)
    one.look = Look(0, 1, [], [])
    threading.Timer(0.1, one.close).start()
    status, said = run(capsys, "drain")
    assert status == 1 and "does not answer" in said


@pytest.fixture
def url() -> Iterator[str]:
    """Of a server with sockets."""
    server = uvicorn.Server(uvicorn.Config(server_of(), host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until("the server", lambda: server.started)
    yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def test_drain_by_its_api_server(engine: Callable[..., Engine], capsys: pytest.CaptureFixture[str], url: str, key_path: str,
                                 tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "SETTLE_NS", 0)
    monkeypatch.setattr(front, "LOOK_S", 0.0)
    one = engine()
    other_key = tmp_path / "other"
    other_key.write_bytes(OTHER_KEY)
    assert "give --key-file" in run(capsys, "drain", url)[1]
    assert "not proved" in run(capsys, "drain", url, "--key-file", str(other_key))[1]
    assert ask(one.folder, {"ask": STATE})["phase"] == OPEN
    status, said = run(capsys, "drain", f"http://{url}/", "--key-file", key_path, "--grace-ms", "0")
    assert status == 0 and said.startswith("engine engine: ended")


def test_drain_where_nobody_answers(capsys: pytest.CaptureFixture[str], url: str) -> None:
    assert "no engine answers" in run(capsys, "drain", url)[1]
    assert run(capsys, "drain", "127.0.0.1:1")[0] == 2
    for wrong in ("ftp://127.0.0.1:1", "127.0.0.1:99999", "127.0.0.1:port", "http://[::1", "http://"):
        assert run(capsys, "drain", wrong)[0] == 2


@pytest.mark.parametrize("answer, why", [(["no", "object"], "AttributeError"), ({"engines": ["no object"]}, "TypeError"),
                                         ({"engines": [{"engine": "e", "phase": "open"}]}, "KeyError")])
def test_drain_of_somebody_else_s_server(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, url: str,
                                         answer: Any, why: str) -> None:
    async def other(one: front.Front, scope: Any, engine: Any, send: front.Send) -> None:
        await front._send_json(send, 200, answer)
    monkeypatch.setattr(front.Front, "_drain", other)
    monkeypatch.setenv("KVFERRY_KEY_FILE", "")
    status, said = run(capsys, "drain", url)
    assert status == 2 and said.startswith(f"kvferry drain: {url}: {why}")


# ---- what an engine says of itself ----

def folder_of(sides: Sides) -> Path:
    folder = sides.scheduler._failures.folder
    assert folder is not None
    return folder


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch, closes: Callable[[Any], Any]) -> Sides:
    return closes(Sides(monkeypatch))


def state_of(sides: Sides) -> dict[str, Any]:
    return ask(folder_of(sides), {"ask": READY})


def test_leases_that_are_out(sides: Sides) -> None:
    assert state_of(sides)["leases"] == 0 and state_of(sides)["ready"]
    params = sides.prefill()
    assert state_of(sides)["leases"] == 1
    ask(folder_of(sides), {"ask": DRAIN, "grace_ms": 0})
    one = sides.begin(params)
    sides.until_received(one)
    sides.until_nothing_is_left()
    assert state_of(sides)["leases"] == 0 and state_of(sides)["phase"] in (CLOSED, ENDED)


def test_weights_without_an_identity_are_not_ready(sides: Sides) -> None:
    sides.scheduler.content.weights_change("reload_weights")
    assert "no identity" in state_of(sides)["why_not"][0]
    sides.scheduler.content.weights_named("v2")
    assert state_of(sides)["ready"]


def test_stopped_is_not_ready(sides: Sides) -> None:
    sides.scheduler.stop("a test")
    assert "internal error" in state_of(sides)["why_not"][0]


def test_a_stuck_load_is_not_ready_until_it_is_over(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    sides.scheduler._ask_ranks = lambda: asked.append(1)
    [worker] = sides.workers
    node, worker._node = worker._node, SimpleNamespace(poll=lambda: [], healthy=lambda: False)
    news = worker.report()
    worker._node = node
    assert not news.is_empty()
    sides.scheduler.receive([news])
    assert "not released" in state_of(sides)["why_not"][0] and asked
    sides.scheduler.receive([worker.report()])
    assert state_of(sides)["ready"]


def test_many_peers_in_trouble_are_no_trouble(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    link = SimpleNamespace(name="control", breaker="open", cause="peer_down")
    peers = [SimpleNamespace(address=f"10.0.{i // 256}.{i % 256}:7000", links=[link]) for i in range(4096)]
    with monkeypatch.context() as patch:
        patch.setattr(sides.scheduler, "_node", SimpleNamespace(peers=lambda: peers))
        state = state_of(sides)
    assert state["ready"] and len(state["notes"]) < 100 and state["notes"][-1] == f"and {4096 - len(state['notes']) + 1} more"


def test_a_shutdown_closes_at_once(sides: Sides) -> None:
    sides.scheduler.shutting_down()
    assert state_of(sides)["phase"] in (CLOSED, ENDED)
    assert drain.read_notice(folder_of(sides)) is not None


def test_the_engine_s_own_key_and_grace(monkeypatch: pytest.MonkeyPatch, closes: Callable[[Any], Any], key_path: str) -> None:
    made = closes(Sides(monkeypatch, key_file=key_path, drain_grace_ms=7000))
    with pytest.raises(PermissionError):
        ask(folder_of(made), {"ask": DRAIN_PROVED, "nonce": "n", "proof": drain.proof_of(OTHER_KEY, "n", "")})
    state = ask(folder_of(made), {"ask": DRAIN_PROVED, "nonce": "n", "proof": drain.proof_of(KEY, "n", "")})
    assert 6000 < state["closes_in_ms"] <= 7000
    assert json.loads(json.dumps(state)) == state


@pytest.mark.parametrize("grace_ms", [-1, "x", drain.GRACE_MS_MAX + 1])
def test_a_grace_that_is_none(monkeypatch: pytest.MonkeyPatch, grace_ms: object) -> None:
    with pytest.raises(ValueError, match="must be a whole number, 0 to 3600000"):
        Sides(monkeypatch, drain_grace_ms=grace_ms)
