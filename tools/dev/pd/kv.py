"""The KV of one prompt as a release of vLLM computes it, in the bytes that kvferry hands over; and whether two are the same.

    PYTHONPATH=.cache/vllm/0.33.0 python -m pd.kv FOLDER CASE…     writes FOLDER/CASE.pt, and FOLDER/CASE-exchanged.pt
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .client import ASK_FOR_TICKET
from .connector import kvferry
from .engine import EngineSpec, engine_args, engine_env
from .families import BY_NAME
from .paths import FAST, FAST_HYBRID
from .progress import wait_until
from .prompts import numbered_prompt

if TYPE_CHECKING:
    import torch

KEEP = ("--worker-extension-cls", "pd.kv_blocks.Keep", "--disable-log-stats")
BLOCKS = 64
PROMPT_TOKENS = 150
READY_LIMIT_S = 60.0
EXCHANGED = "-exchanged"
"""What is added to a case's name where two positions of a block have changed places: another layout."""
ROUNDINGS = 8
"""In each layer, of the largest element: how much sums may differ that are made in another order."""


@dataclass(frozen=True)
class Case:
    """A model, by what makes its folder, and what is added to the engine's arguments."""

    model: Callable[[], Path]
    args: tuple[str, ...] = ()

    def spec(self) -> EngineSpec:
        connector = kvferry().with_rank_calls("wipe_kv", "save", "exchange_positions")
        return EngineSpec("kv", self.model(), connector, "auto", BLOCKS, args=(*KEEP, *self.args))


def family(name: str, *args: str) -> Case:
    return Case(BY_NAME[name].model, (*BY_NAME[name].engine_args(), *args))


BFLOAT16 = ("--dtype", "bfloat16")


CASES = {
    "float32": Case(lambda: FAST),
    "bfloat16": Case(lambda: FAST, BFLOAT16),
    "windows": Case(lambda: FAST_HYBRID),
    "mla": family("deepseek", *BFLOAT16, "--attention-backend", "AMX_MLA"),  # where the CPU has AMX; it takes bfloat16 alone
    "states": family("falcon-h1", *BFLOAT16),  # all that 0.31 takes
}


def compute(case: Case, path: Path) -> None:
    from vllm import LLM, EngineArgs, SamplingParams
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    llm = LLM(**vars(EngineArgs.from_cli_args(parser.parse_args(engine_args(case.spec())))))

    def hands_over(number: int) -> bool:
        asks = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": ASK_FOR_TICKET})
        answer, = llm.generate([{"prompt_token_ids": numbered_prompt(number, PROMPT_TOKENS)}], asks, use_tqdm=False)
        return bool(answer.kv_transfer_params)

    wait_until("the first ticket", lambda: hands_over(0), READY_LIMIT_S)
    llm.collective_rpc("wipe_kv")
    assert hands_over(1)
    llm.collective_rpc("save", args=(str(path.with_suffix(".pt")),))
    llm.collective_rpc("exchange_positions")
    llm.collective_rpc("save", args=(str(path.with_name(path.name + EXCHANGED).with_suffix(".pt")),))
    llm.llm_engine.engine_core.shutdown()


def differences(one: Path, other: Path) -> list[str]:
    """Of two files: by how much each part of the pages differs that differs by more than rounding, which is `ROUNDINGS` of the
    type for each layer, in units of the part's largest element. Empty: the layouts are the same."""
    import torch
    parts, others = torch.load(one), torch.load(other)
    if parts.keys() != others.keys():
        return [f"parts {sorted(parts)} and {sorted(others)}"]
    layers = len({name.split()[1] for name in parts})
    return [f"{name}: {found}" for name in parts if (found := difference(parts[name], others[name], ROUNDINGS * layers))]


def difference(one: torch.Tensor, other: torch.Tensor, roundings: int) -> str:
    import torch
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return f"{one.dtype} {tuple(one.shape)} and {other.dtype} {tuple(other.shape)}"
    largest, apart = one.double().abs().max(), (one.double() - other.double()).abs().max()
    assert largest > 0, "nothing was written"
    rounding = torch.finfo(one.dtype).eps * largest
    return "" if apart <= roundings * rounding else f"{apart / rounding:.0f} roundings, of {roundings}"


def main(folder: Path, names: list[str]) -> None:
    for name in names:
        os.environ.update({**engine_env(CASES[name].spec()), "PYTHONPATH": os.environ["PYTHONPATH"]})
        compute(CASES[name], folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
