"""A small engine in PyTorch alone, for mini.py: paged KV, kernels that run late, a captured graph, asynchronous steps.

    mini_process.py OPTIONS ADDRESS        OPTIONS: of MiniEngine, as JSON
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import sys
import threading
import time
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as functional

import kvferry
import parties
from asks import Answer, Ask
from kvferry import Point
from kvferry import _kvferry as kvf

BATCH = 8
"""Of every decode step: what is computed for a row does not depend on how many others there are."""
PAD_TOKENS = 256
"""Prompts are computed in multiples of it, on P as on R."""
SCRATCH = 0
"""A block that no request has: rows without a request write to it."""
BUSY_MULTIPLICATIONS, CAPTURED = 40, 2000
PAUSE_S = 0.0001
Tokens = list[int]


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    block_tokens: int
    blocks: int
    longest: int
    """Tokens of a request, prompt and answer."""
    dtype: str
    together: bool
    """All layers of a block side by side, in one region; else a region for each layer."""


def zeros(shape: tuple[int, ...], device: str, dtype: torch.dtype) -> torch.Tensor:
    """On the host in pages of its own, which the fake of the driver can adopt."""
    if device != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


class Model:
    """Weights and pool on the device. All that it is asked is enqueued, and nothing waits."""

    def __init__(self, shape: Shape, device: str) -> None:
        self.shape = shape
        chance = torch.Generator(device).manual_seed(40)
        dtype = getattr(torch, shape.dtype)

        def weight(rows: int, columns: int, scale: float) -> torch.Tensor:
            return (torch.randn(rows, columns, generator=chance, device=device) * scale).to(dtype)

        std, width = shape.hidden ** -0.5, shape.heads * shape.head
        self.embedding, self.unembedding = (weight(shape.vocabulary, shape.hidden, 1.0) for _ in range(2))
        self.layers = [(weight(shape.hidden, width, 2 * std), weight(shape.hidden, 2 * shape.kv_heads * shape.head, 2 * std),
                        weight(width, shape.hidden, 2 * width ** -0.5)) for _ in range(shape.layers)]
        self.places = weight(shape.longest + PAD_TOKENS, shape.hidden, 1.0)
        block = (2, shape.kv_heads, shape.block_tokens, shape.head)
        if shape.together:
            self.memory = [zeros((shape.blocks, shape.layers, *block), device, dtype)]
            self.pool = list(self.memory[0].unbind(1))
        else:
            self.memory = [zeros((shape.blocks, *block), device, dtype) for _ in range(shape.layers)]
            self.pool = self.memory

    def _attend(self, layer: int, state: torch.Tensor, blocks: torch.Tensor, offsets: torch.Tensor,
                read: Any) -> torch.Tensor:
        """`state` is [rows, hidden]; the rows' keys and values go to blocks and offsets; `read(query)` is their attention."""
        shape, (into_query, into_kv, out) = self.shape, self.layers[layer]
        normal = functional.rms_norm(state, (shape.hidden,))
        kv = (normal @ into_kv).view(-1, 2, shape.kv_heads, shape.head)
        self.pool[layer][blocks, :, :, offsets] = kv
        query = (normal @ into_query).view(-1, shape.heads, shape.head)
        return state + read(query, kv).reshape(state.shape[0], -1) @ out

    def prefill(self, tokens: torch.Tensor, count: int, table: torch.Tensor) -> None:
        """Writes the KV of `count` tokens; what `tokens` has behind them goes to the scratch block."""
        shape = self.shape
        place = torch.arange(len(tokens), device=tokens.device)
        blocks = torch.where(place < count, table[(place // shape.block_tokens).clamp(max=len(table) - 1)], SCRATCH)
        groups = shape.heads // shape.kv_heads

        def read(query: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
            key, value = (part.repeat_interleave(groups, 1).transpose(0, 1) for part in kv.unbind(1))
            return functional.scaled_dot_product_attention(query.transpose(0, 1), key, value, is_causal=True).transpose(0, 1)

        state = self.embedding[tokens] + self.places[place]
        for layer in range(shape.layers):
            state = self._attend(layer, state, blocks, place % shape.block_tokens, read)

    def decode(self, tokens: torch.Tensor, places: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
        """The next token of each row; a place below 0: the row has no request."""
        shape = self.shape
        there, place = places >= 0, places.clamp(min=0)
        blocks = torch.where(there, tables.gather(1, (place // shape.block_tokens)[:, None])[:, 0], SCRATCH)
        seen = torch.arange(tables.shape[1] * shape.block_tokens, device=tokens.device)[None] <= place[:, None]
        groups, state = shape.heads // shape.kv_heads, self.embedding[tokens] + self.places[place]
        for layer in range(shape.layers):
            def read(query: torch.Tensor, kv: torch.Tensor, layer: int = layer) -> torch.Tensor:
                pages = self.pool[layer][tables].transpose(1, 2).transpose(2, 3)  # row, half, head, block, token, content
                key, value = (part.flatten(2, 3).repeat_interleave(groups, 1) for part in pages.unbind(1))
                read_by = functional.scaled_dot_product_attention(query[:, :, None], key, value, attn_mask=seen[:, None, None])
                return read_by[:, :, 0]
            state = self._attend(layer, state, blocks, place % shape.block_tokens, read)
        return (functional.rms_norm(state, (shape.hidden,)) @ self.unembedding.T).argmax(-1)

    def zero(self, blocks: torch.Tensor) -> None:
        for memory in self.memory:
            memory[blocks] = 0

    def digests(self, blocks: torch.Tensor) -> torch.Tensor:
        """A number a block, of all its bytes in all layers and of their places; whole numbers, so that no order matters."""
        total = torch.zeros(len(blocks), dtype=torch.int64, device=blocks.device)
        for layer, pool in enumerate(self.pool):
            words = pool[blocks].flatten(1).view(torch.int16).to(torch.int64)
            total += (words * (torch.arange(words.shape[1], device=blocks.device) * 2654435761 + 2 * layer + 1)).sum(1)
        return total


def packed(blocks: Tokens) -> tuple[bytes, ...]:
    """Of one KV group."""
    return (array("I", blocks).tobytes(),)


def hash_of(prompt: Tokens) -> bytes:
    return kvferry.prompt_hash(array("I", prompt).tobytes(), b"")


@dataclass
class Request:
    key: int
    ask: Ask
    begin: float
    blocks: Tokens = field(default_factory=list)
    answer: Answer = field(default_factory=Answer)
    left: int = 0
    id: int = 0
    keep: int = 0
    row: int = -1


class MiniEngine:
    def __init__(self, shape: dict[str, Any], own: dict[str, str], library: str) -> None:
        self.shape = Shape(**shape)
        self.cuda = not library
        self.device = "cuda" if self.cuda else "cpu"
        if self.cuda:
            torch.cuda.init()
            torch.cuda.set_stream(torch.cuda.Stream())
            self.side = torch.cuda.Stream()
        self.model = Model(self.shape, self.device)
        self._open_node(own, library)
        self.free = list(range(self.shape.blocks - 1, SCRATCH, -1))
        """The last one given back is the first to be taken."""
        self.waiting: deque[Request] = deque()
        self.loading: dict[int, Request] = {}
        self.rows: list[Request | None] = [None] * BATCH
        self.given: deque[tuple[Any, torch.Tensor, list[Request | None]]] = deque()  # steps whose tokens the host has not seen
        self.leased: dict[int, tuple[bytes, Tokens]] = {}
        self.digested: dict[int, torch.Tensor] = {}
        """By the request's key, on the device: of the blocks that it has handed over, or loaded."""
        width = -(-self.shape.longest // self.shape.block_tokens)
        self.tokens, self.places = (torch.full((BATCH,), fill, dtype=torch.int64, device=self.device) for fill in (0, -1))
        self.tables = torch.full((BATCH, width), SCRATCH, dtype=torch.int64, device=self.device)
        self.busy = torch.zeros((8192, 8192), device=self.device, dtype=torch.bfloat16) if self.cuda else torch.zeros(1, 1)
        self.graph = self._capture() if self.cuda else None

    def _open_node(self, own: dict[str, str], library: str) -> None:
        if library:
            driver = ctypes.CDLL(library)
            context = ctypes.c_void_p()
            assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
            assert driver.cuCtxPushCurrent_v2(context) == 0
            for memory in self.model.memory:
                storage = memory.untyped_storage()
                assert driver.fake_cuda_adopt(ctypes.c_void_p(storage.data_ptr()), ctypes.c_size_t(storage.nbytes())) == 0
            own = own | {"cuda_library": library}
        self.node = kvferry.Node({"block_tokens": str(self.shape.block_tokens), **own}, {"model": "mini"})
        self.node.register([kvferry.Region(memory.data_ptr(), memory[0].nbytes, memory[0].nbytes, self.shape.blocks, 1, 1, 0,
                                           kvf.MEMORY_CUDA, 0) for memory in self.model.memory])
        self.node.set_ranks([self.node.address()])

    def _capture(self) -> torch.cuda.CUDAGraph:
        self._decode()  # libraries make their workspaces
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            self._decode()
        return graph

    def _decode(self) -> None:
        self.tokens.copy_(self.model.decode(self.tokens, self.places, self.tables))
        self.places.add_((self.places >= 0).to(torch.int64))

    def on_device(self, numbers: Tokens) -> torch.Tensor:
        """The host does not wait for it, as it would with memory that is not pinned."""
        host = torch.tensor(numbers)
        return host.pin_memory().to(self.device, non_blocking=True) if self.cuda else host

    def point(self) -> Point:
        return Point(kvf.MEMORY_CUDA, 0, torch.cuda.current_stream().cuda_stream if self.cuda else 0)

    # ---- a step ----

    def work(self, address: str) -> None:
        device = torch.cuda.get_device_name(0) if self.cuda else "cpu"
        self.connection = parties.say_hello(address, device=device, torch=torch.__version__)
        while True:
            try:
                while self.connection.poll(0 if self._is_busy() else 0.001):
                    self._take(*self.connection.recv())
            except EOFError:
                return
            self._events()
            self._admit()
            self._step()

    def _is_busy(self) -> bool:
        return bool(self.waiting or self.given or any(self.rows))

    def _take(self, key: int, call: str, args: Any) -> None:
        if call == "ask":
            self.waiting.append(Request(key, args[0], time.monotonic()))
        else:
            self.connection.send((key, getattr(self, call)(*args), ""))

    def _admit(self) -> None:
        """In their order, as far as there are blocks; then those whose KV is there, as far as there are rows."""
        while self.waiting and self._admit_one(self.waiting[0]):
            self.waiting.popleft()
        for key, request in list(self.loading.items()):
            if key < 0 and None in self.rows:
                del self.loading[key]
                self._begin(request)

    def _admit_one(self, request: Request) -> bool:
        """False: there is no room for it now."""
        count = -(-(len(request.ask.prompt) + request.ask.tokens) // self.shape.block_tokens)
        if count > len(self.free):
            return False
        params = request.ask.params or {}
        if "publish" in params:
            status, lease, id_ = self.node.lease_reserve(count, self.shape.blocks)
            if status == kvf.NO_LEASE:
                return False
            assert lease is not None, kvferry.status_name(status)
            request.blocks = [self.free.pop() for _ in range(count)]
            self._hand_over(request, params["publish"], lease, id_)
            return True
        request.blocks = [self.free.pop() for _ in range(count)]
        self.model.zero(self.on_device(request.blocks))
        if "ticket" in params:
            self._load(request, params)
        else:
            self._compute(request, "")
        return True

    def _prefill(self, request: Request) -> None:
        prompt = request.ask.prompt
        padded = -(-len(prompt) // PAD_TOKENS) * PAD_TOKENS
        tokens = self.on_device(prompt + [0] * (padded - len(prompt)))
        self.model.prefill(tokens, len(prompt), self.on_device(request.blocks))

    def _hand_over(self, request: Request, how: str, lease: bytes, id_: int) -> None:
        """The prompt's ticket, before the device has computed it. `how`: in order; or, as a control, too early."""
        if how == "too early":
            self._keep_busy()
        self._prefill(request)
        blocks, prompt = packed(request.blocks), hash_of(request.ask.prompt)
        status, ticket = self.node.ticket_make(lease, prompt, blocks)
        assert status == kvf.OK, kvferry.status_name(status)
        self.node.lease_publish([kvferry.Publication(lease, prompt, id_, blocks)], None if how == "too early" else self.point())
        self.leased[id_] = lease, request.blocks
        self.digested[request.key] = self.model.digests(self.on_device(request.blocks))
        request.answer.params = {"ticket": ticket, "key": request.key}
        self.connection.send((request.key, request.answer, ""))  # the device may still compute

    def _whole(self, prompt: Tokens) -> int:
        return -(-len(prompt) // self.shape.block_tokens)

    def _load(self, request: Request, params: dict[str, Any]) -> None:
        prompt = hash_of(request.ask.prompt)
        status, info = self.node.request_open(params["ticket"], prompt, request.key, {})
        if info is None or status != kvf.OK:
            self._compute(request, kvferry.status_name(status))
            return
        request.id = info.id
        self.loading[info.id] = request
        self.node.request_begin([info.id])
        if params.get("early"):
            self._keep_busy()
            self.model.zero(self.on_device(request.blocks))
        blocks = packed(request.blocks[:self._whole(request.ask.prompt)])
        after = None if params.get("early") else self.point()
        started, = self.node.load_start([kvferry.Load(info.id, params["ticket"], prompt, 0, request.key, blocks)], after)
        if started != kvf.OK:
            self.node.request_report([kvf.report(info.id, 0, request.key, 0, started)])
            self.node.request_released([info.id], 0)

    def _keep_busy(self) -> None:
        """Of a control: what is enqueued next comes late."""
        for _ in range(BUSY_MULTIPLICATIONS):
            torch.mm(self.busy, self.busy)

    def _compute(self, request: Request, reason: str) -> None:
        request.answer.reason = reason
        self._prefill(request)
        self.loading[-request.key] = request

    def _events(self) -> None:
        for event in self.node.poll():
            if self._take_event(event):
                self._arrived(self.loading.pop(event.id))

    def _take_event(self, event: Any) -> bool:
        """Asks nothing of the device. True: a request's blocks are its own again."""
        if event.kind == kvf.EVENT_LEASE_ENDED:
            self.node.lease_release([event.id])
            self.free += self.leased.pop(event.id)[1]
        elif event.kind == kvf.EVENT_LOAD:
            self.node.request_report([event.report])
        elif event.kind == kvf.EVENT_RELEASED:
            self.node.request_released([event.id], 0)
        elif event.kind == kvf.EVENT_VERDICT:
            request, verdict = self.loading[event.id], event.verdict
            request.keep = verdict.keep_tokens if verdict.action == kvf.ACTION_USE else 0
            request.answer.reason = kvferry.status_name(verdict.status)
        return bool(event.kind == kvf.EVENT_REQUEST_RELEASED)

    def _arrived(self, request: Request) -> None:
        if request.keep >= len(request.ask.prompt):
            self.digested[request.key] = self.model.digests(self.on_device(request.blocks[:self._whole(request.ask.prompt)]))
            request.answer.params = {"key": request.key, "loaded_s": time.monotonic() - request.begin}
            self.loading[-request.key] = request
        else:
            self._compute(request, request.answer.reason or "")

    def _begin(self, request: Request) -> None:
        """The prompt's last token is computed once more, as its KV is the others'."""
        row = request.row = self.rows.index(None)
        self.rows[row] = request
        request.left = request.ask.tokens
        table = self.on_device(request.blocks)
        self.tables[row].fill_(SCRATCH)
        self.tables[row, :len(table)] = table
        self.tokens[row] = request.ask.prompt[-1]
        self.places[row] = len(request.ask.prompt) - 1

    def _step(self) -> None:
        """Tokens of a step are seen when the next one has been given to the device."""
        if any(self.rows):
            if self.graph is not None:
                self.graph.replay()
            else:
                self._decode()
            self.given.append((*self._copied(), list(self.rows)))
            for request in filter(None, list(self.rows)):
                request.left -= 1
                if request.left == 0:  # its last step is still to be done, and others may have its blocks
                    self.rows[request.row] = None
                    self.places[request.row] = -1
                    self.free += request.blocks
        while self.given and (len(self.given) > 1 or not any(self.rows)):
            self._see(*self.given.popleft())

    def _copied(self) -> tuple[Any, torch.Tensor]:
        if not self.cuda:
            return None, self.tokens.clone()
        host = torch.empty((BATCH,), dtype=torch.int64, pin_memory=True)
        kept = self.tokens.clone()  # the next step writes these
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            host.copy_(kept, non_blocking=True)
            kept.record_stream(self.side)
            done = torch.cuda.Event()
            done.record()
        return done, host

    def _see(self, done: Any, tokens: torch.Tensor, rows: list[Request | None]) -> None:
        if done is not None:
            done.synchronize()
        now, seen = time.monotonic(), tokens.tolist()
        for request, token in zip(rows, seen, strict=True):
            if request is not None:
                request.answer.tokens.append(token)
                request.answer.times_s.append(now - request.begin)
                if len(request.answer.tokens) == request.ask.tokens:
                    self.connection.send((request.key, request.answer, ""))

    # ---- calls ----

    def spoil(self, how: str) -> bool:
        """Controls, on the blocks of the lease that came last: one of them zeroed; all of them taken by another prompt while the
        lease goes on, as no engine may do."""
        blocks = self.leased[max(self.leased)][1]
        if how == "zero":
            self.model.zero(self.on_device(blocks[len(blocks) // 2:][:1]))
        else:
            other = Request(0, Ask([7] * (len(blocks) * self.shape.block_tokens), 0), 0.0, blocks)
            self._prefill(other)
        if self.cuda:
            torch.cuda.synchronize()
        return True

    def end_leases(self) -> int:
        """All of them; what comes next takes the blocks at once."""
        return len(self.node.lease_end([lease for lease, _ in self.leased.values()]))

    def digests(self, keys: list[int]) -> list[Tokens]:
        return [self.digested.pop(key).tolist() for key in keys]

    def numbers(self) -> dict[str, int]:
        return {f"{number.name} {number.reason}".strip(): number.value for number in self.node.stats()}

    def capture(self) -> str:
        """A graph, in the mode in which any thread's forbidden call ends it; on another thread, while loads run. What went wrong."""
        said: list[str] = []

        def record() -> None:
            try:
                graph, one = torch.cuda.CUDAGraph(), torch.ones(1024, device="cuda")
                with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="global"):
                    for _ in range(CAPTURED):
                        one = one * 1.0001
                graph.replay()
                torch.cuda.synchronize()
            except RuntimeError as error:
                said.append(str(error))

        self._admit()
        thread, released = threading.Thread(target=record), []
        thread.start()
        while thread.is_alive():  # what the engine itself would ask of the device would end the capture
            released += [event.id for event in self.node.poll() if self._take_event(event)]
            time.sleep(PAUSE_S)
        for id_ in released:
            self._arrived(self.loading.pop(id_))
        return said[0] if said else ""


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    with torch.no_grad():
        MiniEngine(**given).work(sys.argv[2])
    os._exit(0)
