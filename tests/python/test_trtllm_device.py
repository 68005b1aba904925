"""TensorRT-LLM's adapter on memory of a fake GPU, whose work is done later than it is given."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kvferry import _kvferry
from engines import wait_until
from trtllm_world import ANSWER_TOKENS, World, answer, offerable, prompt, right_answer

from trtllm_engine.device import LIBRARY

PROMPTS = 6
GPU = {"cuda_library": str(LIBRARY)}


@pytest.fixture(params=["staged", "rewind"])
def world(closes: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> World:
    if not LIBRARY.exists():
        pytest.skip("the C tests have not been built")
    return closes(World(tmp_path, monkeypatch, request.param))


@pytest.mark.parametrize("transport", ["local", "tcp"])
@pytest.mark.parametrize("manager", ["v1", "v2"])
@pytest.mark.parametrize(("loop", "p_ranks", "d_ranks"), [("plain", 1, 1), ("overlap", 1, 1), ("overlap", 2, 4), ("plain", 4, 2)])
def test_blocks_go_from_gpu_to_gpu(world: World, transport: str, manager: str, loop: str, p_ranks: int, d_ranks: int) -> None:
    settings = GPU | {"transports": transport}
    p = world.prefill(settings, memory="cuda", manager=manager, loop=loop, ranks=p_ranks)
    d = world.decode(settings, memory="cuda", manager=manager, loop=loop, ranks=d_ranks)
    for seed in range(PROMPTS):
        tokens = prompt(seed, 30 + seed)
        world.carry(p, tokens)
        assert answer(d, tokens) == offerable(len(tokens))
    world.all_is_back(p, d)


@pytest.mark.parametrize("world", ["staged"], indirect=True)
def test_blocks_of_the_staging_are_used_again(world: World) -> None:
    """Not before the copy from them is done, which the engine's stream may take its time for."""
    p = world.prefill(GPU, memory="cuda")
    d = world.decode(GPU | {"staging_bytes": 8 * 512}, memory="cuda")
    first, second = prompt(1, 30), prompt(2, 30)
    for tokens in (first, second):
        world.hand_over(p, tokens)
    assert world.load(first) == (offerable(30), "")
    asked = d.submit(first, ANSWER_TOKENS)
    stream = d.executors[0].device.stream
    stream.stall(True)
    stepping, loading = threading.Thread(target=d.step), threading.Thread(target=world.load, args=(second,))
    try:
        stepping.start()
        wait_until("the copy", lambda: d.scheduler._consumer._copies == 1)
        loading.start()
        wait_until("the second one's load", lambda: d.scheduler._consumer._by_prompt)
        time.sleep(0.05)
    finally:
        stream.stall(False)
        stepping.join()
        loading.join()
    d.run()
    assert d.answers[asked] == right_answer(first, ANSWER_TOKENS)
    assert answer(d, second) == offerable(30)


class Recorder:
    """A rank's node, and what it was told to wait for before it publishes."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self.points: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def lease_publish(self, publications: list[Any], after: Any = None) -> list[int]:
        self.points += [after] * len(publications)
        return self._node.lease_publish(publications, after)


@pytest.mark.parametrize("world", ["staged"], indirect=True)
@pytest.mark.parametrize("loop", ["plain", "overlap"])
def test_prompts_are_published_behind_the_engines_work(world: World, loop: str) -> None:
    """It has read its token by then, so that nothing in the text would show it."""
    p = world.prefill(GPU, memory="cuda", loop=loop)
    side = p.workers[0]._side
    side._node = Recorder(side._node)
    for seed in range(3):
        world.hand_over(p, prompt(seed, 30))
    wait_until("the publications", lambda: len(side._node.points) == 3)
    stream = p.executors[0].device.stream.cuda_stream
    assert side._node.points == [(_kvferry.MEMORY_CUDA, 0, stream)] * 3
