"""`python -m dynamo.vllm` where torchvision is not: there is none for torch's build for CPUs, and Dynamo imports, of transformers, a
model that names it. Text models use nothing of it."""

from __future__ import annotations

import runpy
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

NAMES = ("torchvision", "torchvision.transforms", "torchvision.transforms.v2", "torchvision.transforms.v2.functional")


def main() -> None:
    from transformers.utils import is_torchvision_available

    assert not is_torchvision_available(), "this is for where there is none"
    for name in NAMES:
        module = sys.modules[name] = ModuleType(name)
        module.__spec__, module.__path__ = ModuleSpec(name, None), []
    sys.modules["torchvision.transforms.v2"].functional = sys.modules[NAMES[-1]]  # type: ignore[attr-defined]
    runpy.run_module("dynamo.vllm", run_name="__main__")


if __name__ == "__main__":
    main()
