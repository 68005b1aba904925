"""The C suites, which are Meson's tests, and which of them have passed already, byte for byte.

    meson_suites.py changed FOLDER [MESON-OPTION…]  prints those of `meson test MESON-OPTION…` that would run something new
    meson_suites.py passed FOLDER LOG               keeps those that Meson's LOG (build/meson-logs/LOG.json) has passed

A suite has a print: a hash of its program, its arguments, the files among these, and the libraries beside it; and the system's
packages, its kernel, and variables of the environment that tests read. A suite that Python runs may read anything, and is always new.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BESIDE = Path(sys.executable).parent
KEPT = "passed.json"
PACKAGES = Path("/var/lib/dpkg/status")


def listed(folder: Path) -> list[dict[str, Any]]:
    """Meson's tests, as `meson introspect` has them."""
    return json.loads(subprocess.run([BESIDE / "meson", "introspect", "--tests", folder], check=True,
                                     capture_output=True, text=True).stdout)


def print_of(words: list[str], env: dict[str, str]) -> str:
    """Of the files that a suite runs and is given."""
    files = [Path(word) for word in words if Path(word).is_file()]
    for folder in filter(None, env.get("LD_LIBRARY_PATH", "").split(":")):
        files += sorted(Path(folder).glob("*.so"))
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()


def system() -> str:
    read = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(("KVFERRY_", "UCX_", "OPENSSL_")))
    return hashlib.sha256(PACKAGES.read_bytes()).hexdigest() + json.dumps([os.uname().release, read])


def prints(folder: Path) -> dict[str, str]:
    """Of each suite that no Python runs."""
    inside, here = str(folder.resolve()), system()
    return {test["name"]: here + print_of(test["cmd"], test["env"]) + json.dumps([test["cmd"][1:], test["env"]])
            for test in listed(folder) if test["cmd"][0].startswith(inside)}


def kept(folder: Path) -> dict[str, str]:
    path = folder / KEPT
    return json.loads(path.read_text()) if path.exists() else {}


def changed(folder: Path, options: list[str]) -> Iterator[str]:
    chosen = subprocess.run([BESIDE / "meson", "test", "-C", folder, "--no-rebuild", "--list", *options], check=True,
                            capture_output=True, text=True).stdout.splitlines()
    now, before = prints(folder), kept(folder)
    for name in sorted(line.rpartition(":")[2] for line in chosen if ":" in line):
        if name not in now or before.get(name) != now[name]:
            yield name


def keep(folder: Path, log: Path) -> None:
    now, passed = prints(folder), kept(folder)
    for one in map(json.loads, log.read_text().splitlines() if log.exists() else []):
        name = one["name"].rpartition(":")[2]
        passed.pop(name, None)
        if one["result"] == "OK" and name in now:
            passed[name] = now[name]
    (folder / KEPT).write_text(json.dumps(passed, indent=1))


if __name__ == "__main__":
    what, folder, *rest = sys.argv[1:]
    if what == "changed":
        for name in changed(Path(folder), rest):
            print(name)
    else:
        keep(Path(folder), Path(folder) / "meson-logs" / f"{rest[0]}.json")
