"""Leases on TensorRT-LLM's scheduler: of each prompt that a prefill engine has computed for another engine.

Such a request is of one token (max_tokens: 1). A lease is made when it has finished by itself. Then the engine asks whether
to keep its blocks, and keeps them until every rank has said that the lease has ended. Before that, and of
requests that are cancelled, not every version says that it takes blocks back.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvferry import _kvferry
from kvferry.engine import producer
from kvferry.engine.messages import NotCarried, pack_blocks
from kvferry.engine.producer import Lease

from .identity import Prompts
from .messages import NO_BLOCK, Handover

if TYPE_CHECKING:
    from kvferry import Node
    from kvferry.engine.metrics import Counters

NO_PAGE = "no_page"
"""A block of the prompt is not there any more."""


class Producer(producer.Producer):
    def __init__(self, node: Node, prompts: Prompts, counters: Counters, pool_blocks: int, block_tokens: int) -> None:
        super().__init__(node, counters, pool_blocks, 0.0)
        self._prompts = prompts
        self._block_tokens = block_tokens

    def finish(self, orders: Handover, request: Any, blocks: Sequence[Sequence[int]]) -> bool:
        """The request has ended, with these blocks by group; whether its lease keeps them."""
        key = str(request.request_id)
        tokens = request.get_tokens(0)
        count = self._prompts.offered_tokens(request.prompt_len) // self._block_tokens
        if request.max_new_tokens != 1 or len(tokens) <= request.prompt_len or count == 0:
            return False
        self._wanted[key] = request
        prompt = self._prompts.of_request(request)
        if isinstance(prompt, NotCarried):
            self.refuse(key, prompt.value)
            return False
        packed = pack_blocks(blocks, NO_BLOCK, [count] * len(blocks), [0] * len(blocks))
        if any(_kvferry.BLOCK_NONE in array("I", group) for group in packed):
            self.refuse(key, NO_PAGE)
            return False
        return self._hand_over(orders, key, prompt, packed)

    def _hand_over(self, orders: Handover, key: str, prompt: bytes, blocks: tuple[bytes, ...]) -> bool:
        self.publish(orders, key, prompt, blocks)
        lease = self._by_request.pop(key, None)
        self.forget(key)
        if lease is None:
            return False
        status, ticket = self._node.ticket_make(lease.lease, lease.prompt, lease.blocks)
        if ticket is None:
            self.refuse(key, _kvferry.status_name(status))
            orders.publish.pop()
            del self._leases[lease.id]
            self._node.lease_release([lease.id])
            return False
        orders.tickets.append(ticket)
        orders.requests[lease.id] = int(key)
        return True

    # ---- the engine keeps the blocks, until the ranks have said that the lease has ended ----

    def hold(self, lease: Lease, request: Any, sliding: bool) -> None:
        """They are the engine's own to keep."""

    def free_blocks(self, blocks: list[Any]) -> None:
        """There are none that the lease alone has."""
