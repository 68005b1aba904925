"""Parts of TensorRT-LLM's adapter, each alone: what it is told and refuses, what a prompt is, how a pool lies, the mailbox, the
middleware."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import socket
import stat
import threading
import time
from array import array
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engines import Log, wait_until
from trtllm_world import MODEL, SETTINGS, make_arguments

from kvferry import _kvferry, check
from kvferry.engine.config import ConfigError
from kvferry.engine.messages import NotCarried
from kvferry.trtllm.config import VARIABLE, Config, read_settings
from kvferry.trtllm.deposit import deposit
from kvferry.trtllm.identity import Model, Prompts, identity_fields
from kvferry.trtllm.layout import LayoutError, pool_of_layout, pool_of_tensor
from kvferry.trtllm.mailbox import Mailbox
from kvferry.trtllm.middleware import PRODUCER, TICKET, Tickets, token_ids

DECODE = SETTINGS | {"role": "decode"}


def arguments(folder: Path, **changes: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(MODEL))
    return make_arguments({"model": str(folder)} | changes)


def make_config(folder: Path, **changes: Any) -> Config:
    return Config(arguments(folder, **changes), DECODE)


# ---- what it is told ----

@pytest.mark.parametrize(("text", "message"), [
    (None, "KVFERRY_TRTLLM is not set: give it JSON"), ("{", "KVFERRY_TRTLLM: Expecting property name"),
    ("/nowhere.json", "KVFERRY_TRTLLM: [Errno 2] No such file or directory: '/nowhere.json'"),
    ("[]", "KVFERRY_TRTLLM: [Errno 2]"), ('{"a" 1}', "KVFERRY_TRTLLM: Expecting ':'")])
def test_settings_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, text: str | None, message: str) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ConfigError, match=message.replace("[", r"\[").replace("{", r"\{")):
        read_settings()


def test_settings_may_be_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"role": "prefill"}')
    monkeypatch.setenv(VARIABLE, str(tmp_path / "settings.json"))
    assert read_settings() == {"role": "prefill"}


def test_an_engine_that_was_not_told_listens_where_its_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                                        key_path: str) -> None:
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.77")
    for name, host in (("", "127.0.0.1"), (key_path, "127.0.0.77")):
        monkeypatch.setenv("KVFERRY_KEY_FILE", name)
        with closing(Config(arguments(tmp_path), DECODE).open_node({"engine": "test"}, 0)) as node:
            assert check.address_of(node).rpartition(":")[0] == host
    monkeypatch.setenv("KVFERRY_KEY_FILE", "/nowhere/key")
    for rank in (None, 0):
        with pytest.raises(ConfigError, match="/nowhere/key"):
            Config(arguments(tmp_path), DECODE).open_node({"engine": "test"}, rank)


def test_an_option_that_is_gone_is_warned_of(tmp_path: Path, log: Log) -> None:
    Config(arguments(tmp_path), DECODE | {"backoff_min_ms": 0}).open_node({"engine": "test"}).close()
    wait_until("the line", lambda: bool(log.grep("option backoff_min_ms has no effect any more")))


@pytest.mark.parametrize(("settings", "message"), [
    ({}, '"role" is "prefill" or "decode"'), ({"role": "both"}, 'role = "both" is not allowed: it must be prefill or decode'),
    ({"role": "decode", "loading": "fast"}, 'loading = "fast" is not allowed: it must be staged or rewind'),
    ({"role": "decode", "staging_bytes": 0}, 'staging_bytes = "0" is not allowed: it must be a whole number, 1 or more'),
    ({"role": "decode", "hold_ms": "soon"}, 'hold_ms = "soon" is not allowed'),
    ({"role": "decode", "policy": "fail"}, 'policy = "fail" is not allowed: TensorRT-LLM has no way to end a request'),
    ({"role": "decode", "ranks": 2}, "ranks follows from the engine's configuration and cannot be set"),
    ({"role": "decode", "colour": "red"}, "colour")])
def test_settings_that_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(arguments(tmp_path), settings).open_node({"engine": "test"})


@pytest.mark.parametrize(("changes", "message"), [
    ({"pipeline_parallel_size": 2}, "without pipeline_parallel_size above 1"),
    ({"context_parallel_size": 2}, "without context_parallel_size above 1"), ({"max_beam_width": 2}, "without max_beam_width above 1"),
    ({"enable_attention_dp": True}, "does not support enable_attention_dp"),
    ({"speculative_config": object()}, "leave speculative_config out"), ({"host_cache_size": 1 << 20}, "leave kv_cache_config.host_cache_size out"),
    ({"enable_partial_reuse": True}, "set kv_cache_config.enable_partial_reuse to False"),
    ({"dtype": "nvfp4"}, "does not carry KV of type nvfp4"), ({"max_attention_window": [128]}, "leave kv_cache_config.max_attention_window out")])
def test_engines_that_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(tmp_path, **changes)


def test_a_model_without_its_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs the model's config.json"):
        Model(Config(make_arguments({"model": "some/name"}), DECODE))
    made = arguments(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="config.json: Expecting"):
        Model(Config(made, DECODE))


# ---- what the same bytes mean ----

def fields(folder: Path, **changes: Any) -> dict[str, str]:
    return fields_of(arguments(folder, **changes))


def fields_of(given: Any) -> dict[str, str]:
    config = Config(given, DECODE)
    return identity_fields(config, Model(config))


@pytest.mark.parametrize(("changes", "field"), [
    ({"dtype": "fp8"}, "kv_dtype"), ({"attn_backend": "FLASHINFER"}, "attention"), ({"use_kv_cache_manager_v2": True}, "manager"),
    ({"quant_config": SimpleNamespace(quant_algo="FP8", kv_cache_quant_algo="FP8")}, "quantization")])
def test_engines_that_differ(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    plain, other = fields(tmp_path), fields(tmp_path, **changes)
    assert {name for name in plain if plain[name] != other[name]} == {field}


def test_engines_may_differ_in_size_and_limits(tmp_path: Path) -> None:
    assert fields(tmp_path) == fields(tmp_path, tensor_parallel_size=2, max_seq_len=77, max_batch_size=3)


def test_rope_by_the_longest_sequence(tmp_path: Path) -> None:
    made = arguments(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(MODEL | {"rope_scaling": {"rope_type": "longrope"}}))
    other = make_arguments({"model": str(tmp_path), "max_seq_len": 99})
    first, second = fields_of(made), fields_of(other)
    assert {name for name in first if first[name] != second[name]} == {"positions"}


def test_the_models_type_counts_where_none_is_given(tmp_path: Path) -> None:
    of = []
    for name in ("bfloat16", "float16"):
        made = arguments(tmp_path)
        made.dtype = "auto"
        (tmp_path / "config.json").write_text(json.dumps(MODEL | {"torch_dtype": name}))
        of.append(fields_of(made))
    assert {field for field in of[0] if of[0][field] != of[1][field]} == {"dtype"}


@pytest.mark.parametrize("name", ["model_kwargs", "sparse_attention_config"])
def test_arguments_that_change_the_model(tmp_path: Path, name: str) -> None:
    plain, made = fields(tmp_path), arguments(tmp_path)
    setattr(made, name, {"sparse": True})
    other = fields_of(made)
    assert {field for field in plain if plain[field] != other[field]} == {"overrides"}


def test_a_file_of_the_quantization(tmp_path: Path) -> None:
    plain = fields(tmp_path)
    (tmp_path / "hf_quant_config.json").write_text('{"kv_cache_quant_algo": "FP8"}')
    other = fields(tmp_path)
    assert {field for field in plain if plain[field] != other[field]} == {"quantization"}


@pytest.mark.parametrize("name", ["vision_config", "audio_config"])
def test_multimodal_models_are_refused(tmp_path: Path, name: str) -> None:
    config = make_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(MODEL | {name: {"layers": 1}}))
    with pytest.raises(ConfigError, match=f"multimodal models on TensorRT-LLM: config.json has {name}"):
        Model(config)


def test_a_name_in_the_models_file_does_not_count(tmp_path: Path) -> None:
    before = fields(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(MODEL | {"_name_or_path": "elsewhere", "torch_dtype": "float16"}))
    assert fields_of(make_arguments({"model": str(tmp_path)})) == before


def test_a_prompt_is_its_whole_blocks_but_for_the_last_token(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    prompts = Prompts(config, Model(config))
    assert [prompts.offered_tokens(tokens) for tokens in (0, 1, 4, 5, 8, 9)] == [0, 0, 0, 4, 4, 8]
    assert prompts.of_tokens([1, 2, 3, 4, 5], None) == prompts.of_tokens([1, 2, 3, 4, 6, 7], None)
    assert prompts.of_tokens([1, 2, 3, 4, 5], None) != prompts.of_tokens([1, 2, 3, 5, 5], None)
    assert prompts.of_tokens([1, 2, 3, 4, 5], None) != prompts.of_tokens([1, 2, 3, 4, 5], "salt")


def test_weights_are_their_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    made = arguments(tmp_path)
    of = []
    for _ in range(2):
        config = Config(made, {"role": "decode"})
        prompts = Prompts(config, Model(config))
        prompts.loaded()
        wait_until("the weights", lambda: prompts.of_tokens([1] * 9, None) is not NotCarried.WEIGHTS_UNKNOWN)
        of.append(prompts.of_tokens([1] * 9, None))
        (tmp_path / "model.safetensors").write_bytes(b"others!")
    assert of[0] != of[1]


# ---- how a pool lies ----

def test_the_pool_of_v1(tmp_path: Path) -> None:
    """Heads outermost in each of a block's keys and values: [blocks, layers, 2, heads x tokens x head size]."""
    config = make_config(tmp_path, tensor_parallel_size=2)
    tensor = torch.zeros(5, 2, 2, 2 * 4 * 2)
    pool = pool_of_tensor(tensor, config, Model(config), 1)
    assert [tuple(region) for region in pool.regions] == [(tensor.data_ptr(), 2 * 2 * 64, 2 * 2 * 64, 5, 1, 1, 0, 0, 0)]
    assert (pool.share, pool.groups, pool.blocks) == ((2, 2, 4), 1, 5)
    assert [(part.layer, part.kind, part.offset_bytes) for part in pool.parts] == [
        (layer, kind, (2 * layer + index) * 64)
        for layer in range(2) for index, kind in enumerate((_kvferry.PART_KEYS, _kvferry.PART_VALUES))]
    part = pool.parts[0]
    assert (part.unit_bytes, part.row_bytes, part.head_bytes, part.rows) == (8, 8, 32, 4)
    assert (part.heads, part.first_head, part.heads_total, part.block_tokens) == (2, 2, 4, 4)


