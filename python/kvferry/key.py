"""`kvferry key`: makes the shared key of a fleet (the option key_file), and names keys without showing them.

A file has a key on each line: the first is ours, the second is taken from others too, while a fleet changes from one to the
other (docs/security.md).
"""

from __future__ import annotations

import fcntl
import hmac
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

KEY_BYTES = 32
KEYS_MAX = 2
FILE_BYTES_MAX = 1024  # the library takes less
ID_BYTES = 8


class KeyFileError(Exception):
    """A file that is no key file, or is not to be written; the text says why, and the way out."""


def key_id(key: bytes) -> str:
    """The name of a key in handshakes and in logs: who has it cannot tell the key."""
    return hmac.digest(key, b"kvferry key id", "sha256")[:ID_BYTES].hex()


def keys_in(text: bytes) -> list[bytes]:
    return [line.rstrip() for line in text.split(b"\n") if line.strip()]


def read_keys(path: Path) -> list[bytes]:
    """Of a file that the library has taken, or will look at. OSError: it cannot be read."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK), "rb") as file:
        return keys_in(file.read(FILE_BYTES_MAX))


def make(path: Path) -> list[bytes]:
    """KeyFileError: there is a file already."""
    key = secrets.token_hex(KEY_BYTES).encode()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise KeyFileError(f"{path} is there already, and nothing is written over: give another name, or --add for a second key "
                        "in it") from error
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(key + b"\n")
        file.flush()
        os.fsync(descriptor)
    return [key]


def add(path: Path) -> list[bytes]:
    """The first step of a change of keys. What is in the file stays as it is. KeyFileError: it has no key, or two."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    with open(descriptor, "rb+", buffering=0) as file:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
            raise KeyFileError(f"{path} is not a file of mode 0600: others may read what is in it")
        text = file.read(FILE_BYTES_MAX) or b""
        keys = keys_in(text)
        if not 0 < len(keys) < KEYS_MAX:
            raise KeyFileError(f"{path} has {len(keys)} keys, and --add makes a second one beside the first")
        key = secrets.token_hex(KEY_BYTES).encode()
        file.write((b"" if text.endswith(b"\n") else b"\n") + key + b"\n")
        os.fsync(descriptor)
    return [*keys, key]


def run(path: Path, adds: bool, say: Callable[[str], object]) -> int:
    try:
        keys = add(path) if adds else make(path)
    except KeyFileError as error:
        say(f"kvferry key: {error}")
        return 2
    except OSError as error:
        say(f"kvferry key: {path}: {error.strerror}")
        return 2
    say(str(path.absolute()))
    for key, what in zip(keys, ("the key of its engines", "taken from others too")):
        say(f"{key_id(key)}  {what}")
    return 0
