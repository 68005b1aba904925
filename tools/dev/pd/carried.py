"""Which families of models the connector carries, and between which engines. tests/e2e/families tries each that vLLM runs on a
CPU. `./dev tables` writes it into docs/models.md."""

from __future__ import annotations

from dataclasses import dataclass

from .families import BY_NAME, Family

RANKS = ("--tensor-parallel-size", "2")
STAGES = ("--pipeline-parallel-size", "2", "--no-enforce-eager",
          "--compilation-config.mode", "2", "--compilation-config.backend", "eager")
"""vLLM makes what later stages on a CPU put their input in while it warms up, and eager engines do not: with traces that are
run as they are it does, and computes the same."""


@dataclass(frozen=True)
class Topology:
    name: str
    prefill: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()

    @property
    def cut_alike(self) -> bool:
        """Each KV head is computed in the same way on both sides."""
        return RANKS not in (self.prefill, self.decode)


ONE = Topology("1-1")
FROM_RANKS = Topology("2-1", prefill=RANKS)
TO_RANKS = Topology("1-2", decode=RANKS)
FROM_STAGES = Topology("pp2-1", prefill=STAGES)
TOPOLOGIES = (ONE, FROM_RANKS, TO_RANKS, FROM_STAGES)


@dataclass(frozen=True)
class Carried:
    what: str
    not_in_vllm: tuple[Topology, ...] = ()
    """It has no pipeline for the model, or on a CPU none that drafts, or one that cannot load the weights (Granite 4: KeyError), or
    that by itself answers other tokens than one stage does (Gemma 4)."""


CARRIED = {
    "llama": Carried("attention, two KV heads (Llama, Qwen3)"),
    "llama-1-head": Carried("the same with one KV head, which ranks replicate"),
    "llama-eagle": Carried("the same with an EAGLE draft", not_in_vllm=(FROM_STAGES,)),
    "llama4": Carried("chunked local attention (Llama 4)"),
    "gemma3": Carried("sliding windows (Gemma 3)"),
    "gemma3n": Carried("layers that share KV (Gemma 3n)", not_in_vllm=(FROM_STAGES,)),
    "gpt-oss": Carried("windows and attention sinks (gpt-oss)"),
    "gemma4": Carried("layers with other heads (Gemma 4)", not_in_vllm=(FROM_STAGES,)),
    "gemma4-blocks": Carried("the same with two block sizes", not_in_vllm=(FROM_STAGES,)),
    "deepseek": Carried("MLA (DeepSeek, Kimi)"),
    "deepseek-mtp": Carried("the same with an MTP draft", not_in_vllm=(FROM_STAGES,)),
    "qwen3-next": Carried("gated delta nets (Qwen3-Next, Qwen3.5)"),
    "lfm2": Carried("short convolutions (LFM2)"),
    "falcon-h1": Carried("Mamba-2 beside attention in each layer (Falcon-H1)"),
    "nemotron-h": Carried("Mamba-2 and attention in turns (Nemotron-H)"),
    "granite-hybrid": Carried("the same (Granite 4)", not_in_vllm=(FROM_STAGES,)),
}

NOT_ON_A_CPU = {
    "jamba": "Mamba-1 and attention in turns (Jamba)",
    "ring-linear": "linear attention (Ling 2.5, Ring 2.5)",
    "kimi-linear": "Kimi delta attention beside MLA (Kimi-Linear)",
    "deepseek-v3.2": "MLA with a sparse indexer (DeepSeek-V3.2, GLM-5)",
    "mla-windows": "MLA with sliding windows",
}
"""vLLM has no kernels for them there. What their layers keep tests/python/test_vllm_states.py and test_vllm_layouts.py carry, in
every topology."""


@dataclass(frozen=True)
class Row:
    family: Family
    topology: Topology

    @property
    def identical(self) -> bool:
        """The answer is that of a local run to the last bit; of others only nearly, as vLLM's own is."""
        return self.family.identical and self.topology.cut_alike

    def __str__(self) -> str:
        return f"{self.family.name}:{self.topology.name}"


ROWS = [Row(BY_NAME[name], topology)
        for name, carried in CARRIED.items() for topology in TOPOLOGIES if topology not in carried.not_in_vllm]
