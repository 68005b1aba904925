"""Each test says in its parameters which releases of vLLM it is about; at the end there is a line for each of them."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools" / "dev"))

from pd.releases import NEWEST, RELEASES, SUPPORTED, built, missing  # noqa: E402
from tables import MODELS, with_releases  # noqa: E402

from need import need  # noqa: E402

counts: defaultdict[str, Counter[str]] = defaultdict(Counter)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--keep", action="store_true", help="write date and result into the table of releases in docs/models.md")


@pytest.fixture(scope="module", params=RELEASES)
def version(request: pytest.FixtureRequest) -> str:
    need(request.param)
    return request.param


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or not report.passed:
        for version in re.findall(r"\d+\.\d+\.\d+", report.nodeid.rpartition("[")[2]):
            counts[version][report.outcome] += 1


def result(version: str) -> str:
    if (why := missing(version)) and version not in SUPPORTED:
        return f"not run: {why}"
    passed, failed = counts[version]["passed"], counts[version]["failed"]
    if not passed + failed:
        return "not run"
    return f"{failed} of {passed + failed} tests failed" if failed else f"{passed} tests passed"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for version in RELEASES:
        terminalreporter.write_line(f"vLLM {version} ({built(version)}): {result(version)}")
    if not NEWEST:
        terminalreporter.write_line("the newest vLLM: not run: PyPI does not say which it is")
    if config.getoption("--keep"):
        today = time.strftime("%-d %B %Y")
        rows = [f"| {version} | {built(version)} | {today} | {result(version)} |" for version in RELEASES]
        MODELS.write_text(with_releases(MODELS.read_text(), rows))
