"""What the plugin adds to vLLM's API servers (or `--middleware kvferry.vllm.KVErrors`), and by which names these know an
engine's requests."""

from __future__ import annotations

import re

from kvferry.engine import errors, middleware

_ENGINE_ID = re.compile(r"(?:\d+_)?(.*?)(?:-[0-9a-f]{8})?", re.DOTALL)
"""vLLM's engine puts the choice's number before a request's id, and random digits after it."""
_PART = re.compile(r"(.*)[-_]\d+", re.DOTALL)  # a prompt of a request with several


class KVErrors(middleware.KVErrors):
    def request_id_of(self, scope: middleware.Message) -> str | None:
        metadata = scope["state"].get("request_metadata")
        return None if metadata is None else metadata.request_id

    def engine_of(self, scope: middleware.Message) -> str | None:
        from . import seam
        return seam.engine_of_server(scope["app"]) if "app" in scope else None

    def watch(self, scope: middleware.Message) -> None:
        from . import seam
        if "app" in scope:
            seam.watch_shutdown(scope["app"], self.front.server_ends)


class Failures(errors.Failures):
    def names_of(self, key: str) -> tuple[str, ...]:
        """The engine's request may be the server's, or a part of it."""
        match = _ENGINE_ID.fullmatch(key)
        whole = match[1] if match else key
        part = _PART.fullmatch(whole)
        return whole, part[1] if part else whole
