"""docs/limits.md lists what is refused, and the message that comes: each is provoked here."""

from __future__ import annotations

import inspect
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402
from fakes import POOL_BLOCKS, image_feature, kv_cache_config, prompts, request, spec, stand_in, vllm_config  # noqa: E402
from kvferry import vllm_plugin  # noqa: E402
from kvferry.engine import digests, weights as engine_weights  # noqa: E402
from kvferry.vllm import KVFerryConnector, config  # noqa: E402
from kvferry.vllm.content import weights  # noqa: E402
from kvferry.vllm.groups import Groups, without_drafts  # noqa: E402
from kvferry.vllm.layout import check_checksums, pool_of  # noqa: E402
from kvferry.vllm.split import Split  # noqa: E402
from kvferry.vllm_entry import EXTRA  # noqa: E402
from kvferry.engine.messages import NotCarried  # noqa: E402
from kvferry.vllm.content.prompts import Prompts  # noqa: E402
from vllm import config as vllm_configs  # noqa: E402
from vllm.config import MultiModalConfig, SpeculativeConfig  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.kv_cache_interface import CrossAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec  # noqa: E402

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "limits.md"
GPU = SimpleNamespace(is_cpu=lambda: False, is_cuda=lambda: True, device_name="cuda")
OTHER = SimpleNamespace(is_cpu=lambda: False, is_cuda=lambda: False, device_name="rocm")


def documented(section: str) -> list[str]:
    """The second column of the section's table, with what all messages of the section begin or end with."""
    text = DOCUMENT.read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    assert "…" not in text or f"\n{weights.HOW_TO_NAME}\n" in text
    begin = f"{EXTRA}: " if section == "Options" else ""
    return [begin + one.replace("…", weights.HOW_TO_NAME) for one in re.findall(r"^\|.*\| `(.*)` \|$", text, re.M)]


def message(provoke: Callable[[], Any], kind: type[Exception]) -> str:
    with pytest.raises(kind) as raised:
        provoke()
    return str(raised.value)


