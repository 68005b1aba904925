"""The memory of state-space layers: which bytes of a block are which part of a state, and which ranks have it."""

from __future__ import annotations

from math import gcd, prod
from typing import TYPE_CHECKING, NamedTuple

import torch
from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first
from vllm.utils.torch_utils import get_dtype_size
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

from kvferry import _kvferry

if TYPE_CHECKING:
    from vllm.config import ModelConfig
    from vllm.v1.kv_cache_interface import MambaSpec

    from .split import Split

MAMBA1, MAMBA2 = MambaAttentionBackendEnum.MAMBA1, MambaAttentionBackendEnum.MAMBA2
SHORT_CONV, LINEAR = MambaAttentionBackendEnum.SHORT_CONV, MambaAttentionBackendEnum.LINEAR
GATED_DELTA = MambaAttentionBackendEnum.GDN_ATTN
"""Kimi's delta attention, too."""
WITH_CONVOLUTION = (MAMBA1, MAMBA2, SHORT_CONV, GATED_DELTA)
"""Their first state is that of a convolution."""
BY_HEADS = (MAMBA2, GATED_DELTA, LINEAR)
BY_CHANNELS = (MAMBA1, SHORT_CONV)
"""They have no heads: any number of ranks that divides the channels can share them."""
RUNS_OF_CHANNELS = 64 * 3 * 5 * 7
"""As what those channels are carried: as many equal runs as divide both. Ranks that do not divide it load from as many only."""
NAMES_OF_GROUPS = ("n_groups", "mamba_n_groups", "mamba_ngroups")
"""Under which models' configurations say how many groups of B and C a Mamba-2 layer has."""


def groups_of_all_layers(model: ModelConfig) -> int | None:
    """Groups of B and C; None: the model's configuration does not say it, or names several numbers."""
    named = [getattr(model.hf_text_config, name, None) for name in NAMES_OF_GROUPS]
    numbers = {number for number in named if isinstance(number, int)}
    return numbers.pop() if len(numbers) == 1 else None


class Run(NamedTuple):
    """Neighbours on the dimension that is split over ranks, in equal heads: so many, the rank's first, and of how many."""

    length: int
    heads: int
    first: int
    total: int


class State(NamedTuple):
    """A part, but for where its layer's blocks are."""

    kind: int
    dtype: torch.dtype
    is_whole: bool
    """What is inside only ranks of as many know."""
    offset: int
    unit: int
    row: int
    head: int
    rows: int
    heads: int
    first: int
    total: int


def keeps_more(spec: MambaSpec) -> bool:
    """Whether vLLM keeps something of a sequence beside its blocks: where it is in the rings that they have for replaying."""
    return spec.mamba_type is MAMBA2 and len(spec.shapes) > 2


def states_of(spec: MambaSpec, split: Split) -> list[State]:
    """All of a block, in the order of its bytes."""
    found: list[State] = []
    offset = 0
    for index in range(len(spec.shapes)):
        found += _by_heads(spec, split, index, offset) or [_whole(spec, split, index, offset)]
        offset += _bytes(spec, index)
    return found


def _bytes(spec: MambaSpec, index: int) -> int:
    return prod(spec.shapes[index]) * get_dtype_size(spec.dtypes[index])


def _is_convolution(spec: MambaSpec, index: int) -> bool:
    return index == 0 and spec.mamba_type in WITH_CONVOLUTION


def _whole(spec: MambaSpec, split: Split, index: int, offset: int) -> State:
    size = _bytes(spec, index)
    kind = _kvferry.PART_CONVOLUTION if _is_convolution(spec, index) else _kvferry.PART_STATE
    heads = (1, 0, 1) if spec.tp_replicated else (1, split.rank, split.ranks)
    return State(kind, spec.dtypes[index], not spec.tp_replicated, offset, size, size, size, 1, *heads)


def _by_heads(spec: MambaSpec, split: Split, index: int, offset: int) -> list[State]:
    """Nothing, where a state is not known to be split, or how."""
    if spec.tp_replicated:
        return []
    if _is_convolution(spec, index):
        return _convolutions(spec, _projections(spec, split), offset)
    return [_recurrence(spec, run, index, offset) for run in _outermost(spec, split, index)]


def _own(split: Split, length: int, heads: int) -> Run:
    return Run(length, heads, split.rank * heads, split.ranks * heads)


def _by_channels(split: Split, channels: int) -> list[Run]:
    """Nothing, where the ranks do not divide the runs."""
    runs = gcd(channels * split.ranks, RUNS_OF_CHANNELS)
    return [_own(split, channels, runs // split.ranks)] if runs % split.ranks == 0 else []


def _outermost(spec: MambaSpec, split: Split, index: int) -> list[Run]:
    """What the recurrence goes on from has its heads or channels outermost."""
    shape = spec.shapes[index]
    if index != (0 if spec.mamba_type is LINEAR else 1):
        return []
    if spec.mamba_type is MAMBA1 and len(shape) == 2:
        return _by_channels(split, shape[0])
    return [_own(split, shape[0], shape[0])] if spec.mamba_type in BY_HEADS and len(shape) == 3 else []


def _recurrence(spec: MambaSpec, run: Run, index: int, offset: int) -> State:
    unit = _bytes(spec, index) // run.heads
    return State(_kvferry.PART_STATE, spec.dtypes[index], False, offset, unit, unit * run.heads, unit, 1, *run[1:])


def _channels_and_width(spec: MambaSpec) -> tuple[int, int]:
    outer, inner = spec.shapes[0]
    return (outer, inner) if is_conv_state_dim_first() else (inner, outer)


def _projections(spec: MambaSpec, split: Split) -> list[Run]:
    """The runs that a convolution's channels are, one after the other. Nothing, where they are not as expected."""
    if len(spec.shapes[0]) != 2:
        return []
    channels, _ = _channels_and_width(spec)
    if spec.mamba_type in BY_CHANNELS:
        return _by_channels(split, channels)
    if len(spec.shapes) < 2 or len(spec.shapes[1]) != 3:
        return []
    heads, head_channels, inner = spec.shapes[1]
    values = _own(split, heads * head_channels, heads)
    length = (channels - values.length) // 2
    if length <= 0 or values.length + 2 * length != channels or length % inner != 0:
        return []
    beside = _own(split, length, length // inner)
    if spec.mamba_type is GATED_DELTA:
        return [beside, beside, values]
    # All ranks have a model's only group. That it is the only one the shapes do not tell: each may have another.
    beside = Run(length, 1, 0, 1) if split.groups == beside.heads == 1 else beside
    return [values, beside, beside]


def _convolutions(spec: MambaSpec, projections: list[Run], offset: int) -> list[State]:
    """A head is one piece, or as many as the inputs that the convolution looks back at."""
    found = []
    for run in projections:
        channels, width = _channels_and_width(spec)
        rows = 1 if is_conv_state_dim_first() else width
        channel = width // rows * get_dtype_size(spec.dtypes[0])
        unit = run.length // run.heads * channel
        found.append(State(_kvferry.PART_CONVOLUTION, spec.dtypes[0], False, offset, unit, channels * channel, unit, rows,
                           *run[1:]))
        offset += run.length * channel
    return found
