"""Of NIXL's wheel: its Python package, the plugin for UCX, UCX, and the libraries that these need. Nothing else of its 150 MB
is of use beside bench/gpu: other plugins, `nixl_ep` for torch, debug symbols.

    trim_nixl.py WHEEL FOLDER
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

KEPT = re.compile(r"(nixl_cu\d+/.*|\.nixl_cu\d+\.mesonpy\.libs/plugins/libplugin_UCX\.so|nixl_cu\d+\.libs/ucx/(?!libucx_perftest).*|.*\.dist-info/METADATA)")


def needed(library: Path) -> set[str]:
    said = subprocess.run(["readelf", "--dynamic", str(library)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", said))


def extract(wheel: zipfile.ZipFile, name: str, folder: Path) -> set[str]:
    path = Path(wheel.extract(name, folder))
    if ".so" not in path.name:
        return set()
    subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)
    return needed(path)


def trim(file: Path, folder: Path) -> None:
    with zipfile.ZipFile(file) as wheel:
        names = [name for name in wheel.namelist() if not name.endswith("/")]
        chosen = {name for name in names if KEPT.fullmatch(name)}
        done: set[str] = set()
        while left := chosen - done:
            wanted = set().union(*(extract(wheel, name, folder) for name in left))
            done |= left
            chosen |= {name for name in names if Path(name).name in wanted and ".so" in name and "/plugins/" not in name}


if __name__ == "__main__":
    trim(Path(sys.argv[1]), Path(sys.argv[2]))
