"""expected.py leaves no file of vLLM's connector tests out, and names no test that is not there."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import expected
from upstream import CONNECTORS, INTEGRATION

HERE = Path(__file__).parent
UNITS = (HERE / "units" / "conftest.py").read_text()
PAIRS = "".join(path.read_text() for path in HERE.glob("pairs/test_*.py"))
TESTS = list(CONNECTORS.rglob("test_*.py"))


def is_run(file: Path) -> bool:
    return file.stem in PAIRS if file.parent == INTEGRATION else file.parent.name == "unit" and file.name in UNITS


def test_every_file_is_run_or_has_a_reason() -> None:
    for file in TESTS:
        has_reason = any(fnmatch(str(file.relative_to(CONNECTORS)), pattern) for pattern in expected.FILES)
        assert is_run(file) != has_reason, file


def test_every_test_that_is_named_is_there() -> None:
    sources = "".join(file.read_text() for file in TESTS)
    names = [key.partition("[")[0].rpartition("::")[2] for key in [*expected.FAIL, *expected.CANNOT_RUN]]
    assert [name for name in names if f"def {name}(" not in sources] == []
