"""The versions of vLLM that kvferry knows. This is the one place that names them; nothing of vLLM is imported here."""

from __future__ import annotations

import re

TESTED = {"0.29": 1, "0.31": 1, "0.32": 1, "0.33": 1}
"""By minor version: the format number of the KV that vLLM keeps. Equal numbers mean that equal prompts give equal bytes at
equal places, as `./dev test --deep releases` compares them."""
OLDEST = (0, 29)


class VersionError(ValueError):
    """A vLLM that kvferry cannot work with; the text names the versions that it can."""


def minor(version: str) -> str:
    """"0.33" of "0.33.1+cpu"; "" if it is no such version."""
    match = re.match(r"(\d+\.\d+)(?!\d)", version)
    return match[1] if match else ""


def is_tested(version: str) -> bool:
    return minor(version) in TESTED


def names() -> str:
    *most, last = TESTED
    return f"{', '.join(most)} and {last}"


def check(version: str) -> None:
    """VersionError: it is older than all that kvferry works with."""
    parts = minor(version).split(".")
    if len(parts) == 2 and tuple(map(int, parts)) < OLDEST:
        raise VersionError(f"kvferry needs vLLM {OLDEST[0]}.{OLDEST[1]} or later, not {version}; tested: {names()}")


def kv_format(version: str) -> str:
    """A field of the identity. A version that is not tested is compatible with itself alone."""
    known = TESTED.get(minor(version))
    return str(known) if known is not None else f"vllm {version}"
