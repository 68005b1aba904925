"""A prefill and a decode deployment of Ray Serve LLM with kvferry: `serve run app:app` in this folder.

On each node the key is in the same file. Ray's own image needs kvferry's wheel (deploy/image/Dockerfile)."""

from ray.serve.llm import LLMConfig, build_pd_openai_app

import kvferry.ray

kvferry.ray.register()


def engine(replicas: int) -> LLMConfig:
    return LLMConfig(
        model_loading_config={"model_id": "qwen3-8b", "model_source": "Qwen/Qwen3-8B"},
        engine_kwargs={"kv_transfer_config": {"kv_connector": "KVFerryConnector", "kv_role": "kv_both",
                                              "kv_load_failure_policy": "recompute"}},
        deployment_config={"num_replicas": replicas},
        runtime_env={"env_vars": {"KVFERRY_KEY_FILE": "/etc/kvferry/key"}})


app = build_pd_openai_app({"prefill_config": engine(2), "decode_config": engine(2)})
