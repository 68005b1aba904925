"""Images: whoever computes the same text about another image gets other KV. Where vLLM does not hash images, but counts them,
nothing that has one is handed over.

The model is a small random BLIP-2, whose images fill two blocks before the text."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pd import client, trial, web
from pd.client import Ticket
from pd.engine import Engine
from pd.paths import SMOLLM2
from pd.rig import Rig

from shapes import engine

pytestmark = pytest.mark.deep

SIDE = 28
IMAGE_TOKENS = 64
TEXT = "What does this picture show, and which of its colours is the one that one sees first from far away?"
ANSWER_TOKENS = 12
LIMIT_S = 60.0
COUNTED = ("--mm-processor-cache-gb", "0", "--no-enable-prefix-caching")
NO_TICKETS, NOT_LOADED = "kvferry_no_tickets_total", "kvferry_not_loaded_total"
UNHASHED = "images_unhashed"
OTHER_COLOURS = {"image_mean": [0.1, 0.9, 0.2], "image_std": [0.1, 0.4, 0.9]}
SAID_ONCE = "prompts with images are neither handed over nor loaded"


def build(target: Path) -> None:
    """All weights are large, so that tokens differ from image to image. The image processor is the one without torchvision."""
    import torch
    from transformers import AutoTokenizer, Blip2Config, Blip2ForConditionalGeneration, Blip2Processor
    from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

    tokenizer = AutoTokenizer.from_pretrained(SMOLLM2)
    processor = Blip2Processor(BlipImageProcessorPil(size={"height": SIDE, "width": SIDE}), tokenizer,
                               num_query_tokens=IMAGE_TOKENS)  # adds the image token
    small = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_hidden_layers": 1}
    config = Blip2Config(
        vision_config={**small, "image_size": SIDE, "patch_size": 7},
        qformer_config={**small, "encoder_hidden_size": 64, "cross_attention_frequency": 1, "vocab_size": 8},
        text_config={
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": len(tokenizer), "hidden_size": 128,
            "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4,
            "head_dim": 32, "max_position_embeddings": 2048, "tie_word_embeddings": False,
            "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id},
        num_query_tokens=IMAGE_TOKENS, image_token_index=tokenizer.convert_tokens_to_ids("<image>"))
    torch.manual_seed(9)
    model = Blip2ForConditionalGeneration(config)
    strong = ("embed_tokens", "lm_head", "query_tokens")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2:
                weight.normal_(0.0, 1.0 if any(part in name for part in strong) else 0.2)
    model.save_pretrained(target)
    processor.save_pretrained(target)


def change_processor(model: Path) -> None:
    """Of the image processor alone, in whichever file transformers has written it to."""
    changed = 0
    for file in model.glob("*processor_config.json"):
        content = json.loads(file.read_text())
        part = content.get("image_processor", content)
        if "image_mean" in part:
            part.update(OTHER_COLOURS)
            file.write_text(json.dumps(content))
            changed += 1
    assert changed


def image(colours: tuple[str, str]) -> str:
    from PIL import Image

    picture = Image.new("RGB", (SIDE, SIDE), colours[0])
    picture.paste(Image.new("RGB", (SIDE // 2, SIDE), colours[1]))
    file = io.BytesIO()
    picture.save(file, "png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


ONE, OTHER = image(("red", "white")), image(("blue", "black"))


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    prompt_tokens: int
    ticket: Ticket | None


def ask(of: Engine, picture: str | None, ticket: Ticket | None = None, answer_tokens: int = ANSWER_TOKENS) -> Answer:
    content: list[dict[str, Any]] = [{"type": "text", "text": TEXT}]
    if picture is not None:
        content.insert(0, {"type": "image_url", "image_url": {"url": picture}})
    body: dict[str, Any] = {
        "model": "model", "messages": [{"role": "user", "content": content}], "max_tokens": answer_tokens,
        "temperature": 0.0, "ignore_eos": True, "return_token_ids": True}
    reply = web.post_json(of.url + "/v1/chat/completions", body | ({"kv_transfer_params": ticket} if ticket else {}), LIMIT_S)
    assert reply.status == 200, reply
    return Answer(reply.body["choices"][0]["token_ids"], reply.body["usage"]["prompt_tokens"],
                  reply.body.get("kv_transfer_params"))


def prefill(of: Engine, picture: str | None) -> Ticket | None:
    return ask(of, picture, client.ASK_FOR_TICKET, 1).ticket


@pytest.fixture(scope="module")
def rig_of(start: Callable[..., Callable[[str, str], Rig]], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Rig]:
    model: Path = tmp_path_factory.mktemp("models") / "images"
    build(model)
    for name in ("elsewhere", "changed"):
        shutil.copytree(model, model.parent / name)
    change_processor(model.parent / "changed")
    return start([replace(engine(name, model=folder), args=args) for name, folder, args in (
        ("P", model, ()), ("D", model, ()), ("P-counted", model, COUNTED), ("D-counted", model, COUNTED),
        ("D-kwargs", model, ("--mm-processor-kwargs", json.dumps(OTHER_COLOURS))),
        ("D-changed", model.parent / "changed", ()), ("D-elsewhere", model.parent / "elsewhere", ()))])


@pytest.fixture(scope="module")
def right(rig_of: Callable[..., Rig]) -> dict[str | None, list[int]]:
    """What D answers by itself."""
    found = {picture: ask(rig_of("P", "D").decoder, picture).tokens for picture in (ONE, OTHER, None)}
    assert len({tuple(tokens) for tokens in found.values()}) == len(found)
    return found


def loads(rig: Rig, picture: str | None, right: dict[str | None, list[int]]) -> None:
    rig.settle()
    before = rig.counters()
    answer = ask(rig.decoder, picture, prefill(rig.producer, picture))
    assert answer.tokens == right[picture]
    assert trial.grown(before, rig.counters(), trial.LOADED) >= answer.prompt_tokens - 1 > (IMAGE_TOKENS if picture else 0)
    assert trial.new_failures(before, rig.counters()) == {}


@pytest.mark.parametrize("picture", [ONE, OTHER, None], ids=["one", "other", "none"])
def test_the_same_image_loads(rig_of: Callable[..., Rig], right: dict[str | None, list[int]], picture: str | None) -> None:
    loads(rig_of("P", "D"), picture, right)


def test_another_image_s_ticket_is_refused(rig_of: Callable[..., Rig], right: dict[str | None, list[int]]) -> None:
    rig = rig_of("P", "D")
    rig.settle()
    before = rig.counters()
    assert ask(rig.decoder, OTHER, prefill(rig.producer, ONE)).tokens == right[OTHER]
    assert trial.grown(before, rig.counters(), trial.LOADED) == 0
    assert trial.new_failures(before, rig.counters()) == {"bad_ticket": 1}


@pytest.mark.parametrize("name", ["D-kwargs", "D-changed"])
def test_an_engine_that_prepares_images_otherwise(rig_of: Callable[..., Rig], right: dict[str | None, list[int]], name: str) -> None:
    rig = rig_of("P", name)
    alone = ask(rig.decoder, ONE).tokens
    rig.settle()
    before = rig.counters()
    assert ask(rig.decoder, ONE, prefill(rig.producer, ONE)).tokens == alone != right[ONE]
    assert trial.grown(before, rig.counters(), trial.LOADED) == 0
    assert trial.new_failures(before, rig.counters()) == {"incompatible": 1}
    assert "processor differs" in rig.decoder.process.log.read_text()


def test_the_same_model_elsewhere(rig_of: Callable[..., Rig], right: dict[str | None, list[int]]) -> None:
    """vLLM names an image after the model's folder: such prompts are computed, all others load."""
    rig = rig_of("P", "D-elsewhere")
    loads(rig, None, right)
    rig.settle()
    before = rig.counters()
    assert ask(rig.decoder, ONE, prefill(rig.producer, ONE)).tokens == right[ONE]
    assert trial.grown(before, rig.counters(), trial.LOADED) == 0
    assert trial.new_failures(before, rig.counters()) == {"incompatible": 1}
    said = [line for line in rig.decoder.process.log.read_text().splitlines() if "prompts with media load only" in line]
    assert len(said) == 1 and all(str(of.spec.model) in said[0] for of in (rig.producer, rig.decoder))


