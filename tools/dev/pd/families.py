"""Small random models of the families that the connector is tried on, each built when somebody first asks for it."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .drafts import DRAFT, first_layer_as_eagle, first_layer_as_mtp
from .models import build_once, build_random
from .paths import MODELS

SOFT = 0.3
"""Scale of embeddings: with those of models.py the first token is so certain that no logprob shows a difference."""
TIED = 0.1
"""Where the output has the input's weights: there a token is most like itself."""
FAINT = 0.01
"""With bfloat16, which rounds a large logit by more than what shall be seen."""
EXACT = ("--compilation-config.custom_ops+", "none")
"""vLLM's own kernels for norms and rotation on a CPU take every tensor for one in one piece. In MLA and in LFM2 some are not:
the answers are wrong there, and other ones if the prompt is computed in two pieces."""
ONE_STATE = ("--no-enable-prefix-caching",)
"""Otherwise vLLM stores Mamba-2's state at the ends of blocks, too, which it cannot on a CPU: it stops with an IndexError."""
AHEAD = 2
"""Tokens that are drafted at a time."""

FULL, LINEAR = "full_attention", "linear_attention"
LLAMA = {"num_hidden_layers": 4, "num_key_value_heads": 2}
WINDOWS = {"num_hidden_layers": 6, "sliding_window": 64, "layer_types": (["sliding_attention"] * 2 + [FULL]) * 2}
SHARED_LAYERS = 3
"""As many as vLLM needs to take its KV from a layer of the same kind: it takes that of the last two before them, for windows and
for all of the prompt, in this order."""
PER_LAYER = {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 49152}
GLOBAL = {"global_head_dim": 64, "attention_k_eq_v": True}
"""Layers without a window have other heads."""
TWICE = {"num_attention_heads": 8, "num_key_value_heads": 8, "num_global_key_value_heads": 2}
"""Then their blocks would have half as many bytes as others, and vLLM puts twice as many tokens into them; on two ranks as well."""
MLA_EDGES = (16, 32, 64)
"""vLLM's kernel for MLA on a CPU has blocks of 16."""
STATE_EDGES = (64, 128)
"""A block has as many bytes as a state."""
MLA = {"q_lora_rank": None, "qk_rope_head_dim": 64, "head_dim": 64}
ON_ANY_CPU = ("--attention-backend", "CPU_MLA")
"""On a CPU with AMX, vLLM chooses the backend AMX_MLA, which refuses weights of float32."""
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 2}


