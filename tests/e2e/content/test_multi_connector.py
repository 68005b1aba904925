"""kvferry beside other connectors in vLLM's MultiConnector: each loads and keeps what is its own, whichever comes first.

The OffloadingConnector copies late (tools/dev/pd/offload.py): its stores read their blocks when the request has long gone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pd import client, faults, trial
from pd.client import Reply
from pd.connector import example, lmcache, offloading
from pd.engine import BLOCK_TOKENS, LMCACHE_ENV, Engine, LMCacheServer
from pd.paths import FAST, LMCACHE
from pd.progress import wait_until
from pd.prompts import numbered_prompt
from pd.rig import Rig
from pd.stack import Stack, log_folder

import expect
from shapes import LEASE_S, engine

pytestmark = pytest.mark.deep

TOKENS = 150
BLOCKS = -(-TOKENS // BLOCK_TOKENS)
DECODE_BLOCKS = 2 * BLOCKS + 1
"""Of them one is vLLM's. A third request gets the blocks of the first."""
MAX_TOKENS = 256
DELAY_MS = 2500
LIMIT_S = 30.0
LOADED = "kvferry_loaded_blocks_total"
STORED, BROUGHT = "vllm:kv_offload_store_bytes_total", "vllm:kv_offload_load_bytes_total"
LEASE_REASONS = ("lease_expired", "lease_unknown")
NO_HYBRID = ("--disable-hybrid-kv-cache-manager",)
"""ExampleConnector knows one KV group."""


@pytest.fixture(scope="module", params=[True, False], ids=["first", "last"])
def first(request: pytest.FixtureRequest) -> bool:
    """Where kvferry stands among the connectors."""
    return bool(request.param)


def rig_of(stack: Stack) -> Rig:
    return Rig(stack, "kvferry", [numbered_prompt(number, TOKENS) for number in range(9)], LEASE_S, client_limit_s=LIMIT_S)


@pytest.fixture(scope="module")
def offload_rig(first: bool) -> Iterator[Rig]:
    late = offloading(DELAY_MS)
    specs = [engine("P"), engine("D", blocks=DECODE_BLOCKS, transports=["tcp"])]
    specs = [replace(spec, max_tokens=MAX_TOKENS, connector=spec.connector.among(late, first=first)) for spec in specs]
    with Stack(specs, log_folder("multi-offload"), with_router=False) as stack:
        yield rig_of(stack)


def poke(engine: Engine) -> None:
    """vLLM shows what a step has counted with the next one."""
    assert client.complete(engine.url, [1, 2, 3], 1).ok


def wait_for_stores(engine: Engine, more_than: float) -> None:
    def stored() -> bool:
        poke(engine)
        return engine.total(STORED) > more_than
    wait_until("waiting for the sibling's stores", stored, LIMIT_S)


def test_loads(offload_rig: Rig) -> None:
    rig = offload_rig
    rig.expected(rig.question)
    before, brought = rig.decoder.total(LOADED), rig.decoder.total(BROUGHT)
    expect.loaded(trial.run(rig, faults.HEALTHY), TOKENS)
    assert rig.decoder.total(LOADED) - before == BLOCKS
    assert rig.decoder.total(BROUGHT) == brought


def test_what_the_sibling_keeps_comes_back(offload_rig: Rig) -> None:
    """On D, and on P, whose own blocks are then leased."""
    rig = offload_rig
    expected = rig.expected(rig.question)
    rig.settle()
    for one in (rig.producer, rig.decoder):
        stored = one.total(STORED)
        assert client.complete(one.url, rig.question, rig.max_tokens).tokens == expected
        wait_for_stores(one, stored)
        one.reset_prefix_cache(external=False)
    brought = [one.total(BROUGHT) for one in (rig.producer, rig.decoder)]
    assert client.complete(rig.decoder.url, rig.question, rig.max_tokens, timeout_s=LIMIT_S).tokens == expected
    poke(rig.decoder)
    assert rig.decoder.total(BROUGHT) > brought[1]
    rig.decoder.reset_prefix_cache()
    assert rig.decode(rig.question, rig.ticket(rig.question)).tokens == expected
    poke(rig.producer)
    assert rig.producer.total(BROUGHT) > brought[0]
    rig.settle()


