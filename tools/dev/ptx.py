"""Makes kernels for NVIDIA's devices, as C files with their PTX: those of the library (src/memory/cuda/kernels.c, of
kernel_code.h beside it) and those of the tests. With NVRTC, which needs no device. The same sources give the same bytes.

    --check    makes nothing: whether they would be what is there
    --current  nor needs NVRTC: whether what is there was made of these sources
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Kernels(NamedTuple):
    made: str
    header: str
    """Included by what is made; declares `symbol`."""
    symbol: str
    code: str
    included: dict[str, str]
    """What the code includes: the name that it has there, and the file."""

    @property
    def ptx(self) -> Path:
        """The text alone, for ptxas."""
        return ROOT / ".cache" / f"{Path(self.made).stem}.ptx"


ALL = [
    Kernels("src/memory/cuda/kernels.c", "memory/cuda/kernels.h", "kvf_cuda_kernels_ptx",
            "src/memory/cuda/kernel_code.h", {"memory/cuda/kernels.h": "src/memory/cuda/kernels.h"}),
    Kernels("tests/cuda_kernels.c", "cuda_kernels.h", "cuda_kernels_ptx", "tests/cuda_kernels.cu", {}),
]
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
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", (ROOT / name).read_text(), flags=re.DOTALL)
    return re.sub(r"\s*\n\s*", "\n", text)


def mark(kernels: Kernels) -> str:
    """A line of the PTX that says what it was made of."""
    pinned = (ROOT / "tools/dev/requirements-ptx.txt").read_text().splitlines()[-1]
    sources = [kernels.code, *kernels.included.values()]
    inputs = "\0".join([*map(code_of, sources), *OPTIONS, *LIBC.values(), pinned])
    return f"// {pinned}, sources {hashlib.sha256(inputs.encode()).hexdigest()}"


def texts(of: list[str]) -> ctypes.Array:
    return (ctypes.c_char_p * len(of))(*(text.encode() for text in of))


def compiled(kernels: Kernels) -> str:
    nvrtc = ctypes.CDLL(str(NVRTC))
    program = ctypes.c_void_p()
    size = ctypes.c_size_t()
    headers = LIBC | {name: code_of(file) for name, file in kernels.included.items()}

    def said(what: str) -> str:
        getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, f"nvrtcGet{what}")(program, text)
        return text.value.decode()

    nvrtc.nvrtcCreateProgram(ctypes.byref(program), code_of(kernels.code).encode(), Path(kernels.code).name.encode(),
                             len(headers), texts(list(headers.values())), texts(list(headers)))
    if nvrtc.nvrtcCompileProgram(program, len(OPTIONS), texts(OPTIONS)) != 0:
        raise PtxError(said("ProgramLog"))
    return said("PTX")


def tidied(ptx: str) -> str:
    """Without comments, without tables of a header of NVRTC's own, and with short names."""
    names: dict[str, str] = {}
    lines = [" ".join(line.partition("//")[0].split()) for line in ptx.splitlines()]
    text = "".join(line + "\n" for line in lines if line and "nv6target" not in line)
    return re.sub(r"\b_Z\w+", lambda found: names.setdefault(found.group(), f"table_{len(names)}"), text)


def made_of(kernels: Kernels, ptx: str) -> str:
    rows = [""]
    for line in ptx.splitlines():
        quoted = line.replace("\\", "\\\\").replace('"', '\\"') + "\\n"
        if len(rows[-1]) + len(quoted) > COLUMNS and rows[-1]:
            rows.append("")
        rows[-1] += quoted
    rows = [f'    "{row}"' for row in rows]
    return "\n".join([
        f"/* Made of {Path(kernels.code).name} by `./dev ptx`. */", f'#include "{kernels.header}"', "",
        "/* clang-format off */", '#pragma GCC diagnostic ignored "-Woverlength-strings"',
        f"const char {kernels.symbol}[] =", *rows]) + ";\n"


def fault_of(kernels: Kernels, argument: str) -> str:
    made = ROOT / kernels.made
    if argument == "--current":
        return "" if mark(kernels) in made.read_text() else f"{kernels.made} was made of other sources: run ./dev ptx"
    ptx = tidied(compiled(kernels))
    if not ptx.startswith(VERSION + "\n"):
        raise PtxError(f"this NVRTC makes {ptx.splitlines()[0]}, not {VERSION}")
    text = made_of(kernels, f"{mark(kernels)}\n{ptx}")
    if argument == "--check":
        return "" if text == made.read_text() else f"{kernels.made} is not what ./dev ptx makes"
    made.write_text(text)
    kernels.ptx.write_text(ptx)
    return ""


def main(argument: str = "") -> str:
    return "\n".join(fault for kernels in ALL if (fault := fault_of(kernels, argument)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) or None)
