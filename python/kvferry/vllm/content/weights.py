"""Which files vLLM loads its weights from, and one Weights for each model of this process."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from kvferry.engine import weights
from kvferry.engine.weights import TRUST, WEIGHTS_DIGEST, WEIGHTS_ID, UnknownWeightsError

from .. import seam

if TYPE_CHECKING:
    from vllm.config import LoadConfig, ModelConfig, VllmConfig

HOW_TO_NAME = (f'set the option "{WEIGHTS_ID}" on both engines (a name that changes with the weights), or vLLM\'s weight version '
               "after an update")


def loaded_files(model: ModelConfig, load: LoadConfig) -> list[Path]:
    """The files that vLLM's loader reads; none for weights that are made up."""
    if load.load_format == "dummy":
        return []
    listed = seam.loader_files(load, model)
    if listed is not None:
        files = [Path(name) for name in listed]
    elif load.load_format == "sharded_state" and Path(model.model).is_dir():
        files = list(Path(model.model).glob("*.safetensors"))
    else:
        raise UnknownWeightsError(f"the files that load_format {load.load_format!r} reads cannot be seen: {HOW_TO_NAME}")
    if not files:
        raise UnknownWeightsError(f"{model.model} has no files of weights: {HOW_TO_NAME}")
    return files


class Weights(weights.Weights):
    def __init__(self, model: ModelConfig, load: LoadConfig, given: object = None, trusts: bool = False) -> None:
        super().__init__(self._find_files, given, trusts)
        self._model = model
        self._load: LoadConfig | None = load

    def _find_files(self) -> list[Path]:
        if self._load is None:
            raise UnknownWeightsError(f"vLLM's configuration was changed, and kvferry cannot see how it loads now: {HOW_TO_NAME}")
        files = loaded_files(self._model, self._load)
        if not files and self._generation > 1:
            raise UnknownWeightsError(f"load_format {self._load.load_format!r} reads no files: {HOW_TO_NAME}")
        return files

    def configure(self, overrides: Any) -> None:
        """vLLM's configuration has got these fields, by the part of it that they are in."""
        fields = overrides.get("load_config") if isinstance(overrides, dict) and len(overrides) == 1 else None
        if self._load is None or not isinstance(fields, dict) or not all(hasattr(self._load, name) for name in fields):
            self._load = None
            return
        self._load = copy.copy(self._load)
        vars(self._load).update(fields)

    def reload(self, loaded_from_ns: int, path: str | None) -> None:
        """vLLM has loaded them since then, from the files of its model or from another folder."""
        if path is not None:  # as vLLM does it: for later loads, too
            self._model = copy.copy(self._model)
            self._model.model, self._model.model_weights, self._model.revision = path, "", None
        self.begin(loaded_from_ns)
        self.loaded()


_begun: dict[int, Weights] = {}
"""By the id of vLLM's ModelConfig, which lives as long as the process."""


def _made(vllm_config: VllmConfig, options: Mapping[str, Any]) -> Weights:
    return Weights(vllm_config.model_config, vllm_config.load_config, options.get(WEIGHTS_ID), options.get(WEIGHTS_DIGEST) == TRUST)


def begin_beside_load(vllm_config: VllmConfig, options: Mapping[str, Any]) -> None:
    """To be called before vLLM loads the model, with the connector's options. ValueError: its name is none."""
    made = _begun[id(vllm_config.model_config)] = _made(vllm_config, options)
    made.begin()


def weights_of(vllm_config: VllmConfig, options: Mapping[str, Any]) -> Weights:
    """To be called when vLLM has loaded the model. ValueError: its name is none."""
    made = _begun.get(id(vllm_config.model_config))
    if made is None:
        made = _made(vllm_config, options)
        made.begin(int(psutil.Process().create_time() * 1e9))  # nothing can have been loaded before
    made.loaded()
    return made
