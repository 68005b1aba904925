"""Sliding windows: whatever its length, a prompt that was loaded gives the logprobs of one that was computed.

The token that D computes again looks at what vLLM may already have given back, at one length in block_size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pd import client, faults, metrics, trial, web
from pd.client import Prompt, Ticket
from pd.engine import EngineSpec
from pd.models import build_random
from pd.prompts import numbered_prompt
from pd.rig import Rig
from pd.trial import LOADED
from pd.zero import ARGS as ZERO
from pd.zero import CALLS as ZERO_CALLS

import expect
from shapes import engine

pytestmark = pytest.mark.deep

TOKENS_MAX = 300
ANSWER_TOKENS = 3
DIFFERENCE_MAX = 1e-3
"""Of one logprob: matrices of other shapes are summed up in another order. Without the block it is 0.1 and more."""
UNCERTAIN = -1.0
SOFT = 0.1
"""Scale of embeddings."""
BLOCKS = 128
BLOCK_TOKENS = 32
WIDE = 256
"""A window within which prompts of most lengths here are."""
UNCACHED = ("--no-enable-prefix-caching",)
CHUNKED = ("--max-num-batched-tokens", "64", "--max-num-seqs", "16")
LIMIT_S = 30.0


def spec(name: str, model: Path, *args: str) -> EngineSpec:
    return replace(engine(name, model=model, blocks=BLOCKS), args=(*UNCACHED, *args))


def answer(url: str, prompt: Prompt, ticket: Ticket | None = None) -> tuple[list[int], list[float]]:
    body: dict[str, Any] = client.completion_body(prompt, ANSWER_TOKENS, ticket) | {"logprobs": 0}
    reply = web.post_json(url + "/v1/completions", body, LIMIT_S)
    assert reply.status == 200, reply
    choice = reply.body["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


def difference(found: tuple[list[int], list[float]], expected: tuple[list[int], list[float]]) -> float:
    """The largest of their logprobs; of other tokens without end."""
    return max(abs(a - b) for a, b in zip(found[1], expected[1])) if found[0] == expected[0] else float("inf")


def compare(rig: Rig, lengths: Iterable[int]) -> None:
    """Loaded beside computed, at each length; all tokens but the last are loaded."""
    wrong = {}
    least = 0.0
    for tokens in lengths:
        prompt = numbered_prompt(tokens, tokens)
        expected = answer(rig.decoder.url, prompt)
        before = metrics.total(rig.counters(), LOADED)
        found = answer(rig.decoder.url, prompt, rig.ticket(prompt))
        assert metrics.total(rig.counters(), LOADED) - before >= tokens - 1
        least = min(least, *expected[1])
        differs = difference(found, expected)
        if differs > DIFFERENCE_MAX:
            wrong[tokens] = differs
    assert wrong == {}
    assert least < UNCERTAIN, "where every token is certain no logprob differs"


def edges(window: int, block: int) -> list[int]:
    """Lengths at which a block leaves the window, and those beside."""
    return [tokens for tokens in range(1, TOKENS_MAX) if (tokens - window + 1) % block in (block - 1, 0, 1)]


@pytest.fixture(scope="module")
def hybrid(start: Callable[..., Callable[[str, str], Rig]], tmp_path_factory: pytest.TempPathFactory) -> Rig:
    model: Path = tmp_path_factory.mktemp("models") / "hybrid"
    build_random(model, 3, "Gemma3", SOFT, num_hidden_layers=6, sliding_window=64, query_pre_attn_scalar=32,
                 layer_types=(["sliding_attention"] * 2 + ["full_attention"]) * 2)
    return start([spec("P", model), spec("D", model)])("P", "D")


def test_a_hybrid_model_at_every_length(hybrid: Rig) -> None:
    compare(hybrid, range(1, TOKENS_MAX + 1))


def test_p_goes_on_decoding(hybrid: Rig) -> None:
    """Its window slides on under the lease."""
    for tokens in edges(64, 32)[-6:]:
        prompt = numbered_prompt(tokens, tokens)
        expected = answer(hybrid.decoder.url, prompt)
        reply = client.complete(hybrid.producer.url, prompt, 80, client.ASK_FOR_TICKET)
        assert reply.ok and reply.ticket
        assert difference(answer(hybrid.decoder.url, prompt, reply.ticket), expected) <= DIFFERENCE_MAX
    hybrid.stack.wait_idle()


@pytest.fixture(scope="module")
def summed(start: Callable[..., Callable[[str, str], Rig]], tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """Two groups, and blocks with checksums: one that was altered fails its load, which has brought those before it."""
    model: Path = tmp_path_factory.mktemp("models") / "summed"
    build_random(model, 3, "Gemma3", SOFT, num_hidden_layers=6, sliding_window=WIDE, query_pre_attn_scalar=32,
                 layer_types=(["sliding_attention"] * 2 + ["full_attention"]) * 2)
    made = [engine(name, model=model, blocks=BLOCKS, checksum="on") for name in ("P-sums", "D-sums")]
    return start([replace(one, connector=one.connector.with_rank_calls(*ZERO_CALLS), args=(*UNCACHED, *ZERO)) for one in made])(
        "P-sums", "D-sums")


def on_p(rig: Rig, method: str, **arguments: Any) -> Any:
    return rig.producer.call("/collective_rpc", LIMIT_S, {"method": method, "kwargs": arguments}).body["results"]


@pytest.mark.parametrize("tokens", [WIDE - 56, WIDE, WIDE + 31, WIDE + 32])
@pytest.mark.parametrize("layer", ["model.layers.0.self_attn.attn", "model.layers.2.self_attn.attn"])
def test_a_prefix_is_kept_that_is_good_in_all_groups(summed: Rig, layer: str, tokens: int) -> None:
    """Whichever of them has lost the fourth of its blocks. Not one from which windows would look at what is not loaded."""
    prompt = numbered_prompt(tokens, tokens)
    expected = answer(summed.decoder.url, prompt)
    on_p(summed, "wipe_kv")
    ticket = summed.ticket(prompt)
    assert any(on_p(summed, "zero_block", layer=layer, after=3))
    before = summed.counters()
    found = answer(summed.decoder.url, prompt, ticket)
    assert difference(found, expected) <= DIFFERENCE_MAX
    kept = 3 * BLOCK_TOKENS if tokens < WIDE + 32 else 0
    assert trial.grown(before, summed.counters(), trial.RECOMPUTED) == tokens - kept


@pytest.fixture(scope="module")
def sliding(start: Callable[..., Callable[[str, str], Rig]], tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """One group, another window, another block size, and prompts computed in pieces on both engines."""
    model: Path = tmp_path_factory.mktemp("models") / "sliding"
    build_random(model, 7, "Gemma3", SOFT, num_hidden_layers=4, sliding_window=96, query_pre_attn_scalar=32,
                 layer_types=["sliding_attention"] * 4)
    args = ("--block-size", "64", *CHUNKED)
    return start([spec("P-64", model, *args), spec("D-64", model, *args)])("P-64", "D-64")


def test_a_sliding_model_in_pieces(sliding: Rig) -> None:
    compare(sliding, edges(96, 64))


def test_a_lease_that_ran_out(sliding: Rig) -> None:
    outcome = trial.run(sliding, faults.STALE)
    expect.recomputed(outcome, "lease_expired", "lease_unknown")
    assert outcome.recomputed == len(sliding.question)
