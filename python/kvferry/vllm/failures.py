"""What is said of a request that fails: from the library's verdict to the client's reply.

The engine's process writes it, complete but for HTTP's own words, so that an API server needs no configuration.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from kvferry import _kvferry

from .error_folder import EngineFile, errors_folder
from .log import logger

if TYPE_CHECKING:
    from kvferry._kvferry import Verdict

ERROR_TYPE = "kv_transfer_error"
BAD_REQUEST = 400


class Reply(NamedTuple):
    """What the client gets."""

    status: int
    headers: list[tuple[bytes, bytes]]
    error: dict[str, Any]

    def body(self) -> bytes:
        return json.dumps({"error": self.error}).encode()


def failure_text(verdict: Verdict, peer: str | None, http_status: int, mistake: str | None = None) -> bytes:
    """One failure as it lies in the engine's file. A `mistake` is the client's, whatever the engine's errors are."""
    _, status, _, _, _, retry_after_ms = verdict
    return json.dumps([BAD_REQUEST if mistake else http_status, retry_after_ms, _kvferry.status_name(status), peer,
                       mistake or _kvferry.status_meaning(status)]).encode()


def reply_of(text: bytes) -> Reply:
    http_status, retry_after_ms, reason, peer, message = json.loads(text)
    retryable = retry_after_ms > 0
    error = {"message": message, "type": ERROR_TYPE, "code": http_status, "reason": reason, "retryable": retryable,
             "peer": peer}
    if retryable:
        # The header of the standard counts in seconds; OpenAI's clients look for the finer one first.
        headers = [(b"retry-after", b"%d" % math.ceil(retry_after_ms / 1000)),
                   (b"retry-after-ms", b"%d" % retry_after_ms)]
    else:
        headers = [(b"x-should-retry", b"false")]
    return Reply(http_status, headers, error)


class Failures:
    """Brings failures to the API servers. Without it, and so where no file can be made, their clients get vLLM's own error."""

    def __init__(self, http_status: int) -> None:
        self._http_status = http_status
        self._file: EngineFile | None = None
        try:
            self._file = EngineFile(errors_folder())
        except OSError as error:
            logger.warning("kvferry: clients of failed requests will not hear why: %s", error)

    def record(self, request_id: str, verdict: Verdict, peer: str | None, mistake: str | None = None) -> None:
        """To be called before vLLM hears that the request has failed."""
        if self._file is not None:
            self._file.ring.write(request_id, failure_text(verdict, peer, self._http_status, mistake))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
