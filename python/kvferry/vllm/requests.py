"""What a vLLM request says, in kvferry's words."""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING

from kvferry import prompt_hash, prompt_set_model
from kvferry.engine.config import option_text
from kvferry.engine.log import logger
from kvferry.engine.messages import NoIdentity

from . import seam
from .adapters import Adapters, Content
from .layout import ranks_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request

    from .weights import Weights

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
    """Of a request's kv_transfer_params, which may be whatever JSON or msgpack can say; "" if they can be looked at."""
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


def _salt(request: Request) -> bytes:
    """Whatever else of the request than the token ids changes the prompt's KV, in the order that vLLM hashes it for its
    own cache."""
    named = {
        "multimodal": [[feature.identifier, feature.mm_position.offset, feature.mm_position.length]
                       for feature in request.mm_features],
        "cache_salt": request.cache_salt,
    }
    return json.dumps(named).encode()


class Prompts:
    """The identities of prompts on this engine, as it is now."""

    def __init__(self, vllm_config: VllmConfig, weights: Weights) -> None:
        self._weights = weights
        self.adapters = Adapters(ranks_of(vllm_config))
        self.cache_is_old = False
        multimodal = getattr(vllm_config.model_config, "multimodal_config", None)
        # vLLM hashes an image only if one of its caches needs that, and else counts them (renderers/base.py).
        self.media_name = seam.name_of_media(vllm_config.model_config)
        self._images_are_counted = bool(multimodal and multimodal.mm_processor_cache_gb == 0
                                        and not vllm_config.cache_config.enable_prefix_caching)
        if self._images_are_counted:
            logger.warning("kvferry: prompts with images are neither handed over nor loaded (images_unhashed): with "
                           "mm_processor_cache_gb 0 and no prefix caching vLLM does not hash images. Set one of the two.")

    def of(self, request: Request, tokens: int | None = None) -> bytes | NoIdentity:
        """Of its prompt's first tokens, or all."""
        if request.prompt_token_ids is None or request.prompt_embeds is not None or request.resumable:
            return NoIdentity.NO_TOKEN_IDS
        if tokens == 0:
            return NoIdentity.TOO_SHORT
        if request.mm_features and self._images_are_counted:
            return NoIdentity.IMAGES_UNHASHED
        weights = self._weights.digest
        if weights is None:
            return NoIdentity.WEIGHTS_UNKNOWN
        if self.cache_is_old:
            return NoIdentity.CACHE_OLD
        model = weights.encode()
        if request.mm_features:
            model += b"\0" + self.media_name.encode() + b"\0"
        if request.lora_request is not None:
            content = self.content(request)
            if content is None:
                return NoIdentity.LORA_UNKNOWN
            if self.adapters.cache_is_old(request.lora_request):
                return NoIdentity.CACHE_OLD
            model += b"\0" + content.digest
        prompt = prompt_hash(array("I", request.prompt_token_ids[:tokens]).tobytes(), _salt(request))
        return prompt_set_model(prompt, model)

    def content(self, request: Request) -> Content | None:
        """Of its adapter."""
        lora = request.lora_request
        return self.adapters.content(lora.lora_int_id) if lora is not None else None
