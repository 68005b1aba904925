"""What every test asserts of an outcome."""

from __future__ import annotations

from pd.trial import Outcome

PROBE_LIMIT_S = 5.0


def lives(outcome: Outcome) -> None:
    """D answers the next request at once, and no block stays in use on any engine."""
    assert outcome.probe.ok, outcome.probe.in_short(200)
    assert outcome.probe.seconds < PROBE_LIMIT_S
    assert outcome.blocks_back_s is not None, "blocks stayed in use"


def right_tokens(outcome: Outcome) -> None:
    assert outcome.reply is not None
    assert outcome.reply.ok, outcome.reply.in_short(200)
    assert outcome.same_tokens, "other tokens than without a fault"
    lives(outcome)


def loaded(outcome: Outcome, tokens: int) -> None:
    """Right, and of these tokens all but the last were loaded, none recomputed."""
    right_tokens(outcome)
    assert outcome.loaded >= tokens - 1
    assert outcome.recomputed == 0
    assert outcome.reasons == {}


def recomputed(outcome: Outcome, *reasons: str) -> None:
    """Right after a recompute, for one of these reasons."""
    right_tokens(outcome)
    assert outcome.recomputed > 0
    assert outcome.reasons and set(outcome.reasons) <= set(reasons), outcome.reasons


def failed(outcome: Outcome, within_s: float) -> None:
    """HTTP 500, soon."""
    assert outcome.reply is not None
    assert outcome.reply.status == 500, outcome.reply.in_short(200)
    assert outcome.reply.seconds < within_s
    lives(outcome)