@pytest.mark.parametrize("fault", [faults.STALE, faults.STOPPED, faults.KILLED, faults.HUNG_UP], ids=lambda f: f.title)
def test_faults(offload_rig: Rig, fault: faults.Fault) -> None:
    offload_rig.warm_up()
    outcome = trial.run(offload_rig, fault)
    if fault is faults.HUNG_UP:
        expect.lives(outcome)
    else:
        expect.recomputed(outcome, *LEASE_REASONS, "transfer_stalled", "peer_down")
    offload_rig.warm_up()


def test_a_request_that_fails_where_vllm_s_policy_is_to_recompute(offload_rig: Rig) -> None:
    offload_rig.warm_up()
    for fault in (faults.STALE, faults.ALTERED):
        failing = replace(fault, inject=lambda rig, inject=fault.inject: inject(rig.with_options(policy="fail")))
        outcome = trial.run(offload_rig, failing)
        expect.failed(outcome, within_s=3.0)
        assert outcome.recomputed == 0


def test_blocks_are_stored_before_a_load_overwrites_them(offload_rig: Rig) -> None:
    """vLLM tells the sibling of new owners when it schedules them, which is after they have been loaded."""
    rig = offload_rig
    rig.warm_up()
    expected = [rig.expected(prompt) for prompt in rig.prompts[:3]]
    rig.settle()
    for _ in range(2):
        poke(rig.decoder)  # what the reset has had stored is counted
    tickets = [rig.ticket(prompt) for prompt in rig.prompts[1:3]]
    stored = rig.decoder.total(STORED)
    loaded = rig.decoder.total(LOADED)
    assert client.complete(rig.decoder.url, rig.question, 1).tokens == expected[0][:1]
    assert rig.decoder.total(STORED) == stored, "it is stored already"
    for prompt, ticket, tokens in zip(rig.prompts[1:], tickets, expected[1:]):
        assert rig.decode(prompt, ticket).tokens == tokens
    wait_for_stores(rig.decoder, stored)
    assert rig.decoder.total(LOADED) - loaded == 2 * BLOCKS
    brought = rig.decoder.total(BROUGHT)
    assert rig.decode(rig.question, {}).tokens == expected[0]
    poke(rig.decoder)
    assert rig.decoder.total(BROUGHT) > brought
    rig.settle()


# ---- a connector that works within the step ----

