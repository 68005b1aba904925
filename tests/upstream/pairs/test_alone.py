"""KVFerryConnector by itself, behind vLLM's toy_proxy_server.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pd.connector import kvferry
from upstream import INTEGRATION, take_tests

from pair import Pair

PAIR = Pair("upstream-alone", kvferry(), INTEGRATION / "toy_proxy_server.py")
globals().update(take_tests("test_edge_cases", PAIR.env))
globals().update(take_tests("test_multi_connector_edge_cases", PAIR.env))


def run_accuracy(url: str, mode: str, answers: Path) -> None:
    subprocess.run([sys.executable, str(INTEGRATION / "test_disagg_accuracy.py"), "--service_url", url, "--model_name", "model",
                    "--mode", mode, "--file_name", str(answers)], check=True)


def test_disagg_accuracy(pair: Pair, tmp_path: Path) -> None:
    """A script: what P answers by itself, then the same through the proxy."""
    run_accuracy(pair.stack.prefill.url, "baseline", tmp_path / "answers")
    pair.stack.forget_prompts()
    run_accuracy(pair.proxy.url, "disagg", tmp_path / "answers")
