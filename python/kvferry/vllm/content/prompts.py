"""The identity of a prompt: equal ones have equal KV."""

from __future__ import annotations

import json
from array import array
from typing import TYPE_CHECKING

from kvferry import prompt_hash, prompt_set_model
from kvferry.engine.log import logger
from kvferry.engine.messages import NotCarried

from .. import seam
from ..split import ranks_of
from .adapters import Adapters, Content

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.request import Request

    from .weights import Weights


def _salt(request: Request) -> bytes:
    """The parts of the request, besides the token ids, that change the prompt's KV, in the order that vLLM hashes them for
    its own cache."""
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

    def of(self, request: Request, tokens: int | None = None) -> bytes | NotCarried:
        """Of its prompt's first tokens, or all."""
        if request.prompt_token_ids is None or request.prompt_embeds is not None or request.resumable:
            return NotCarried.NO_TOKEN_IDS
        if tokens == 0:
            return NotCarried.TOO_SHORT
        if request.mm_features and self._images_are_counted:
            return NotCarried.IMAGES_UNHASHED
        weights = self._weights.digest
        if weights is None:
            return NotCarried.WEIGHTS_UNKNOWN
        if self.cache_is_old:
            return NotCarried.CACHE_OLD
        model = weights.encode()
        if request.mm_features:
            model += b"\0" + self.media_name.encode() + b"\0"
        if request.lora_request is not None:
            content = self.content(request)
            if content is None:
                return NotCarried.LORA_UNKNOWN
            if self.adapters.cache_is_old(request.lora_request):
                return NotCarried.CACHE_OLD
            model += b"\0" + content.digest
        prompt = prompt_hash(array("I", request.prompt_token_ids[:tokens]).tobytes(), _salt(request))
        return prompt_set_model(prompt, model)

    def content(self, request: Request) -> Content | None:
        """Of its adapter."""
        lora = request.lora_request
        return self.adapters.content(lora.lora_int_id) if lora is not None else None
