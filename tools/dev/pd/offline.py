"""An engine in a program of one's own, without an API server: what it answers to requests that kvferry fails.

    PYTHONPATH=tools/dev python -m pd.offline llm|async_llm FILE     writes a JSON object: by the request's name, what it got
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from .connector import kvferry
from .engine import EngineSpec, engine_args, engine_env
from .paths import FAST
from .prompts import numbered_prompt

PROMPT_TOKENS = 40
BAD_TICKET = {"do_remote_prefill": True, "kvferry_ticket": "no ticket"}
REQUESTS: dict[str, dict[str, Any] | None] = {
    "good": None,
    "refused": {"kv_transfer_params": BAD_TICKET},
    "mistaken": {"kv_transfer_params": BAD_TICKET, "kvferry_options": '{"policy": "maybe"}'},
    "computed": {"kv_transfer_params": BAD_TICKET, "kvferry_options": '{"policy": "recompute"}'},
}
"""By name: their extra_args. The engine's policy is fail."""


def arguments(kind: Any) -> Any:
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = kind.add_cli_args(FlexibleArgumentParser())
    return kind.from_cli_args(parser.parse_args(engine_args(spec())))


def spec() -> EngineSpec:
    return EngineSpec("offline", FAST, kvferry().with_policy("fail"), "auto", 64)


def asked(name: str) -> tuple[Any, Any]:
    from vllm import SamplingParams

    prompt = {"prompt_token_ids": numbered_prompt(len(name), PROMPT_TOKENS)}
    return prompt, SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True, extra_args=REQUESTS[name])


def answer_of(output: Any) -> dict[str, Any]:
    answer = output.outputs[0]
    return {"tokens": len(answer.token_ids), "finish_reason": answer.finish_reason, "stop_reason": answer.stop_reason}


def ask_llm() -> dict[str, Any]:
    from vllm import LLM, EngineArgs

    llm = LLM(**vars(arguments(EngineArgs)))
    prompts, params = zip(*map(asked, REQUESTS))
    answers = dict(zip(REQUESTS, map(answer_of, llm.generate(list(prompts), list(params), use_tqdm=False))))
    llm.llm_engine.engine_core.shutdown()
    return answers


async def ask_async_llm() -> dict[str, Any]:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(arguments(AsyncEngineArgs))

    async def ask(name: str) -> dict[str, Any]:
        try:
            async for output in engine.generate(*asked(name), request_id=name):
                last = output
        except Exception as error:
            return {"raised": type(error).__name__, "text": str(error)}
        return answer_of(last)

    answers = dict(zip(REQUESTS, await asyncio.gather(*map(ask, REQUESTS))))
    engine.shutdown()
    return answers


if __name__ == "__main__":
    os.environ.update({**engine_env(spec()), "PYTHONPATH": os.environ["PYTHONPATH"]})
    Path(sys.argv[2]).write_text(json.dumps(ask_llm() if sys.argv[1] == "llm" else asyncio.run(ask_async_llm())))
