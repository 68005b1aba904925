"""The tests can fail: with what a promise rests on taken out of D, wrong tokens come with HTTP 200."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pd import faults, trial
from pd.rig import Rig
from pd.trial import Outcome

pytestmark = pytest.mark.deep


def answers_wrong(outcome: Outcome) -> None:
    assert outcome.reply is not None
    assert outcome.reply.ok, outcome.reply.in_short(200)
    assert outcome.recomputed == 0, "it was noticed"
    assert not outcome.same_tokens, "right tokens, by chance or because something else noticed"


def test_stale_without_the_fence_check(rig_for: Callable[[str], Rig]) -> None:
    rig = rig_for("D-fence")
    rig.warm_up()
    answers_wrong(trial.run(rig, faults.STALE))


def test_another_prompt_without_its_hash(rig_for: Callable[[str], Rig]) -> None:
    rig = rig_for("D-prompt")
    rig.warm_up()
    answers_wrong(trial.run(rig, faults.SWAPPED))
