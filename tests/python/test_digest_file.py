"""The file of digests beside weights: how it is made, and when it is believed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvferry import cli
from kvferry.engine import digest_file
from kvferry.engine.digest_file import NAME, DigestFileError, digest_in, load
from kvferry.engine.digests import state_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With its file of digests."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "a.safetensors").write_bytes(b"first" * 1000)
    (path / "b.bin").write_bytes(b"second")
    (path / "config.json").write_text("{}")
    made(path)
    return path


def made(folder: Path) -> int:
    return cli.main(["identity", str(folder)])


def says(folder: Path) -> Any:
    return json.loads((folder / NAME).read_text())


def test_it_names_all_weights_and_nothing_else(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert made(folder) == 0
    files = {name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
             for name, content in (("a.safetensors", b"first" * 1000), ("b.bin", b"second"))}
    assert says(folder) == {"version": 1, "files": files}
    assert {name: entry._asdict() for name, entry in load(folder).items()} == files
    assert "2 files" in capsys.readouterr().out


def test_others_can_read_it_and_not_write_to_it(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        made(folder)
    finally:
        os.umask(before)
    assert (folder / NAME).stat().st_mode & 0o777 == 0o644


def not_made(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Why; what there was stays, and nothing else."""
    before = {file.name: file.lstat().st_ino for file in folder.iterdir()}
    assert made(folder) == 2
    assert {file.name: file.lstat().st_ino for file in folder.iterdir()} == before
    return capsys.readouterr().err


def test_a_folder_without_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no files of weights" in not_made(tmp_path, capsys)
    assert made(tmp_path / "nowhere") == 2


def test_links_within_the_folder_and_out_of_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "c.safetensors").symlink_to("a.safetensors")
    assert made(folder) == 0 and len(load(folder)) == 3
    blob = folder.parent / "blobs" / ("ab" * 32)
    blob.parent.mkdir()
    blob.write_bytes(b"a blob of the hub's cache")
    (folder / "d.safetensors").symlink_to(blob)
    assert "hub's cache needs no file of digests" in not_made(folder, capsys)


@pytest.mark.parametrize("kind", ["a folder", "a pipe", "nothing"])
def test_what_is_no_file(folder: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    path = folder / "c.bin"
    {"a folder": path.mkdir, "a pipe": lambda: os.mkfifo(path), "nothing": lambda: path.symlink_to("nothing")}[kind]()
    assert "is no file" in not_made(folder, capsys)


def test_too_many_files(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_file, "FILES_MAX", 1)
    assert "1 are the most" in not_made(folder, capsys)
    with pytest.raises(DigestFileError, match="not of the form"):
        load(folder)


def test_a_file_that_is_written_to_meanwhile(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    real = digest_file.sha256

    def slowly(path: Path) -> str:
        digest = real(path)
        path.write_bytes(b"another, longer")
        return digest
    monkeypatch.setattr(digest_file, "sha256", slowly)
    assert "has changed while it was read" in not_made(folder, capsys)


def test_a_disk_that_is_full(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in not_made(folder, capsys)


# ---- when it is believed ----

def test_a_digest_is_of_a_name_and_a_size(folder: Path) -> None:
    def found() -> str | None:
        return digest_in(load(folder), path, state_of(path))
    path = folder / "a.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert found() == digest
    os.utime(path, ns=(1, 1))
    path.write_bytes(path.read_bytes())
    assert found() == digest, "layers of images change times"
    path.write_bytes(b"x" * (path.stat().st_size + 1))
    assert found() is None
    path.rename(folder / "c.safetensors")
    path = folder / "c.safetensors"
    assert found() is None


def test_a_link_out_of_the_folder_is_not_believed(folder: Path) -> None:
    path, elsewhere = folder / "a.safetensors", folder.parent / "a.safetensors"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert digest_in(load(folder), path, state_of(path)) is None


def entry(**fields: Any) -> dict[str, Any]:
    return {"a.safetensors": {"size": 5000, "sha256": "ab" * 32} | fields}


@pytest.mark.parametrize("content, why", [
    (b"", "no JSON"), (b"\xff", "no JSON"), (b"[" * 100_000, "no JSON"), (b"[]", "version None"), (b"{}", "version None"),
    ({"version": 2, "files": {}}, "version 2"), ({"version": "1", "files": {}}, "version '1'"),
    ({"version": 1}, "not of the form"), ({"version": 1, "files": []}, "not of the form"),
    *(({"version": 1, "files": files}, "not of the form") for files in (
        {"a": 1}, {"a": {}}, entry(size="5000"), entry(size=True), entry(size=5.0), entry(sha256="ab"), entry(sha256="AB" * 32),
        entry(sha256=7), {"../a": entry()["a.safetensors"]}, {"x" * 256: entry()["a.safetensors"]})),
    (b" " * (digest_file.BYTES_MAX + 1), "more than")])
def test_what_is_not_of_its_form(folder: Path, content: Any, why: str) -> None:
    (folder / NAME).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(DigestFileError, match=why):
        load(folder)


def replaced_by_a_pipe(folder: Path) -> None:
    (folder / NAME).unlink()
    os.mkfifo(folder / NAME)


def replaced_by_a_link(folder: Path) -> None:
    (folder / NAME).rename(folder / "elsewhere")
    (folder / NAME).symlink_to("elsewhere")


@pytest.mark.parametrize("change, why", [
    (lambda folder: (folder / NAME).chmod(0o664), "others than its owner"), (lambda folder: (folder / NAME).chmod(0o646), "others than its owner"),
    (lambda folder: folder.chmod(0o777), "others than its owner"), (lambda folder: folder.chmod(0o775), "others than its owner"),
    (lambda folder: os.chown(folder / NAME, 4711, -1), "user 4711"), (lambda folder: os.chown(folder, 4711, -1), "user 4711"),
    (replaced_by_a_pipe, "wrong kind"), (replaced_by_a_link, "cannot be read"), (lambda folder: (folder / NAME).unlink(), "make one")])
def test_who_may_write_to_it(folder: Path, change: Callable[[Path], object], why: str) -> None:
    if "user" in why and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    load(folder)
    change(folder)
    with pytest.raises(DigestFileError, match=why):
        load(folder)
