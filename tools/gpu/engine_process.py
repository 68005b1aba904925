"""One of vLLM's engines for engines.py: the offline LLM class, told over a socket what to compute.

    engine_process.py OPTIONS ADDRESS        OPTIONS: of LLM, as JSON
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
from pd.zero import Zero

import parties
from asks import ASKS_FOR_TICKET, Answer, Ask

READY_PROMPT = [1] * 40
READY_EVERY_S = 0.1


class Worker(Zero):
    """What vLLM's worker is asked beside its own work."""

    def zero_a_block(self) -> int:
        """The first of the prompt that was handed over last, in a layer in the middle; done when this returns."""
        layers = self.kv_layers()
        block, = self.zero_block(layers[len(layers) // 2])
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return block

    def runner(self) -> str:
        return type(self.model_runner).__module__  # type: ignore[attr-defined]


class Engine:
    """Takes calls between two steps."""

    def __init__(self, options: dict[str, Any], address: str) -> None:
        from vllm import LLM
        begin = time.monotonic()
        self._llm = LLM(**options, worker_extension_cls=f"{Worker.__module__}.{Worker.__name__}")
        self._engine = self._llm.llm_engine
        self._open: dict[str, tuple[int, float, Answer]] = {}
        self._count = 0
        self._started_s = time.monotonic() - begin
        self._wait_for_tickets()
        self._connection = parties.say_hello(address, **self._facts())

    def _wait_for_tickets(self) -> None:
        """Until kvferry knows the content of the weights' files it gives none. Who started us has a limit."""
        while not self._one(Ask(READY_PROMPT, 1, ASKS_FOR_TICKET)).params:
            time.sleep(READY_EVERY_S)

    def _one(self, ask: Ask) -> Answer:
        self._add(-1, ask)
        while self._engine.has_unfinished_requests():
            for _, answer in self._step():
                return answer
        raise RuntimeError("no answer")

    def _facts(self) -> dict[str, Any]:
        config = self._engine.vllm_config
        return {"start_s": round(self._started_s, 1), "runner": self._llm.collective_rpc("runner")[0],
                "graphs": config.compilation_config.cudagraph_mode.name,
                "async": bool(config.scheduler_config.async_scheduling), "torch": torch.__version__}

    def work(self) -> None:
        while True:
            while not self._engine.has_unfinished_requests() or self._connection.poll():
                try:
                    key, call, args = self._connection.recv()
                except EOFError:
                    return
                self._take(key, call, args)
            for key, answer in self._step():
                self._connection.send((key, answer, ""))

    def _take(self, key: int, call: str, args: Any) -> None:
        try:
            if call == "ask":
                self._add(key, *args)
            else:
                self._connection.send((key, getattr(self, call)(*args), ""))
        except Exception as error:
            self._connection.send((key, None, f"{type(error).__name__}: {error}"))

    def _add(self, key: int, ask: Ask) -> None:
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input
        self._count += 1
        params = SamplingParams(temperature=0.0, max_tokens=ask.tokens, ignore_eos=True, detokenize=False,
                                extra_args={"kv_transfer_params": ask.params} if ask.params else None)
        # vLLM's own id: it adds to the one that it is given
        id_ = self._engine.add_request(str(self._count), tokens_input(ask.prompt), params)
        self._open[str(self._count)] = self._open[id_] = (key, time.monotonic(), Answer())

    def _step(self) -> list[tuple[int, Answer]]:
        finished = []
        for output in self._engine.step():
            key, begin, answer = self._open[output.request_id]
            new = list(output.outputs[0].token_ids)
            answer.times_s += [time.monotonic() - begin] * (len(new) - len(answer.tokens))
            answer.tokens = new
            if output.finished:
                answer.params, answer.reason = output.kv_transfer_params, output.outputs[0].finish_reason
                del self._open[output.request_id]
                finished.append((key, answer))
        return finished

    # ---- calls ----

    def numbers(self) -> dict[str, float]:
        """kvferry's, as of the last step: sums over labels; of failures and recomputed tokens also by reason."""
        from prometheus_client import REGISTRY
        found: dict[str, float] = {}
        for family in REGISTRY.collect():
            for sample in family.samples if family.name.startswith("kvferry_") else ():
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
                if reason := sample.labels.get("reason"):
                    found[f"{sample.name} {reason}"] = sample.value
        return found

    def forget(self) -> bool:
        """All leases end, all blocks are free."""
        return bool(self._llm.reset_prefix_cache())

    def rpc(self, name: str) -> Any:
        return self._llm.collective_rpc(name)[0]


if __name__ == "__main__":
    Engine(json.loads(sys.argv[1]), sys.argv[2]).work()
    os._exit(0)
