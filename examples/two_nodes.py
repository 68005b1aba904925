"""Two processes: one publishes the blocks of a prompt, the other loads them, and tries again when they are gone.

    pip install dist/kvferry-*.whl && python two_nodes.py
"""

import ctypes
import multiprocessing
import select
import sys
from array import array
from multiprocessing.connection import Connection

import kvferry
from kvferry import _kvferry as kvf

BLOCK_BYTES, POOL_BLOCKS, BLOCK_TOKENS = 4096, 8, 16
SOURCE, TARGET = [1, 3, 5, 7], [0, 1, 2, 3]
TOKENS = len(SOURCE) * BLOCK_TOKENS
PROMPT = kvferry.prompt_hash(array("I", range(1000, 1000 + TOKENS)).tobytes(), b"")


class Engine:
    """A node that is both, the control node of its engine and its only rank, and one layer's KV memory."""

    def __init__(self) -> None:
        self.memory = (ctypes.c_char * (POOL_BLOCKS * BLOCK_BYTES))()
        # Nodes of another identity are refused.
        self.node = kvferry.Node({"block_tokens": str(BLOCK_TOKENS)}, {"model": "example"})
        self.node.register([kvferry.Region(ctypes.addressof(self.memory), BLOCK_BYTES, BLOCK_BYTES, POOL_BLOCKS, 1, 1, 0)])
        self.node.set_ranks([self.node.address()])

    def events(self):
        """Without end. An engine would call poll() once a step instead."""
        while True:
            yield from self.node.poll()
            select.select([], [], [], 0.001)


def blocks(ids: list[int]) -> tuple[bytes, ...]:
    """One KV group."""
    return (array("I", ids).tobytes(),)


def must(status: int) -> None:
    if status != kvf.OK:
        sys.exit(f"{kvferry.status_name(status)}: {kvf.status_meaning(status)}")


def prefill(to_decode: Connection) -> None:
    engine = Engine()
    for letter, block in zip(b"ABCD", SOURCE):
        ctypes.memset(ctypes.addressof(engine.memory) + block * BLOCK_BYTES, letter, BLOCK_BYTES)
    status, lease, lease_id = engine.node.lease_reserve_blocks(blocks(SOURCE), POOL_BLOCKS)
    must(status)
    status, ticket = engine.node.ticket_make(lease, PROMPT, blocks(SOURCE))
    must(status)
    must(*engine.node.lease_publish([kvferry.Publication(lease, PROMPT, 0, blocks(SOURCE))]))  # until it ends we leave the blocks alone
    to_decode.send(ticket)  # an engine sends it with the request

    cause = next(engine.events()).cause  # nothing else can come: EVENT_LEASE_ENDED
    must(*engine.node.lease_release([lease_id]))
    ctypes.memset(engine.memory, ord("x"), len(engine.memory))
    print("prefill: the lease has ended,", "completed" if cause == kvf.LEASE_END_COMPLETED else "in vain")
    to_decode.send("gone")
    to_decode.poll(None)  # until the other end is closed: a node that has gone has other errors
    engine.node.close()


def load(engine: Engine, ticket: str) -> kvf.Verdict:
    """The verdict. It comes by the load's deadline, for any behaviour of the other process."""
    status, info = engine.node.request_open(ticket, PROMPT, 0, {})
    must(status)
    must(*engine.node.request_begin([info.id]))
    must(*engine.node.load_start([kvferry.Load(info.id, ticket, PROMPT, 0, 0, blocks(TARGET))]))
    for event in engine.events():
        if event.kind == kvf.EVENT_LOAD:
            engine.node.request_report([event.report])  # what this rank found, to the control node
        elif event.kind == kvf.EVENT_RELEASED:
            engine.node.request_released([info.id], 0)  # and that it writes no more
        elif event.kind == kvf.EVENT_VERDICT:
            verdict = event.verdict
        elif event.kind == kvf.EVENT_REQUEST_RELEASED:  # the blocks are ours again
            return verdict


def decode(from_prefill: Connection) -> None:
    engine = Engine()
    ticket = from_prefill.recv()
    for _ in range(2):
        verdict = load(engine, ticket)
        if verdict.action == kvf.ACTION_USE:
            letters = engine.memory[:len(TARGET) * BLOCK_BYTES:BLOCK_BYTES].decode()
            print(f"decode: {verdict.keep_tokens} tokens loaded:", *letters)
            from_prefill.recv()  # the lease has ended, and the blocks have been overwritten
        else:
            print(f"decode: {kvferry.status_name(verdict.status)}, {verdict.recompute_tokens} tokens to compute")
    engine.node.close()


if __name__ == "__main__":
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=decode, args=(there,))
    child.start()
    there.close()
    prefill(here)
    child.join()
    sys.exit(child.exitcode)
