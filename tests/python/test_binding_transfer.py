"""Blocks from one engine to another through the binding."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing

import pytest

from engines import BLOCK_TOKENS, IDENTITY, Engine, make_prompt, pack, wait_until
from kvferry import Error, Load, Node, Publication, _kvferry

MakeEngine = Callable[..., Engine]
SOURCE = [3, 9, 4, 20]
TARGET = [1, 2, 30, 7]
TOKENS = 4 * BLOCK_TOKENS - 5
PROMPT = make_prompt(TOKENS)


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_blocks_arrive_and_the_lease_comes_back(engine: MakeEngine, transport: str) -> None:
    p, d = engine(1, transports=transport), engine(2, transports=transport)
    _, lease_id, ticket = p.publish(SOURCE, PROMPT)
    bystander = d.pool.block(5)
    request_id = d.load(ticket, PROMPT, TARGET)
    action, status, keep_blocks, keep_tokens, recompute_tokens, _ = d.verdict(request_id)
    assert (action, status) == (_kvferry.ACTION_USE, _kvferry.OK)
    assert (keep_blocks, keep_tokens, recompute_tokens) == (4, TOKENS, 0)
    for source, target in zip(SOURCE, TARGET):
        assert d.pool.block(target) == p.pool.block(source)
    assert d.pool.block(5) == bystander
    ended = p.take(_kvferry.EVENT_LEASE_ENDED, lease_id)
    assert ended == (_kvferry.EVENT_LEASE_ENDED, lease_id, 77, _kvferry.LEASE_END_COMPLETED, None, None)
    assert (ended.user, ended.cause, ended.report, ended.verdict) == (77, _kvferry.LEASE_END_COMPLETED, None, None)
    assert p.control.lease_release([lease_id]) == [_kvferry.OK]
    assert p.control.lease_release([lease_id]) == [_kvferry.NOT_FOUND]
    assert d.rank.poll() == [] and d.control.poll() == []


@pytest.mark.parametrize("of_p, of_d, status", [
    ({"transports": "local"}, {"require": "tcp"}, "TRANSFER_SETUP"),
    ({"require": "local"}, {"transports": "tcp"}, "TRANSFER_SETUP"),
    ({}, {"require": "tcp"}, "OK"),
])
def test_other_transports_than_required_are_not_used(engine: MakeEngine, of_p: dict[str, str], of_d: dict[str, str],
                                                     status: str) -> None:
    p, d = engine(1, **of_p), engine(2, **of_d)
    _, _, ticket = p.publish(SOURCE, PROMPT)
    assert d.verdict(d.load(ticket, PROMPT, TARGET))[1] == getattr(_kvferry, status)
    assert d.stat("blocks_loaded") == (4 if status == "OK" else 0)
    assert [link[0] for link in d.rank.peers()[0][4]] == ["control", "tcp"]


def test_a_load_is_seen_at_its_peer(engine: MakeEngine) -> None:
    p, d = engine(1, transports="tcp"), engine(2, transports="tcp")
    assert d.rank.peers() == []
    _, _, ticket = p.publish(SOURCE, PROMPT)
    d.verdict(d.load(ticket, PROMPT, TARGET))
    lease, _, ticket = p.publish(SOURCE, PROMPT)
    p.rank.lease_end([lease])
    d.verdict(d.load(ticket, PROMPT, TARGET))
    (id_, address, failure, age_ms, links, numbers), = d.rank.peers()
    values = {(name, reason): value for name, reason, value, _ in numbers}
    assert id_ > 0 and re.fullmatch(r"127\.0\.0\.1:\d+", address)
    assert failure == "lease_expired" and age_ms < 60_000
    assert links == [("control", _kvferry.BREAKER_CLOSED, "ok", True), ("tcp", _kvferry.BREAKER_CLOSED, "ok", True)]
    assert values["loads_done", ""] == 1 and values["loads_failed", "lease_expired"] == 1
    assert values["blocks", ""] == 4 and values["handshakes", ""] == 1 and values["reads_in_flight", ""] == 0
    assert values["bytes", ""] == d.stat("bytes_loaded") > 0
    histograms = dict(d.rank.histograms())
    assert sum(count for _, count, _ in histograms["load_ns"]) == 1
    assert sum(total for _, _, total in histograms["load_bytes"]) <= values["bytes", ""]
    assert sum(count for _, count, _ in histograms["detection_ns"]) == 1
    control, = d.control.peers()
    assert [link[0] for link in control[4]] == ["control"]


def test_the_last_release_s_names_of_links(engine: MakeEngine) -> None:
    p, d = engine(1), engine(2)
    d.verdict(d.load(p.publish(SOURCE, PROMPT)[2], PROMPT, TARGET))
    peer, = d.rank.peers()
    with pytest.warns(DeprecationWarning, match="paths is called links now"):
        assert peer.paths is peer.links and peer.links
    with pytest.warns(DeprecationWarning, match="Path is called Link now"):
        assert _kvferry.Path is _kvferry.Link is type(peer.links[0])
    with pytest.raises(AttributeError, match="no attribute 'Pth'"):
        _kvferry.Pth


def test_blocks_that_are_not_wanted_stay_as_they_are(engine: MakeEngine) -> None:
    p, d = engine(1), engine(2)
    _, _, ticket = p.publish(SOURCE, PROMPT)
    before = d.pool.block(1)
    request_id = d.load(ticket, PROMPT, [_kvferry.BLOCK_NONE, *TARGET[1:]])
    assert d.verdict(request_id)[0] == _kvferry.ACTION_USE
    assert d.pool.block(1) == before
    assert d.pool.block(TARGET[3]) == p.pool.block(SOURCE[3])


def test_an_ended_lease_is_recomputed(engine: MakeEngine) -> None:
    p, d = engine(1), engine(2)
    lease, lease_id, ticket = p.publish(SOURCE, PROMPT)
    assert p.rank.lease_end([lease]) == [_kvferry.OK]
    assert p.take(_kvferry.EVENT_LEASE_ENDED, lease_id).cause == _kvferry.LEASE_END_REVOKED
    request_id = d.load(ticket, PROMPT, TARGET)
    action, status, _, keep_tokens, recompute_tokens, _ = d.verdict(request_id)
    assert (action, status) == (_kvferry.ACTION_RECOMPUTE, _kvferry.LEASE_EXPIRED)
    assert (keep_tokens, recompute_tokens) == (0, TOKENS)
    assert d.stat("recomputed_tokens", "lease_expired") == TOKENS


def test_policy_fail(engine: MakeEngine) -> None:
    p, d = engine(1), engine(2, policy="fail")
    lease, _, ticket = p.publish(SOURCE, PROMPT)
    p.rank.lease_end([lease])
    action, status, _, _, _, retry_after_ms = d.verdict(d.load(ticket, PROMPT, TARGET))
    assert (action, status) == (_kvferry.ACTION_FAIL, _kvferry.LEASE_EXPIRED)
    assert retry_after_ms > 0


@pytest.mark.parametrize("options, tokens, action", [
    ({"policy": "fail"}, 1, _kvferry.ACTION_FAIL),
    ({"policy": "recompute"}, 100000, _kvferry.ACTION_RECOMPUTE),
    ({"policy": "auto", "auto_max_recompute_tokens": 64}, 64, _kvferry.ACTION_RECOMPUTE),
    ({"policy": "auto", "auto_max_recompute_tokens": 64}, 65, _kvferry.ACTION_FAIL),
    ({"policy": "recompute", "recompute_budget_tokens_per_s": 1}, 64, _kvferry.ACTION_RECOMPUTE),
])
def test_a_refused_ticket_follows_the_policy(engine: MakeEngine, options: dict[str, object], tokens: int,
                                             action: int) -> None:
    d = engine(**options)
    verdict = d.control.request_refused(_kvferry.BAD_TICKET, tokens, {})
    assert verdict[:2] == (action, _kvferry.BAD_TICKET)
    assert verdict[4] == (tokens if action == _kvferry.ACTION_RECOMPUTE else 0)
    assert (500 <= verdict[5] <= 1500) == (action == _kvferry.ACTION_FAIL)
    assert d.stat("recomputed_tokens", "bad_ticket") == verdict[4]


def test_a_refused_ticket_comes_out_of_the_budget(engine: MakeEngine) -> None:
    d = engine(recompute_budget_tokens_per_s=100)
    actions = [d.control.request_refused(_kvferry.BAD_TICKET, 90, {})[0] for _ in range(20)]
    assert actions[0] == _kvferry.ACTION_RECOMPUTE and actions[-1] == _kvferry.ACTION_FAIL


@pytest.mark.parametrize("options, tokens, action", [
    ({"policy": "fail"}, 1, _kvferry.ACTION_FAIL),
    ({"policy": "auto"}, 64, _kvferry.ACTION_RECOMPUTE),
    ({"policy": "auto"}, 65, _kvferry.ACTION_FAIL),
    ({"policy": "auto", "auto_max_recompute_tokens": "100"}, 65, _kvferry.ACTION_RECOMPUTE),
])
def test_a_request_may_differ_from_its_engine(engine: MakeEngine, options: dict[str, str], tokens: int,
                                              action: int) -> None:
    d = engine(policy="recompute", auto_max_recompute_tokens=64)
    assert d.control.request_refused(_kvferry.BAD_TICKET, tokens, options)[0] == action
    assert d.control.request_refused(_kvferry.BAD_TICKET, tokens, {})[0] == _kvferry.ACTION_RECOMPUTE


def test_options_of_an_open_request(engine: MakeEngine) -> None:
    p, d = engine(1), engine(2, policy="recompute", load_timeout_ms=5000)
    lease, _, ticket = p.publish(SOURCE, PROMPT)
    p.rank.lease_end([lease])
    status, info = d.control.request_open(ticket, PROMPT, 0, {"policy": "fail", "load_timeout_ms": "700"})
    assert status == _kvferry.OK and info is not None and info[4] == 700
    d.control.request_begin([info[0]])
    assert d.rank.load_start([Load(info.id, ticket, PROMPT, info.load_timeout_ms, 55, pack(TARGET))]) == [_kvferry.OK]
    assert d.verdict(info[0])[:2] == (_kvferry.ACTION_FAIL, _kvferry.LEASE_EXPIRED)


@pytest.mark.parametrize("options, said", [
    ({"policy": "maybe"}, 'policy = "maybe" is not allowed'),
    ({"load_timeout_ms": "5001"}, "at most the engine's, 5000"),
    ({"key_file": "/key"}, '"key_file" is not an option of a request'),
])
def test_bad_options_of_a_request(engine: MakeEngine, options: dict[str, str], said: str) -> None:
    d = engine(load_timeout_ms=5000)
    for call in (lambda: d.control.request_open("ticket", make_prompt(TOKENS), 0, options),
                 lambda: d.control.request_refused(_kvferry.BAD_TICKET, 1, options)):
        with pytest.raises(Error, match=re.escape(said)):
            call()
    assert d.stat("requests_open") == 0


def test_the_producer_is_named(engine: MakeEngine) -> None:
    p, d, prompt = engine(), engine(2), make_prompt(32)
    _, _, ticket = p.publish([0, 1], prompt)
    _, info = d.control.request_open(ticket, prompt, 0, {})
    assert info is not None and info[3].startswith("127.0.0.1:")


def test_a_ticket_of_another_prompt_is_refused(engine: MakeEngine) -> None:
    p, d = engine(1), engine(2)
    _, _, ticket = p.publish(SOURCE, PROMPT)
    for other in (make_prompt(TOKENS, seed=2), make_prompt(TOKENS, salt=b"lora")):
        assert d.control.request_open(ticket, other, 0, {}) == (_kvferry.BAD_TICKET, None)
    assert d.stat("tickets_refused", "bad_ticket") == 2
    assert d.stat("peer_dials") == 0


@pytest.mark.parametrize("spoil", [
    lambda ticket: ticket[:len(ticket) // 2] + ("A" if ticket[len(ticket) // 2] != "A" else "B")
    + ticket[len(ticket) // 2 + 1:],
    lambda ticket: ticket[:-1],
    lambda ticket: ticket + "A",
    lambda ticket: "",
    lambda ticket: "not a ticket \u2603",
    lambda ticket: "A" * 200000,
])
def test_an_altered_ticket_is_refused(engine: MakeEngine, spoil: Callable[[str], str]) -> None:
    p, d = engine(1), engine(2)
    _, _, ticket = p.publish(SOURCE, PROMPT)
    assert d.control.request_open(spoil(ticket), PROMPT, 0, {}) == (_kvferry.BAD_TICKET, None)
    load = Load(1, spoil(ticket), PROMPT, 0, 0, pack(TARGET))
    assert d.rank.load_start([load]) == [_kvferry.BAD_TICKET]
    assert d.stat("peer_dials") == 0


def test_an_incompatible_engine_is_refused(engine: MakeEngine, capfd: pytest.CaptureFixture[str]) -> None:
    p, d = engine(1), engine(2, identity={"model": "toy", "dtype": "bfloat16"})
    _, _, ticket = p.publish(SOURCE, PROMPT)
    assert d.control.request_open(ticket, PROMPT, 0, {}) == (_kvferry.INCOMPATIBLE, None)
    assert d.stat("peer_dials") == 0
    said = ""

    def names_the_field() -> bool:
        nonlocal said
        said += capfd.readouterr().err
        return 'incompatible: dtype differs: producer has another value, consumer has "bfloat16"' in said

    wait_until("a log line that names the field", names_the_field)


def test_an_aborted_load_ends_and_is_released(engine: MakeEngine) -> None:
    p, d = engine(1, lease_ttl_ms=60000), engine(2)
    _, lease, lease_id = p.control.lease_reserve(4, 32)
    assert lease is not None
    _, ticket = p.control.ticket_make(lease, PROMPT, pack(SOURCE))
    assert ticket is not None
    request_id = d.load(ticket, PROMPT, TARGET)  # waits for the lease to be published
    assert d.rank.load_abort([request_id]) == [_kvferry.OK]
    assert d.control.request_cancel([request_id]) == [_kvferry.OK]
    d.take(_kvferry.EVENT_LOAD, request_id)
    d.take(_kvferry.EVENT_REQUEST_RELEASED, request_id)
    assert d.rank.load_abort([request_id]) == [_kvferry.NOT_FOUND]
    p.rank.lease_publish([Publication(lease, PROMPT, 0, pack(SOURCE))])
    assert p.take(_kvferry.EVENT_LEASE_ENDED, lease_id).cause == _kvferry.LEASE_END_ABANDONED
    wait_until("no request", lambda: d.stat("requests_open") == 0)


def test_a_refused_load_is_reported_by_hand(engine: MakeEngine) -> None:
    p, d = engine(1), engine(2)
    _, _, ticket = p.publish(SOURCE, PROMPT)
    request_id = d.open(ticket, PROMPT)
    d.control.request_begin([request_id])
    assert d.rank.load_start([Load(request_id, ticket, PROMPT, 0, 0, pack([1, 2, 3, 9999]))]) == [_kvferry.INVALID]
    d.control.request_report([_kvferry.report(request_id, 0, 4, 0, _kvferry.NO_MEMORY)])
    verdict = d.take(_kvferry.EVENT_VERDICT, request_id).verdict
    assert verdict[:2] == (_kvferry.ACTION_RECOMPUTE, _kvferry.NO_MEMORY)


@pytest.mark.parametrize(("keep_from", "kept"), [(0, 2), (2 * BLOCK_TOKENS, 2), (2 * BLOCK_TOKENS + 1, 0), (0xffffffff, 0)])
def test_a_prefix_is_kept_from_some_length_on(engine: MakeEngine, keep_from: int, kept: int) -> None:
    p, d = engine(1), engine(2)
    _, _, ticket = p.publish(SOURCE, PROMPT)
    _, info = d.control.request_open(ticket, PROMPT, 0, {}, keep_from)
    assert info is not None
    d.control.request_begin([info.id])
    d.control.request_report([_kvferry.report(info.id, 0, 4, 2, _kvferry.DEADLINE)])
    verdict = d.take(_kvferry.EVENT_VERDICT, info.id).verdict
    assert verdict is not None and (verdict.keep_blocks, verdict.keep_tokens) == (kept, kept * BLOCK_TOKENS)


def test_reservations_are_bounded(engine: MakeEngine) -> None:
    p = engine(1, lease_pool_share_percent=50)
    assert p.control.lease_reserve(16, 32)[0] == _kvferry.OK
    assert p.control.lease_reserve(1, 32) == (_kvferry.NO_LEASE, None, 0)
    assert p.control.lease_reserve_blocks(pack([9]), 32) == (_kvferry.NO_LEASE, None, 0)
    assert p.control.lease_reserve_blocks(pack(list(range(17))), 32) == (_kvferry.LIMIT, None, 0)


def test_a_block_of_several_leases_counts_once(engine: MakeEngine) -> None:
    p = engine(1, lease_pool_share_percent=50)
    _, _, lease_id = p.control.lease_reserve_blocks(pack(list(range(10))), 32)
    for own in range(10, 16):
        assert p.control.lease_reserve_blocks(pack([*range(9), own]), 32)[0] == _kvferry.OK
    assert p.control.lease_reserve_blocks(pack([*range(9), 16]), 32)[0] == _kvferry.NO_LEASE
    assert p.control.lease_release([lease_id]) == [_kvferry.OK]
    assert p.control.lease_reserve_blocks(pack([*range(9), 16]), 32)[0] == _kvferry.OK


def test_the_ranks_are_merged(engine: MakeEngine) -> None:
    """Once all have said so: the shortest prefix, and the release."""
    p = engine(1)
    _, _, ticket = p.publish(SOURCE, PROMPT)
    with closing(Node({"listen": "", "ranks": "2", "block_tokens": str(BLOCK_TOKENS)}, IDENTITY)) as control:
        _, info = control.request_open(ticket, PROMPT, 55, {})
        assert info is not None
        id_ = info.id
        assert control.request_released([id_], 0) == [_kvferry.INVALID]  # it has not begun
        control.request_begin([id_])
        assert control.request_report([_kvferry.report(id_, 1, 4, 4, _kvferry.OK)]) == [_kvferry.OK]
        assert control.request_released([id_, id_ + 1], 1) == [_kvferry.OK, _kvferry.NOT_FOUND]
        assert control.request_released([id_], 2) == [_kvferry.INVALID]
        assert control.poll() == []
        assert control.request_report([_kvferry.report(id_, 0, 4, 2, _kvferry.DEADLINE)]) == [_kvferry.OK]
        assert control.request_stuck([id_, id_ + 1]) == [_kvferry.OK, _kvferry.NOT_FOUND]
        decided, stuck = control.poll()
        assert decided.kind == _kvferry.EVENT_VERDICT and decided.user == 55 and decided.verdict is not None
        assert (decided.verdict.action, decided.verdict.keep_blocks) == (_kvferry.ACTION_RECOMPUTE, 2)
        assert stuck[:2] == (_kvferry.EVENT_REQUEST_STUCK, id_)
        assert control.request_released([id_], 0) == [_kvferry.OK]
        (released,) = control.poll()
        assert (released.kind, released.id, released.user) == (_kvferry.EVENT_REQUEST_RELEASED, id_, 55)
