"""The identity of an engine's weights: of files as vLLM's loader finds them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from kvferry.engine import digest_file, digests, weights as engine_weights  # noqa: E402
from kvferry.vllm.content import weights  # noqa: E402
from kvferry.vllm.content.weights import Weights  # noqa: E402
from vllm.config import LoadConfig  # noqa: E402

LIMIT_S = 10.0
READ_LIMIT_S = 0.5
"""In which a few bytes are read many times over."""
OLD_S = 3600


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path / "cache" / "kvferry" / "weights"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model")


def make_folder(path: Path, content: bytes = b"weights") -> Path:
    path.mkdir()
    for i in range(2):
        (path / f"model-{i}.safetensors").write_bytes(content * 1000 + bytes([i]))
    return path


def model(path: Path | str, **fields: Any) -> Any:
    return SimpleNamespace(model=str(path), revision=None, model_weights="", **fields)


def begun(path: Path, load_format: str = "auto") -> Weights:
    time.sleep(0.02)  # files get their times from a clock of coarse steps
    found = Weights(model(path), LoadConfig(load_format=load_format))
    found.begin()
    return found


def digest_of(found: Weights, limit_s: float = LIMIT_S) -> str | None:
    """None: it has none after so long, as some must not."""
    end = time.monotonic() + limit_s
    while found.digest is None and time.monotonic() < end:
        time.sleep(0.005)
    return found.digest


def known(path: Path, load_format: str = "auto") -> str:
    found = begun(path, load_format)
    found.loaded()
    digest = digest_of(found)
    assert digest is not None
    return digest


def test_the_same_files_wherever_they_lie(folder: Path, tmp_path: Path) -> None:
    assert known(folder) == known(make_folder(tmp_path / "elsewhere"))


def test_one_byte_counts_wherever_it_is(folder: Path, tmp_path: Path) -> None:
    first = known(folder)
    for at in (0, 3500, 7000):
        other = make_folder(tmp_path / f"other-{at}")
        content = bytearray((other / "model-0.safetensors").read_bytes())
        content[at] ^= 1
        (other / "model-0.safetensors").write_bytes(content)
        assert known(other) != first


@pytest.mark.parametrize("name", ["model.bin", "model.pt"])
def test_other_kinds_of_files(tmp_path: Path, name: str) -> None:
    found = []
    for content in (b"a", b"b", b"a"):
        path = tmp_path / f"{name}-{len(found)}"
        path.mkdir()
        (path / name).write_bytes(content)
        found.append(known(path, "pt" if name.endswith("pt") else "auto"))
    assert found[0] == found[2] != found[1]


def test_files_that_vllm_does_not_load_do_not_count(folder: Path) -> None:
    first = known(folder)
    (folder / "training_args.bin").write_bytes(b"x")
    (folder / "notes.txt").write_bytes(b"x")
    assert known(folder) == first


def test_nothing_is_known_before_the_model_is_loaded(folder: Path) -> None:
    found = begun(folder)
    assert digest_of(found, READ_LIMIT_S) is None
    found.loaded()
    assert digest_of(found) is not None


def test_a_file_that_changes_while_it_is_loaded(folder: Path) -> None:
    found = begun(folder)
    assert digest_of(found, READ_LIMIT_S) is None
    (folder / "model-1.safetensors").write_bytes(b"other")
    found.loaded()
    assert digest_of(found, READ_LIMIT_S) is None


def test_a_file_that_is_younger_than_the_load(folder: Path) -> None:
    found = Weights(model(folder), LoadConfig())
    found.begin(time.time_ns() - OLD_S * 10**9)
    found.loaded()
    assert digest_of(found, READ_LIMIT_S) is None


def test_an_update_that_overtakes_the_reading(folder: Path) -> None:
    found = begun(folder)
    loaded = found._loaded
    found.forget()
    loaded.set()
    assert digest_of(found, READ_LIMIT_S) is None
    found.name("step 7")
    other = Weights(model(folder), LoadConfig())
    other.name("step 7")
    assert found.digest == other.digest is not None
    other.name("step 8")
    assert found.digest != other.digest


def test_what_is_loaded_again_is_read_again(folder: Path) -> None:
    found = begun(folder)
    found.loaded()
    first = digest_of(found)
    (folder / "model-0.safetensors").write_bytes(b"new")
    time.sleep(0.02)
    found.begin()
    assert found.digest is None
    found.loaded()
    second = digest_of(found)
    assert second == known(folder) and second != first


# ---- digests that are known already ----

def counted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are read."""
    read: list[Path] = []
    real = engine_weights.sha256
    monkeypatch.setattr(engine_weights, "sha256", lambda path, *told: (read.append(path), real(path, *told))[1])
    monkeypatch.setattr(digests, "SETTLED_NS", 0)
    return read


