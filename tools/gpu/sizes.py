"""The model of engines.py's engines, what they are asked, and the options that they are started with."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SEED = 40
PATIENT = {"lease_ttl_ms": "600000", "load_timeout_ms": "600000", "stall_timeout_ms": "60000", "handshake_timeout_ms": "60000",
           "release_timeout_ms": "600000"}
"""kvferry's options on a CPU, where other programs may have the processors for longer than a peer may be silent."""
RANK_CALLS = ["runner", "wipe_kv", "zero_a_block"]
"""Of engine_process.Worker. They leave the weights alone; without this option kvferry gives no ticket after one of them."""
GRAPH_SIZES = [1, 2, 4, 8, 16, 32, 64]


@dataclass(frozen=True)
class Size:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    dtype: str
    block_tokens: int
    blocks: int
    """Of an engine's pool: few, so that those of one request are the next one's at once."""
    prompts: int
    prompt_tokens: tuple[int, int]
    answer_tokens: int
    few: int
    """Prompts of a row that is about a fault."""
    streams: int
    """Answers under way whose tokens are timed."""
    stream_tokens: int


GPU = Size(layers=32, hidden=2048, heads=16, kv_heads=8, head=128, vocabulary=8192, dtype="bfloat16", block_tokens=16,
           blocks=1024, prompts=64, prompt_tokens=(40, 700), answer_tokens=64, few=12, streams=8, stream_tokens=256)
"""64 KiB for a block and layer."""
CPU = Size(layers=4, hidden=128, heads=4, kv_heads=4, head=32, vocabulary=8192, dtype="float32", block_tokens=32, blocks=64,
           prompts=24, prompt_tokens=(40, 300), answer_tokens=8, few=3, streams=2, stream_tokens=32)


def model_config(size: Size) -> dict[str, Any]:
    """A Llama's."""
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": size.hidden,
            "intermediate_size": size.hidden, "num_hidden_layers": size.layers, "num_attention_heads": size.heads,
            "num_key_value_heads": size.kv_heads, "head_dim": size.head, "vocab_size": size.vocabulary,
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
            "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": size.dtype}


def prompts(size: Size, count: int, seed: int = SEED) -> list[list[int]]:
    """Of random lengths, also not whole blocks."""
    chance = random.Random(seed)
    return [[chance.randrange(3, size.vocabulary) for _ in range(chance.randint(*size.prompt_tokens))] for _ in range(count)]


def connector(own: dict[str, Any], library: str) -> dict[str, Any]:
    """With `library`, a fake of the driver, it adopts the pool of an engine on the CPU (pd.adopt)."""
    fake = {"kv_connector_module_path": "pd.adopt"} if library else {}
    extra = own | {"rpcs_that_keep_weights": RANK_CALLS} | ({"cuda_library": library} if library else {})
    return {"kv_connector": "KVFerryConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": extra, **fake}


def engine_options(size: Size, model: Path, own: dict[str, Any], library: str = "") -> dict[str, Any]:
    """Of vLLM's LLM; `own` are kvferry's."""
    longest = size.prompt_tokens[1] + max(size.answer_tokens, size.stream_tokens) + 1
    options: dict[str, Any] = {
        "model": str(model), "skip_tokenizer_init": True, "dtype": size.dtype, "max_model_len": longest,
        "block_size": size.block_tokens, "num_gpu_blocks_override": size.blocks, "enable_prefix_caching": False,
        "disable_log_stats": False, "max_num_seqs": 64, "kv_transfer_config": connector(own, library)}
    if library:
        return options | {"enforce_eager": True}
    layer_bytes = 2 * size.kv_heads * size.head * size.block_tokens * 2
    return options | {
        "attention_backend": "TRITON_ATTN", "async_scheduling": True, "gpu_memory_utilization": 0.15,
        "kv_cache_memory_bytes": size.blocks * size.layers * layer_bytes,
        "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": GRAPH_SIZES}}


def engine_env(runner: str, fake: bool, site: Path | None) -> dict[str, str]:
    """Batch invariant: a prompt's tokens are the same whatever it is computed with, or equal tokens would prove nothing."""
    path = [*([str(site)] if site else []), str(HERE), str(HERE.parent / "dev"), *filter(None, [os.environ.get("PYTHONPATH")])]
    common = {"PYTHONPATH": os.pathsep.join(path), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}
    if fake:
        return common | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "auto", "OMP_WAIT_POLICY": "PASSIVE"}
    return common | {"VLLM_BATCH_INVARIANT": "1", "VLLM_USE_V2_MODEL_RUNNER": "1" if runner == "second" else "0",
                     "VLLM_USE_FLASHINFER_SAMPLER": "0"}
