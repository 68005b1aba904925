"""Rules that a compiler checks: every header stands alone, no array has a length that is known only at run time, and
the sources compile without assertions too, as releases do."""

import concurrent.futures
import os
import shutil
import subprocess

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def complaint(command, root, source):
    """What the compiler says of a text, or None."""
    result = subprocess.run(
        [*command, "-fsyntax-only", "-D_GNU_SOURCE", f"-I{root}/include", f"-I{root}/src", "-"],
        input=source, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if result.returncode == 0:
        return None
    lines = result.stderr.strip().splitlines()
    return next((line for line in lines if "error:" in line), f"exit status {result.returncode}")


def jobs(root, c_compiler):
    cxx_compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    c17 = [c_compiler, "-std=c17", *WARNINGS, "-x", "c"]
    public = sorted((root / "include").rglob("*.h"))
    for path in public:
        source = f'#include "{path.relative_to(root / "include")}"\n'
        yield path, c17, source
        if cxx_compiler is not None:
            yield path, [cxx_compiler, "-std=c++17", *WARNINGS, "-x", "c++"], source
    for path in sorted((root / "src").rglob("*.h")):
        yield path, [*c17, "-Wno-unused-function"], f'#include "{path.relative_to(root / "src")}"\n'
    for path in sorted((root / "src").rglob("*.c")):
        yield path, [*c17, "-Wvla", "-DNDEBUG"], path.read_text(encoding="utf-8")


def compiles(root, c_compiler):
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        started = [
            (path, command, pool.submit(complaint, command, root, source))
            for path, command, source in jobs(root, c_compiler)
        ]
        for path, command, future in started:
            said = future.result()
            if said is not None:
                yield f"{path.relative_to(root)}:1: {command[0]} {command[1]}: {said}"