def test_a_file_is_read_once(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = counted(monkeypatch)
    first = known(folder)
    assert len(read) == 2 and cache.stat().st_mode & 0o777 == 0o700
    assert known(folder) == first and len(read) == 2
    before = (folder / "model-0.safetensors").stat()
    (folder / "model-0.safetensors").write_bytes(b"WEIGHTS" * 1000 + b"\0")
    os.utime(folder / "model-0.safetensors", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert known(folder) != first and len(read) == 3, "size and time are the same, and the content is not"


def test_a_young_file_is_not_kept(folder: Path, cache: Path) -> None:
    known(folder)
    assert list(cache.iterdir()) == []


def test_a_folder_that_others_can_write_to_is_not_used(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = counted(monkeypatch)
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    known(folder)
    known(folder)
    assert len(read) == 4 and list(cache.iterdir()) == []


def test_the_cache_is_bounded(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted(monkeypatch)
    monkeypatch.setattr(digests, "CACHED_FILES_MAX", 1)
    known(folder)
    assert len(list(cache.iterdir())) == 1


def hub_file(tmp_path: Path, name: str, content: bytes) -> Path:
    """As huggingface_hub lays its cache out."""
    blob = tmp_path / "hub" / "blobs" / name
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    snapshot = tmp_path / "hub" / "snapshots" / "commit"
    snapshot.mkdir(parents=True, exist_ok=True)
    time.sleep(0.02)
    (snapshot / "model.safetensors").symlink_to(blob)
    return snapshot


def test_a_blob_of_the_hub_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = counted(monkeypatch)
    snapshot = hub_file(tmp_path, "ab" * 32, b"content")
    first = known(snapshot)
    assert read == []
    time.sleep(0.02)
    (tmp_path / "hub" / "blobs" / ("ab" * 32)).write_bytes(b"other")
    assert known(snapshot) != first and len(read) == 1, "it has changed since its download"


def test_a_blob_that_is_not_named_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = counted(monkeypatch)
    known(hub_file(tmp_path, "ab" * 20, b"content"))
    assert len(read) == 1


# ---- weights whose files cannot be seen ----

def test_a_streamed_loader_needs_a_name(folder: Path) -> None:
    found = Weights(model(folder), LoadConfig(load_format="tensorizer"))
    with pytest.raises(weights.UnknownWeightsError, match="weights_id"):
        weights.loaded_files(found._model, LoadConfig(load_format="tensorizer"))
    found.begin()
    found.loaded()
    assert digest_of(found, READ_LIMIT_S) is None
    named = [Weights(model(folder), LoadConfig(load_format="tensorizer"), name) for name in ("a", "a", "b")]
    for one in named:
        one.begin()
    assert named[0].digest == named[1].digest != named[2].digest


def test_the_loader_is_asked_in_the_engine_s_thread(folder: Path, monkeypatch: pytest.MonkeyPatch,
                                                    caplog: pytest.LogCaptureFixture) -> None:
    """In another thread vLLM's code once met a dictionary that its own load was changing."""
    def ask(*_: Any) -> list[Path]:
        asked.append(threading.current_thread())
        raise KeyError("of the loader's own")

    asked: list[threading.Thread] = []
    monkeypatch.setattr(weights, "loaded_files", ask)
    found = begun(folder)
    found.loaded()
    assert asked == [threading.current_thread()] and digest_of(found, READ_LIMIT_S) is None
    assert "no identity: KeyError: \"of the loader's own\": set the option weights_id on both engines" in caplog.text


def test_object_storage_needs_a_name(folder: Path) -> None:
    stored = model(folder)
    stored.model_weights = "s3://bucket/model"
    with pytest.raises(weights.UnknownWeightsError, match="weights_id"):
        weights.loaded_files(stored, LoadConfig())


@pytest.mark.parametrize("given", ["", "x" * 2000, 7])
def test_a_name_that_is_none(given: Any) -> None:
    with pytest.raises(ValueError, match="weights_id"):
        weights.weights_of(SimpleNamespace(model_config=model(""), load_config=None), {"weights_id": given})


def test_weights_that_are_made_up(tmp_path: Path) -> None:
    assert known(tmp_path / "nothing", "dummy") == known(tmp_path / "else", "dummy")


def test_reloaded_from_another_folder(folder: Path, tmp_path: Path) -> None:
    found = begun(folder)
    other = make_folder(tmp_path / "other", b"updated")
    time.sleep(0.02)
    for path in (str(other), None):  # the second time, as vLLM, from where it was last
        found.reload(time.time_ns(), path)
        assert digest_of(found) == known(other) != known(folder)


def test_a_name_of_what_was_sent(folder: Path) -> None:
    a, b = begun(folder), Weights(None, None, "given")
    b.begin()
    given = b.digest
    for weights_ in (a, b):
        weights_.forget()
        assert weights_.digest is None
        weights_.name("step 7")
    assert a.digest == b.digest not in (None, given)
    b.name("step 8")
    assert a.digest != b.digest


def test_a_name_joins_what_was_read(folder: Path, tmp_path: Path) -> None:
    """Files do not say what has been written over them; a name alone does not say whose weights they are."""
    found = []
    for path, name in ((folder, "step 7"), (folder, "step 7"), (folder, "step 8"), (make_folder(tmp_path / "b", b"b"), "step 7")):
        one = begun(path)
        one.name(name)
        assert digest_of(one, READ_LIMIT_S / 10) is None
        one.loaded()
        found.append(digest_of(one))
    named = Weights(None, None)
    named.name("step 7")
    assert found[0] == found[1] is not None
    assert len({*found, known(folder), named.digest}) == 5


def test_a_name_for_files_that_cannot_be_seen(folder: Path) -> None:
    found = begun(folder, "runai_streamer")
    found.loaded()
    found.name("step 7")
    named = Weights(None, None)
    named.name("step 7")
    assert digest_of(found) == named.digest


# ---- weights that vLLM makes up, and then loads ----

def reloaded(found: Weights, path: Path | None = None, limit_s: float = LIMIT_S) -> str | None:
    time.sleep(0.02)
    found.reload(time.time_ns(), None if path is None else str(path))
    return digest_of(found, limit_s)


def test_made_up_and_then_loaded_from_files(folder: Path, tmp_path: Path) -> None:
    other = make_folder(tmp_path / "other", b"other")
    first, second = begun(folder, "dummy"), begun(folder, "dummy")
    for one in (first, second):
        one.loaded()
    assert digest_of(first) == digest_of(second) is not None
    for one in (first, second):
        one.forget()
        one.configure({"load_config": {"load_format": "auto"}})
        assert one.digest is None
    assert reloaded(first) == known(folder)
    assert reloaded(second, other) == known(other) != first.digest


@pytest.mark.parametrize("overrides", [None, {}, {"load_config": {"load_format": "a new one"}}, {"load_config": {"unheard of": 1}},
                                       {"load_config": "auto"}, {"load_config": {}, "model_config": {}}, ["load_config"]])
def test_nobody_knows_how_vllm_loads_now(folder: Path, overrides: Any) -> None:
    found = begun(folder)
    found.configure(overrides)
    assert reloaded(found, limit_s=READ_LIMIT_S) is None
    found.configure({"load_config": {"load_format": "auto"}})
    assert (reloaded(found, limit_s=READ_LIMIT_S) is None) == (overrides != {"load_config": {"load_format": "a new one"}})


def test_made_up_weights_that_were_written_to_have_no_name(folder: Path) -> None:
    found = begun(folder, "dummy")
    assert reloaded(found, limit_s=READ_LIMIT_S) is None
    found.name("step 7")
    assert found.digest is not None


# ---- a file of digests that is trusted (test_trusted_weights.py) ----

@pytest.mark.parametrize("options", [{}, {"weights_digest": "read"}, {"weights_digest": "trust"}])
def test_an_engine_that_trusts(folder: Path, options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before vLLM loads, and where nothing could begin before."""
    may_read = threading.Event()
    monkeypatch.setattr(engine_weights, "sha256", lambda path, *told: may_read.wait(LIMIT_S) and digests.sha256(path))
    digest_file.make(folder, lambda line: None)
    time.sleep(0.02)
    for begin in (weights.begin_beside_load, lambda *engine: None):
        engine = SimpleNamespace(model_config=model(folder), load_config=LoadConfig())
        begin(engine, options)
        monkeypatch.setattr(weights.psutil.Process, "create_time", lambda process: time.time())
        found = weights.weights_of(engine, options)
        assert (digest_of(found, READ_LIMIT_S) is not None) == (options.get("weights_digest") == "trust")
    may_read.set()
