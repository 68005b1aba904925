"""The KV of one prompt, as different releases of vLLM compute it and lay it out in their blocks: where their format numbers are
equal it has to be the same, and where it is not the numbers have to differ."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from kvferry.vllm.versions import is_tested, kv_format
from pd.kv import CASES, EXCHANGED, differences
from pd.paths import DEV
from pd.releases import RELEASES, python_path

from need import need

PAIRS = list(combinations(RELEASES, 2))


@pytest.fixture(scope="module")
def kv_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Where a release's is, by the names of pd.kv."""
    folders: dict[str, Path] = {}

    def find(version: str) -> Path:
        need(version)
        if version not in folders:
            folders[version] = tmp_path_factory.mktemp(version)
            for case in CASES.values():
                case.model()
            env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(DEV), python_path(version)])}
            log = folders[version] / "log"
            with log.open("w") as out:
                ran = subprocess.run([sys.executable, "-m", "pd.kv", str(folders[version]), *CASES], env=env, stdout=out,
                                     stderr=out)
            assert ran.returncode == 0, log.read_text()[-3000:]
        return folders[version]
    return find


@pytest.mark.parametrize("one, other", PAIRS)
def test_same_numbers_are_the_same_layout(kv_of: Callable[[str], Path], one: str, other: str) -> None:
    found = {case: differences(kv_of(one) / f"{case}.pt", kv_of(other) / f"{case}.pt") for case in CASES}
    if not (is_tested(one) and is_tested(other)):
        pytest.skip(f"one has no number yet; its KV: {'the same' if not any(found.values()) else found}")
    assert (not any(found.values())) == (kv_format(one) == kv_format(other)), found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("one, other", PAIRS)
def test_two_exchanged_positions_are_seen(kv_of: Callable[[str], Path], case: str, one: str, other: str) -> None:
    assert differences(kv_of(one) / f"{case}.pt", kv_of(other) / f"{case}{EXCHANGED}.pt")
