"""kvferry's connector, in an engine on the CPU whose KV pool is to pass for a GPU's: the fake of CUDA's driver adopts it
(tests/fake_cuda). The engine goes on to use its pool by pointers, kvferry by the driver's calls.

    "kv_connector_module_path": "pd.adopt", "kv_connector_extra_config": {"cuda_library": ".../libcuda-fake.so"}
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from kvferry import Point, _kvferry
from kvferry.engine.log import logger
from kvferry.vllm import KVFerryConnector, connector, layout
from kvferry.vllm.worker import Worker

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig

DEVICE = 0
DEFAULT_STREAM = 0
"""An engine on the CPU has done its work when it says what it has given its device."""


class Driver:
    def __init__(self, library: str) -> None:
        self._calls = ctypes.CDLL(library)

    def _call(self, name: str, *arguments: object) -> None:
        error = getattr(self._calls, name)(*arguments)
        if error != 0:
            raise RuntimeError(f"{name}: CUDA error {error}")

    def make_context(self) -> None:
        """Current on this thread from now on, as torch leaves it."""
        context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), DEVICE)
        self._call("cuCtxPushCurrent_v2", context)

    def adopt(self, storage: torch.UntypedStorage) -> None:
        self._call("fake_cuda_adopt", ctypes.c_void_p(storage.data_ptr()), ctypes.c_size_t(storage.nbytes()))


class AdoptedWorker(Worker):
    def __init__(self, vllm_config: VllmConfig, *rest: Any) -> None:
        self._driver = Driver(vllm_config.kv_transfer_config.kv_connector_extra_config["cuda_library"])
        self._driver.make_context()
        super().__init__(vllm_config, *rest)

    def open(self) -> None:
        for tensor in self._kv_caches.values():
            self._driver.adopt(tensor.untyped_storage())
        if self._kv_caches:
            logger.info("the fake of CUDA's driver has adopted the pool")
        super().open()

    def work_so_far(self) -> Point:
        return Point(_kvferry.MEMORY_CUDA, DEVICE, DEFAULT_STREAM)


layout.MEMORY["cpu"] = _kvferry.MEMORY_CUDA
connector.Worker = AdoptedWorker  # type: ignore[misc]

__all__ = ["KVFerryConnector"]
