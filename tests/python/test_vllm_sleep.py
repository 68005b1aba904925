"""Sleep: vLLM takes the pool's memory away, and brings other memory back at the same addresses."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from fakes import vllm_config  # noqa: E402
from kvferry import _kvferry  # noqa: E402
from kvferry.engine import worker  # noqa: E402
from kvferry.engine.boundary import Refused  # noqa: E402
from kvferry.vllm import KVFerryConnector  # noqa: E402
from sides import Sides  # noqa: E402


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, closes: Callable[[Any], Any]) -> Callable[..., Sides]:
    return lambda **options: closes(Sides(monkeypatch, policy="recompute", **options))


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_was_lent_has_ended_and_what_comes_later_is_carried(engine: Callable[..., Sides], ranks: int) -> None:
    p, d = engine(ranks=ranks), engine(ranks=ranks)
    lent = p.prefill()
    for one in p.workers:
        one.leave()
        one.leave()
    one = d.begin(lent)
    assert not d.until_received(one) and one.num_computed_tokens == 0
    assert d.stat("verdicts", "recompute") == 1
    for one in p.workers:
        one.come_back()
        one.come_back()
    for side in (p, d):
        side.until_nothing_is_left()
    assert not d.until_received(d.begin(p.prefill()))
    assert d.stat("verdicts", "use") == 1


def test_nothing_is_lent_while_it_is_away(engine: Callable[..., Sides]) -> None:
    p = engine()
    p.workers[0].leave()
    with pytest.raises(AssertionError):  # no ticket
        p.prefill()
    p.workers[0].come_back()
    p.until_nothing_is_left()
    assert p.prefill()


def test_memory_that_is_still_read_stays(engine: Callable[..., Sides], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "CONFIRM_S", 0.02)
    side = engine().workers[0]
    monkeypatch.setattr(side, "_node", SimpleNamespace(unregister=lambda: _kvferry.AGAIN, poll=list, close=side._node.close))
    with pytest.raises(Refused, match="a read of the KV cache has not ended"):
        side.leave()


@pytest.mark.parametrize("options, supported", [
    ({}, True), ({"transports": "tcp"}, True), ({"transports": ["local", "tcp"]}, True), ({"transports": "local"}, False),
    ({"transports": ["ucx"]}, False), ({"transports": "ucx, local"}, False)])
def test_engines_that_may_sleep(options: dict[str, Any], supported: bool) -> None:
    assert KVFerryConnector.supports_sleep_mode(vllm_config(options=options).kv_transfer_config) == supported
