"""kvferry: carries KV-cache blocks from prefill to decode engines, and is never silently wrong.

The binding to the C library is `kvferry._kvferry`; its stub file is the manual. `kvferry.engine` holds what every engine's
adapter needs, `kvferry.vllm` vLLM's, `kvferry.trtllm` TensorRT-LLM's.
"""

from ._kvferry import VERSION as __version__
from ._kvferry import Error, LogQueue, Node, Recovery, Staging, prompt_hash, prompt_set_model, report, status_name
from .records import Load, Part, Point, Publication, Region
from .renamed import keep_old_names

__all__ = ["Error", "Load", "LogQueue", "Node", "Part", "Point", "Publication", "Recovery", "Region", "Staging", "__version__", "prompt_hash",
           "prompt_set_model", "report", "status_name"]

keep_old_names()
