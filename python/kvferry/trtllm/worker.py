"""The class that TensorRT-LLM makes on every rank."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kvferry import Error, Region, _kvferry
from kvferry import Staging as StagingMemory
from kvferry.engine.channel import Link
from kvferry.engine.config import ConfigError
from kvferry.engine.log import logger

from .config import VARIABLE, Config
from .identity import Model, identity_fields
from .layout import Pool, pool_of_layout, pool_of_tensor
from .messages import Step
from .names import WorkerBase, keeps_blocks_of_transfers, mpi, says_what_it_drops
from .ranked import Ranked
from .rewind import Rewinder
from .scheduler import KVFerryScheduler, scheduler_of


def _mistake(rank: int, error: Exception) -> str:
    return f"rank {rank}: {error if isinstance(error, (ConfigError, Error)) else repr(error)}"


def _raise_any(errors: list[str]) -> None:
    if any(errors):
        raise ConfigError("; ".join(error for error in errors if error))


def check_version(config: Config) -> None:
    """What this TensorRT-LLM cannot be relied on for."""
    if config.is_prefill and not keeps_blocks_of_transfers():
        raise ConfigError(f'{VARIABLE}: role = "prefill" needs a TensorRT-LLM that keeps the blocks of a finished request until its '
                          "connector has done with them (KvCacheConnectorManager.has_pending_transfers): this one is older")
    if config.loads_into_blocks and not keeps_blocks_of_transfers():
        raise ConfigError(f'{VARIABLE}: loading = "rewind" needs a TensorRT-LLM that keeps the blocks of a cancelled request until '
                          'its load has ended (KvCacheConnectorManager.has_pending_transfers): take loading = "staged"')
    if config.is_v2 and not says_what_it_drops():
        raise ConfigError("kvferry needs a KVCacheManagerV2 that says which offers it drops (KvCacheConnectorScheduler.request_reset and "
                          "cancel_load): set kv_cache_config.use_kv_cache_manager_v2 to False")


class KVFerryWorker(WorkerBase):
    def __init__(self, llm_args: Any) -> None:
        super().__init__(llm_args)
        self._config = Config(llm_args)
        self._model = Model(self._config)
        check_version(self._config)
        self._link: Link | None = None
        self._side: Ranked | None = None
        self._rewinder: Rewinder | None = None
        self._step = Step()

    # ---- start-up: all ranks at the same time ----

    def register_kv_caches(self, kv_cache_tensor: Any) -> None:
        rank = mpi().mpi_rank()
        self._open(rank, lambda: pool_of_tensor(kv_cache_tensor, self._config, self._model, rank))

    def register_kv_cache_layout(self, layout: Any) -> None:
        rank = mpi().mpi_rank()
        self._open(rank, lambda: pool_of_layout(layout, self._config, self._model, rank, *self._memory_of(layout)))

    @staticmethod
    def _memory_of(layout: Any) -> tuple[int, int]:
        """A layout says addresses alone: its own view of one says what they are."""
        device = layout.groups[0].regions[0].as_tensor().device
        return (_kvferry.MEMORY_CUDA if device.type == "cuda" else _kvferry.MEMORY_HOST), device.index or 0

    def _open(self, rank: int, describe: Any) -> None:
        """No rank fails alone: an error of one is raised by all."""
        record, hub, wrong = b"", ("", ""), ""
        try:
            record = self._prepare(rank, describe())
            if rank == 0:
                hub = self._open_scheduler(), socket.gethostname()
        except Exception as error:
            wrong = _mistake(rank, error)
        everyone = mpi().mpi_allgather((record, hub, wrong))
        _raise_any([wrong for _, _, wrong in everyone])
        assert self._side is not None
        try:
            self._connect(rank, [record for record, _, _ in everyone], everyone[0][1])
        except Exception as error:
            wrong = _mistake(rank, error)
        _raise_any(mpi().mpi_allgather(wrong))
        if self._config.loads_into_blocks:
            self._rewinder = Rewinder(self._config, self._pool, rank, self._side, self._scheduler if rank == 0 else None)

    def _connect(self, rank: int, records: list[bytes], hub: tuple[str, str]) -> None:
        address, host = hub
        if socket.gethostname() != host:
            raise ConfigError(f"it is on {socket.gethostname()}, the first one on {host}: kvferry needs an engine's ranks on one host")
        assert self._side is not None
        with ThreadPoolExecutor(1) as beside:
            joined = beside.submit(self._scheduler.join, records) if rank == 0 else None
            self._link = Link(self._side.node, address, self._side.take_orders, self._side.look, self._side.is_busy)
            if joined is not None:
                joined.result()

    def _open_scheduler(self) -> str:
        scheduler = scheduler_of(self._llm_args)
        if scheduler is None:
            raise ConfigError("there is no KVFerryScheduler beside this KVFerryWorker: name both in kv_connector_config")
        self._scheduler: KVFerryScheduler = scheduler
        return scheduler.open(self._pool, self._staging_blocks)

    def _prepare(self, rank: int, pool: Pool) -> bytes:
        config = self._config
        node = config.open_node(identity_fields(config, self._model), rank)
        self._pool, self._staging_blocks = pool, 0
        staging = None
        if config.is_prefill or config.loads_into_blocks:
            node.register(pool.regions, pool.parts, pool.share)
        else:
            self._staging_blocks = config.staging_bytes // pool.block_bytes
            if self._staging_blocks == 0:
                raise ConfigError(f"{VARIABLE}: staging_bytes = {config.staging_bytes} is less than a block of {pool.block_bytes} bytes")
            staging = StagingMemory(pool.regions, self._staging_blocks, config.library_options().get("cuda_library", ""))
            node.register([Region(*region) for region in staging.regions()], pool.parts, pool.share)
        self._side = Ranked(config, node, rank, pool, staging)
        logger.info("kvferry: rank %d of %d has %d blocks of %d bytes, %d blocks of staging", rank, config.ranks, pool.blocks,
                    pool.block_bytes, self._staging_blocks)
        return node.address()

    # ---- in the order of one iteration ----

    def bind_connector_meta(self, metadata: Step) -> None:
        self._step = metadata

    def get_connector_meta(self) -> Step:
        return self._step

    def start_load_kv(self, stream: Any) -> None:
        assert self._side is not None
        step, self._step = self._step, Step()
        if self._rewinder is None:
            self._side.copy_staged(step, stream)
        else:
            self._rewinder.park(step)
            self._side.start_parked(step, stream)

    def wait_for_layer_load(self, layer_idx: int, stream: Any) -> None:
        """What is copied is in the stream's own order."""

    def save_kv_layer(self, layer_idx: int, stream: Any) -> None:
        """Blocks are read from where they are."""

    def wait_for_save(self, stream: Any) -> None:
        assert self._side is not None
        self._side.remember(stream)

    def get_finished(self, finished_gen_req_ids: list[int], started_loading_req_ids: list[int]) -> tuple[list[int], list[int]]:
        assert self._side is not None
        if self._rewinder is not None:
            return self._rewinder.exchange()
        return self._side.finished_saving(list(finished_gen_req_ids)), []

    def rewind(self, requests: dict[int, Any]) -> None:
        """TensorRT-LLM's manager has acted on what get_finished() said; these have been loaded and can be scheduled."""
        if self._rewinder is not None:
            self._rewinder.rewind(requests)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
        if self._side is not None:
            self._side.close()