@pytest.fixture(scope="module")
def example_rig(first: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    specs = [engine("P"), engine("D", transports=["tcp"])]
    specs = [replace(spec, args=(*spec.args, *NO_HYBRID),
                     connector=spec.connector.among(example(tmp_path_factory.mktemp(spec.name)), first=first))
             for spec in specs]
    with Stack(specs, log_folder("multi-example"), with_router=False) as stack:
        yield rig_of(stack)


def kept(engine: Engine) -> Path:
    (sibling,) = engine.spec.connector.siblings
    return Path(sibling["kv_connector_extra_config"]["shared_storage_path"])


def forget(engine: Engine) -> None:
    for folder in kept(engine).iterdir():
        shutil.rmtree(folder)


def test_beside_one_that_saves_files(example_rig: Rig) -> None:
    rig = example_rig
    expected = rig.expected(rig.question)
    assert list(kept(rig.decoder).iterdir())
    rig.settle()
    assert rig.decode(rig.question, {}).tokens == expected  # the sibling's
    assert rig.decoder.total(LOADED) == 0 == rig.decoder.total(trial.RECOMPUTED)
    loads = faults.Fault("-", "the sibling has nothing", lambda rig: forget(rig.decoder) or faults.healthy(rig))
    expect.loaded(trial.run(rig, loads), TOKENS)
    assert rig.decoder.total(LOADED) == BLOCKS


def test_a_sibling_that_has_the_beginning(example_rig: Rig, first: bool) -> None:
    """vLLM asks one connector for a prompt: if that is the sibling, the ticket is given up, and the rest is computed."""
    rig = example_rig
    expected = rig.expected(rig.question)
    rig.settle()
    before, loaded = rig.decoder.total("kvferry_not_loaded_total"), rig.decoder.total(LOADED)
    assert rig.decode(rig.question, rig.ticket(rig.question)).tokens == expected
    poke(rig.decoder)
    assert rig.decoder.total(LOADED) - loaded == (BLOCKS if first else 0)
    assert rig.decoder.total("kvferry_not_loaded_total") - before == (0 if first else 1)
    rig.settle()


# ---- LMCache, whose server is another process ----

@pytest.fixture(scope="module")
def lmcache_rig(first: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One server for both engines, which keeps what is P's and what is D's apart by the model's name. Where kvferry comes
    first, LMCache moves their KV to shared memory after kvferry has been told where it is."""
    if not LMCACHE.is_dir():
        pytest.skip("LMCache is not installed; ./dev test --deep installs it")
    model = tmp_path_factory.mktemp("models") / "of-P"
    model.symlink_to(FAST)
    logs = log_folder("multi-lmcache")
    server = LMCacheServer(logs)
    server.start()
    try:
        wait_until("waiting for LMCache's server", server.healthy, LIMIT_S)
        sibling = lmcache(server.data_port, "lmcache_driven" if first else "engine_driven")
        specs = [engine("P", model=model), engine("D", transports=["tcp"])]
        connectors = [spec.connector.among(sibling, first=first) for spec in specs]
        specs = [replace(spec, max_tokens=MAX_TOKENS, connector=replace(connector, env={**connector.env, **LMCACHE_ENV}))
                 for spec, connector in zip(specs, connectors)]
        with Stack(specs, logs, with_router=False) as stack:
            yield rig_of(stack)
    finally:
        server.stop()


def comes_back(engine: Engine, rig: Rig, ask: Callable[[], Reply]) -> None:
    """From LMCache, counted, once the engine has computed the prompt and forgotten it."""
    expected = rig.expected(rig.question)
    rig.settle()
    assert client.complete(engine.url, rig.question, rig.max_tokens).tokens == expected
    rig.stack.wait_idle()
    engine.reset_prefix_cache(external=False)
    before = engine.total(trial.LOADED)
    assert ask().tokens == expected
    poke(engine)
    assert engine.total(trial.LOADED) - before == TOKENS // BLOCK_TOKENS * BLOCK_TOKENS
    rig.settle()


def test_beside_lmcache(lmcache_rig: Rig) -> None:
    rig = lmcache_rig
    loaded = rig.decoder.total(LOADED)
    expect.loaded(trial.run(rig, faults.HEALTHY), TOKENS)
    assert rig.decoder.total(LOADED) - loaded == BLOCKS


def test_what_lmcache_keeps_comes_back(lmcache_rig: Rig) -> None:
    """On D, and on P, which leases the blocks that it has loaded."""
    rig = lmcache_rig
    loaded = rig.decoder.total(LOADED)
    comes_back(rig.decoder, rig, lambda: rig.decode(rig.question, {}))
    assert rig.decoder.total(LOADED) == loaded
    comes_back(rig.producer, rig, lambda: rig.decode(rig.question, rig.ticket(rig.question)))
    assert rig.decoder.total(LOADED) - loaded == BLOCKS


def test_a_stale_ticket_beside_lmcache(lmcache_rig: Rig) -> None:
    """LMCache looks its prompt up for a few steps: the lease is known to be over before there is a load that could fail."""
    outcome = trial.run(lmcache_rig, faults.STALE)
    expect.right_tokens(outcome)
    assert outcome.recomputed == TOKENS
    assert set(outcome.reasons) <= set(LEASE_REASONS)
    lmcache_rig.warm_up()
