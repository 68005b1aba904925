"""Engines of other shapes than the rest of the suite's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pd.connector import kvferry
from pd.engine import NO_SPINNING, EngineSpec
from pd.paths import FAST

LEASE_S = 5.0
PATIENCE_MS = 5000
"""Longer than ranks that share two cores keep each other waiting."""

BLOCKS = 24
BUDGET_TOKENS_PER_S = 50
"""Of the suite's decode engines that fail."""
ANY_CORES = "nobind"
"""Ranks that share a core starve each other while they spin."""


def engine(name: str, ranks: int = 1, model: Any = FAST, blocks: int = BLOCKS, **options: Any) -> EngineSpec:
    args = ("--tensor-parallel-size", str(ranks)) if ranks > 1 else ()
    patient = kvferry(LEASE_S).with_options(stall_timeout_ms=PATIENCE_MS, handshake_timeout_ms=PATIENCE_MS)
    connector = replace(patient.with_options(**options), env=NO_SPINNING)
    return EngineSpec(name, model, connector, ANY_CORES, blocks, args=args)
