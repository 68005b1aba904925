"""The messages of routers, as they send them (docs/routers.md), and kvferry under the name NixlConnector.

Bodies are copied from key to key as each router does: the client's, with other `kv_transfer_params`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pd import client, faults, metrics, trial, web
from pd.connector import offloading
from pd.engine import BLOCK_TOKENS, Engine
from pd.rig import Rig

import expect
from shapes import engine

pytestmark = pytest.mark.deep

Body = dict[str, Any]
TIMEOUT_S = 30.0
LOADED = "kvferry_loaded_blocks_total"
ASKS: Body = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
              "remote_host": None, "remote_port": None}
OF_NIXL: Body = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2, 3, 4, 5]],
                 "remote_engine_id": "8a1c", "remote_request_id": "cmpl-1", "remote_host": "127.0.0.1",
                 "remote_port": 5600, "tp_size": 1}


@pytest.fixture(scope="module")
def rigs(start: Callable[..., Callable[[str, str], Rig]]) -> Callable[[str, str], Rig]:
    plain = engine("plain")
    nixl = replace(engine("nixl", transports=["tcp"]), name="nixl")
    multi = replace(nixl, name="multi", connector=nixl.connector.as_nixl().among(offloading(), first=True))
    return start([plain, replace(nixl, connector=nixl.connector.as_nixl()), multi])


def send(of: Engine, body: Body, headers: dict[str, str] | None = None) -> Body:
    answer = web.post_json(of.url + "/v1/completions", body, TIMEOUT_S, headers)
    assert answer.status == 200, answer
    return dict(answer.body)


def one_token(body: Body) -> Body:
    return {**body, "max_tokens": 1, "max_completion_tokens": 1, "min_tokens": 1, "stream": False}


def sidecar(rig: Rig, body: Body) -> Body:
    """llm-d's: P's parameters as they came, and the same request id on both legs."""
    id_ = {"x-request-id": str(uuid.uuid1())}
    given = send(rig.producer, {**one_token(body), "kv_transfer_params": ASKS}, id_)
    return send(rig.decoder, {**body, "kv_transfer_params": given["kv_transfer_params"]}, id_)


def coordinator(rig: Rig, body: Body) -> Body:
    """llm-d's: both do_remote_* overwritten, and what its other parts add."""
    given = send(rig.producer, {**one_token(body), "kv_transfer_params": {**ASKS, "remote_prefiller": None}})
    params = {**given["kv_transfer_params"], "do_remote_decode": False, "do_remote_prefill": True,
              "remote_prefiller": "10.0.0.7:8000", "remote_dp_rank": 0, "remote_dp_rank_override": True}
    return send(rig.decoder, {**body, "kv_transfer_params": params})


def dynamo(rig: Rig, body: Body) -> Body:
    """P's handler takes what its engine has answered, D's hands it to its own."""
    given = send(rig.producer, {**body, "max_tokens": 1, "min_tokens": 1, "kv_transfer_params": dict(ASKS)})
    return send(rig.decoder, {**body, "kv_transfer_params": given["kv_transfer_params"]})


def aibrix(rig: Rig, body: Body) -> Body:
    given = send(rig.producer, {**one_token(body), "kv_transfer_params": ASKS})
    return send(rig.decoder, {**body, "kv_transfer_params": {**given["kv_transfer_params"], "remote_host": "10.0.0.9"}})


@pytest.mark.parametrize("prefill, decode", [("plain", "nixl"), ("nixl", "plain")])
@pytest.mark.parametrize("router", [sidecar, coordinator, dynamo, aibrix], ids=lambda router: router.__name__)
def test_loads(rigs: Callable[[str, str], Rig], router: Callable[[Rig, Body], Body], prefill: str, decode: str) -> None:
    """P under one name, D under the other."""
    rig = rigs(prefill, decode)
    expected = rig.expected(rig.question)
    rig.settle()
    before = metrics.total(rig.counters(), LOADED)
    answer = router(rig, client.completion_body(rig.question, rig.max_tokens))
    assert answer["choices"][0]["token_ids"] == expected
    rig.probe()
    assert metrics.total(rig.counters(), LOADED) - before == -(-len(rig.question) // BLOCK_TOKENS)
    rig.settle()


def test_a_ticket_of_nixl_is_a_bad_one(rigs: Callable[[str, str], Rig]) -> None:
    rig = rigs("plain", "nixl")
    nixls = faults.Fault("-", "NIXL's", lambda rig: rig.decode(rig.question, OF_NIXL))
    expect.recomputed(trial.run(rig, nixls), "bad_ticket")


def test_no_ticket_from_p(rigs: Callable[[str, str], Rig]) -> None:
    """The sidecar then sends null, the coordinator what it would have overwritten."""
    rig = rigs("plain", "nixl")
    expected = rig.expected(rig.question)
    body = client.completion_body(rig.question, rig.max_tokens)
    bare = {"do_remote_decode": False, "do_remote_prefill": True}
    for params in (None, bare):
        assert send(rig.decoder, {**body, "kv_transfer_params": params})["choices"][0]["token_ids"] == expected
    rig.settle()


def test_under_that_name_in_a_multi_connector(rigs: Callable[[str, str], Rig]) -> None:
    """vLLM finds statistics by the name of the class, which is ours."""
    rig = rigs("plain", "multi")
    rig.expected(rig.question)
    expect.loaded(trial.run(rig, faults.HEALTHY), len(rig.question))
    assert metrics.total(rig.counters(), LOADED) > 0
