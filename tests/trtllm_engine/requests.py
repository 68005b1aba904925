"""Requests as the executor has them, and as C++ shows them to a connector."""

from __future__ import annotations

import zlib
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from .model import Identity
from .names import BOUND, LlmRequestState


@dataclass(frozen=True)
class Submission:
    """What a client asks for."""

    request_id: int
    prompt: tuple[int, ...]
    max_new_tokens: int
    cache_salt: str | None = None
    lora: int | None = None
    multimodal: Hashable = None


class LlmRequest:
    """The Python class. The names that a connector may use are TensorRT-LLM's; what begins with _ is ours alone."""

    def __init__(self, asked: Submission) -> None:
        self.request_id = self.py_request_id = asked.request_id
        self.prompt_len = self.orig_prompt_len = self.py_prompt_len = self.py_orig_prompt_len = len(asked.prompt)
        self.max_new_tokens = self.py_max_new_tokens = asked.max_new_tokens
        self.state = LlmRequestState.CONTEXT_INIT
        self.context_current_position = 0
        self.context_chunk_size = self.prompt_len
        self.py_num_connector_matched_tokens = 0
        self.lora_task_id = asked.lora
        self.cache_salt = asked.cache_salt
        self.cache_salt_id = None if asked.cache_salt is None else zlib.crc32(asked.cache_salt.encode())
        has_images = asked.multimodal is not None
        digest = zlib.crc32(repr(asked.multimodal).encode())
        self.multimodal_hashes = [[digest ^ word for word in range(8)]] if has_images else None
        self.multimodal_positions = [0] if has_images else None
        self.multimodal_lengths = [1] if has_images else None
        self.kv_cache_retention_config = None
        self.is_dummy_request = False
        self._prepopulated = 0
        self._tokens = list(asked.prompt)
        self._identity = Identity(asked.cache_salt, asked.lora, asked.multimodal)
        self._original_prompt_len = self.prompt_len
        self._finish_reason: str | None = None
        self._sampled: list[int] = []
        """On the device, perhaps before the host knows of them. From prompt_len on."""
        self._begun = 0
        """Tokens whose forward has begun, from prompt_len on."""
        self._offer: Offer | None = None
        self._is_told_finished = False
        self._was_parked = False

    # ---- as bound ----

    def get_tokens(self, beam: int) -> list[int]:
        _check_beam(beam)
        return list(self._tokens)

    def get_num_tokens(self, beam: int) -> int:
        _check_beam(beam)
        return len(self._tokens)

    @property
    def prepopulated_prompt_len(self) -> int:
        return self._prepopulated

    def set_prepopulated_prompt_len(self, prepopulated_prompt_len: int, kv_tokens_per_block: int) -> None:
        """Only forward, and a chunk that is not the last ends with a block. (llmRequest.h: setPrepopulatedPromptLen)"""
        assert prepopulated_prompt_len < self.prompt_len
        self._prepopulated = prepopulated_prompt_len
        if prepopulated_prompt_len > 0:
            end = prepopulated_prompt_len + self.context_chunk_size
            if end < self.prompt_len:
                self.context_chunk_size = end // kv_tokens_per_block * kv_tokens_per_block - prepopulated_prompt_len
            self.context_current_position = prepopulated_prompt_len
        self.context_chunk_size = min(self.context_chunk_size, self.context_remaining_length)

    @property
    def context_remaining_length(self) -> int:
        return self.prompt_len - self.context_current_position

    @property
    def is_first_context_chunk(self) -> bool:
        return self.context_current_position == self._prepopulated

    @property
    def is_last_context_chunk(self) -> bool:
        return self.context_current_position + self.context_chunk_size == self.prompt_len

    @property
    def is_finished(self) -> bool:
        return self._finish_reason is not None

    is_context_only_request = False

    def is_generation_only_request(self) -> bool:
        return False

    # ---- the model's own ----

    @property
    def is_in_context(self) -> bool:
        return self.state in (LlmRequestState.CONTEXT_INIT, LlmRequestState.DISAGG_GENERATION_TRANS_IN_PROGRESS)

    @property
    def answer(self) -> list[int]:
        return self._tokens[self._original_prompt_len:]

    def finish(self, reason: str) -> None:
        self._finish_reason = reason
        self.state = LlmRequestState.GENERATION_COMPLETE

    def pause(self) -> None:
        """What it has said belongs to its prompt from here on, all of which is computed anew. (llmRequest.h: pause)"""
        self.max_new_tokens -= len(self._tokens) - self.prompt_len
        self.prompt_len = len(self._tokens)
        self.context_current_position = self._prepopulated = 0
        self.context_chunk_size = self.prompt_len
        self.state = LlmRequestState.CONTEXT_INIT
        self._sampled, self._begun, self._offer = [], 0, None
        self.py_num_connector_matched_tokens = 0


def _check_beam(beam: int) -> None:
    if beam != 0:
        raise IndexError(f"beam {beam}")


class BoundRequest:
    """As C++ hands a request to get_num_new_matched_tokens: only what bindings.cpp has of it, and properties of those
    that are methods of the Python class."""

    __slots__ = ("_request", "py_num_connector_matched_tokens")

    def __init__(self, request: LlmRequest) -> None:
        object.__setattr__(self, "_request", request)

    def __getattr__(self, name: str) -> Any:
        if name not in BOUND:
            raise AttributeError(f"the C++ LlmRequest has no attribute {name!r}")
        if name == "is_generation_only_request":
            return False
        return getattr(object.__getattribute__(self, "_request"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "py_num_connector_matched_tokens":
            raise AttributeError(f"the C++ LlmRequest's {name!r} is not a connector's to set")
        object.__setattr__(self, name, value)


@dataclass
class Offer:
    """What a connector has said of a V2 request, once for each allocation; ends are positions in the prompt."""

    start: int
    end: int
    is_async: bool
    is_delivered: bool = False


@dataclass
class Batch:
    """What one forward is of."""

    context: list[LlmRequest] = field(default_factory=list)
    generation: list[LlmRequest] = field(default_factory=list)
    chunks: dict[int, int] = field(default_factory=dict)
    """By id: where the chunk began that has been computed."""
    outputs: dict[int, int] = field(default_factory=dict)
    """By id: the token that this rank has sampled, once its stream has come so far."""
    expected: list[LlmRequest] = field(default_factory=list)
    """Those of which a token is sampled."""

    @property
    def all(self) -> list[LlmRequest]:
        return self.context + self.generation
