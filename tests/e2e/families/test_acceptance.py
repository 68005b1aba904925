"""Drafts after a load: as many of them are accepted as after a prompt that D has computed by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import sqrt

import pytest
from pd import carried, client, trial
from pd.carried import ONE, Row
from pd.client import Prompt, Reply
from pd.engine import EngineSpec
from pd.families import AHEAD
from pd.progress import say
from pd.prompts import numbered_prompt
from pd.rig import RECOMPUTED, Rig
from pd.stack import Stack, log_folder
from pd.zero import ARGS as ZERO
from pd.zero import CALLS as ZERO_CALLS

import shapes

pytestmark = pytest.mark.deep

LEASE_S = 30.0
CLIENT_LIMIT_S = 300.0
AT_ONCE = 16
PROMPTS = [numbered_prompt(number, 128) for number in range(56)]
"""As many as it takes to tell what MAY_DIFFER: see Share.error."""
CONTROL = PROMPTS[:AT_ONCE]
ANSWER_TOKENS = 256
BLOCKS = 450
"""For as many prompts and answers as are under way at a time, of 16 tokens a block with MLA."""
DRAFTED, ACCEPTED = "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"
RPC_LIMIT_S = 30.0
MAY_DIFFER = 0.02
"""Of the rate."""


@dataclass(frozen=True)
class Share:
    """What came of D's drafts."""

    accepted: int
    drafted: int

    @property
    def rate(self) -> float:
        return self.accepted / self.drafted

    @property
    def error(self) -> float:
        """One standard deviation, as a part of the rate, if each draft were accepted or not by chance."""
        return sqrt((1 - self.rate) / self.accepted)

    def differs(self, other: Share) -> float:
        return abs(self.rate / other.rate - 1)

    def __str__(self) -> str:
        return f"{self.accepted} of {self.drafted} ({self.rate:.4f}, by chance +- {self.error:.2%} of that)"


@dataclass(frozen=True)
class Shares:
    alone: Share
    loaded: Share
    left_out: Share
    """Loaded without what the draft keeps of the prompt."""


def drafting(name: str, row: Row, *args: str, **options: object) -> EngineSpec:
    engine = shapes.engine(name, model=row.family.model(), blocks=BLOCKS, lease_ttl_ms=int(LEASE_S * 1000), **options)
    return replace(engine, connector=engine.connector.with_rank_calls(*ZERO_CALLS), args=(*args, *ZERO, *row.family.engine_args()))


def share(rig: Rig, what: str, prompts: list[Prompt], answer: Callable[[Prompt], Reply]) -> Share:
    """D's blocks are wiped first: what earlier answers to the prompts have left there does not pass for what comes."""
    rig.settle()
    rig.decoder.call("/collective_rpc", RPC_LIMIT_S, {"method": "wipe_kv"})
    before = rig.counters()
    with ThreadPoolExecutor(AT_ONCE) as clients:
        for reply in clients.map(answer, prompts):
            assert reply.ok and len(reply.tokens) == ANSWER_TOKENS, reply
    after = rig.counters()
    found = Share(trial.grown(before, after, ACCEPTED), trial.grown(before, after, DRAFTED))
    say(f"{what}: {found}")
    return found


def share_of_loads(rig: Rig, what: str, prompts: list[Prompt]) -> Share:
    """All of each prompt but its last token came by kvferry."""
    before = rig.counters()
    found = share(rig, what, prompts, lambda prompt: rig.decode(prompt, rig.ticket(prompt)))
    after = rig.counters()
    assert trial.grown(before, after, RECOMPUTED) == 0 and trial.new_failures(before, after) == {}
    assert trial.grown(before, after, trial.LOADED) >= sum(len(prompt) - 1 for prompt in prompts)
    assert trial.grown(before, after, trial.LOADED_BLOCKS) > 0
    return found


ROWS = [row for row in carried.ROWS if row.family.draft and (row.topology == ONE or not row.family.replicated)]
"""Where ranks have the same KV there is nothing more to tell, and vLLM takes minutes for it: on a CPU its MLA computes the prompt's
keys anew for each step that has drafts."""


@pytest.fixture(scope="module", params=ROWS, ids=str)
def shares(request: pytest.FixtureRequest) -> Iterator[Shares]:
    row: Row = request.param
    prefill, decode = row.topology.prefill, row.topology.decode
    with Stack([drafting("P", row, *prefill), drafting("D", row, *decode)],
               log_folder(f"acceptance-{row}".replace(":", "-")), with_router=False) as stack:
        rig = Rig(stack, "kvferry", PROMPTS, LEASE_S, ANSWER_TOKENS, CLIENT_LIMIT_S)
        alone = share(rig, "alone", PROMPTS, lambda prompt: client.complete(rig.decoder.url, prompt, ANSWER_TOKENS, None, CLIENT_LIMIT_S))
        loaded = share_of_loads(rig, "loaded", PROMPTS)
        rig.decoder.stop()
        stack.engines.remove(rig.decoder)
        rig.consumer = stack.add(drafting("D-target", row, *decode, carry_drafts=False))
        yield Shares(alone, loaded, share_of_loads(rig, "without the draft's KV", CONTROL))


def test_as_many_drafts_are_accepted(shares: Shares) -> None:
    """vLLM counts AHEAD drafts to each load that nobody made: it fills up the step that computes the last token, and so it does
    for a prompt that its own cache has. With answers of this length that is half of what may differ."""
    assert 0.3 <= shares.alone.rate <= 0.8
    assert max(shares.alone.error, shares.loaded.error) <= MAY_DIFFER / 2, "too few drafts to tell"
    assert AHEAD * len(PROMPTS) <= shares.loaded.drafted * MAY_DIFFER / 2
    assert shares.loaded.differs(shares.alone) <= MAY_DIFFER


def test_what_is_left_out_is_missed(shares: Shares) -> None:
    """By the same measure, where it must: else the other test could not fail."""
    assert shares.left_out.rate < shares.alone.rate * (1 - 5 * MAY_DIFFER)
