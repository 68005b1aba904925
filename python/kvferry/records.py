"""What calls of a node take: any object with these attributes will do."""

from __future__ import annotations

from typing import NamedTuple


class Region(NamedTuple):
    """A kvf_region."""

    base: int
    stride_bytes: int
    block_bytes: int
    blocks: int
    heads: int
    heads_total: int
    group: int


class Publication(NamedTuple):
    lease: bytes
    prompt: bytes
    user: int
    blocks: tuple[bytes, ...]


class Load(NamedTuple):
    """A kvf_load_params."""

    request_id: int
    ticket: str
    prompt: bytes
    timeout_ms: int
    user: int
    destination: tuple[bytes, ...]
