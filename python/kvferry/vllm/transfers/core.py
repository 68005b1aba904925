"""An engine between two of its steps: vLLM's EngineCore, our scheduler side in it, and our sides in its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvferry.engine.boundary import Refused

from .. import seam

if TYPE_CHECKING:
    from ..scheduler import Scheduler


class TransfersError(Refused):
    """Some rank has not confirmed that its leases and loads have ended: nothing that they use may be touched."""


def own(connector: Any, kind: type) -> Any:
    """The connector of this kind, which `connector` is, or has as vLLM's MultiConnector; None: there is none."""
    return next((one for one in seam.siblings_of(connector) or [connector] if isinstance(one, kind)), None)


def on_worker(worker: Any, kind: type, call: str, *args: Any) -> Any:
    """Runs in each worker's process: one of our Worker's methods there."""
    return getattr(own(seam.worker_connector(), kind)._worker, call)(*args)


class Core:
    """What the scheduler side has ordered has reached the workers."""

    def __init__(self, engine: Any, side: Scheduler, kind: type) -> None:
        """`kind`: the connector's class."""
        self.engine = engine
        self.side = side
        self._kind = kind

    @property
    def scheduler(self) -> Any:
        return seam.scheduler_of(self.engine)

    @property
    def is_alone(self) -> bool:
        """No other connector has a cache of its own."""
        return seam.siblings_of(seam.connector_of(self.scheduler)) is None

    def on_ranks(self, call: str, *args: Any) -> list[Any]:
        """The answer of each rank's Worker."""
        return seam.on_all_workers(self.engine, on_worker, self._kind, call, *args)

    def end_transfers(self, loads: bool) -> None:
        """Ends all leases, and if asked all loads, on every rank, and gives their blocks back to vLLM.

        TransfersError: a rank has not confirmed. A worker that does not answer at all holds up its engine here as in any
        step: an answer that comes after a timeout would be taken for that of vLLM's next call."""
        left = self.transfers_left(loads)
        if left:
            raise TransfersError(f"kvferry: not all ranks have ended their transfers in time: {left}")

    def transfers_left(self, loads: bool) -> str:
        """Ends them. What some rank has not confirmed; "" if there is none."""
        side = self.side
        if side.stopped:
            side.stop("end_transfers")
        ending = side.ending(loads)
        if not ending.leases and not ending.loads:
            return ""
        side.receive(self.on_ranks("end_transfers", ending))
        left = side.not_ended(ending)
        if not left:
            seam.receive(self.scheduler, side.settle())  # there may be no step
        return left

    def end_all(self) -> None:
        """Nothing is lent or loaded then, nor goes on with what was loaded. TransfersError."""
        self.end_transfers(loads=True)
        self.side.unload_waiting()
