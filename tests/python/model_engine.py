"""vLLM's own scheduler, plain or asynchronous, and the connector over real nodes, around a model that costs nothing.

Each token's KV is a number that follows from all tokens up to it and is computed from the KV of the one before; the next
token follows from the KV of all. Any block that is missing, stale or of another prompt changes the answer.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fakes import BLOCK_TOKENS, join, spec
from kvferry.vllm import worker
from kvferry.vllm.content import updates
from vllm import SamplingParams
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "dev"))

from pd.paths import FAST  # noqa: E402

init_none_hash(sha256)

WORDS = 1009
HEADS, HEAD_SIZE, LAYERS = 2, 16, 2
STEPS_IN_FLIGHT = 2
"""Of an asynchronous engine."""
LIMIT_S = 20.0


def kv_of(before: int, token: int) -> int:
    return (before * 31 + token + 1) % 1_000_003  # exact as a float32


def answer_of(numbers: Sequence[int]) -> int:
    return sum((position + 1) * number for position, number in enumerate(numbers)) % WORDS


def right_answer(prompt: Sequence[int], tokens: int) -> list[int]:
    """What an engine by itself says."""
    numbers = [functools.reduce(kv_of, prompt[:1 + position], 0) for position in range(len(prompt))]
    answer: list[int] = []
    for _ in range(tokens):
        answer.append(answer_of(numbers))
        numbers.append(kv_of(numbers[-1], answer[-1]))
    return answer


@dataclass
class Known:
    """A request as the model knows it."""

    tokens: list[int]
    blocks: list[int]


class Rank:
    """A worker: its half of the heads, and the connector's side."""

    def __init__(self, engine: ModelEngine, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker, "rank_of_worker", lambda engine: rank)
        self.connector = KVConnectorFactory.create_connector(engine.config, KVConnectorRole.WORKER, engine.kv)
        names = engine.kv.kv_cache_groups[0].layer_names
        layers = {name: torch.zeros(engine.kv.num_blocks, HEADS, BLOCK_TOKENS, 2 * HEAD_SIZE) for name in names}
        self.connector.register_kv_caches(layers)
        self.layers = [layer.numpy() for layer in layers.values()]

    def begin_step(self, scheduled: SchedulerOutput) -> None:
        self.connector.handle_preemptions(scheduled.kv_connector_metadata)
        self.connector.bind_connector_metadata(scheduled.kv_connector_metadata)

    def finish_step(self, scheduled: SchedulerOutput) -> KVConnectorOutput:
        self.connector.start_load_kv(None)
        self.connector.wait_for_save()
        sent, received = self.connector.get_finished(scheduled.finished_req_ids)
        output = KVConnectorOutput(finished_sending=sent, finished_recving=received,
                                   kv_connector_worker_meta=self.connector.build_connector_worker_meta())
        self.connector.clear_connector_metadata()
        return output

    def write(self, blocks: list[int], position: int, number: int) -> None:
        for layer in self.layers:
            layer[blocks[position // BLOCK_TOKENS], :, position % BLOCK_TOKENS] = number

    def read(self, blocks: list[int], count: int) -> list[int]:
        """The numbers of the first tokens. What layers or heads disagree about is no number of any prompt."""
        found = np.stack([layer[blocks] for layer in self.layers], 3).swapaxes(1, 2)
        rows = found.reshape(len(blocks) * BLOCK_TOKENS, LAYERS * HEADS * 2 * HEAD_SIZE)[:count]
        low, high = rows.min(1), rows.max(1)
        return [int(a) if a == b else -1 for a, b in zip(low.tolist(), high.tolist())]


@functools.cache
def _config() -> VllmConfig:
    return EngineArgs(model=str(FAST), dtype="float32", enforce_eager=True, block_size=BLOCK_TOKENS, max_num_seqs=8,
                      max_num_batched_tokens=96, max_model_len=1024).create_engine_config()


def engine_config(name: str, asynchronous: bool, blocks: int, ranks: int, policy: str,
                  options: dict[str, Any]) -> VllmConfig:
    config = copy.copy(_config())
    for part in ("scheduler_config", "parallel_config", "cache_config"):
        setattr(config, part, copy.copy(getattr(config, part)))
    config.scheduler_config.async_scheduling = asynchronous
    config.parallel_config.tensor_parallel_size = ranks
    config.cache_config.num_gpu_blocks = blocks
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="KVFerryConnector", kv_connector_module_path="kvferry.vllm", kv_role="kv_both", engine_id=name,
        kv_load_failure_policy=policy, kv_connector_extra_config={"weights_id": "toy"} | options)
    return config


class ModelEngine:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, asynchronous: bool = False, blocks: int = 24,
                 ranks: int = 1, policy: str = "recompute", **options: Any) -> None:
        self.config = engine_config(name, asynchronous, blocks, ranks, policy, options)
        groups = [KVCacheGroupSpec([f"layer.{i}" for i in range(LAYERS)], spec(num_kv_heads=HEADS, head_size=HEAD_SIZE))]
        self.kv = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups, kv_cache_layout="LBHNC")
        kind = AsyncScheduler if asynchronous else Scheduler
        self.scheduler = kind(self.config, self.kv, StructuredOutputManager(self.config), BLOCK_TOKENS)
        self.side = self.scheduler.connector._scheduler
        self.ranks = [Rank(self, rank, monkeypatch) for rank in range(ranks)]
        self._aggregator = KVOutputAggregator.from_connector(self.scheduler.connector, ranks)
        workers = [rank.connector._worker for rank in self.ranks]
        join(self.side, self.scheduler, [one.address() for one in workers], workers)
        self.answers: dict[str, list[int]] = {}
        self.finished: dict[str, Any] = {}
        """By request: its reason, and its parameters for another engine."""
        self.stop_reasons: dict[str, Any] = {}
        self._sequences: dict[str, Known] = {}
        self._in_flight: deque[SchedulerOutput] = deque()
        self._depth = STEPS_IN_FLIGHT if asynchronous else 1
        self._hash = get_request_block_hasher(BLOCK_TOKENS, sha256)
        self._core = SimpleNamespace(scheduler=self.scheduler, model_executor=SimpleNamespace(collective_rpc=self._rpc),
                                     vllm_config=self.config)

    def close(self) -> None:
        for connector in (self.scheduler.connector, *(rank.connector for rank in self.ranks)):
            connector.shutdown()

    # ---- as vLLM's engine core does ----

    def ask(self, name: str, prompt: list[int], tokens: int, params: dict[str, Any] | None = None, **fields: Any) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True,
                                  extra_args={"kv_transfer_params": params} if params else None)
        self.answers[name] = []
        self.scheduler.add_request(Request(name, prompt, sampling, None, block_hasher=self._hash, **fields))

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)

    def reset(self, running_too: bool = False) -> bool:
        return EngineCore.reset_prefix_cache(self._core, running_too)

    def reload_weights(self) -> None:
        EngineCore.collective_rpc(self._core, "reload_weights")

    def step(self) -> None:
        if self.scheduler.has_requests():
            self._in_flight.append(self.scheduler.schedule())
            if len(self._in_flight) < self._depth and self._in_flight[-1].total_num_scheduled_tokens:
                return
        if self._in_flight:
            self._finish_step()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def finish_steps(self) -> None:
        """Those that are under way, as a pause does."""
        while self._in_flight:
            self._finish_step()

    def _finish_step(self) -> None:
        scheduled = self._in_flight.popleft()
        self._take(self.scheduler.update_from_output(scheduled, self._execute(scheduled)))

    def _take(self, outputs: dict[int, Any]) -> None:
        for output in (one for of_client in outputs.values() for one in of_client.outputs):
            self.answers[output.request_id] += output.new_token_ids
            if output.finished:
                self.stop_reasons[output.request_id] = output.stop_reason
                self.finished[output.request_id] = (output.finish_reason, output.kv_transfer_params)

    def _rpc(self, method: Any, timeout: float | None = None, args: tuple[Any, ...] = (), kwargs: Any = None) -> list[Any]:
        if isinstance(method, str):
            return [None for _ in self.ranks]  # a worker's own
        if method is updates.own_methods:
            return [set(updates.KEEP_WEIGHTS) for _ in self.ranks]
        return [getattr(rank.connector._worker, args[1])(*args[2:]) for rank in self.ranks]

    # ---- the model ----

    def _execute(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        for rank in self.ranks:
            rank.begin_step(scheduled)
        self._follow(scheduled)
        sampled = [self._forward(name, tokens) for name, tokens in scheduled.num_scheduled_tokens.items()]
        names = list(scheduled.num_scheduled_tokens)
        return self._aggregator.aggregate([
            ModelRunnerOutput(names, {name: i for i, name in enumerate(names)}, sampled,
                              kv_connector_output=rank.finish_step(scheduled)) for rank in self.ranks])

    def _follow(self, scheduled: SchedulerOutput) -> None:
        for name in scheduled.finished_req_ids:
            self._sequences.pop(name, None)
        self._computed = {}
        for new in scheduled.scheduled_new_reqs:
            self._sequences[new.req_id] = Known(list(new.prompt_token_ids), list(new.block_ids[0]))
            self._computed[new.req_id] = new.num_computed_tokens
        cached = scheduled.scheduled_cached_reqs
        for name, blocks, computed in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens):
            sequence = self._sequences[name]
            if name in cached.resumed_req_ids:
                sequence.blocks = []
            if name in cached.all_token_ids:
                sequence.tokens = list(cached.all_token_ids[name])
            sequence.blocks += blocks[0] if blocks else []
            self._computed[name] = computed

    def _forward(self, name: str, tokens: int) -> list[int]:
        sequence, computed = self._sequences[name], self._computed[name]
        end = computed + tokens
        for rank in self.ranks:
            numbers = rank.read(sequence.blocks, computed)
            for position in range(computed, end):
                numbers.append(kv_of(numbers[-1] if numbers else 0, sequence.tokens[position]))
                rank.write(sequence.blocks, position, numbers[-1])
            numbers = rank.read(sequence.blocks, end)
        if end < len(sequence.tokens):
            return []
        sequence.tokens.append(answer_of(numbers))
        return sequence.tokens[-1:]
