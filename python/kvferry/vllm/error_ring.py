"""A mapped file with the last failures of one engine: its scheduler writes them, its API servers look them up.

A failure is written before vLLM hears that the request has failed, so it is there when the API server asks. A newer one
overwrites the oldest; a record that is just being overwritten does not match its checksum, and is none.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
import time
import zlib

RECORDS = 4096
"""Failures that a file remembers: as many as an engine may have loads (loads_max), should they all fail at once."""
RECORD_BYTES = 512
HEADER_BYTES = 4096
FILE_BYTES = HEADER_BYTES + RECORDS * RECORD_BYTES
MAGIC = b"kvferry errors 1"

_COUNT = struct.Struct("=Q")
_COUNT_AT = len(MAGIC)
_RECORD = struct.Struct("=QQ16s16sHxxI")
"""Number, monotonic time in ns, key of the request, key of what it is a part of, bytes of the text, checksum."""
TEXT_BYTES_MAX = RECORD_BYTES - _RECORD.size

_ENGINE_ID = re.compile(r"(?:\d+_)?(.*?)(?:-[0-9a-f]{8})?", re.DOTALL)
"""vLLM's engine puts the choice's number before a request's id, and random digits after it."""
_PART = re.compile(r"(.*)[-_]\d+", re.DOTALL)
"""A prompt of a request with several."""


def _key(request_id: str) -> bytes:
    return hashlib.blake2b(request_id.encode(errors="replace"), digest_size=16).digest()


def _keys(engine_id: str) -> tuple[bytes, bytes]:
    """Of the id that the API server knows: the engine's request may be the whole or a part of it."""
    match = _ENGINE_ID.fullmatch(engine_id)
    whole = match[1] if match else engine_id
    part = _PART.fullmatch(whole)
    return _key(whole), _key(part[1] if part else whole)


def _checksum(number: int, time_ns: int, whole: bytes, part: bytes, text: bytes) -> int:
    return zlib.crc32(_RECORD.pack(number, time_ns, whole, part, len(text), 0) + text)


def _offset(number: int) -> int:
    return HEADER_BYTES + number % RECORDS * RECORD_BYTES


class RingWriter:
    """`memory` is FILE_BYTES of zeros."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._count = 0
        memory[:len(MAGIC)] = MAGIC

    def write(self, engine_id: str, text: bytes) -> None:
        """ValueError: the text is longer than TEXT_BYTES_MAX."""
        if len(text) > TEXT_BYTES_MAX:
            raise ValueError(f"a failure's text has {len(text)} bytes, more than {TEXT_BYTES_MAX}")
        number, now_ns, (whole, part) = self._count, time.monotonic_ns(), _keys(engine_id)
        record = _RECORD.pack(number, now_ns, whole, part, len(text), _checksum(number, now_ns, whole, part, text))
        start = _offset(number)
        self._memory[start:start + len(record) + len(text)] = record + text
        self._count = number + 1
        _COUNT.pack_into(self._memory, _COUNT_AT, self._count)


class RingReader:
    """Looks at each record once, however many requests are asked for."""

    def __init__(self, memory: mmap.mmap) -> None:
        if len(memory) != FILE_BYTES or memory[:len(MAGIC)] != MAGIC:
            raise ValueError("not a file of this version")
        self._memory = memory
        self._seen = 0
        self._numbers: dict[bytes, int] = {}
        self._keys: list[tuple[bytes, bytes]] = [(b"", b"")] * RECORDS

    def find(self, request_id: str, since_ns: int) -> bytes | None:
        """The text of the last failure of a request of the API server, or of a part of it, since then."""
        self._catch_up()
        number = self._numbers.get(_key(request_id))
        record = self._read(number) if number is not None else None
        return record[3] if record is not None and record[0] >= since_ns else None

    def _catch_up(self) -> None:
        count = _COUNT.unpack_from(self._memory, _COUNT_AT)[0]
        for number in range(max(self._seen, count - RECORDS), count):
            record = self._read(number)
            if record is not None:
                self._remember(number, (record[1], record[2]))
        self._seen = count

    def _remember(self, number: int, keys: tuple[bytes, bytes]) -> None:
        for old in self._keys[number % RECORDS]:
            if self._numbers.get(old, number) <= number - RECORDS:
                del self._numbers[old]
        self._keys[number % RECORDS] = keys
        for key in keys:
            self._numbers[key] = number

    def _read(self, number: int) -> tuple[int, bytes, bytes, bytes] | None:
        """Time, keys and text of a record; None if it is not, or no longer, in the file."""
        start = _offset(number)
        data = self._memory[start:start + RECORD_BYTES]
        found, time_ns, whole, part, length, checksum = _RECORD.unpack_from(data)
        text = data[_RECORD.size:_RECORD.size + length]
        if found != number or checksum != _checksum(number, time_ns, whole, part, text):
            return None
        return time_ns, whole, part, text
