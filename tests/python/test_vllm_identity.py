"""Which files and settings of a model tell two engines apart, beside its weights; and which do not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from fakes import stand_in  # noqa: E402
from kvferry.vllm.content import identity  # noqa: E402
from vllm.config import ModelConfig, MultiModalConfig  # noqa: E402

CONFIG = {"model_type": "llama", "hidden_size": 8, "rope_theta": 10000.0}
PROCESSOR = {"image_mean": [0.5, 0.5, 0.5], "processor_class": "Blip2Processor"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    (folder / "modeling.py").write_text("LAYERS = 2\n")
    return folder


def fields(folder: Path, media: dict[str, Any] | None = None, **model: Any) -> dict[str, str]:
    values = {"revision": None, "code_revision": None, "hf_config_path": None, "config_format": "auto", "trust_remote_code": False}
    one = stand_in(ModelConfig, model=str(folder), multimodal_config=MultiModalConfig(**(media or {})), **(values | model))
    return {"config": identity._config(one), "code": identity._code(one), "processor": identity._processor(one)}


def differ(folder: Path, file: str, content: Any, **model: Any) -> set[str]:
    """By which fields, if a copy of the model has this file."""
    other = folder.parent / "other"
    shutil.rmtree(other, ignore_errors=True)
    shutil.copytree(folder, other)
    first = fields(folder, **model)
    assert fields(other, **model) == first
    (other / file).write_text(content if isinstance(content, str) else json.dumps(content))
    return {name for name, value in fields(other, **model).items() if value != first[name]}


@pytest.mark.parametrize("file", ["params.json", *identity.QUANTIZATION_FILES])
def test_files_of_the_configuration(folder: Path, file: str) -> None:
    assert differ(folder, file, {"group_size": 64}) == {"config"}
    (folder / file).write_text(json.dumps({"group_size": 64}))
    assert differ(folder, file, {"group_size": 128}) == {"config"}
    assert differ(folder, file, {"group_size": 64, "transformers_version": "5"}) == set()
    assert differ(folder, file, {"group_size": 128}, config_format="hf") == (set() if file == "params.json" else {"config"})


def test_the_model_s_own_program(folder: Path) -> None:
    assert differ(folder, "modeling.py", "LAYERS = 3\n", trust_remote_code=True) == {"code"}
    assert differ(folder, "another.py", "LAYERS = 3\n", trust_remote_code=True) == {"code"}
    assert differ(folder, "modeling.py", "LAYERS = 3\n") == set()


def test_a_program_from_another_repository(folder: Path, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "modeling.py").write_text("LAYERS = 2\n")
    (folder / "config.json").write_text(json.dumps(CONFIG | {"auto_map": {"AutoModel": f"{code}--modeling.Model", "AutoTokenizer": ["a.B", None]}}))
    first = fields(folder, trust_remote_code=True)
    (code / "modeling.py").write_text("LAYERS = 3\n")
    assert fields(folder, trust_remote_code=True)["code"] != first["code"]


@pytest.mark.parametrize("file", identity.PROCESSOR_FILES)
def test_files_of_the_processor(folder: Path, file: str) -> None:
    changed = PROCESSOR | {"image_mean": [0.1, 0.5, 0.5]}
    assert differ(folder, file, changed) == {"processor"}
    assert differ(folder, "preprocessor_config.json", PROCESSOR | {"processor_class": "Blip2ProcessorFast"}) == set()


@pytest.mark.parametrize("media", [{"mm_processor_kwargs": {"use_fast": False}}, {"media_io_kwargs": {"video": {"num_frames": 8}}},
                                   {"video_pruning_rate": 0.5}, {"mm_encoder_attn_dtype": "fp8"}])
def test_settings_of_media(folder: Path, media: dict[str, Any]) -> None:
    plain, set_ = fields(folder), fields(folder, media)
    assert {name for name in plain if plain[name] != set_[name]} == {"processor"} and set_ == fields(folder, media)


@pytest.mark.parametrize("media", [{"limit_per_prompt": {"image": 2}}, {"mm_processor_cache_gb": 0}, {"language_model_only": True}])
def test_settings_that_change_no_medium(folder: Path, media: dict[str, Any]) -> None:
    assert fields(folder, media) == fields(folder)


def test_a_setting_that_nobody_knows_counts(folder: Path) -> None:
    known = MultiModalConfig()
    new = MultiModalConfig()
    vars(new)["heard_of_tomorrow"] = 1
    model = stand_in(ModelConfig, model=str(folder), revision=None, multimodal_config=known)
    first = identity._processor(model)
    model.multimodal_config = new
    assert identity._processor(model) != first
