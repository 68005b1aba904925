"""Whether the set of tools/gpu/pack --vllm holds all that engines.py imports: under Python 3.12 and PyTorch 2.11, without a GPU.

    vllm_check.py SITE        with a driver that has one GPU (stub_driver.c); prints the failures, as JSON, and says [] if there is none
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path

import sizes

RUNNERS = ("first", "second")
MODULES = [
    "vllm", "vllm._C_stable_libtorch", "vllm._custom_ops", "vllm.inputs.engine", "vllm.entrypoints.llm", "vllm.v1.engine.llm_engine",
    "vllm.v1.engine.core", "vllm.v1.engine.core_client", "vllm.v1.engine.async_llm", "vllm.v1.executor.uniproc_executor",
    "vllm.v1.executor.multiproc_executor", "vllm.v1.metrics.loggers", "vllm.v1.worker.gpu_worker", "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu.model_runner", "vllm.v1.worker.gpu.warmup", "vllm.v1.worker.gpu.sample.sampler", "vllm.v1.sample.sampler",
    "vllm.v1.attention.backends.triton_attn", "vllm.v1.attention.ops.triton_unified_attention",
    "vllm.v1.attention.ops.triton_reshape_and_cache_flash", "vllm.model_executor.determinism.batch_invariant",
    "vllm.model_executor.models.llama", "vllm.model_executor.models.registry", "vllm.model_executor.model_loader.default_loader",
    "vllm.model_executor.warmup.kernel_warmup", "vllm.compilation.breakable_cudagraph", "vllm.compilation.cuda_graph",
    "vllm.distributed.kv_transfer.kv_connector.factory", "kvferry.vllm", "kvferry.vllm_plugin", "pd.zero", "first_use",
    "engine_process", "mini_process"]
"""What the processes of engines.py import, and with it all that these import."""


def import_all() -> list[str]:
    failures = []
    for name in MODULES:
        try:
            importlib.import_module(name)
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
    return failures


def elsewhere(site: Path, prefixes: list[str]) -> list[str]:
    """What has come from neither the set, nor Python, nor PyTorch's own: a machine with a GPU would not have it."""
    homes = [str(site), str(sizes.HERE.parent), *prefixes]
    files = {str(getattr(module, "__file__", "")) for module in list(sys.modules.values())}
    files = {file for file in files if file.startswith("/")}  # PyTorch makes modules that are no files
    return sorted(f"{file} is of neither" for file in files if not any(file.startswith(home) for home in homes))


def configure(runner: str) -> list[str]:
    """As engine_process.py does before it has a GPU."""
    from vllm.engine.arg_utils import EngineArgs
    with tempfile.TemporaryDirectory() as model:
        (Path(model) / "config.json").write_text(json.dumps(sizes.model_config(sizes.GPU)))
        config = EngineArgs(**sizes.engine_options(sizes.GPU, Path(model), {"transports": "local"})).create_engine_config()
    found = {"graphs": config.compilation_config.cudagraph_mode.name, "async": config.scheduler_config.async_scheduling,
             "second": config.use_v2_model_runner, "tokens": config.cache_config.block_size}
    wanted = {"graphs": "FULL_AND_PIECEWISE", "async": True, "second": runner == "second", "tokens": sizes.GPU.block_tokens}
    return [] if found == wanted else [f"{runner} runner: {found}, not {wanted}"]


def main(site: Path) -> int:
    sys.path[:0] = [str(site), str(sizes.HERE.parent / "dev")]
    failures = []
    for runner in RUNNERS:  # vLLM looks at the environment when it is imported
        child = os.fork()
        if child == 0:
            os.environ |= sizes.engine_env(runner, False, site) | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
            found = import_all() or [*configure(runner), *elsewhere(site, [sys.prefix, sys.base_prefix])]
            Path(f"{site}.{runner}").write_text(json.dumps(found))
            os._exit(0)
        os.waitpid(child, 0)
        failures += json.loads(Path(f"{site}.{runner}").read_text())
    print(json.dumps(failures, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
