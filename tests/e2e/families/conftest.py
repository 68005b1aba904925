"""A pair of engines for each row of pd.carried."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pd import carried
from pd.carried import Row
from pd.client import WITH_LOGPROBS
from pd.engine import EngineSpec
from pd.prompts import numbered_prompt
from pd.rig import Rig
from pd.stack import Stack, log_folder
from pd.zero import ARGS as ZERO
from pd.zero import CALLS as ZERO_CALLS

import shapes

LEASE_S = 3.0
STALL_MS = 8000
"""Longer than the lease, so that it ends first."""
BLOCKS = 128
QUESTION_TOKENS = 60
"""Within every window: each block of it is needed."""
ANSWER_TOKENS = 12


def spec(name: str, row: Row, *args: str) -> EngineSpec:
    """Over tcp, as `local` would read a process that stands still."""
    options = {"lease_ttl_ms": int(LEASE_S * 1000), "transports": ["tcp"], "stall_timeout_ms": STALL_MS}
    engine = shapes.engine(name, model=row.family.model(), blocks=BLOCKS, **options)
    return replace(engine, connector=engine.connector.with_rank_calls(*ZERO_CALLS), args=(*args, *ZERO, *row.family.engine_args()))


@pytest.fixture(scope="module", params=carried.ROWS, ids=str)
def row(request: pytest.FixtureRequest) -> Row:
    return request.param


@pytest.fixture(scope="module")
def rig(row: Row) -> Iterator[Rig]:
    stack = Stack([spec("P", row, *row.topology.prefill), spec("D", row, *row.topology.decode)],
                  log_folder("families-" + re.sub(r"\W+", "-", str(row))), with_router=False)
    with stack:
        yield Rig(stack, "kvferry", [numbered_prompt(number, QUESTION_TOKENS) for number in range(2)], LEASE_S,
                  max_tokens=ANSWER_TOKENS, fields=WITH_LOGPROBS)
