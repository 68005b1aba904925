"""`kvferry key`: the files that it makes, and that it never writes over one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvferry import Node, cli
from kvferry.key import key_id, read_keys

IDENTITY = {"model": "toy"}


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = cli.main(["key", *words])
    return status, capsys.readouterr().out


def test_a_key_that_an_engine_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    old = os.umask(0o777)
    try:
        status, said = run(capsys)
    finally:
        os.umask(old)
    file = tmp_path / "kvferry.key"
    text = file.read_text()
    assert (status, file.stat().st_mode & 0o7777) == (0, 0o600)
    assert len(bytes.fromhex(text)) == 32 and text.endswith("\n")
    assert said == f"{file}\n{key_id(text.strip().encode())}  the key of its engines\n" and text.strip() not in said
    Node({"key_file": str(file), "log_level": "error"}, IDENTITY).close()


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "key"
    assert run(capsys, str(file))[0] == 0
    before = file.read_bytes()
    status, said = run(capsys, str(file))
    assert status == 2 and "is there already" in said and file.read_bytes() == before
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    assert run(capsys, str(link))[0] == 2 and not (tmp_path / "elsewhere").exists()


def test_a_second_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "key"
    run(capsys, str(file))
    [first] = read_keys(file)
    status, said = run(capsys, "--add", str(file))
    keys = read_keys(file)
    assert status == 0 and keys[0] == first and len(keys) == 2 and len(set(keys)) == 2
    assert said.splitlines()[1:] == [f"{key_id(keys[0])}  the key of its engines", f"{key_id(keys[1])}  taken from others too"]
    Node({"key_file": str(file), "log_level": "error"}, IDENTITY).close()
    status, said = run(capsys, "--add", str(file))
    assert status == 2 and "has 2 keys" in said and read_keys(file) == keys


def test_a_second_key_after_a_line_without_an_end(key_path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--add", key_path)[0] == 0
    keys = read_keys(Path(key_path))
    assert keys[0] == b"0123456789abcdef" and len(keys) == 2


@pytest.mark.parametrize("what", ["no file", "no key", "others may read it", "no folder"])
def test_where_no_key_can_be_added(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    file = tmp_path / "key"
    if what != "no file":
        file.write_bytes(b"" if what == "no key" else b"0123456789abcdef\n")
        file.chmod(0o644 if what == "others may read it" else 0o600)
    if what == "no folder":
        file = tmp_path / "nowhere" / "key"
    before = file.read_bytes() if file.exists() else None
    status, said = run(capsys, "--add", str(file))
    assert status == 2 and said.startswith("kvferry key: ") and (file.read_bytes() if file.exists() else None) == before


def test_the_id_is_that_of_handshakes() -> None:
    """The same as in tests/unit/wire/handshake_proof_test.c."""
    assert key_id(b"0123456789abcdef") == "1767e6c92f5a5342"