def test_another_backends_heads_are_one_piece(tmp_path: Path) -> None:
    config = make_config(tmp_path, tensor_parallel_size=2, attn_backend="FLASHINFER")
    pool = pool_of_tensor(torch.zeros(5, 2, 2, 16), config, Model(config), 1)
    assert {(part.heads, part.first_head, part.heads_total, part.rows) for part in pool.parts} == {(1, 1, 2, 1)}


@pytest.mark.parametrize(("tensor", "message"), [
    (torch.zeros(5, 2, 1, 16), "keys and values, not latents"), (torch.zeros(5, 64), "is not"),
    (torch.zeros(5, 2, 2, 15), "a pool of 2 layers with 15 values each is not all of this rank's KV, which has 2 with 16"),
    (torch.zeros(5, 3, 2, 16), "a pool of 3 layers"), (torch.zeros(5, 2, 2, 8), "2 layers with 8 values"),  # FP4, say
    (torch.zeros(5, 2, 2, 32)[..., :16], "has no block in one piece"),
    (torch.zeros(5, 2, 2, 16).transpose(1, 2), "has no block in one piece"),
    (torch.zeros(5, 2, 2, 16, device="meta"), "the pool is on meta")])
def test_pools_that_cannot_be_carried(tmp_path: Path, tensor: torch.Tensor, message: str) -> None:
    config = make_config(tmp_path, tensor_parallel_size=2)
    with pytest.raises(LayoutError, match=re.escape(message)):
        pool_of_tensor(tensor, config, Model(config), 0)


