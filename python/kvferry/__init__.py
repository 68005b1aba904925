"""kvferry: carries KV-cache blocks from prefill to decode engines, and is never silently wrong.

The binding to the C library is `kvferry._kvferry`; its stub file is the manual. `kvferry.vllm` holds the connector.
"""

from ._kvferry import VERSION as __version__
from ._kvferry import Error, Node, prompt_hash, prompt_set_model, report, report_merge, status_name

__all__ = ["Error", "Node", "__version__", "prompt_hash", "prompt_set_model", "report", "report_merge", "status_name"]
