"""Makes src/memory/cuda/kernels.c, the kernels for NVIDIA's devices, of kernel_code.h beside it: with NVRTC, which needs
no device. The same sources give the same bytes.

    --check    makes nothing: whether it would be what is there
    --current  nor needs NVRTC: whether what is there was made of these sources
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ["memory/cuda/kernel_code.h", "memory/cuda/kernels.h"]
MADE = ROOT / "src/memory/cuda/kernels.c"
PTX = ROOT / ".cache/kernels.ptx"
"""The text alone, for ptxas."""
NVRTC = ROOT / ".cache/nvrtc/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"

OPTIONS = ["--gpu-architecture=compute_70", "--std=c++17"]
VERSION = ".version 8.0"
"""Of PTX: what drivers of CUDA 12.0 know, KVF_CUDA_VERSION_MIN."""
LIBC = {
    "stdbool.h": "",
    "stdint.h": "typedef unsigned char uint8_t; typedef unsigned uint32_t; typedef unsigned long long uint64_t;"
                "typedef unsigned long uintptr_t;",
    "string.h": "",
}
"""Headers that NVRTC has not; memcpy it knows by itself."""

COLUMNS = 110


class PtxError(Exception):
    """The text says what is wrong."""


def code_of(name: str) -> str:
    """Without comments, which are free to change."""
    text = re.sub(r"/\*.*?\*/", "", (ROOT / "src" / name).read_text(), flags=re.S)
    return re.sub(r"\s*\n\s*", "\n", text)


def mark() -> str:
    """A line of the PTX that says what it was made of."""
    pinned = (ROOT / "tools/dev/requirements-ptx.txt").read_text().splitlines()[-1]
    inputs = "\0".join([*map(code_of, SOURCES), *OPTIONS, *LIBC.values(), pinned])
    return f"// {pinned}, sources {hashlib.sha256(inputs.encode()).hexdigest()}"


def texts(of: list[str]) -> ctypes.Array:
    return (ctypes.c_char_p * len(of))(*(text.encode() for text in of))


def compiled() -> str:
    nvrtc = ctypes.CDLL(str(NVRTC))
    program = ctypes.c_void_p()
    size = ctypes.c_size_t()
    headers = LIBC | {name: code_of(name) for name in SOURCES[1:]}

    def said(what: str) -> str:
        getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, f"nvrtcGet{what}")(program, text)
        return text.value.decode()

    nvrtc.nvrtcCreateProgram(ctypes.byref(program), code_of(SOURCES[0]).encode(), b"kernel_code.h", len(headers),
                             texts(list(headers.values())), texts(list(headers)))
    if nvrtc.nvrtcCompileProgram(program, len(OPTIONS), texts(OPTIONS)) != 0:
        raise PtxError(said("ProgramLog"))
    return said("PTX")


def tidied(ptx: str) -> str:
    """Without comments, without tables of a header of NVRTC's own, and with short names."""
    names: dict[str, str] = {}
    lines = [" ".join(line.partition("//")[0].split()) for line in ptx.splitlines()]
    text = "".join(line + "\n" for line in lines if line and "nv6target" not in line)
    return re.sub(r"\b_Z\w+", lambda found: names.setdefault(found.group(), f"table_{len(names)}"), text)


def made_of(ptx: str) -> str:
    rows = [""]
    for line in ptx.splitlines():
        quoted = line.replace("\\", "\\\\").replace('"', '\\"') + "\\n"
        if len(rows[-1]) + len(quoted) > COLUMNS and rows[-1]:
            rows.append("")
        rows[-1] += quoted
    rows = [f'    "{row}"' for row in rows]
    return "\n".join([
        "/* Made of kernel_code.h by `./dev ptx`. */", '#include "memory/cuda/kernels.h"', "", "/* clang-format off */",
        '#pragma GCC diagnostic ignored "-Woverlength-strings"', "const char kvf_cuda_kernels_ptx[] =", *rows]) + ";\n"


def main(argument: str = "") -> str:
    if argument == "--current":
        return "" if mark() in MADE.read_text() else f"{MADE.relative_to(ROOT)} was made of other sources: run ./dev ptx"
    ptx = tidied(compiled())
    if not ptx.startswith(VERSION + "\n"):
        raise PtxError(f"this NVRTC makes {ptx.splitlines()[0]}, not {VERSION}")
    ptx = f"{mark()}\n{ptx}"
    if argument == "--check":
        return "" if made_of(ptx) == MADE.read_text() else f"{MADE.relative_to(ROOT)} is not what ./dev ptx makes"
    MADE.write_text(made_of(ptx))
    PTX.write_text(ptx)
    return ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) or None)
