"""Where the engine's memory is, and the stream of its forward: the host's, or a GPU's of the fake CUDA driver."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

LIBRARY = Path(__file__).resolve().parents[2] / "build/tests/fake_cuda/libcuda-fake.so"
DEVICE = 0
LATE_S = 0.004
"""So long at least what is put on a stream is not done, when nothing has been on it."""
STREAM_LIMIT_S = 10.0
PAUSE_S = 0.0005
KERNEL = b"trtllm_engine_work"
PAGE_BYTES = 4096


class HostStream:
    """Does its work at once."""

    cuda_stream = 0

    def run(self, work: Callable[[], object]) -> None:
        work()

    def wait(self) -> None:
        pass


class Host:
    """Memory that a pointer reaches, and work that is done when it is asked for."""

    def __init__(self) -> None:
        self.stream: Any = HostStream()

    def memory(self, blocks: int, elements: int) -> torch.Tensor:
        return torch.zeros(blocks, elements)

    def shown(self, tensor: torch.Tensor) -> object:
        """What a connector is given of it."""
        return tensor

    def close(self) -> None:
        pass


# ---- the fake CUDA driver (tests/fake_cuda) ----


class _Launch(ctypes.Structure):
    """The beginning of fake_cuda_launch."""

    _fields_ = [("arguments", ctypes.c_void_p * 8), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3)]


class _Driver:
    """One a process. Work for streams is a number, which the kernel looks up when its turn has come."""

    def __init__(self, path: str) -> None:
        self._calls = ctypes.CDLL(path)
        self._works: dict[int, Callable[[], bool]] = {}
        self._number = 0
        self._lock = threading.Lock()
        self._kernel = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.POINTER(_Launch))(self._run)
        self._calls.fake_cuda_add_kernel(KERNEL, self._kernel, (ctypes.c_size_t * 1)(8), ctypes.c_size_t(1))

    def call(self, name: str, *arguments: object) -> None:
        error = getattr(self._calls, name)(*arguments)
        if error != 0:
            raise RuntimeError(f"{name}: CUDA error {error}")

    def enter(self) -> None:
        """Its context is this thread's from now on, as torch leaves it."""
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), DEVICE)
        self.call("cuCtxPushCurrent_v2", context)

    def function(self) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), b"none")
        self.call("cuModuleGetFunction", ctypes.byref(function), module, KERNEL)
        return function

    def launch(self, function: ctypes.c_void_p, stream: ctypes.c_void_p, work: Callable[[], bool]) -> None:
        with self._lock:
            self._number += 1
            number = ctypes.c_uint64(self._number)
            self._works[self._number] = work
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(number))
        self.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None)

    def stall(self, stream: ctypes.c_void_p, still: bool) -> None:
        self._calls.fake_cuda_stall(stream, still)

    def _run(self, launch: Any) -> bool:
        number = ctypes.c_uint64.from_address(launch.contents.arguments[0]).value
        is_done = self._works[number]()
        if is_done:
            del self._works[number]
        return is_done


_drivers: dict[str, _Driver] = {}
_opening = threading.Lock()
_kept: list[mmap.mmap] = []
"""Memory of engines, which stays: who is late may still read it."""


class CudaStream:
    """What is put on it is done in its turn, late, on the driver's thread."""

    def __init__(self, driver: _Driver) -> None:
        self._driver, self._function = driver, driver.function()
        self._handle = ctypes.c_void_p()
        self._left = 0
        self._lock = threading.Lock()
        self._error: Exception | None = None
        driver.call("cuStreamCreateWithPriority", ctypes.byref(self._handle), 1, 0)
        self.cuda_stream = self._handle.value

    def run(self, work: Callable[[], object]) -> None:
        with self._lock:
            due = time.monotonic() + (LATE_S if self._left == 0 else 0.0)
            self._left += 1
        self._driver.launch(self._function, self._handle, lambda: self._do(work, due))

    def _do(self, work: Callable[[], object], due: float) -> bool:
        if time.monotonic() < due:
            time.sleep(PAUSE_S)
            return False
        try:
            work()
        except Exception as error:
            self._error = error
        with self._lock:
            self._left -= 1
        return True

    def wait(self) -> None:
        done = threading.Event()
        self.run(done.set)
        if not done.wait(STREAM_LIMIT_S):
            raise TimeoutError("the stream stands still")
        if self._error is not None:
            raise self._error

    def stall(self, still: bool) -> None:
        """Nothing on it is done any more, or again."""
        self._driver.stall(self._handle, still)

    def close(self) -> None:
        self._driver.call("cuStreamDestroy_v2", self._handle)


class DeviceTensor:
    """What an adapter asks a tensor on a GPU, whose bytes it cannot touch."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.shape, self.dtype, self.ndim, self.nbytes = tensor.shape, tensor.dtype, tensor.ndim, tensor.nbytes
        self.device = SimpleNamespace(type="cuda", index=DEVICE)
        self.is_cuda = True

    def data_ptr(self) -> int:
        return self._tensor.data_ptr()

    def stride(self, *dimension: int) -> Any:
        return self._tensor.stride(*dimension)

    def element_size(self) -> int:
        return self._tensor.element_size()

    def numel(self) -> int:
        return self._tensor.numel()

    def size(self, *dimension: int) -> Any:
        return self._tensor.size(*dimension)

    def is_contiguous(self) -> bool:
        return self._tensor.is_contiguous()


class Cuda(Host):
    """Memory that the fake driver has adopted. The thread that makes it, the executor's, has the context."""

    def __init__(self, path: str) -> None:
        with _opening:
            if path not in _drivers:
                _drivers[path] = _Driver(path)
        self._driver = _drivers[path]
        self._driver.enter()
        self._pools: list[int] = []
        self.stream = CudaStream(self._driver)

    def memory(self, blocks: int, elements: int) -> torch.Tensor:
        pages = mmap.mmap(-1, -(-blocks * elements * 4 // PAGE_BYTES) * PAGE_BYTES)
        _kept.append(pages)
        tensor = torch.frombuffer(pages, dtype=torch.float32)[:blocks * elements].view(blocks, elements)
        self._driver.call("fake_cuda_adopt", ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(len(pages)))
        self._pools.append(tensor.data_ptr())
        return tensor

    def shown(self, tensor: torch.Tensor) -> object:
        return DeviceTensor(tensor)

    def close(self) -> None:
        self.stream.wait()
        self.stream.close()
        for pool in self._pools:
            self._driver.call("cuMemFree_v2", ctypes.c_uint64(pool))


def cuda_library(memory: str) -> str:
    """Of "cuda" or "cuda:path"."""
    return memory.partition(":")[2] or os.environ.get("KVFERRY_FAKE_CUDA_LIBRARY") or str(LIBRARY)


def open_device(memory: str) -> Host:
    kind = memory.partition(":")[0]
    if kind not in ("host", "cuda"):
        raise ValueError(f"no memory of kind {memory}")
    return Host() if kind == "host" else Cuda(cuda_library(memory))
