"""The identity of an engine: the fields by which two engines know that they may share KV.

All nodes of an engine must give the same fields. So they follow from the configuration alone, as it was before a model
was loaded: loading may change it, and only in the process that loads. Neither vLLM's version nor the tensor-parallel
size is among them: engines are upgraded one at a time, and may differ in size. What can change while an engine runs
(its weights, a request's LoRA adapter) is in each prompt's identity instead: prompts.py.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.mamba.mamba_utils import get_conv_state_layout
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import FullAttentionSpec

from .. import seam
from ..groups import is_state
from ..layout import one_spec

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

CONFIG_FILES = ("config.json", "params.json")
"""vLLM reads the second where its config_format is, or turns out to be, mistral."""
QUANTIZATION_FILES = ("hf_quant_config.json", "quant_config.json", "quantization_config.json", "quantize_config.json")
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "tekken.json")
NOT_OF_A_PROCESSOR = {"vocab", "special_tokens", "processor_class", "transformers_version"}
"""Of these files: a prompt has its token ids."""
NOT_OF_MEDIA = {"limit_per_prompt", "language_model_only", "enable_mm_embeds", "allow_missing_mm_embeddings", "mm_processor_cache_gb",
                "mm_processor_cache_type", "mm_shm_cache_max_object_size_mb", "mm_encoder_only", "mm_encoder_tp_mode",
                "mm_encoder_attn_backend", "interleave_mm_strings", "skip_mm_profiling", "mm_tensor_ipc", "mm_ipc_gpu_memory_gb"}
"""Of vLLM's MultiModalConfig: how much may come, where it is kept, and which kernel computes it. All else may change what the
model is given."""
NOT_OF_THE_MODEL = {"_name_or_path", "transformers_version", "torch_dtype", "dtype"}
"""Where and by what the file was written; the type in use is a field of its own."""
WINDOW_FIELDS = ("sliding_window", "extra_retained_tokens", "attention_chunk_size")
"""Of a layer's spec: which blocks a request keeps."""
SPARSE = "index_topk"
"""What the configuration of a model with sparse MLA has: vLLM asks for the same (models/deepseek_v2.py)."""
LONG_ROPE = ("longrope", "su")
"""Kinds of rope with two sets of factors: vLLM takes one of them for all positions, by max_model_len."""
LLAMA4_TUNED_TOKENS = 32768
"""Longer limits switch on Llama 4's tuning of attention temperatures (vLLM's models/llama4.py)."""


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _config(model: ModelConfig) -> str:
    """The model's configuration as its author has written it: with it, and overrides, come the positions (rope)."""
    configs = CONFIG_FILES[:1] if model.config_format == "hf" else CONFIG_FILES
    found = {name: content for name in configs + QUANTIZATION_FILES
             if (content := seam.hf_file(model.hf_config_path or model.model, model.revision, name)) is not None}
    if not found.keys() & set(configs):
        found["as loaded"] = model.hf_config.to_dict()
    return _digest({name: {key: value for key, value in content.items() if key not in NOT_OF_THE_MODEL}
                    for name, content in found.items()})


def _code(model: ModelConfig) -> str:
    """The model's own program, which vLLM runs with --trust-remote-code."""
    files = seam.code_files(model) if model.trust_remote_code else []
    return _digest(sorted(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)) if files else "none"


def _overrides(model: ModelConfig) -> str:
    """What the command line changes about the model. A function's name says nothing: what it has made does."""
    overrides = model.hf_overrides
    return _digest([model.hf_config.to_dict() if callable(overrides) else overrides, model.quantization,
                    getattr(model, "quantization_config", None)])


def _positions(model: ModelConfig) -> str:
    """What follows from max_model_len, in which P and D may differ, and changes KV at every position."""
    config = model.hf_text_config
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    original = getattr(config, "original_max_position_embeddings", None)
    for one in rope.values() if all(isinstance(value, dict) for value in rope.values()) else [rope]:
        threshold = one.get("original_max_position_embeddings") or original
        if one.get("rope_type", one.get("type")) in LONG_ROPE and threshold:
            return "long factors" if model.max_model_len > threshold else "short factors"
    if getattr(config, "model_type", "").startswith("llama4"):
        return "tuned temperatures" if model.max_model_len > LLAMA4_TUNED_TOKENS else "plain temperatures"
    return "the same for all limits"


def _groups(kv_cache_config: KVCacheConfig) -> str:
    """Which blocks of a prompt the groups keep: ids of one must not be taken for another's. No more than all layers of a group
    have in common: the scheduler's process knows one of them, and a stage of a pipeline some. What else pages have is in
    the parts that ranks compare when they connect: ../layout.py."""
    kinds: list[list[object]] = []
    for group in kv_cache_config.transfer_groups:
        spec = one_spec(group)
        if is_state(group):
            kinds.append(["state", get_conv_state_layout()])
        elif isinstance(spec, FullAttentionSpec):
            kinds.append(["full"])
        else:
            kinds.append([type(spec).__name__, *(getattr(spec, field, None) for field in WINDOW_FIELDS)])
    return _digest(kinds)


def _backend(vllm_config: VllmConfig) -> str:
    """What vLLM chooses for the model by its configuration: the scheduler's process has no layers to ask."""
    from vllm.v1.attention.selector import get_attn_backend
    model = vllm_config.model_config
    with set_current_vllm_config(vllm_config):
        return get_attn_backend(model.get_head_size(), model.dtype, vllm_config.cache_config.cache_dtype, use_mla=model.use_mla,
                                use_sparse=hasattr(model.hf_text_config, SPARSE)).get_name()


def _attention(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> str:
    """The kernel's packing inside a block: on a CPU it follows the instruction set, elsewhere the backend."""
    if not current_platform.is_cpu() or vllm_config.model_config.use_mla:
        return _backend(vllm_config)
    model, kv_dtype = vllm_config.model_config, vllm_config.cache_config.cache_dtype
    kernels = {seam.cpu_kernel(model.dtype, group.kv_cache_spec.block_size, head_size, kv_dtype)
               for group in kv_cache_config.transfer_groups for head_size in (None, model.get_head_size())}
    return "cpu:" + ",".join(sorted(kernels))


def _processor(model: ModelConfig) -> str:
    """What is done to pictures, video and sound before the model: vLLM's hash is of a medium as it came."""
    files = {name: seam.hf_file(model.model, model.revision, name) or {} for name in PROCESSOR_FILES}
    media = model.multimodal_config
    usual = type(media)()
    changed = {name: value for name, value in vars(media).items()
               if name not in NOT_OF_MEDIA and value != getattr(usual, name, None)}
    return _digest([changed, {name: {key: value for key, value in content.items() if key not in NOT_OF_A_PROCESSOR}
                              for name, content in files.items()}])


def identity_fields(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> dict[str, str]:
    model = vllm_config.model_config
    return {
        **({"processor": _processor(model)} if model.multimodal_config is not None else {}),
        "config": _config(model),
        "code": _code(model),
        "overrides": _overrides(model),
        "positions": _positions(model),
        "dtype": str(model.dtype).removeprefix("torch."),
        "kv_dtype": str(vllm_config.cache_config.cache_dtype),
        "layers": str(model.get_total_num_hidden_layers()),
        "kv_heads": str(model.get_total_num_kv_heads()),
        "head_size": str(model.get_head_size()),
        "groups": _groups(kv_cache_config),
        "layout": str(kv_cache_config.kv_cache_layout),
        "attention": _attention(vllm_config, kv_cache_config),
        "kv_format": seam.kv_format(),
    }
