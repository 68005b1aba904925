"""Every way in which a load can fail, by its reason: each goes through the same hands, is reported to vLLM once, skips what is
done with loaded blocks, leaves nothing on any book, and tells the client why."""

from __future__ import annotations

import ctypes
import mmap
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402
from engines import Log, wait_until  # noqa: E402
from fakes import POOL_BLOCKS, request  # noqa: E402
from fastapi import FastAPI, Request  # noqa: E402
from fastapi.testclient import TestClient  # noqa: E402
from kvferry import _kvferry  # noqa: E402
from kvferry.engine import errors, middleware  # noqa: E402
from kvferry.vllm import KVErrors  # noqa: E402
from sides import BLOCK_TOKENS, HEAD_SIZE, HEADS, TOKENS, Sides  # noqa: E402
from vllm.entrypoints.generate.base.protocol import RequestResponseMetadata  # noqa: E402
from vllm.entrypoints.serve.exception_handling.handlers.vllm_error import generation_error_handler  # noqa: E402
from vllm.exceptions import GenerationError  # noqa: E402
from vllm.v1.request import RequestStatus  # noqa: E402

HOST = "127.0.0.1"
QUICK = {"lease_ttl_ms": 500}
"""A producer that cannot be told keeps its lease for so long."""
PATIENT = {"lease_ttl_ms": 4000}
"""Longer than any failure takes to be found. A consumer that gives up leaves its lease for so long to another one."""
Params = dict[str, Any]


class World(ExitStack):
    """Makes engines; all that a test opens is closed with it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: Log) -> None:
        super().__init__()
        self._monkeypatch = monkeypatch
        self._tmp_path = tmp_path
        self.producer: Sides | None = None
        self.log = log
        for module in (errors, middleware):
            monkeypatch.setattr(module, "errors_folder", lambda: tmp_path)

    def engine(self, **options: Any) -> Sides:
        made = Sides(self._monkeypatch, **{**QUICK, **options})
        self.callback(made.close)
        return made

    def prefill(self, **options: Any) -> Params:
        """From a producer with these options."""
        self.producer = self.engine(**options)
        return self.producer.prefill()

    def listener(self, greeting: bytes = b"") -> str:
        """The address of one that takes connections, and says this and nothing else."""
        server = self.enter_context(socket.create_server((HOST, 0)))

        def greet() -> None:
            while True:
                try:
                    taken, _ = server.accept()
                except OSError:
                    return
                taken.sendall(greeting)
                self.callback(taken.close)
        if greeting:
            threading.Thread(target=greet, daemon=True).start()
            self.callback(server.shutdown, socket.SHUT_RDWR)
        return f"{HOST}:{server.getsockname()[1]}"

    def change_again_and_again(self, memory: list[torch.Tensor]) -> None:
        """Returns when it has been changed so often that what was published lies behind."""
        enough = threading.Event()
        changes = threading.Semaphore(0)

        def change() -> None:
            while not enough.wait(0.001):
                for tensor in memory:
                    tensor += 1.0
                changes.release()
        changing = threading.Thread(target=change)
        self.callback(changing.join)
        self.callback(enough.set)
        changing.start()
        for _ in range(20):
            assert changes.acquire(timeout=10.0)

    def key(self) -> str:
        path = self._tmp_path / secrets.token_hex(4)
        path.write_text(secrets.token_hex(32))
        path.chmod(0o600)
        return str(path)


@pytest.fixture
def world(closes: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: Log) -> World:
    return closes(World(monkeypatch, tmp_path, log))


def free_address() -> str:
    with socket.create_server((HOST, 0)) as server:
        return f"{HOST}:{server.getsockname()[1]}"


# ---- the reasons: each makes a consumer, and the parameters of a request that will fail there ----

def bad_ticket(world: World) -> tuple[Sides, Params]:
    params = world.prefill()
    text = params["kvferry_ticket"]
    return world.engine(), {**params, "kvferry_ticket": text[:40] + ("A" if text[40] != "A" else "B") + text[41:]}


def incompatible(world: World) -> tuple[Sides, Params]:
    return world.engine(model="another"), world.prefill()


def other_key(world: World) -> tuple[Sides, Params]:
    return world.engine(key_file=world.key()), world.prefill()


def peer_down(world: World) -> tuple[Sides, Params]:
    return world.engine(), world.prefill(advertise=free_address())


def handshake_timeout(world: World) -> tuple[Sides, Params]:
    return world.engine(handshake_timeout_ms=100), world.prefill(advertise=world.listener())


def handshake_refused(world: World) -> tuple[Sides, Params]:
    stranger = free_address()
    world.engine(listen=stranger, key_file=world.key())
    key = world.key()
    return world.engine(key_file=key), world.prefill(advertise=stranger, key_file=key)


def peer_restarted(world: World) -> tuple[Sides, Params]:
    another = free_address()
    world.engine(listen=another)
    return world.engine(), world.prefill(advertise=another)


def protocol(world: World) -> tuple[Sides, Params]:
    return world.engine(), world.prefill(advertise=world.listener(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 40))


def transfer_setup(world: World) -> tuple[Sides, Params]:
    return world.engine(transports="local"), world.prefill(transports="tcp", **PATIENT)


def transfer_failed(world: World) -> tuple[Sides, Params]:
    """The producer's memory cannot be read."""
    pages: list[mmap.mmap] = []

    def memory(layer: int, rank: int) -> torch.Tensor:
        shape = (POOL_BLOCKS, HEADS, BLOCK_TOKENS, 2 * HEAD_SIZE)
        pages.append(mmap.mmap(-1, torch.Size(shape).numel() * 4))
        return torch.frombuffer(pages[-1], dtype=torch.float32).reshape(shape)
    params = world.prefill(transports="local", memory=memory, **PATIENT)
    for page in pages:
        start = ctypes.addressof(ctypes.c_char.from_buffer(page))
        assert ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(start), ctypes.c_size_t(len(page)), 0) == 0
    return world.engine(transports="local"), params


