"""What calls of a node take: any object with these attributes will do."""

from typing import NamedTuple

Region = NamedTuple("Region", [("base", int), ("stride_bytes", int), ("block_bytes", int), ("blocks", int), ("heads", int),
                               ("heads_total", int), ("group", int)])
Publication = NamedTuple("Publication", [("lease", bytes), ("prompt", bytes), ("user", int), ("blocks", tuple[bytes, ...])])
Load = NamedTuple("Load", [("request_id", int), ("ticket", str), ("prompt", bytes), ("timeout_ms", int), ("user", int),
                           ("destination", tuple[bytes, ...])])