def test_heads_that_the_ranks_cannot_share(tmp_path: Path) -> None:
    config = make_config(tmp_path, tensor_parallel_size=8)
    with pytest.raises(LayoutError, match="KV heads that 8 ranks share evenly, and the model has 4"):
        pool_of_tensor(torch.zeros(5, 2, 2, 4), config, Model(config), 0)


def test_types_are_said(tmp_path: Path) -> None:
    """Of the same size, and not the same."""
    config = make_config(tmp_path)
    of = [{part.dtype for part in pool_of_tensor(torch.zeros(5, 2, 2, 32, dtype=dtype), config, Model(config), 0).parts}
          for dtype in (torch.float16, torch.bfloat16)]
    assert of[0] != of[1] and {0} not in of


def buffers(*of: tuple[int, str]) -> tuple[Any, ...]:
    return tuple(SimpleNamespace(layer_id=layer, role=role, expansion=1) for layer, role in of)


def group(index: int, regions: list[Any], replicated: list[Any] = [], window: int | None = None) -> Any:
    return SimpleNamespace(layer_group_id=index, window_size=window, regions=regions, replicated_regions=replicated)


def region(base: int, size: int, *of: tuple[int, str]) -> Any:
    return SimpleNamespace(base=base, size=size, stride=4096, num_slots=6, buffers=buffers(*of))


