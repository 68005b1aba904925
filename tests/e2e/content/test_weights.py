"""Weights are compared by their content: one tuned layer is another model, another folder is not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pd import faults, trial
from pd.paths import FAST
from pd.rig import Rig
from safetensors.torch import load_file, save_file

import expect
from shapes import engine

pytestmark = pytest.mark.deep

FILE = "model.safetensors"
TUNED = {
    "a layer's q and v": ["model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.v_proj.weight"],
    "three rows": ["model.layers.2.self_attn.k_proj.weight"],
}
ROWS = 3


def tune(model: Path, names: list[str], rows: int | None) -> None:
    tensors = load_file(model / FILE)
    for name in names:
        tensors[name][:rows] *= -1.0
    save_file(tensors, model / FILE, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def rig_of(start: Callable[..., Callable[[str, str], Rig]], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Rig]:
    folder = tmp_path_factory.mktemp("models")
    for what in (*TUNED, "a copy"):
        shutil.copytree(FAST, folder / what)
    for what, names in TUNED.items():
        tune(folder / what, names, ROWS if what == "three rows" else None)
    rig = start([engine("P"), *(engine(what, model=folder / what) for what in (*TUNED, "a copy"))])
    return lambda what: rig("P", what)


@pytest.mark.parametrize("what", TUNED)
def test_other_weights_are_incompatible(rig_of: Callable[[str], Rig], what: str) -> None:
    rig = rig_of(what)
    assert (FAST / FILE).stat().st_size == (rig.decoder.spec.model / FILE).stat().st_size
    expect.recomputed(trial.run(rig, faults.HEALTHY), "incompatible")


def test_the_same_files_elsewhere_load(rig_of: Callable[[str], Rig]) -> None:
    rig = rig_of("a copy")
    expect.loaded(trial.run(rig, faults.HEALTHY), len(rig.question))
