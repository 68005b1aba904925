"""A load that breaks off after K of its N blocks costs the other N - K, whichever rank broke off first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pd import faults, trial
from pd.engine import BLOCK_TOKENS
from pd.faults import Fault
from pd.relay import HOST, Relay
from pd.rig import Rig

import expect
from shapes import engine

pytestmark = pytest.mark.deep

LAYERS, HEADS, HEAD_SIZE, ELEMENT_BYTES = 4, 4, 32, 4
BLOCK_BYTES = 2 * LAYERS * HEADS * HEAD_SIZE * ELEMENT_BYTES * BLOCK_TOKENS
DECODERS = {"one rank": 1, "two ranks": 2}
BROKEN = ("transfer_stalled", "peer_down", "handshake_timeout")


@pytest.fixture(scope="module")
def rig_of(start: Callable[..., Callable[[str, str], Rig]], relay: Relay) -> Callable[[str], Rig]:
    """P tells everybody to come by the relay. A decode engine reads a block at a time, all through one connection."""
    decoders = [engine(name, ranks, transports=["tcp"], tcp_streams=1, chunk_bytes=BLOCK_BYTES // ranks)
                for name, ranks in DECODERS.items()]
    rig = start([engine("P", advertise=HOST), *decoders])

    def find(decoder: str) -> Rig:
        found = rig("P", decoder)
        relay.serve(found.producer.process.listening_ports())
        return found
    return find


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("whole_blocks", [0, 3])
def test_what_came_is_kept(rig_of: Callable[[str], Rig], relay: Relay, decoder: str, whole_blocks: int) -> None:
    rig = rig_of(decoder)
    rig.warm_up()

    def break_off(rig: Rig) -> None:
        relay.cut_after(int((whole_blocks + 0.5) * BLOCK_BYTES / DECODERS[decoder]))

    outcome = trial.run(rig, Fault("-", "the network breaks", faults.handed(break_off), lambda rig: relay.mend()))
    expect.recomputed(outcome, *BROKEN)
    assert outcome.recomputed == len(rig.question) - whole_blocks * BLOCK_TOKENS


@pytest.mark.parametrize("decoder", DECODERS)
def test_nothing_breaks(rig_of: Callable[[str], Rig], decoder: str) -> None:
    rig = rig_of(decoder)
    rig.warm_up()
    expect.loaded(trial.run(rig, faults.HEALTHY), len(rig.question))