def layout_of(*groups: Any, tokens: int = 4) -> Any:
    return SimpleNamespace(tokens_per_block=tokens, groups=groups)


def test_the_pools_of_v2(tmp_path: Path) -> None:
    config = make_config(tmp_path, tensor_parallel_size=2)
    first = group(0, [region(0x10000, 512, (0, "key"), (0, "value"))], [region(0x10800, 64, (0, "index_key"))])
    second = group(1, [region(0x90000, 512, (1, "key"), (1, "value"))])
    pool = pool_of_layout(layout_of(first, second), config, Model(config), 0, _kvferry.MEMORY_HOST, 0)
    assert [(one.base, one.block_bytes, one.group) for one in pool.regions] == [(0x10000, 512, 0), (0x10800, 64, 0), (0x90000, 512, 1)]
    assert [(part.layer, part.kind, part.group, part.region) for part in pool.parts] == [
        (0, _kvferry.PART_KEYS, 0, 0), (0, _kvferry.PART_VALUES, 0, 0), (0, _kvferry.PART_INDEX, 0, 1), (1, _kvferry.PART_KEYS, 1, 2), (1, _kvferry.PART_VALUES, 1, 2)]
    assert {(part.heads, part.first_head, part.heads_total) for part in pool.parts if part.region == 1} == {(1, 0, 1)}
    assert (pool.share, pool.groups, pool.blocks) == ((0, 2, 4), 2, 6)


@pytest.mark.parametrize(("layout", "message"), [
    (layout_of(group(0, [region(1, 512, (0, "key"), (0, "value"))], window=64)), "layer group 0 has a sliding window"),
    (layout_of(group(0, [region(1, 512, (0, "key"), (0, "value"))]), tokens=8), "pages of 8 tokens"),
    (layout_of(group(0, [region(1, 512, (0, "key"), (0, "scale"))])), "does not carry 'scale' of layer 0"),
    (layout_of(group(0, [region(1, 512, (0, "key"), (0, "value"))])), "the layers that have a 'key' are [0], not all 2"),
    (layout_of(group(0, [region(1, 512, (0, "key"), (1, "key"))])), "the layers that have a 'value' are [], not all 2: kvferry carries keys "),
    (layout_of(group(0, [region(1, 511, (0, "key"), (0, "value"))])), "not all of one size"),
    (layout_of(group(1, [region(1, 512, (0, "key"), (0, "value"))])), "layer group 1 is the first"),
    (layout_of(), "has no KV memory")])
