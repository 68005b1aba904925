"""A strict model of TensorRT-LLM's PyExecutor, as far as a KV-cache connector sees it: the door is engine.Engine."""
