"""What this engine computes with, on the scheduler's side: its weights and adapters, and what vLLM's prefix cache was computed
with. All that changes them says so here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvferry.engine.log import logger

from . import updates
from .prompts import Prompts

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

    from kvferry.engine.metrics import Counters

    from .weights import Weights

CHANGE_WEIGHTS = (updates.RELOAD, *updates.UPDATE, "sleep")
"""Calls that nobody takes for harmless."""
SAID_MAX = 64
"""Names of calls that are remembered, so that each is logged once."""


class EngineContent:
    def __init__(self, weights: Weights, prompts: Prompts, counters: Counters, keep_weights: set[str],
                 give_up_started: Callable[[], None]) -> None:
        """`keep_weights`: calls that a user knows to leave the weights alone. `give_up_started` has no ticket and no load come of
        what is computed in part, or waits."""
        self._weights = weights
        self._prompts = prompts
        self._counters = counters
        self._keep_weights = keep_weights
        self._give_up_started = give_up_started
        self.knows_calls = False
        self._weights_change = self._update_is_open = False
        self._weights_id = ""
        self._said: set[str] = set()

    # ---- weights ----

    def learn_calls(self, keep_weights: set[str]) -> None:
        """These calls are vLLM's own on every worker, and leave the weights alone."""
        self._keep_weights |= keep_weights
        self.knows_calls = True

    def keeps_weights(self, call: str) -> bool:
        """Whether this call of the workers is known to leave the weights alone; no option says so of those that change them."""
        return call in self._keep_weights and call not in CHANGE_WEIGHTS

    def weights_change(self, call: str) -> None:
        """From now on no ticket and no load. What has been computed in part would be of both weights, and a ticket that
        waits is of the old ones."""
        self._say_once(call)
        self._update_is_open |= call in updates.UPDATE
        self._forget_weights()

    def _forget_weights(self) -> None:
        self._weights_change = self._prompts.cache_is_old = True
        self._weights.forget()
        self._give_up_started()

    @property
    def has_other_weights(self) -> bool:
        """They are not those that a file of digests has named: until weights_disproved()."""
        return self._weights.is_disproved

    def weights_disproved(self) -> None:
        """From now on no ticket and no load, until weights are loaded and read, or sent with a name."""
        self._counters.add("weights_digest_mismatches", "")
        self._forget_weights()

    def _say_once(self, call: str) -> None:
        if call in CHANGE_WEIGHTS or call in self._said or len(self._said) == SAID_MAX:
            return
        self._said.add(call)
        logger.warning('kvferry: collective_rpc %r may change the weights: no tickets and no loads until they have a name '
                       '("weights_id" among its kwargs, or vLLM\'s weight version), or are reloaded from files. If it leaves '
                       'them alone, put it into the option "%s"', call, updates.KEEPING)

    def weights_changed(self, call: str, weights_id: str, succeeded: bool) -> bool:
        """False: with more calls they go on changing. What they are is said by weights_reloaded(), weights_named(), or a
        weights_id. Nothing is carried before cache_is_empty()."""
        self._weights_id = weights_id or (self._weights_id if call in updates.UPDATE_GOES_ON else "")
        is_known = call in CHANGE_WEIGHTS
        if is_known and not succeeded or call in updates.UPDATE and call != updates.UPDATE_ENDS:
            return False
        if self._update_is_open and not is_known:
            return False
        self._weights_change = self._update_is_open = False
        if self._weights_id and succeeded:
            self._weights.name(self._weights_id)
        self._weights_id = ""
        return True

    def loads_configured(self, overrides: Any) -> None:
        """vLLM's configuration has changed by these, or nobody knows how: None."""
        self._weights.configure(overrides)

    def weights_reloaded(self, from_files: tuple[bool, str | None], loaded_from_ns: int) -> None:
        """vLLM has loaded them since then: updates.reloads_from()."""
        reads_files, path = from_files
        if reads_files:
            self._weights.reload(loaded_from_ns, path)

    def weights_named(self, version: str) -> None:
        """Their sender has named them."""
        self._weights.name(version)

    # ---- adapters ----

    def adapter_called(self, lora: LoRARequest) -> bool:
        """A call has had it read; whether blocks of another content may be cached under its name and path."""
        self._prompts.adapters.called(lora)
        return self._prompts.adapters.would_be_old(lora)

    # ---- vLLM's prefix cache ----

    @property
    def cache_is_old(self) -> bool:
        """It may hold blocks that other weights, or adapters, have computed."""
        return self._prompts.cache_is_old or self._prompts.adapters.some_are_old

    def cache_is_empty(self) -> None:
        self._prompts.cache_is_old = self._weights_change
        self._prompts.adapters.cache_is_empty()