def test_layouts_that_cannot_be_carried(tmp_path: Path, layout: Any, message: str) -> None:
    config = make_config(tmp_path)
    with pytest.raises(LayoutError, match=re.escape(message)):
        pool_of_layout(layout, config, Model(config), 0, _kvferry.MEMORY_HOST, 0)


# ---- the mailbox ----

class Box:
    """A mailbox, and what was asked of it."""

    def __init__(self, path: Path, answer: Callable[[Any], None] = lambda done: done(8, "")) -> None:
        self.asked: list[Any] = []
        self.path = path

        def took(asked: dict[str, Any], hold_ms: int, done: Any) -> None:
            self.asked.append((asked, hold_ms))
            answer(done)

        self.mailbox = Mailbox(str(path), took, 500)

    def raw(self, line: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(5)
            asking.connect(str(self.path))
            asking.sendall(line)
            asking.shutdown(socket.SHUT_WR)
            return asking.makefile("rb").readline()

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *_: object) -> None:
        self.mailbox.close()


def test_a_mailbox_answers(tmp_path: Path) -> None:
    with Box(tmp_path / "box") as box:
        assert deposit(str(box.path), ticket="kvf5.x", hold_ms=100) == (8, "")
        assert deposit(str(box.path), tokens=[1, 2], at="h:1", salt="s", hold_ms=70) == (8, "")
        assert box.asked == [({"hold_ms": 100, "ticket": "kvf5.x"}, 100),
                             ({"hold_ms": 70, "token_ids": [1, 2], "at": "h:1", "salt": "s"}, 70)]
        assert stat.S_IMODE(os.stat(box.path).st_mode) == 0o600
    assert not box.path.exists()


def test_a_mailbox_holds_no_longer_than_it_is_asked_to(tmp_path: Path) -> None:
    with Box(tmp_path / "box", lambda done: None) as box:
        start = time.monotonic()
        assert deposit(str(box.path), ticket="kvf5.x", hold_ms=150) == (0, "not_in_time")
        assert 0.14 < time.monotonic() - start < 2


def test_a_mailbox_may_answer_from_another_thread_and_twice(tmp_path: Path) -> None:
    def later(done: Any) -> None:
        threading.Thread(target=lambda: (time.sleep(0.02), done(4, ""), done(0, "again"))).start()

    with Box(tmp_path / "box", later) as box:
        assert deposit(str(box.path), ticket="kvf5.x", hold_ms=2000) == (4, "")


@pytest.mark.parametrize("line", [b"\n", b"{}x\n", b"[1]\n", b"5\n", b'{"hold_ms": "soon"}\n', b'{"hold_ms": null}\n', b"\xff\xfe\n", b'{"hold_ms": 1e999}\n', b"[" * 100_000 + b"\n",
                                  b"x" * (12 << 20) + b"\n"])
def test_what_a_mailbox_does_not_understand(tmp_path: Path, line: bytes) -> None:
    with Box(tmp_path / "box") as box:
        try:
            assert json.loads(box.raw(line)) == {"tokens": 0, "reason": "malformed"}
        except OSError:
            assert len(line) > 8 << 20  # it need not read all of it
        assert box.asked == []
        assert deposit(str(box.path), ticket="kvf5.x") == (8, "")


def test_a_question_that_breaks_whoever_is_asked(tmp_path: Path) -> None:
    def breaks(done: Any) -> None:
        raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    with Box(tmp_path / "box", breaks) as box:
        assert deposit(str(box.path), ticket="kvf5.x") == (0, "malformed")


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_that_others_can_write_to(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ConfigError, match="is not a folder that only this user can write to"):
        Box(folder / "box")


def test_a_folder_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigError, match="is not a folder that only this user"):
        Box(tmp_path / "link" / "box")


def test_who_leaves_a_mailbox_harms_nobody(tmp_path: Path) -> None:
    with Box(tmp_path / "box") as box:
        for line in (b"", b'{"ticket"'):
            assert box.raw(line) == b""
        assert deposit(str(box.path), ticket="kvf5.x") == (8, "")


