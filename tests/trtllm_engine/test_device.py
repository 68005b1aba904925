"""Memory of the fake CUDA driver, and a stream that is late: who does not wait for it is caught by the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import BLOCKS, TOKENS, Make, all_is_back, ask, prompt
from .device import DeviceTensor, cuda_library
from .model import right_answer

HAS_FAKE = Path(cuda_library("cuda")).exists()
pytestmark = pytest.mark.skipif(not HAS_FAKE, reason="the fake CUDA driver is not built, see KVFERRY_FAKE_CUDA_LIBRARY")


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVFERRY_FAKE_CUDA_LIBRARY", cuda_library("cuda"))


@pytest.mark.parametrize("loop", ["plain", "overlap"])
@pytest.mark.parametrize("manager", ["v1", "v2"])
@pytest.mark.parametrize("flags", ["event", "event+async"])
def test_work_is_late_and_right(make: Make, manager: str, loop: str, flags: str) -> None:
    source, target = (make(name, flags, manager=manager, loop=loop, ranks=2, memory="cuda") for name in "PD")
    right = right_answer(prompt(1), TOKENS)
    assert ask(source, prompt(1)) == ask(target, prompt(1)) == right
    assert target.counters[1].matched == 16
    all_is_back(target)


@pytest.mark.parametrize("loop", ["plain", "overlap"])
def test_a_publisher_that_does_not_wait_is_caught(make: Make, loop: str) -> None:
    source, target = make("P", "", loop=loop, memory="cuda"), make("D", "event", loop=loop, memory="cuda")
    right = right_answer(prompt(1), TOKENS)
    assert ask(source, prompt(1)) == right != ask(target, prompt(1))
    assert target.counters[1].matched == 16


def test_the_pool_is_shown_as_a_gpu_s(make: Make) -> None:
    engine = make("P", "event", memory="cuda")
    tensor: Any = engine.workers[0].tensor
    assert isinstance(tensor, DeviceTensor) and (tensor.device.type, tensor.device.index) == ("cuda", 0)
    assert tensor.shape == (BLOCKS, 2, 2, 32) and tensor.stride() == (128, 64, 32, 1) and tensor.element_size() == 4
    assert engine.executors[0].device.stream.cuda_stream
