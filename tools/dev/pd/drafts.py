"""The layers of a small random model that draft its next tokens.

The draft is the target's first layer, and the target's other layers say little: so a good part of what is drafted is accepted, and
it is by what the draft's attention sees of the prompt. A draft that reads the target's last hidden state alone guesses as well
without the prompt, and one beside an ordinary random target is accepted never."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

WEIGHTS, DRAFT = "model.safetensors", "draft"
LITTLE = 0.05
"""By how much less than the first one the target's other layers say."""
HEARD = 0.01
"""Of the target's hidden state beside the token's embedding: enough for both to be in what the draft keeps, little enough for it
to be right."""


def first_layer_as_eagle(folder: Path) -> None:
    """In a folder of its own. It has no norm in front, so neither has the target's first layer, as good as: that one is fitted to
    the embeddings' size."""
    from safetensors.torch import load_file, save_file

    weights = that_decides_first(load_file(folder / WEIGHTS))
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    layer = {name.removeprefix("model."): weight for name, weight in weights.items()
             if ".layers.0." in name and "input_layernorm" not in name}
    shutil.copytree(folder, folder / DRAFT, ignore=shutil.ignore_patterns(WEIGHTS))
    save_file({**layer, "fc.weight": heard_and_read(weights)}, folder / DRAFT / WEIGHTS)
    change_config(folder / DRAFT, num_hidden_layers=1)


def first_layer_as_mtp(folder: Path) -> None:
    """In place of the last one."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig

    last = AutoConfig.from_pretrained(folder).num_hidden_layers - 1
    weights = that_decides_first(load_file(folder / WEIGHTS))
    name, norm = f"model.layers.{last}.", weights["model.norm.weight"]
    weights |= {layer.replace(".layers.0.", f".layers.{last}."): weight.clone() for layer, weight in weights.items()
                if ".layers.0." in layer}
    weights |= {name + "enorm.weight": weights[name + "input_layernorm.weight"].clone(), name + "hnorm.weight": torch.ones_like(norm),
                name + "eh_proj.weight": heard_and_read(weights),
                name + "embed_tokens.weight": weights["model.embed_tokens.weight"].clone(),
                name + "shared_head.head.weight": weights["lm_head.weight"].clone(),
                name + "shared_head.norm.weight": norm.clone()}
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    change_config(folder, num_hidden_layers=last, num_nextn_predict_layers=1)


def that_decides_first(weights: dict[str, Any]) -> dict[str, Any]:
    """The target's, with a first layer that nearly decides by itself."""
    size = weights["model.embed_tokens.weight"].std()
    for name, weight in weights.items():
        if name.endswith((".o_proj.weight", ".down_proj.weight")) and ".layers.0." not in name:
            weight *= LITTLE
        elif name == "model.layers.0.input_layernorm.weight":
            weight.fill_(size)
    return weights


def heard_and_read(weights: dict[str, Any]) -> Any:
    """A projection of the token's embedding and the target's hidden state."""
    import torch

    same = torch.eye(len(weights["model.norm.weight"]))
    return torch.cat([same, HEARD * same], dim=1)


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields, indent=1))
