"""What a vLLM request says, in kvferry's words."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kvferry import _kvferry

from .config import option_text

if TYPE_CHECKING:
    from vllm.v1.request import Request

TICKET = "kvferry_ticket"
"""The field of kv_transfer_params that a consumer needs; the others are for the router."""

OPTIONS = "kvferry_options"
"""The field of kv_transfer_params in which a request may differ from its decode engine: {"policy": "fail"}."""


def wants_handover(request: Request) -> bool:
    """Another engine will decode this request."""
    return bool((request.kv_transfer_params or {}).get("do_remote_decode"))


def ticket_of(request: Request) -> str | None:
    """The ticket that came with the request; "" if it should have one and has not; None if it is an ordinary request, or
    one that vLLM has made up, of another prompt, to say that a client has left."""
    params = request.kv_transfer_params or {}
    if not params.get("do_remote_prefill") or request.abort_immediately:
        return None
    ticket = params.get(TICKET)
    return ticket if isinstance(ticket, str) else ""


def options_of(request: Request) -> dict[str, str]:
    """ValueError: they are not of the form {name: value}."""
    options = (request.kv_transfer_params or {}).get(OPTIONS) or {}
    if not isinstance(options, dict):
        raise ValueError("not an object of names and values")
    return {name: option_text(value) for name, value in options.items()}


def _salt(request: Request) -> bytes:
    """Whatever else than the token ids changes the prompt's KV, in the order that vLLM hashes it for its own cache."""
    lora = request.lora_request
    named = {
        "lora": [lora.lora_name, lora.lora_path] if lora is not None else None,
        "multimodal": [[feature.identifier, feature.mm_position.offset, feature.mm_position.length]
                       for feature in request.mm_features],
        "cache_salt": request.cache_salt,
    }
    return json.dumps(named).encode()


def prompt_of(request: Request) -> bytes | None:
    """The identity of the request's prompt; None if it has no token ids of its own (embeddings, a growing session)."""
    if request.prompt_token_ids is None or request.prompt_embeds is not None or request.resumable:
        return None
    return _kvferry.prompt_hash(array("I", request.prompt_token_ids).tobytes(), _salt(request))


def pack_blocks(groups: Iterable[Sequence[int]], null_block: int, counts: Sequence[int],
                first: int = 0) -> tuple[bytes, ...]:
    """Block ids by KV group. Positions before `first`, and vLLM's null block, become BLOCK_NONE."""
    return tuple(
        array("I", (_kvferry.BLOCK_NONE if position < first or block == null_block else block
                    for position, block in enumerate(group[:count]))).tobytes()
        for group, count in zip(groups, counts))


def count_wanted(blocks: Iterable[bytes]) -> int:
    """How many positions hold a block."""
    return sum(sum(block != _kvferry.BLOCK_NONE for block in array("I", group)) for group in blocks)
