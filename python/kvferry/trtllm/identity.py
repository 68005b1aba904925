"""What the same bytes mean on TensorRT-LLM, and what makes a prompt's KV what it is."""

from __future__ import annotations

import hashlib
import json
from array import array
from pathlib import Path
from typing import Any

from kvferry import prompt_hash, prompt_set_model
from kvferry.engine.config import ConfigError
from kvferry.engine.messages import NotCarried
from kvferry.engine.weights import WEIGHTS_ID, UnknownWeightsError, Weights

from .config import VARIABLE, Config

ENGINE = "tensorrt-llm"
"""Of its engines alone: how a kernel reads a block is its own."""
NOT_OF_THE_MODEL = {"_name_or_path", "transformers_version", "torch_dtype", "dtype"}
OF_IMAGES = ("vision_config", "audio_config")
OF_THE_MODEL = ("model_kwargs", "sparse_attention_config", "moe_config")
"""Arguments that change what is computed, beside the model's own files."""
QUANTIZATION_FILE = "hf_quant_config.json"
LONG_ROPE = ("longrope", "su", "yarn", "dynamic")
"""Kinds of rope by which the longest sequence changes KV at every position, or may."""
WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth")

UNSEEN = ("py_multimodal_data", "lora_task_id", "lora_weights", "lora_config", "prompt_embedding_table", "multimodal_embedding", "multimodal_hashes",
          "mrope_rotary_cos_sin", "position_ids", "encoder_tokens")
"""Of a request: what changes its KV, and whose content this adapter cannot see."""
SALT_ID = "cache_salt_id"
"""What an older version makes of a request's salt; the salt itself is nowhere to be seen."""


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:32]


class Model:
    """What the engine's model is, by its own files."""

    def __init__(self, config: Config) -> None:
        self._args = config.args
        folder = Path(str(getattr(self._args, "model", "")))
        self.folder = folder if folder.is_dir() else None
        try:
            text = (folder / "config.json").read_text() if self.folder else ""
            self.config: dict[str, Any] = json.loads(text) if text else {}
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder / 'config.json'}: {error}") from error
        for name in OF_IMAGES:
            if self.config.get(name):  # V1 does not show what an image is that could not be hashed
                raise ConfigError(f"kvferry does not carry the KV of multimodal models on TensorRT-LLM: config.json has {name}")
        if not self.config:
            raise ConfigError(f"kvferry needs the model's config.json: give TensorRT-LLM the folder of the model, not {folder}")

    def _number(self, *names: str) -> int:
        text = self.config.get("text_config") or self.config
        return next((int(text[name]) for name in names if text.get(name)), 0)

    @property
    def layers(self) -> int:
        return self._number("num_hidden_layers", "n_layer")

    @property
    def kv_heads(self) -> int:
        """Of all ranks; 0: it is not said."""
        return self._number("num_key_value_heads", "num_attention_heads", "n_head")

    @property
    def head_size(self) -> int:
        heads = self._number("num_attention_heads", "n_head")
        return self._number("head_dim") or (self._number("hidden_size", "n_embd") // heads if heads else 0)

    def dtype(self, given: str) -> str:
        """TensorRT-LLM takes that of config.json unless it is given one."""
        text = self.config.get("text_config") or self.config
        name = given if given != "auto" else str(text.get("torch_dtype") or text.get("dtype") or "auto")
        return name.removeprefix("torch.")

    def quantization(self) -> str:
        file = self.folder / QUANTIZATION_FILE if self.folder else None
        return file.read_text() if file is not None and file.exists() else ""

    def positions(self) -> str:
        text = self.config.get("text_config") or self.config
        rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
        kind = rope.get("rope_type", rope.get("type", "")) if isinstance(rope, dict) else ""
        return f"up to {self._args.max_seq_len}" if kind in LONG_ROPE else "the same for all limits"

    def files(self) -> list[Path]:
        found = [file for pattern in WEIGHT_FILES for file in (self.folder.glob(pattern) if self.folder else ())]
        if not found:
            raise UnknownWeightsError(f'{self.folder} has no files of weights: give both engines "{WEIGHTS_ID}" in {VARIABLE}')
        kinds = {file.suffix for file in found}
        return [file for file in found if file.suffix == ".safetensors"] if ".safetensors" in kinds else found


def identity_fields(config: Config, model: Model) -> dict[str, str]:
    """All nodes of an engine give the same: they follow from the arguments alone."""
    args, cache = config.args, config.args.kv_cache_config
    quantization = getattr(args, "quant_config", None)
    return {
        "engine": ENGINE,
        "config": _digest({name: value for name, value in model.config.items() if name not in NOT_OF_THE_MODEL}),
        "quantization": _digest([vars(quantization) if hasattr(quantization, "__dict__") else quantization, model.quantization()]),
        "positions": model.positions(),
        "overrides": _digest([str(getattr(args, name, None)) for name in OF_THE_MODEL]),
        "dtype": model.dtype(str(args.dtype)),
        "kv_dtype": str(getattr(cache, "dtype", "auto")),
        "layers": str(model.layers),
        "kv_heads": str(model.kv_heads),
        "head_size": str(model.head_size),
        "attention": str(getattr(args, "attn_backend", "TRTLLM")),
        "manager": "v2" if config.is_v2 else "v1",
    }


class Prompts:
    """The identities of prompts: of their first whole blocks, without the one of the last token, which the decode engine
    computes in any case."""

    def __init__(self, config: Config, model: Model) -> None:
        self._block_tokens = config.block_tokens
        self._weights = Weights(model.files, config.settings.get(WEIGHTS_ID))
        self._weights.begin()

    def loaded(self) -> None:
        """The engine has loaded its weights."""
        self._weights.loaded()

    def offered_tokens(self, tokens: int) -> int:
        return (tokens - 1) // self._block_tokens * self._block_tokens if tokens > 0 else 0

    def of_request(self, request: Any) -> bytes | NotCarried:
        tokens = request.get_tokens(0)[:request.prompt_len]
        if any(getattr(request, name, None) is not None for name in UNSEEN):
            return NotCarried.UNSEEN
        salt = getattr(request, "cache_salt", None)
        if salt is None and getattr(request, SALT_ID, None) is not None:
            return NotCarried.UNSEEN
        return self.of_tokens(tokens, salt)

    def of_tokens(self, tokens: list[int], salt: str | None) -> bytes | NotCarried:
        if self._weights.digest is None:
            return NotCarried.WEIGHTS_UNKNOWN
        ids = array("I", tokens[:self.offered_tokens(len(tokens))]).tobytes()
        return prompt_set_model(prompt_hash(ids, json.dumps({"cache_salt": salt}).encode()), self._weights.digest.encode())