def with_parallel(**fields: Any) -> Any:
    engine = vllm_config()
    vars(engine.parallel_config).update(fields)
    return engine


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Engines whose model would be loaded now."""
    found: list[Any] = []
    monkeypatch.setattr(weights, "begin_beside_load", lambda engine, given: found.append(engine))
    return found


def test_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch, begun: list[Any]) -> None:
    def start(engine: Any, platform: Any = config.current_platform, **named: str) -> Callable[[], None]:
        def load() -> None:
            monkeypatch.setattr(config, "current_platform", platform)
            vars(engine.kv_transfer_config).update({"kv_connector": "KVFerryConnector", "kv_connector_module_path": None} | named)
            vllm_plugin._begin_to_read(engine)
        return load

    def scattered() -> None:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("VLLM_KV_CACHE_LAYOUT", "LHBNC")
            start(vllm_config(), GPU)()

    parallel = ("decode_context_parallel_size", "prefill_context_parallel_size")
    names = ("KVFerryConnector", "NixlConnector")
    beside_nixl = vllm_config(options={"connectors": [{"kv_connector": name} for name in names]})
    routed = vllm_config()
    if hasattr(vllm_configs, "AuxOutputConfig"):
        routed.aux_output_config = vllm_configs.AuxOutputConfig(enable_return_routed_experts=True)
    else:
        routed.model_config.enable_return_routed_experts = True
    through_host = vllm_config(options={"transports": ["local", "tcp"]})
    refused = [start(vllm_config(), OTHER), start(through_host, GPU, kv_buffer_device="cpu"), scattered,
               *(start(with_parallel(**{name: 2})) for name in parallel), start(beside_nixl, kv_connector="MultiConnector"),
               start(routed)]
    assert [message(load, ValueError) for load in refused] == documented("Before the model is loaded")
    assert message(start(vllm_config(options={"lease_ttl_ms": -1})), config.ConfigError) in documented("Options")
    assert begun == []
    for platform in (config.current_platform, GPU):
        engine = vllm_config(ranks=16)
        start(engine, platform)()
        assert begun.pop() is engine and begun == []


def test_a_name_of_weights_that_is_none() -> None:
    engine = vllm_config(options={"weights_id": ""})
    vars(engine.kv_transfer_config).update(kv_connector="KVFerryConnector", kv_connector_module_path=None)
    assert message(lambda: vllm_plugin._begin_to_read(engine), config.ConfigError) in documented("Options")


def test_without_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "current_platform", OTHER)
    for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER):
        assert message(lambda: KVFerryConnector(vllm_config(), role, kv_cache_config()),  # noqa: B023
                       config.ConfigError) == documented("Before the model is loaded")[0]


def groups(*specs: Any) -> KVCacheConfig:
    return KVCacheConfig(num_blocks=POOL_BLOCKS, kv_cache_tensors=[],
                         kv_cache_groups=[KVCacheGroupSpec([f"l{i}"], one) for i, one in enumerate(specs)])


def test_when_the_cache_is_laid_out() -> None:
    state = MambaSpec(block_size=32, shapes=((2, 8),), dtypes=(torch.float32,), num_speculative_blocks=1)
    cross = CrossAttentionSpec(block_size=32, num_kv_heads=2, head_size=16, dtype=torch.float32)

    def register(tensor: Any) -> Callable[[], Any]:
        return lambda: pool_of({"l0": tensor}, groups(spec()), Split(0, 1, None))

    drafting = vllm_config()
    drafting.speculative_config = stand_in(SpeculativeConfig, method="extract_hidden_states")
    good = torch.zeros(POOL_BLOCKS, 2, 32, 32)
    refused = [
        lambda: Groups(groups(cross)),
        lambda: without_drafts(drafting, groups(spec()), True),
        lambda: Groups(groups(state)),
        lambda: Groups(groups(*[spec()] * 17)),
        lambda: Groups(groups(spec(block_size=48), spec(block_size=64))),
        register(torch.zeros(POOL_BLOCKS, 2, 32, 24)),
        register(torch.zeros(POOL_BLOCKS, 32, 2, 32)),
        register(torch.zeros(2 * POOL_BLOCKS, 2, 16, 32)),
        lambda: check_checksums(pool_of({"l0": good.transpose(1, 2).contiguous().transpose(1, 2)}, groups(spec()), Split(0, 1, None)), "LBNHC"),
        register([good]),
        register(torch.zeros(POOL_BLOCKS, 2, 32, 32, device="meta")),
    ]
    *ours, of_vllm = documented("When the KV cache is laid out")
    assert [message(layout, ValueError) for layout in refused] == ours
    assert of_vllm in inspect.getsource(Scheduler.__init__)
    assert Groups(groups(spec(), spec())).block_tokens == 32 and len(register(good)().regions) == 1


def test_options(monkeypatch: pytest.MonkeyPatch, key_path: str) -> None:
    monkeypatch.setattr(config, "identity_fields", lambda *engine: {})

    def start(**options: Any) -> None:
        engine = vllm_config(options=options)
        config.error_status_of(engine)
        config.carries_drafts(engine)
        config.in_flight(engine, kv_cache_config())
        config.lease_wait_s(engine)
        weights._begun.pop(id(engine.model_config), None)
        config.loaded_weights(engine)
        config.harmless_rpcs(engine)
        config.drain_grace_ms(engine)
        config.open_node(engine, kv_cache_config(), 0).close()

    def early(**options: Any) -> None:
        """Before the model is loaded."""
        config.check_options(vllm_config(), options)

    given = [{"chunk_byte": 1}, {"bidirectional_kv_xfer": True}, {"lease_ttl_ms": -1}, {"ranks": 4},
             {"require": ["ucx"]}, {"transports": "ucx,tcp", "require": "ucx", "ucx_library": "/nowhere/libucp.so.0"}, {"listen": "192.0.2.1"},
             {"listen": "0.0.0.0", "key_file": key_path},
             {"listen": "127.0.0.77:7000"}, {"listen": "127.0.0.77:7000-7000"},
             {"listen": "127.0.0.77:7000-7099", "advertise": "10.0.0.1:7000"}, {"error_status": 502}, {"carry_drafts": "maybe"},
             {"loads_in_flight": 0}, {"lease_wait_ms": -1}, {"drain_grace_ms": -1}, {"weights_id": ""}, {"weights_digest": "yes"},
             {"rpcs_that_keep_weights": "one"}]
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # other runs of this test hold it, too
        taken.bind(("127.0.0.77", 7000))
        taken.listen()
        assert [message(lambda: start(**options), config.ConfigError) for options in given] == documented("Options")
        start(listen="127.0.0.77:7000-7099")
        late = {"ucx_library", "weights_id"}
        assert [message(lambda: early(**options), config.ConfigError) for options in given if not late & options.keys()] == [
            text for text, options in zip(documented("Options"), given) if not late & options.keys()]
        assert "No such file" in message(lambda: early(key_file="/nonexistent"), config.ConfigError)
        early(listen="127.0.0.77:7000-7099")
    start(lease_ttl_ms=2000, error_status=503, carry_drafts=False, loads_in_flight=2, load_bytes_in_flight="1000000", lease_wait_ms=500,
          drain_grace_ms=0, require=["tcp"], rpcs_that_keep_weights=["one"], weights_digest="trust")


@pytest.mark.parametrize("given, is_on", [(True, True), ("true", True), ("on", True), (False, False), ("false", False), ("off", False)])
def test_a_switch_is_a_boolean_or_a_word(given: Any, is_on: bool) -> None:
    """The same of the library's options and of the connector's own."""
    engine = vllm_config(options={"checksum": given, "carry_drafts": given})
    assert config.has_checksums(engine) == config.carries_drafts(engine) == is_on
    config.check_options(engine, engine.kv_transfer_config.kv_connector_extra_config)


def test_weights_without_an_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "a.safetensors"
    file.write_bytes(b"weights")
    model = SimpleNamespace(model=str(tmp_path), model_weights="", revision=None)

    def digest(loaded_from_ns: int) -> str:
        return engine_weights._file_of(file, digests.state_of(file), loaded_from_ns, digests.Cache(), None).digest

    def later(overrides: Any) -> list[Path]:
        found = weights.Weights(model, SimpleNamespace(load_format="dummy"), "given")
        for _ in range(2):
            found.begin()
        if overrides is not None:
            found.configure(overrides)
        return found._find_files()

    refused = [lambda: weights.loaded_files(model, SimpleNamespace(load_format="runai_streamer")), lambda: digest(0),
               lambda: later({"model_config": {"model": "/elsewhere"}}), lambda: later(None)]
    found = [message(read, weights.UnknownWeightsError).replace(str(tmp_path), "/model") for read in refused]
    assert found == documented("Weights without an identity")
    assert len(digest(time.time_ns() + 1_000_000_000)) == 64


def test_prompts() -> None:
    def of(engine: Prompts, **fields: Any) -> str:
        found = engine.of(request("a", 20, **fields))
        return found.value if isinstance(found, NotCarried) else "an identity"

    counting = vllm_config()
    counting.model_config.multimodal_config = stand_in(MultiModalConfig, mm_processor_cache_gb=0)
    counting.cache_config.enable_prefix_caching = False
    image = image_feature("renderer0-mm-1-image-0")
    old = prompts()
    old.cache_is_old = True
    unknown = Prompts(vllm_config(), weights.Weights(None, None))
    assert [of(prompts(), prompt_embeds="some"), of(prompts(), resumable=True),
            of(Prompts(counting, prompts()._weights), mm_features=[image]), of(unknown),
            of(prompts(), lora_request=SimpleNamespace(lora_int_id=1, load_inplace=False)), of(old)] == documented("Prompts")
    assert of(prompts()) == of(prompts(), mm_features=[image]) == "an identity"
