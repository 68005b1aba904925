"""What a vLLM request says, in kvferry's words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kvferry.engine.config import option_text

from . import seam

if TYPE_CHECKING:
    from vllm.v1.request import Request

TICKET = "kvferry_ticket"  # the field of kv_transfer_params that a consumer needs; the others are for the router

MEDIA_NAME = "kvferry_media_name"
"""The field of kv_transfer_params by which D can say why a prompt with media is refused."""
NAME_CHARACTERS_MAX = 1024
DEPTH_MAX = 32

OPTIONS = "kvferry_options"
"""The field of kv_transfer_params in which a request may differ from its decode engine: {"policy": "fail"}. Or the same as
JSON text in vllm_xargs, which routers leave alone that overwrite kv_transfer_params."""
OPTIONS_CHARACTERS_MAX = 512
"""Of that text; so it is not nested too deep either."""


def wants_handover(request: Request) -> bool:
    """Another engine will decode this request."""
    return bool((request.kv_transfer_params or {}).get("do_remote_decode"))


def ticket_of(request: Request) -> str | None:
    """The ticket that came with the request; "" if it should have one and has not; None if it is an ordinary request."""
    params = request.kv_transfer_params or {}
    if not params.get("do_remote_prefill"):
        return None
    ticket = params.get(TICKET)
    return ticket if isinstance(ticket, str) else ""


def options_of(request: Request) -> dict[str, str]:
    """ValueError: they are not of the form {name: value}."""
    more = request.sampling_params.extra_args if request.sampling_params is not None else None
    return _options(_of_text((more or {}).get(OPTIONS, ""))) | _options((request.kv_transfer_params or {}).get(OPTIONS))


def _of_text(given: object) -> object:
    if not isinstance(given, str) or len(given) > OPTIONS_CHARACTERS_MAX:
        raise ValueError(f"in vllm_xargs they are JSON text of at most {OPTIONS_CHARACTERS_MAX} characters")
    try:
        return json.loads(given or "{}")
    except ValueError:
        return given


def _options(given: object) -> dict[str, str]:
    options = given or {}
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise ValueError("not an object of names and values")
    return {name: option_text(value) for name, value in options.items()}


def mistake_in(params: object) -> str:
    """Of a request's kv_transfer_params, which may be any value of JSON or msgpack; "" if they can be looked at."""
    if params is None:
        return ""
    if not isinstance(params, dict) or not all(isinstance(name, str) for name in params):
        return "not an object of names and values"
    depth, level = 0, list(params.values())
    while level:
        depth += 1
        if depth > DEPTH_MAX:
            return f"nested more than {DEPTH_MAX} deep"
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list, tuple))]
        level = [one for values in inner for one in values]
    return ""


def drop_params(request: Request) -> None:
    """vLLM sends them to its workers, where pickling fails if they are nested too deep, and the engine ends."""
    request.kv_transfer_params = None
    if request.sampling_params is not None and request.sampling_params.extra_args:
        request.sampling_params.extra_args.pop("kv_transfer_params", None)


def media_name_of(request: Request) -> str | None:
    """After what the other engine names media, if it says so; anybody may say anything."""
    name = (request.kv_transfer_params or {}).get(MEDIA_NAME) if request.mm_features else None
    return name[:NAME_CHARACTERS_MAX] if isinstance(name, str) else None


def shorten(request: Request, tokens: int) -> None:
    """By the last tokens of its prompt, which the consumer computes: a state that has seen them would see them again. What
    vLLM then answers is of no use, so it answers one token, as prefill engines are asked to."""
    seam.drop_last_tokens(request, tokens)
    request.max_tokens = 1
