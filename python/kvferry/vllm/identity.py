"""What the same bytes mean: the fields by which two engines know that they may share KV.

All nodes of an engine must give the same fields, so they follow from the configuration alone. Neither vLLM's version
nor the tensor-parallel size is among them: engines are upgraded one at a time, and may differ in size.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.platforms import current_platform

from .layout import layer_specs

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

MODEL_FILES = ("config.json", "params.json", "*.safetensors", "*.bin", "*.pt", "*.gguf")
SAMPLES = 16
SAMPLE_BYTES = 4096

def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _sample(path: Path, digest: Any) -> None:
    size = path.stat().st_size
    digest.update(f"{path.name}:{size}".encode())
    with path.open("rb") as file:
        for i in range(SAMPLES):
            file.seek(size * i // SAMPLES)
            digest.update(file.read(SAMPLE_BYTES))


def _weights(model: ModelConfig) -> str:
    """Samples of the files of a local model; the name and revision of one from a hub. Not what vLLM has made of the
    model's configuration: loading a model may change that, and only in the process that loads it."""
    path = Path(model.model)
    if path.is_dir():
        files = sorted(file for pattern in MODEL_FILES for file in path.glob(pattern))
    else:
        files = [path] if path.is_file() else []
    if not files:
        return _digest([model.model, model.revision])
    digest = hashlib.sha256()
    for file in files:
        _sample(file, digest)
    return digest.hexdigest()[:32]


def _overrides(model: ModelConfig) -> str:
    """What the command line changes about the model."""
    overrides = model.hf_overrides
    return _digest([overrides.__qualname__ if callable(overrides) else overrides, model.quantization])


def _groups(kv_cache_config: KVCacheConfig) -> str:
    """The kinds of layers by group: block ids of one kind must not be taken for another's."""
    kinds = [[[type(spec).__name__, getattr(spec, "sliding_window", None), str(spec.dtype), spec.head_size, name]
              for name, spec in layer_specs(group)] for group in kv_cache_config.transfer_groups]
    return _digest(kinds)


def _attention(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> str:
    """The kernel's packing inside a block: on a CPU it follows the instruction set."""
    if not current_platform.is_cpu():
        return current_platform.device_name
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
    kernels = {_get_attn_isa(vllm_config.model_config.dtype, spec.block_size, spec.head_size,
                             vllm_config.cache_config.cache_dtype)
               for group in kv_cache_config.transfer_groups for _, spec in layer_specs(group)}
    return "cpu:" + ",".join(sorted(kernels))


def identity_fields(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> dict[str, str]:
    model = vllm_config.model_config
    return {
        "weights": _weights(model),
        "overrides": _overrides(model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "kv_dtype": str(vllm_config.cache_config.cache_dtype),
        "layers": str(model.get_total_num_hidden_layers()),
        "kv_heads": str(model.get_total_num_kv_heads()),
        "head_size": str(model.get_head_size()),
        "groups": _groups(kv_cache_config),
        "layout": str(kv_cache_config.kv_cache_layout),
        "attention": _attention(vllm_config, kv_cache_config),
    }
