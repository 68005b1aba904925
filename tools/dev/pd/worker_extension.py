"""What RL stacks bring to vLLM's workers: --worker-extension-cls pd.worker_extension.Extension."""

from __future__ import annotations

from typing import Any

PARAMETER = "layers.1.post_attention_layernorm.weight"
"""On a CPU vLLM has copies of the large ones."""


class Extension:
    model_runner: Any

    def update_named_params(self, factor: float) -> None:
        for name, parameter in self.model_runner.model.named_parameters():
            if name.endswith(PARAMETER):
                parameter.data.mul_(factor)

    def count_params(self) -> int:
        return sum(1 for _ in self.model_runner.model.named_parameters())