def checksum(world: World) -> tuple[Sides, Params]:
    """The producer's bytes change all the time, whenever it was that they were published."""
    params = world.prefill(checksum="on", **PATIENT)
    assert world.producer is not None
    world.change_again_and_again(world.producer.memory)
    return world.engine(checksum="on"), params


def unpublished(world: World) -> tuple[Sides, Params]:
    """The ticket is there before the bytes, and they do not come."""
    producer = world.producer = world.engine()
    producer.silent = {0}
    return world.engine(load_timeout_ms=300), producer.prefill()


def lease_expired(world: World) -> tuple[Sides, Params]:
    params = world.prefill(lease_ttl_ms=100)
    assert world.producer is not None
    world.producer.until_nothing_is_left()
    return world.engine(), params


def lease_unknown(world: World) -> tuple[Sides, Params]:
    """A lease of a slot that the producer's rank has not."""
    producer = world.producer = world.engine(lease_slots=1, control={"lease_slots": 2})
    producer.prefill()
    producer.silent = {0}
    return world.engine(), producer.prefill()


def lease_crowded(world: World) -> tuple[Sides, Params]:
    """All others of the lease's consumers are requests of the same engine: what they name besides is not the same."""
    params = world.prefill(**PATIENT)
    others = [world.producer.prefill()["kvferry_ticket"] for _ in range(8)]
    consumer = world.engine()
    consumer.has_places = False
    prompt = consumer.scheduler._prompts.of(request("another", TOKENS))
    assert isinstance(prompt, bytes)
    for besides in islice(permutations(others, 3), CONSUMERS_MAX):
        consumer.scheduler._node.request_open(",".join([params["kvferry_ticket"], *besides]), prompt, 0, {}, 0)
    return consumer, params


def deadline(world: World) -> tuple[Sides, Params]:
    return world.engine(load_timeout_ms=100, handshake_timeout_ms=5000), world.prefill(advertise=world.listener())


