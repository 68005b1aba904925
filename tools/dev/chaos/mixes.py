"""What there is to choose from: engines, faults and clients that go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pd.connector import CONNECTORS, Connector, offloading
from pd.engine import EngineSpec, split_cores
from pd.paths import ADAPTERS, FAST, FAST_OTHER

from .plan import CALLS_FAIL, ENGINES_END, EXTENSION_WRITES, NEW_WEIGHTS, P_KILLED, STANDS_STILL, Draft

LEASE_S = 3.0
LOAD_TIMEOUT_S = 10.0
BUDGET_TOKENS_PER_S = 150
"""Of recomputing on D: what goes beyond it is a typed error."""
TYPED_ERRORS = ("--middleware", "kvferry.vllm.KVErrors")
EXTENDED = ", written to by a worker's extension"
"""After the folder of a version of the weights."""
WITH_EXTENSION = ("--worker-extension-cls", "pd.worker_extension.Extension")
WITH_ADAPTERS = ("--enable-lora", "--max-loras", "2", "--max-lora-rank", "8",
                 "--lora-modules", *(f"{name}={path}" for name, path in ADAPTERS.items()))


@dataclass(frozen=True)
class Mix:
    name: str
    faults: Sequence[Draft]
    threads: int
    answer_tokens: int
    limit_s: float
    """A request without an answer by then hangs."""
    p_blocks: int
    d_blocks: int
    """Both less than what all prompts need: a block has another owner soon."""
    patience_s: float = 0.0
    """How long a fault is put off for engines that are starting. Then it is left out."""
    models: tuple[str, ...] = ("model",)
    """What the clients ask for: the model, and adapters."""
    args: tuple[str, ...] = ()
    siblings: tuple[dict[str, Any], ...] = ()
    """Of our connector in P1 and D."""
    d_places: int = 0
    """Requests that D computes at a time, if vLLM's default is too many: others are loaded, and wait."""
    hooks_raise: bool = False
    """Those of our connector, now and then (raiser.py)."""
    below: bool = False
    """Calls below the library fail, and the clients ask vLLM's router. Else they do what a router does themselves."""

    @property
    def versions(self) -> tuple[str, ...]:
        """Folders of the weights that the engines may have."""
        return (str(FAST), str(FAST_OTHER)) if NEW_WEIGHTS in self.faults else (str(FAST),)

    @property
    def all_versions(self) -> tuple[str, ...]:
        """With those that an extension makes of them."""
        extended = EXTENSION_WRITES in self.faults
        return tuple(one for folder in self.versions for one in (folder, folder + EXTENDED)[:1 + extended])

    def engines(self, connector: str, folder: Path) -> list[EngineSpec]:
        """P1, D, P2. P2 of ours offers tcp alone, so that both transports are in use. What they find in a folder of their
        name is raiser.py's."""
        ours = connector == "kvferry"
        p_cores, d_cores = split_cores()
        p2 = self._connector(connector, folder / "P2")
        d_args = (*self.args, *(TYPED_ERRORS if ours else ()), *(("--max-num-seqs", str(self.d_places)) if self.d_places else ()))
        return [EngineSpec("P1", FAST, self._connector(connector, folder / "P1").among(*self.siblings), p_cores, self.p_blocks,
                           args=self.args),
                EngineSpec("D", FAST, self._connector(connector, folder / "D").among(*self.siblings), d_cores, self.d_blocks,
                           args=d_args),
                EngineSpec("P2", FAST, p2.with_options(transports=["tcp"]) if ours else p2, p_cores, self.p_blocks, args=self.args)]

    def _connector(self, name: str, folder: Path) -> Connector:
        made = connector_for(name)
        return made.raising_in(folder) if self.hooks_raise else made.with_these_tools()


def connector_for(name: str) -> Connector:
    base = CONNECTORS[name](LEASE_S)
    if name != "kvferry":
        return base
    return base.with_options(load_timeout_ms=int(LOAD_TIMEOUT_S * 1000), recompute_budget_tokens_per_s=BUDGET_TOKENS_PER_S,
                             checksum="on")


CHAOS = Mix("chaos", (*CALLS_FAIL, *STANDS_STILL, P_KILLED), threads=3, answer_tokens=12,
            limit_s=LOAD_TIMEOUT_S + 20.0,  # a stopped prefill engine, prefill and decoding
            p_blocks=64, d_blocks=96, below=True)
PLAIN_SOAK = Mix("soak", (*STANDS_STILL, *STANDS_STILL, *ENGINES_END), threads=16, answer_tokens=24,
                 # an engine that is stopped, an update that waits for all others' answers, and they before it in the queue
                 limit_s=LOAD_TIMEOUT_S + 6.0 + 20.0 + 24.0,
                 p_blocks=48, d_blocks=64, patience_s=90.0, args=("--shutdown-timeout", "5"))
# Nobody asks for the model without an adapter: vLLM's CPU backend computes that with some adapter, where a step has requests
# of both (lora/ops/torch_ops takes index -1, "none", for the last one).
SOAK = replace(PLAIN_SOAK, faults=(*PLAIN_SOAK.faults, NEW_WEIGHTS, NEW_WEIGHTS, EXTENSION_WRITES), models=tuple(ADAPTERS),
               siblings=(offloading(),), args=(*PLAIN_SOAK.args, *WITH_ADAPTERS, *WITH_EXTENSION), d_places=6, hooks_raise=True)


def mix_named(name: str, connector: str) -> Mix:
    """Other connectors know nothing of weights that change."""
    return CHAOS if name == "chaos" else SOAK if connector == "kvferry" else PLAIN_SOAK
