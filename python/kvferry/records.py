"""What calls of a node take: any object with these attributes will do."""

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
    memory: int = 0  # MEMORY_HOST
    device: int = 0


class Part(NamedTuple):
    """A kvf_part."""

    layer: int
    kind: int
    index: int
    group: int
    dtype: int
    region: int
    offset_bytes: int
    unit_bytes: int
    row_bytes: int
    head_bytes: int
    rows: int
    block_tokens: int
    heads: int
    first_head: int
    heads_total: int


Point = NamedTuple("Point", [("memory", int), ("device", int), ("handle", int)])
"""A kvf_ordering_point."""
Publication = NamedTuple("Publication", [("lease", bytes), ("prompt", bytes), ("user", int), ("blocks", tuple[bytes, ...])])


class Load(NamedTuple):
    """A kvf_load_params."""

    request_id: int
    ticket: str
    prompt: bytes
    timeout_ms: int
    user: int
    destination: tuple[bytes, ...]
    name: str = ""