def no_resource(world: World) -> tuple[Sides, Params]:
    """Another load is in the only place."""
    consumer = world.engine(loads_max=1, handshake_timeout_ms=2000)  # of which a silent peer gets two
    consumer.begin(world.prefill(advertise=world.listener()))
    consumer.step()
    return consumer, world.prefill(**PATIENT)


def rank_lost(world: World) -> tuple[Sides, Params]:
    consumer = world.engine(ranks=2, load_timeout_ms=200, release_timeout_ms=200)
    consumer.silent = {1}
    return consumer, world.prefill(ranks=2, **PATIENT)


CONSUMERS_MAX = 256
"""KVF_LEASE_CONSUMERS_MAX"""

Provoke = Callable[[World], tuple[Sides, Params]]
AT_THE_TICKET: list[Provoke] = [bad_ticket, other_key, incompatible]
IN_THE_HANDSHAKE: list[Provoke] = [peer_down, handshake_timeout, handshake_refused, peer_restarted, protocol]
IN_THE_SET_UP: list[Provoke] = [transfer_setup, no_resource]
IN_THE_TRANSFER: list[Provoke] = [transfer_failed, checksum, unpublished, lease_expired, lease_unknown, deadline, rank_lost]
WHILE_IT_WAITS: list[Provoke] = [lease_crowded]
"""The other consumers of the lease are left when it has failed."""
ALL = [*AT_THE_TICKET, *IN_THE_HANDSHAKE, *IN_THE_SET_UP, *IN_THE_TRANSFER]
OF_A_STOPPED_PRODUCER = {"transfer_stalled"}
"""For that a producer has to be a process: tests/e2e/test_policy.py reads it at the client of a real engine."""
NEVER_AT_A_CLIENT = {
    "ok": "nothing has failed",
    "not_published": "asked again until the deadline",
    "cancelled": "of a read, not of a load",
    "aborted": "the client has left",
    "no_lease": "the producer's log: there is no ticket",
    "draining": "the same",
    "no_memory": "the system has none left: tests/hostile/allocation_test.c",
    "not_found": "a mistake in a call", "limit": "the same", "exists": "the same", "closed": "the same", "again": "the same",
    "address_in_use": "the engine does not start", "system": "the same",
}


def reason_of(provoke: Provoke) -> str:
    return "deadline" if provoke is unpublished else provoke.__name__


reasons = pytest.mark.parametrize("provoke", ALL, ids=lambda provoke: provoke.__name__)


def test_the_table_is_complete() -> None:
    shown = {reason_of(provoke) for provoke in [*ALL, *WHILE_IT_WAITS]} | {"invalid"} | OF_A_STOPPED_PRODUCER
    assert shown | NEVER_AT_A_CLIENT.keys() == {name for name, *_ in _kvferry.reasons()}, (
        "left: provoked here, or in NEVER_AT_A_CLIENT; right: the library's")


def client_of(consumer: Sides) -> TestClient:
    """Of a web server like vLLM's before this engine."""
    app = FastAPI()
    app.add_middleware(KVErrors)
    app.exception_handler(GenerationError)(generation_error_handler)

    @app.post("/v1/completions")
    def completions(request: Request, body: Params) -> Params:
        one = consumer.begin(body["kv_transfer_params"])
        name = one.request_id.rsplit("-", 2)[0]
        request.state.request_metadata = RequestResponseMetadata(request_id=name)
        if consumer.until_received(one):
            raise GenerationError("Internal server error")
        return {"choices": []}
    return TestClient(app)


