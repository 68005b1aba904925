"""One logger for the connector: a child of vLLM's, which formats and shows what it says."""

from vllm.logger import init_logger

logger = init_logger("vllm.kvferry")
