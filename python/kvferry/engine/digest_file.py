"""The file of digests beside the weights. `kvferry identity DIR` makes it where the weights are packed, such as an
image's build. An engine believes it with the option `weights_digest` = `trust` alone, and reads the weights afterwards.

    {"version": 1, "files": {"model.safetensors": {"size": 123, "sha256": "..."}}}

A digest is bound to a file by the name in this very folder, and the size. Times, inodes and devices would bind closer,
but image layers, copies and volumes give new ones; what differs in content alone shows when the weights are read.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from .digests import SHA256, State, sha256, state_of

NAME = "kvferry-digests.json"
VERSION = 1
FILES_MAX = 4096
NAME_CHARACTERS_MAX = 255
BYTES_MAX = 4 << 20
SUFFIXES = (".safetensors", ".bin", ".pt")
"""Of files that engines load weights from."""
MODE = 0o644
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class DigestFileError(Exception):
    """It cannot be made, or not be believed; the text says why."""


class Entry(NamedTuple):
    size: int
    sha256: str


Entries = dict[str, Entry]
"""By the file's name."""


# ---- to make it ----

def make(folder: Path, say: Callable[[str], None]) -> tuple[Path, Entries]:
    """Reads all weights in the folder, and writes the file at once. DigestFileError, OSError: it is as it was before."""
    weights = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES)
    if not weights:
        raise DigestFileError(f"{folder} has no files of weights ({', '.join(SUFFIXES)})")
    if len(weights) > FILES_MAX:
        raise DigestFileError(f"{folder} has {len(weights)} files of weights, and {FILES_MAX} are the most")
    for file in weights:
        _check_place(file)
    entries: Entries = {}
    for file in weights:
        before = state_of(file)
        entries[file.name] = Entry(before.size, sha256(file))
        if state_of(file) != before:
            raise DigestFileError(f"{file} has changed while it was read: run this when nobody writes to it")
        say(f"{entries[file.name].sha256}  {file.name}")
    _write(folder / NAME, entries)
    return folder / NAME, entries


def _check_place(file: Path) -> None:
    target = file.resolve()
    if target.parent != file.parent.resolve():
        raise DigestFileError(f"{file} is a link to {target}, which is not in this folder: name the folder that the files "
                              "are in. A hub's cache needs no file of digests: its blobs have theirs for a name")
    if not target.is_file():
        raise DigestFileError(f"{file} is no file")


def _write(path: Path, entries: Entries) -> None:
    """A reader sees the old file or the new one, and so does who comes after a loss of power."""
    files = {name: entry._asdict() for name, entry in entries.items()}
    text = json.dumps({"version": VERSION, "files": files}, indent=1) + "\n"
    unnamed = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unnamed.open("x") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), MODE)
            os.fsync(file.fileno())
        unnamed.rename(path)
    finally:
        with suppress(FileNotFoundError):
            unnamed.unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# ---- to believe it ----

def load(folder: Path) -> Entries:
    """DigestFileError: there is none, or none to be believed."""
    path = folder / NAME
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise DigestFileError(f"{folder} has no {NAME}: make one with `kvferry identity {folder}`") from None
    except OSError as error:
        raise DigestFileError(f"{path} cannot be read: {error}") from error
    try:
        with os.fdopen(file, "rb") as opened:
            _check_writers(path, os.fstat(file), stat.S_ISREG)
            _check_writers(folder, folder.stat(), stat.S_ISDIR)
            content = opened.read(BYTES_MAX + 1)
    except OSError as error:
        raise DigestFileError(f"{path} cannot be read: {error}") from error
    if len(content) > BYTES_MAX:
        raise DigestFileError(f"{path} has more than {BYTES_MAX} bytes")
    return _parse(path, content)


def _check_writers(path: Path, found: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    """A user that may write there decides which weights these are."""
    if not is_kind(found.st_mode):
        raise DigestFileError(f"{path} is of the wrong kind")
    if found.st_uid not in (0, os.geteuid()):
        raise DigestFileError(f"{path} belongs to user {found.st_uid}, and neither to root nor to the engine's user")
    if found.st_mode & WRITABLE_BY_OTHERS:
        raise DigestFileError(f"{path} can be written to by others than its owner (chmod go-w)")


def _parse(path: Path, content: bytes) -> Entries:
    try:
        said = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DigestFileError(f"{path} is no JSON: {error}") from error
    version = said.get("version") if isinstance(said, dict) else None
    if version != VERSION:
        raise DigestFileError(f"{path} is of version {version!r}, and this kvferry knows {VERSION}")
    files = said.get("files")
    if not isinstance(files, dict) or len(files) > FILES_MAX or not all(map(_is_entry, files, files.values())):
        raise DigestFileError(f"{path} is not of the form that `kvferry identity` writes")
    return {name: Entry(entry["size"], entry["sha256"]) for name, entry in files.items()}


def _is_entry(name: str, entry: Any) -> bool:
    if "/" in name or len(name) > NAME_CHARACTERS_MAX or not isinstance(entry, dict):
        return False
    digest = entry.get("sha256")
    return type(entry.get("size")) is int and isinstance(digest, str) and SHA256.fullmatch(digest) is not None


def digest_in(entries: Entries, path: Path, state: State) -> str | None:
    """None: it does not name this file, or with another size, or the file is a link out of its folder."""
    entry = entries.get(path.name)
    if entry is None or entry.size != state.size or Path(state.path).parent != path.parent.resolve():
        return None
    return entry.sha256
