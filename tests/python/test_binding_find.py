"""A ticket that is found instead of being handed over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engines import BLOCK_TOKENS, Engine, make_prompt
from kvferry import Error, _kvferry

MakeEngine = Callable[..., Engine]
SOURCE = [3, 9, 4, 20]
TARGET = [1, 2, 30, 7]
TOKENS = 4 * BLOCK_TOKENS - 5


def address_of(engine: Engine, asker: Engine) -> str:
    """Where its rank listens, as another engine sees it."""
    _, _, ticket = engine.publish([0], make_prompt(BLOCK_TOKENS, seed=9))
    status, info = asker.control.request_open(ticket, make_prompt(BLOCK_TOKENS, seed=9), 0, {})
    assert status == _kvferry.OK and info is not None
    return info.peer


def find(engine: Engine, prompt: bytes, at: str | None = None) -> tuple[int, int]:
    """(What came of it, the find's id)."""
    status, id_ = engine.control.ticket_find(prompt, at, 10_000, 8)
    assert status == _kvferry.OK, _kvferry.status_name(status)
    event = engine.take(_kvferry.EVENT_TICKET, id_)
    assert (event.user, event.report, event.verdict) == (8, None, None)
    return event.cause, id_


def test_a_find_leads_to_a_load(engine: MakeEngine) -> None:
    p = engine(1)
    at = address_of(p, engine(9))
    d = engine(2, peers=at)
    prompt = make_prompt(TOKENS)
    _, lease_id, ticket = p.publish(SOURCE, prompt)
    assert find(d, prompt)[0] == _kvferry.NOT_FOUND
    assert p.rank.ticket_offer(ticket) == _kvferry.OK
    assert p.rank.ticket_offer(ticket) == _kvferry.EXISTS
    result, id_ = find(d, prompt, at)
    assert result == _kvferry.OK
    assert d.control.ticket_take(id_) == ticket
    assert d.control.ticket_take(id_) is None
    assert d.control.ticket_prompt(ticket) == (_kvferry.OK, prompt)
    assert find(d, prompt)[0] == _kvferry.NOT_FOUND  # it is given to one
    assert d.verdict(d.load(ticket, prompt, TARGET)).action == _kvferry.ACTION_USE
    assert [d.pool.block(block) for block in TARGET] == [p.pool.block(block) for block in SOURCE]
    p.take(_kvferry.EVENT_LEASE_ENDED, lease_id)
    assert (p.stat("offers_given"), p.stat("offers_open")) == (1, 0)
    assert (d.stat("finds", "ok"), d.stat("finds", "not_found")) == (1, 2)


def test_nobody_is_there(engine: MakeEngine) -> None:
    assert find(engine(2, peers="127.0.0.1:1"), make_prompt(TOKENS))[0] == _kvferry.PEER_DOWN


def test_what_cannot_be_asked_or_offered(engine: MakeEngine) -> None:
    d = engine(2)
    prompt = make_prompt(TOKENS)
    assert d.control.ticket_find(prompt, None, 0, 8) == (_kvferry.NOT_FOUND, 0)
    assert d.control.ticket_find(prompt, "127.0.0.1:1", 0, 8) == (_kvferry.NOT_FOUND, 0)
    assert d.control.ticket_find(prompt, None, 600_001, 8) == (_kvferry.INVALID, 0)
    assert d.rank.ticket_offer("no ticket") == _kvferry.BAD_TICKET
    assert d.control.ticket_prompt("no ticket") == (_kvferry.BAD_TICKET, None)
    with pytest.raises(ValueError, match="a prompt is"):
        d.control.ticket_find(b"short", None, 0, 8)
    with pytest.raises(TypeError):
        d.rank.ticket_offer(b"bytes")  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        d.control.ticket_take(-1)
    d.rank.close()
    with pytest.raises(Error, match="closed"):
        d.rank.ticket_offer("no ticket")
