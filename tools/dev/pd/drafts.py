"""The layers of a small random model that draft its next tokens."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

WEIGHTS, DRAFT = "model.safetensors", "draft"


def add_eagle(folder: Path) -> None:
    """A layer that takes the target's hidden state and the next token, in a folder of its own."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig

    hidden = AutoConfig.from_pretrained(folder).hidden_size
    target = load_file(folder / WEIGHTS)
    layer = {name.removeprefix("model."): weight for name, weight in target.items()
             if ".layers.0." in name and "input_layernorm" not in name}
    shutil.copytree(folder, folder / DRAFT, ignore=shutil.ignore_patterns(WEIGHTS))
    save_file({**layer, "fc.weight": the_second_of_two(hidden)}, folder / DRAFT / WEIGHTS)
    change_config(folder / DRAFT, num_hidden_layers=1)


def add_mtp(folder: Path) -> None:
    """The last layer becomes the one that drafts."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    weights = load_file(folder / WEIGHTS)
    last, hidden = config.num_hidden_layers - 1, config.hidden_size
    name = f"model.layers.{last}."
    weights |= {name + "enorm.weight": torch.ones(hidden), name + "hnorm.weight": torch.ones(hidden),
                name + "eh_proj.weight": the_second_of_two(hidden),
                name + "embed_tokens.weight": weights["model.embed_tokens.weight"].clone(),
                name + "shared_head.head.weight": weights["lm_head.weight"].clone(),
                name + "shared_head.norm.weight": weights["model.norm.weight"].clone()}
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    change_config(folder, num_hidden_layers=last, num_nextn_predict_layers=1)


def the_second_of_two(hidden: int) -> Any:
    """A projection of the token's embedding and the target's hidden state onto the latter."""
    import torch

    return torch.cat([torch.zeros(hidden, hidden), torch.eye(hidden)], dim=1)


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields, indent=1))
