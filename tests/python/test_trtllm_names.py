"""The names of TensorRT-LLM's that the adapter uses, against the engine model's own table of its versions."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from trtllm_world import names
from trtllm_engine import signatures

from kvferry import trtllm
from kvferry.trtllm import KVFerryScheduler, KVFerryWorker
from kvferry.trtllm.names import NAMES, PLACES, Name

FOLDER = Path(trtllm.__file__).parent
SINCE = {"1.0": names.V1_0, "1.3": names.NEWEST}
BASES = {"KvCacheConnectorScheduler", "KvCacheConnectorWorker", "KvCacheConnectorManager"}


def of_version(version: names.Version) -> set[str]:
    return (set(version.worker) | set(version.worker_defaults) | set(version.scheduler) | set(version.scheduler_defaults)
            | names.UTILITIES | BASES | {f"LlmRequestState.{state.name}" for state in names.LlmRequestState})


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.name)
def test_a_name_is_in_the_versions_that_it_is_said_to_be_in(name: Name) -> None:
    for since, version in SINCE.items():
        assert (name.name in of_version(version)) == (since >= name.since), version.name


def test_what_is_overridden_is_in_the_table() -> None:
    listed = {name.name for name in NAMES if name.use == "overridden"}
    every = set().union(*(of_version(version) for version in names.VERSIONS.values()))
    overridden = {name for made in (KVFerryScheduler, KVFerryWorker) for name in vars(made) if name in every}
    # Each version has defaults for the two that say nothing new.
    assert overridden - {"get_connector_meta", "wait_for_initialization"} == listed


@pytest.mark.parametrize("version", names.VERSIONS.values(), ids=lambda version: version.name)
def test_nothing_is_left_abstract(version: names.Version) -> None:
    for made, methods in ((KVFerryScheduler, version.scheduler), (KVFerryWorker, version.worker)):
        assert methods <= set(vars(made))


OVERRIDDEN = [(made, name) for made in (KVFerryScheduler, KVFerryWorker)
              for name in vars(made) if name in signatures.EVERY]


@pytest.mark.parametrize("made, name", OVERRIDDEN, ids=[name for _, name in OVERRIDDEN])
def test_a_method_is_declared_as_the_engine_calls_it(made: type, name: str) -> None:
    declared, ours = signatures.EVERY[name], inspect.signature(vars(made)[name])
    assert tuple(ours.parameters) == ("self", *declared.arguments)
    assert {parameter.kind for parameter in ours.parameters.values()} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    assert declared.returns in ("object", ours.return_annotation)


def test_nothing_else_is_imported() -> None:
    """But for the server's class, before which the middleware may be put."""
    found = set()
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tensorrt_llm"):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names if alias.name.startswith("tensorrt_llm")}
        found |= set(re.findall(r'import_module\("(tensorrt_llm[\w.]*)"\)', path.read_text()))
    assert found == {"tensorrt_llm.serve.openai_server.OpenAIServer", "tensorrt_llm._utils", "tensorrt_llm.bindings"}
    assert {version.path for version in names.VERSIONS.values()} == set(PLACES)
