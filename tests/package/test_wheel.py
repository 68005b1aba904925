"""What the wheel promises beyond what auditwheel and abi3audit have checked when it was made."""

from __future__ import annotations

import os
import platform
import re
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, run

pytestmark = pytest.mark.deep


@pytest.fixture
def unpacked(wheel: Path, tmp_path: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def test_its_name(wheel: Path) -> None:
    assert re.fullmatch(rf"kvferry-[0-9.]+-cp310-abi3-manylinux_2_\d+_{platform.machine()}\.whl", wheel.name)


def test_openssl_is_inside_and_hidden(unpacked: Path) -> None:
    """So it cannot meet another copy in the process."""
    from elftools.elf.elffile import ELFFile  # only where ./dev wheel has run

    (library,) = unpacked.rglob("*.so")
    with library.open("rb") as file:
        elf = ELFFile(file)
        tags = list(elf.get_section_by_name(".dynamic").iter_tags())
        needed = {tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"}
        assert {name for name in needed if not name.startswith("ld-linux")} == {"libc.so.6"}  # the loader has threads' variables
        assert not [tag for tag in tags if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")], "a place of the build machine"
        symbols = [symbol for symbol in elf.get_section_by_name(".dynsym").iter_symbols() if symbol.name]
        given = {symbol.name for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF"}
        taken = {symbol.name for symbol in symbols if symbol["st_shndx"] == "SHN_UNDEF"}
    assert given == {"PyInit__kvferry"}
    assert not {name for name in taken if re.match(r"(SSL|EVP|OPENSSL|CRYPTO|BIO)_", name)}


def test_tls_beside_pythons_own_openssl(unpacked: Path) -> None:
    """The binding's transfers and a pair of nodes that speak TLS, in a process that uses the other copy before and after."""
    code = """
import hashlib, ssl, sys
sys.path.insert(0, sys.argv[1])
import kvferry
from pathlib import Path
from engines import Engine, make_prompt
assert Path(kvferry.__file__).is_relative_to(sys.argv[2]), kvferry.__file__
ssl.create_default_context()
key = Path(sys.argv[2]) / "key"
key.write_text("0123456789abcdef" * 2)
key.chmod(0o600)
p, d = (Engine(seed, transports="tcp", tls="always", key_file=key) for seed in (1, 2))
prompt = make_prompt(64)
_, _, ticket = p.publish([0, 1, 2, 3], prompt)
assert d.verdict(d.load(ticket, prompt, [4, 5, 6, 7]))[1] == kvferry._kvferry.OK
assert d.pool.block(7) == p.pool.block(3)
print(hashlib.sha256(b"kvferry").hexdigest(), ssl.create_default_context().minimum_version.name)
"""
    printed = run(sys.executable, "-c", code, ROOT / "tests" / "python", unpacked,
                  env=os.environ | {"PYTHONPATH": str(unpacked)})
    assert printed.endswith("TLSv1_2\n")