@dataclass(frozen=True)
class Family:
    name: str
    model_type: str
    """The first part of transformers' names for it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    """Of the engine, beside EXACT."""
    dtype: str = "float32"
    embeddings: float = SOFT
    seed: int = 11
    replicated: bool = False
    """Two tensor-parallel ranks have the same KV."""
    draft: tuple[str, Callable[[Path], None]] | None = None
    """How the model drafts, and what adds the layers that do to its folder, which is named for it: other ones are another model."""
    edges: tuple[int, ...] = (32, 64, 96)
    """Lengths in tokens at which a block, a window or a chunk ends."""
    identical: bool = True
    """What a loaded prompt answers is, to the last bit, what a local run answers that computes its last token apart: attention
    does not ask which tokens were computed together, as the rounding of float32 does not."""

    def model(self) -> Path:
        """The folder; builders of other processes wait for each other."""
        target = MODELS / "-".join(["family", self.name, *([self.draft[1].__name__] if self.draft else [])])
        MODELS.mkdir(parents=True, exist_ok=True)
        with (MODELS / ".families.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            build_once(target, self._build)
        return target

    def _build(self, folder: Path) -> None:
        build_random(folder, self.seed, self.model_type, self.embeddings, **self.settings)
        if self.draft:
            self.draft[1](folder)

    def engine_args(self) -> tuple[str, ...]:
        return (*EXACT, "--dtype", self.dtype, *self.args, *self._drafting())

    def drafts(self, layer: str) -> bool:
        """Whether the layer of this name is one that drafts: those are numbered after the others."""
        if not self.draft:
            return False
        layers = json.loads((self.model() / "config.json").read_text())["num_hidden_layers"]
        return any(part.isdigit() and int(part) >= layers for part in layer.split("."))

    def _drafting(self) -> tuple[str, ...]:
        if not self.draft:
            return ()
        folder = self.model() / DRAFT
        apart = {"model": str(folder)} if folder.exists() else {}
        backend = {"attention_backend": ON_ANY_CPU[1]} if self.args == ON_ANY_CPU else {}  # the draft does not take the model's
        return ("--speculative-config", json.dumps({"method": self.draft[0], "num_speculative_tokens": AHEAD, **apart, **backend}))


BY_NAME = {family.name: family for family in (
    Family("llama", "Llama", LLAMA),
    Family("llama-1-head", "Llama", LLAMA | {"num_key_value_heads": 1}, replicated=True),
    Family("llama-eagle", "Llama", LLAMA, draft=("eagle", first_layer_as_eagle), identical=False),
    Family("llama4", "Llama4", {
        "num_hidden_layers": 4, "intermediate_size_mlp": 256, "num_local_experts": 4, "moe_layers": [],
        "interleave_moe_layer_step": 0, "attention_chunk_size": 64, "no_rope_layers": [1, 1, 0, 1], "use_qk_norm": False}),
    Family("gemma3", "Gemma3", WINDOWS | {"query_pre_attn_scalar": 32}, embeddings=TIED),
    Family("gemma3n", "Gemma3n", WINDOWS | PER_LAYER | {
        "num_key_value_heads": 2, "num_kv_shared_layers": SHARED_LAYERS, "laurel_rank": 16}, embeddings=TIED),
    Family("gemma4", "Gemma4", WINDOWS | PER_LAYER | GLOBAL | {"num_global_key_value_heads": 2}, embeddings=TIED, identical=False),
    Family("gemma4-blocks", "Gemma4", WINDOWS | PER_LAYER | GLOBAL | TWICE, embeddings=TIED, identical=False),
    Family("gpt-oss", "GptOss", {
        "num_hidden_layers": 4, "sliding_window": 64, "num_local_experts": 4, "num_experts_per_tok": 2}),
    Family("deepseek", "DeepseekV2", MLA | {
        "num_hidden_layers": 4, "first_k_dense_replace": 4, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "v_head_dim": 128},
        ON_ANY_CPU, edges=MLA_EDGES, identical=False, replicated=True),
    Family("deepseek-mtp", "DeepseekV3", MLA | {
        "num_hidden_layers": 5, "first_k_dense_replace": 5, "num_mtp_layers": 0, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}, ON_ANY_CPU, draft=("mtp", first_layer_as_mtp), edges=MLA_EDGES,
        identical=False, replicated=True),
    Family("qwen3-next", "Qwen3Next", {
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "layer_types": [LINEAR, FULL] * 2,
        "intermediate_size": 64,
        "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
        "num_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
        "mlp_only_layers": [0, 2]}, dtype="bfloat16", embeddings=FAINT, seed=33, edges=STATE_EDGES, identical=False),
    Family("lfm2", "Lfm2", {
        "num_hidden_layers": 6, "num_key_value_heads": 2, "layer_types": ["conv", "conv", FULL] * 2, "conv_dim": 128,
        "conv_dim_out": 128, "block_dim": 128, "block_ff_dim": 256, "conv_L_cache": 3}, identical=False),
    Family("falcon-h1", "FalconH1", {
        "num_hidden_layers": 4, "num_key_value_heads": 2, "mamba_d_ssm": 256, **MAMBA2}, ONE_STATE, edges=STATE_EDGES, identical=False),
    Family("nemotron-h", "NemotronH", {
        "layers_block_type": ["mamba", "mlp", "attention"] * 2, "num_key_value_heads": 2, "ssm_state_size": 16,
        "mamba_num_heads": 8, "mamba_head_dim": 32, "n_groups": 2, "chunk_size": 256}, ONE_STATE,
        edges=STATE_EDGES, identical=False),
    Family("granite-hybrid", "GraniteMoeHybrid", {
        "num_hidden_layers": 6, "num_key_value_heads": 2, "layer_types": ["mamba", "mamba", "attention"] * 2,
        "num_local_experts": 0, "shared_intermediate_size": 256, **MAMBA2}, ONE_STATE, edges=STATE_EDGES, identical=False),
)}
