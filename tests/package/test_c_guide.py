"""docs/c-guide.md: its programs are built and run from its own text, with what it says to install and nothing else."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import MESON, ROOT, STRICT, build, run

GUIDE = (ROOT / "docs/c-guide.md").read_text()
HEADERS = sorted((ROOT / "include/kvferry").glob("*.h"))
# Which of the guide's packages has what Meson looks for. uthash is headers alone, which Meson does not look for.
PACKAGE_OF = {"threads": "gcc", "libcrypto": "libssl-dev", "libssl": "libssl-dev", "libxxhash": "libxxhash-dev"}
SHARED = re.compile(r"(libkvferry|libssl|libcrypto|libc|libm|libpthread|ld-linux[^.]*|linux-vdso)\.so")


def programs() -> dict[str, str]:
    """By name: its pieces, which follow each other in the text."""
    pieces: dict[str, str] = {}
    name = ""
    for block in re.findall(r"^```c\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL):
        named = re.match(r"/\* (\w+\.c) \*/\n", block)
        name = named.group(1) if named else name
        pieces[name] = pieces.get(name, "") + block
    return pieces


def shown() -> list[str]:
    """What the guide says that its programs print, in their order."""
    return re.findall(r"^It prints:\n\n```\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def flags(installed: dict[str, str], *more: str) -> list[str]:
    return run("pkg-config", *more, "--cflags", "--libs", "kvferry", env=installed).split()


@pytest.mark.parametrize("standard", ["c11", "c17"])
def test_programs(installed: dict[str, str], tmp_path: Path, standard: str) -> None:
    assert list(programs()) == ["guide.c", "layouts.c"]
    for (name, text), printed in zip(programs().items(), shown(), strict=True):
        source = tmp_path / name
        source.write_text(text)
        assert build(installed, source, f"-std={standard}", *flags(installed)) == printed
        loaded = run("ldd", tmp_path / source.stem, env=installed).splitlines()
        assert [line for line in loaded if not SHARED.search(line)] == []


def test_what_is_installed_suffices(default_build: Path) -> None:
    found = re.search(r"^apt-get install (.+)$", GUIDE, re.MULTILINE)
    assert found
    packages = found.group(1).split()
    looked_for = json.loads(run(MESON, "introspect", "--dependencies", default_build))
    assert {PACKAGE_OF[one["name"]] for one in looked_for} <= set(packages)
    states = subprocess.run(["apt-cache", "show", "--no-all-versions", *packages], capture_output=True, text=True).stdout
    assert states == "" or set(packages) <= set(re.findall(r"^Package: (.+)$", states, re.MULTILINE))
    wanted = re.search(r"meson_version: '>=([\d.]+)'", (ROOT / "meson.build").read_text())
    assert wanted and f"meson must be {wanted.group(1)} or newer" in GUIDE


def test_functions_that_suffice() -> None:
    number, section = re.findall(r"^## The (\d+) functions that suffice\n(.*?)^## ", GUIDE, re.MULTILINE | re.DOTALL)[0]
    named = set(re.findall(r"`(kvf_\w+)`", section.partition("\n\n`")[0]))
    assert len(named) == int(number) and f"{number} functions suffice" in (ROOT / "include/kvferry/kvferry.h").read_text()
    declared = "".join(header.read_text() for header in HEADERS)
    assert {name for name in re.findall(r"`(kvf_\w+)", GUIDE) if not re.search(rf"\b{name}\b", declared)} == set()
    used = set(re.findall(r"\b(kvf_\w+)\(", programs()["guide.c"]))
    assert used <= named


@pytest.mark.parametrize(("compiler", "standard"), [("cc", "c11"), ("cc", "c17"), ("c++", "c++17")])
def test_headers(installed: dict[str, str], tmp_path: Path, compiler: str, standard: str) -> None:
    """Each alone; and a program that compares versions and calls the library."""
    if shutil.which(compiler) is None:
        pytest.skip("no C++ compiler, which kvferry itself does not need")
    language = ["-x", "c++", *STRICT[:4]] if compiler == "c++" else ["-x", "c", *STRICT]
    for header in HEADERS:
        source = tmp_path / "one.c"
        source.write_text(f"#include <kvferry/{header.name}>\n")
        run(compiler, *language, f"-std={standard}", "-fsyntax-only", source, *flags(installed), env=installed)
    source = tmp_path / "version.c"
    source.write_text("""#include <kvferry/kvferry.h>
#include <string.h>
#if KVF_VERSION_NUM < 0x000100 || KVF_VERSION_NUM != KVF_VERSION_MAJOR * 65536 + KVF_VERSION_MINOR * 256 + KVF_VERSION_PATCH
#error "no version that can be compared"
#endif
int main(void)
{
  kvf_config config;
  kvf_node *node = NULL;
  kvf_config_init(&config);
  if (kvf_config_set(&config, "loads_max", "none", NULL) != KVF_INVALID || kvf_error_text()[0] == '\\0' ||
      kvf_node_open(&config, &node, NULL) != KVF_OK) {
    return 1;
  }
  kvf_node_close(node);
  return strcmp(kvf_version(), KVF_VERSION_TEXT);
}
""")
    program = tmp_path / "version"
    run(compiler, *language, f"-std={standard}", source, "-x", "none", *flags(installed), "-o", program, env=installed)
    run(program, env=installed)