def test_a_mailbox_of_another_engine(tmp_path: Path) -> None:
    with Box(tmp_path / "box"), pytest.raises(ConfigError, match="is that of another engine"):
        Box(tmp_path / "box")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "box"))
    with Box(tmp_path / "box") as box:  # one that is gone
        assert deposit(str(box.path), ticket="kvf5.x") == (8, "")


def test_a_mailbox_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="mailbox .*file/box: "):
        Box(tmp_path / "file" / "box")


# ---- the middleware ----

@pytest.mark.parametrize(("body", "found"), [
    ({"prompt": [5, 6]}, ([5, 6], None)), ({"prompt_token_ids": [7]}, ([7], None)), ({"prompt": "text"}, None),
    ({"prompt": ["text"]}, None), ({"prompt": [[1], [2]]}, None), ({"prompt": []}, None), ({"prompt": [-1]}, None), ({"prompt": [1 << 40]}, None),
    ({"messages": []}, None), ({"prompt": [1], "cache_salt": "s"}, ([1], "s")), ([1], None), ("x", None),
    ({"prompt_token_ids_b64": base64.b64encode(array("i", [3, 4]).tobytes()).decode()}, ([3, 4], None)),
    ({"prompt_token_ids_b64": "???"}, None)])
def test_token_ids_of_a_body(body: Any, found: Any) -> None:
    assert token_ids(json.dumps(body).encode()) == found


def serve(box: Box, body: bytes, headers: list[tuple[bytes, bytes]] = [], path: str = "/v1/completions", pieces: int = 2) -> bytes:
    """What the application reads behind the middleware."""
    read = []
    size = -(-len(body) // pieces) or 1
    messages = [{"type": "http.request", "body": body[at:at + size], "more_body": at + size < len(body)}
                for at in range(0, max(1, len(body)), size)]
    waiting = iter(messages)

    async def receive() -> Any:
        return next(waiting)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while True:
            message = await receive()
            read.append(message["body"])
            if not message["more_body"]:
                return

    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    asyncio.run(Tickets(application, str(box.path), 300)(scope, receive, None))
    return b"".join(read)


def test_the_middleware_asks_by_token_ids(tmp_path: Path) -> None:
    body = json.dumps({"prompt": list(range(500))}).encode()
    with Box(tmp_path / "box") as box:
        assert serve(box, body) == body
        assert serve(box, body, [(PRODUCER, b"h:7")]) == body
        assert [asked for asked, _ in box.asked] == [
            {"hold_ms": 300, "token_ids": list(range(500)), "at": at, "salt": None} for at in (None, "h:7")]


def test_the_middleware_has_a_ticket_by_its_header(tmp_path: Path) -> None:
    with Box(tmp_path / "box") as box:
        assert serve(box, b"whatever", [(TICKET, b"kvf5.abc")]) == b"whatever"
        assert box.asked == [({"hold_ms": 300, "ticket": "kvf5.abc"}, 300)]


@pytest.mark.parametrize(("body", "path"), [(b'{"prompt": "text"}', "/v1/completions"), (b"", "/v1/completions"),
                                            (b'{"prompt": [1]}', "/health")])
def test_other_requests_pass_the_middleware(tmp_path: Path, body: bytes, path: str) -> None:
    with Box(tmp_path / "box") as box:
        assert serve(box, body, path=path) == body
        assert box.asked == []


def test_the_middleware_goes_on_without_a_mailbox(tmp_path: Path) -> None:
    body = b'{"prompt": [1, 2]}'
    assert serve(SimpleNamespace(path=tmp_path / "none"), body) == body  # type: ignore[arg-type]


def test_a_large_body_passes_the_middleware(tmp_path: Path) -> None:
    body = json.dumps({"prompt": [1] * 4_000_000}).encode()
    with Box(tmp_path / "box") as box:
        assert serve(box, body, pieces=40) == body
        assert box.asked == []