@pytest.mark.parametrize("provoke", [*ALL, *WHILE_IT_WAITS], ids=lambda provoke: provoke.__name__)
def test_a_client_hears_why(world: World, provoke: Provoke) -> None:
    consumer, params = provoke(world)
    reply = client_of(consumer).post("/v1/completions", json={"kv_transfer_params": params})
    assert reply.status_code == 500, reply.text
    error = reply.json()["error"]
    reason = reason_of(provoke)
    message = next(meaning for name, *_, meaning in _kvferry.reasons() if name == reason)
    peer = error.pop("peer")
    is_retryable = provoke is not other_key
    assert error == {"type": "kv_transfer_error", "code": 500, "reason": reason, "retryable": is_retryable, "message": message}
    assert (peer is None) == (provoke in AT_THE_TICKET)
    assert (int(reply.headers.get("retry-after-ms", 0)) > 0) == is_retryable
    assert consumer.stop_reasons == [f"kvferry:{reason}:retry={int(is_retryable)}"]
    assert_said_once(world, list(consumer.requests)[-1], reason)


def assert_said_once(world: World, request_id: str, reason: str) -> None:
    """One grep for the id that the engine gave the request finds the line that says why it has failed."""
    ends = ("it fails (", "ticket refused: ")
    wait_until("the line", lambda: any(end in line for line in world.log.grep(request_id) for end in ends))
    line, = (line for line in world.log.grep(request_id) if any(end in line for end in ends))
    assert line.startswith(f"WARNING kvferry: request {request_id}") and f" {reason}: " in line


def test_a_mistake_of_the_client_is_invalid(world: World) -> None:
    params = {**world.prefill(), "kvferry_options": {"policy": "maybe"}}
    reply = client_of(world.engine()).post("/v1/completions", json={"kv_transfer_params": params})
    assert reply.status_code == 400 and reply.json()["error"]["reason"] == "invalid"
    line, = world.log.grep("cmpl-d")
    assert line.endswith('fails: kvferry_options: policy = "maybe" is not allowed: it must be fail, recompute or auto')


def settle(world: World, consumer: Sides) -> None:
    """All that either engine has of it goes; a rank that was silent speaks again."""
    for side in (consumer, world.producer):
        assert side is not None
        side.silent = set()
        side.until_nothing_is_left()


@reasons
def test_nothing_is_left_of_a_failed_request(world: World, provoke: Provoke) -> None:
    consumer, params = provoke(world)
    one = consumer.begin(params)
    assert consumer.until_received(one), "it was not reported as failed"
    assert one.num_computed_tokens == 0 and not consumer.manager.zeroed, "as if blocks had come"
    settle(world, consumer)
    if provoke is not rank_lost:
        assert consumer.manager.freed.count(one.request_id) == (provoke not in AT_THE_TICKET)
        assert not consumer.manager.popped


@reasons
def test_nothing_is_left_of_one_that_is_computed_anew(world: World, provoke: Provoke) -> None:
    consumer, params = provoke(world)
    one = consumer.begin({**params, "kvferry_options": {"policy": "recompute"}})
    if provoke not in AT_THE_TICKET:
        assert consumer.until_received(one) == (provoke is rank_lost)
        assert one.num_computed_tokens == 0
        assert consumer.manager.freed == [one.request_id]
    assert consumer.stat("recomputed_tokens", reason_of(provoke)) == (0 if provoke is rank_lost else TOKENS)
    settle(world, consumer)


@reasons
def test_nothing_is_left_of_a_client_that_leaves(world: World, provoke: Provoke) -> None:
    consumer, params = provoke(world)
    one = consumer.begin(params)
    one.status = RequestStatus.FINISHED_ABORTED
    if provoke in AT_THE_TICKET:  # they are never admitted
        assert not consumer.scheduler.finish(one)[0]
    else:
        consumer.step()
        assert consumer.scheduler.finish(one)[0]
        consumer.silent = set()
        assert consumer.step()[0] == set() and consumer.ended == {one.request_id}
    settle(world, consumer)


def test_words_to_a_producer_that_is_gone_are_counted_apart(world: World) -> None:
    """They are no failed loads."""
    consumer, params = peer_down(world)
    assert consumer.until_received(consumer.begin(params))
    settle(world, consumer)
    assert consumer.stat("acknowledgements_given_up") == 1
    assert consumer.stat("loads_failed", "peer_down") == 1
