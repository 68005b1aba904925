"""The folder of results: a line of JSON for each row, written the moment there is one, and the logs as one archive. Whoever
copies it takes few files of limited size."""

from __future__ import annotations

import io
import json
import os
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

ARCHIVE_BYTES_MAX = 12 << 20
LOG_BYTES = (4 << 20, 256 << 10, 16 << 10)
"""Of each log the end: less where the archive would be too large."""


class Results:
    def __init__(self, out: Path, logs: Path):
        self.out, self.logs = out, logs
        self.begin = time.monotonic()
        self.lock = threading.Lock()
        out.mkdir(parents=True, exist_ok=True)
        logs.mkdir(parents=True, exist_ok=True)
        self.rows_fd = os.open(out / "rows.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.text_fd = os.open(out / "tables.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def add(self, part: str, **row: Any) -> None:
        line = json.dumps({"part": part, "at_s": round(time.monotonic() - self.begin, 1)} | row) + "\n"
        os.write(self.rows_fd, line.encode())

    def say(self, text: str) -> None:
        """What is in a row has been written before it is said."""
        with self.lock:
            os.write(self.text_fd, (text + "\n").encode())
            print(text, flush=True)

    def keep_logs(self) -> None:
        for size in LOG_BYTES:
            made = self._archive(size)
            if len(made) <= ARCHIVE_BYTES_MAX:
                break
        new = self.out / "logs.tgz.new"
        new.write_bytes(made)
        new.replace(self.out / "logs.tgz")

    def _archive(self, log_bytes: int) -> bytes:
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w:gz", compresslevel=3) as archive:
            for log in sorted(path for path in self.logs.rglob("*") if path.is_file()):
                end = end_of(log, log_bytes)
                entry = tarfile.TarInfo(f"logs/{log.relative_to(self.logs)}")
                entry.size, entry.mtime = len(end), int(log.stat().st_mtime)
                archive.addfile(entry, io.BytesIO(end))
        return made.getvalue()


def end_of(log: Path, size: int) -> bytes:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - size))
        return file.read()
