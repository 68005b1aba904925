"""What others get has no assertions: none of their texts is in a library."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

LAYERS = ("core", "find", "recovery")
ASSERTION = re.compile(r"^ +assert\((.{30,})\);", re.MULTILINE)


def texts_in(library: bytes) -> list[str]:
    """Those of the state machines that are on one line."""
    sources = [path for layer in LAYERS for path in sorted((ROOT / "src" / layer).glob("*.c"))]
    texts = [text for path in sources for text in ASSERTION.findall(path.read_text())]
    assert len(texts) > 100
    return [text for text in texts if text.encode() in library]


def test_meson_install(installed: dict[str, str]) -> None:
    folder = Path(installed["PKG_CONFIG_SYSROOT_DIR"])
    libraries = [path for path in folder.rglob("libkvferry.*") if not path.is_symlink()]
    assert {path.name.split(".")[1] for path in libraries} == {"a", "so"}
    for library in libraries:
        assert b"kvf_node_open" in library.read_bytes()
        assert texts_in(library.read_bytes()) == []


@pytest.mark.deep
def test_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        assert texts_in(archive.read(name)) == []


def test_what_the_tests_link_has_them() -> None:
    """Else nothing would be looked for here."""
    for layer in LAYERS:
        assert texts_in(b"".join(path.read_bytes() for path in (ROOT / "build/src" / layer).rglob("*.o")))
