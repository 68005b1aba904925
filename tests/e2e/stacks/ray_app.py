"""Ray Serve's driver: `build_pd_openai_app` with KVFerryConnector, as often as it is told how many replicas there shall be.

    python ray_app.py PORT METRICS-PORT FOLDER MODEL P-CONFIG D-CONFIG     each line of its input: P D; each of its output: what runs then
"""

from __future__ import annotations

import json
import sys
from typing import Any

import kvferry.ray
import ray
from ray import serve
from ray.serve.llm import LLMConfig, build_pd_openai_app

LOGICAL_CPUS = 12
SHARE = 0.1
"""Of a logical CPU, for each actor: this is about order, not about speed."""


def config(model: str, connector: dict[str, Any], replicas: int, core: str) -> LLMConfig:
    return LLMConfig(
        model_loading_config={"model_id": "model", "model_source": model}, accelerator_config={"kind": "cpu"},
        engine_kwargs={"enforce_eager": True, "dtype": "float32", "max_model_len": 512, "block_size": 32, "num_gpu_blocks_override": 1600,
                       "max_num_seqs": 16, "kv_transfer_config": connector},
        placement_group_config={"bundles": [{"CPU": 2 * SHARE}]},
        deployment_config={"num_replicas": replicas, "ray_actor_options": {"num_cpus": SHARE}, "health_check_period_s": 2,
                           "graceful_shutdown_timeout_s": 20},
        runtime_env={"env_vars": {"VLLM_CPU_OMP_THREADS_BIND": core}})


def deploy(model: str, p: dict[str, Any], d: dict[str, Any], p_count: int, d_count: int) -> None:
    serve.run(build_pd_openai_app({
        "prefill_config": config(model, p, p_count, "0"), "decode_config": config(model, d, d_count, "1"),
        "ingress_deployment_config": {"num_replicas": 1, "ray_actor_options": {"num_cpus": SHARE}}}), name="pd", route_prefix="/")


def main(port: int, metrics_port: int, folder: str, model: str, p: str, d: str) -> None:
    ray.init(num_cpus=LOGICAL_CPUS, include_dashboard=False, _metrics_export_port=metrics_port, object_store_memory=200_000_000,
             _temp_dir=folder, logging_level="warning")
    kvferry.ray.register()
    serve.start(http_options={"host": "127.0.0.1", "port": port}, proxy_location="HeadOnly")
    try:
        for line in sys.stdin:
            deploy(model, json.loads(p), json.loads(d), *(int(count) for count in line.split()))
            running = serve.status().applications["pd"].deployments
            print("deployed", json.dumps({name: dict(one.replica_states) for name, one in running.items()}), flush=True)
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
