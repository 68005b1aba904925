"""The releases of vLLM that the connector is tested with. Each is in a folder beside .venv (setup_vllm of tools/dev/setup.sh), but
for the one in it."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from .connector import Connector
from .paths import CACHE, DEV, LOGS

NEWEST = os.environ.get("KVFERRY_NEWEST_VLLM", "")
"""On PyPI; nothing: it did not answer."""


def pinned(name: str) -> list[str]:
    return re.findall(r"^vllm(?:-cpu)?==(\S+)", (DEV / name).read_text(), re.M)


OWN, = pinned("requirements-nodeps.txt")
SUPPORTED = sorted([OWN, *pinned("requirements-releases.txt")], key=lambda version: [int(part) for part in version.split(".")])
RELEASES = [*SUPPORTED, *([NEWEST] if NEWEST and NEWEST not in SUPPORTED else [])]


def folder(version: str) -> Path:
    return CACHE / "vllm" / version


def missing(version: str) -> str:
    """Why the release cannot be run here; nothing if it can."""
    if version == OWN or folder(version).exists():
        return ""
    log = LOGS / f"vllm-{version}.log"
    errors = re.findall(r"^ERROR: (.*)", log.read_text(), re.M) if log.exists() else []
    return f"it could not be set up: {errors[-1][-200:] if errors else f'see {log}'}"


def built(version: str) -> str:
    """What is run."""
    if missing(version):
        return "–"
    is_overlay = (folder(version) / f"vllm-{version}.dist-info").exists()
    return f"Python files, on what {OWN} has compiled" if is_overlay else "build for CPUs"


def python_path(version: str) -> str:
    before = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*([str(folder(version))] if version != OWN else []), *([before] if before else [])])


def on(connector: Connector, version: str) -> Connector:
    """In an engine of that release."""
    return replace(connector, env={**connector.env, "PYTHONPATH": python_path(version)})