def counted(of: Engine, name: str) -> int:
    return int(of.total(name, reason=UNHASHED))


def test_images_that_are_only_counted_get_no_ticket(rig_of: Callable[..., Rig], right: dict[str | None, list[int]]) -> None:
    """Else the n-th image on one engine is taken for the n-th on the other."""
    rig = rig_of("P-counted", "D-counted")
    before = counted(rig.producer, NO_TICKETS)
    tickets = [prefill(rig.producer, picture) for picture in (ONE, OTHER)]
    answers = [ask(rig.decoder, picture, ticket).tokens for picture, ticket in zip((OTHER, ONE), tickets)]
    assert answers == [right[OTHER], right[ONE]]
    assert tickets == [None, None]
    assert counted(rig.producer, NO_TICKETS) - before == 2
    assert rig.producer.process.log.read_text().count(SAID_ONCE) == 1


def test_images_that_are_only_counted_are_not_loaded(rig_of: Callable[..., Rig], right: dict[str | None, list[int]]) -> None:
    rig = rig_of("P", "D-counted")
    before = counted(rig.decoder, NOT_LOADED)
    for picture in (ONE, OTHER):
        assert ask(rig.decoder, picture, prefill(rig.producer, picture)).tokens == right[picture]
    assert counted(rig.decoder, NOT_LOADED) - before == 2
    assert rig.decoder.process.log.read_text().count(SAID_ONCE) == 1
    rig.stack.wait_idle()


def test_where_images_are_only_counted_text_loads(rig_of: Callable[..., Rig], right: dict[str | None, list[int]]) -> None:
    loads(rig_of("P-counted", "D-counted"), None, right)
