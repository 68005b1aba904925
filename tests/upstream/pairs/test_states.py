"""A model with states, in blocks of its own size, and a prompt that is longer than the model's usual ones."""

from __future__ import annotations

import json

from pd.connector import kvferry
from pd.families import BY_NAME
from upstream import INTEGRATION, take_tests

from pair import Pair

TOKENS = 16384
FAMILY = BY_NAME["qwen3-next"]
ARGS = (*FAMILY.engine_args(), "--enable-prefix-caching", "--mamba-cache-mode", "align",
        "--hf-overrides", json.dumps({"max_position_embeddings": TOKENS}))
PAIR = Pair("upstream-states", kvferry(), INTEGRATION / "toy_proxy_server.py",
            model=FAMILY.model(), blocks=600, max_tokens=TOKENS, args=ARGS)
globals().update(take_tests("test_mamba_prefix_cache", PAIR.env))
