"""Without a fault: blocks are loaded, and the tokens are those that D computes by itself."""

from __future__ import annotations

from pd import client, faults, trial
from pd.rig import Rig

import expect


def test_loads(each_rig: Rig) -> None:
    """Over the transport agreed on, and over tcp."""
    expect.loaded(trial.run(each_rig, faults.HEALTHY), len(each_rig.question))


def test_with_policy_fail(fail_rig: Rig) -> None:
    expect.loaded(trial.run(fail_rig, faults.HEALTHY), len(fail_rig.question))


def test_prompts_give_different_tokens(rig: Rig) -> None:
    """Else none of these tests could fail."""
    assert rig.expected(rig.question) != rig.expected(rig.other_question)


def test_prompt_of_whole_blocks(rig: Rig) -> None:
    whole_blocks = faults.Fault("-", "whole blocks", lambda r: r.decode(r.question[:128], r.ticket(r.question[:128])),
                                asks=lambda r: r.question[:128])
    expect.loaded(trial.run(rig, whole_blocks), 128)


def test_through_the_router(rig: Rig) -> None:
    assert rig.stack.router is not None
    url = rig.stack.router.url
    routed = faults.Fault("-", "through the router", lambda r: client.complete(url, r.question, r.max_tokens))
    expect.loaded(trial.run(rig, routed), len(rig.question))
